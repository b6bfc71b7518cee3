// Memory refused at the n-th allocation, for every n, of every call of the public headers: an Error(device)
// each time, nothing leaked, nothing lost, and the next call works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <new>
#include <optional>

#include "formats/support.h"
#include "reliability/refusal.h"
#include "warpweave/warpweave.h"

namespace warpweave::reliability {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// Every type of layer, in a small model.
constexpr char kModel[] = R"(
name: small
input: {dim: 3}
layers:
  - patch_embed: {patch: 2, channels: 3, dim: 8}
  - position_embedding: {rows: 4, columns: 4}
  - repeat:
      count: 2
      layers:
        - axial_attention: {axis: row, heads: 2, rope: {style: half}, tensors: "l{i}.{name}"}
        - axial_attention: {axis: column, heads: 2, norm: rms, causal: true, tensors: "m{i}.{name}"}
        - feed_forward: {hidden: 12, tensors: "f{i}.{name}"}
  - norm: {}
  - linear: {out: 8}
  - patch_unembed: {patch: 2, channels: 3}
)";

// Runs `action` with the n-th allocation refused, n = 0, 1, ... until it needs no more than n; `after`
// follows each. Returns the number of allocations.
long refuse_each(Refuse how, const std::function<void()>& action, const std::function<void()>& after = {}) {
  action();  // what a process takes once, it has
  for (long n = 0; n < 100'000; ++n) {
    const long before = live_blocks();
    bool thrown = false;
    std::optional<ErrorCode> code;
    char message[200] = "";  // no memory of its own
    {
      const Refusal refusal(n, how);
      try {
        action();
      } catch (const Error& e) {
        thrown = true;
        code = e.code();
        std::strncpy(message, e.what(), sizeof message - 1);
      } catch (const std::bad_alloc&) {  // where not even the message of an Error can be had
        thrown = true;
      }
    }
    EXPECT_EQ(live_blocks(), before) << "leaked at allocation " << n;
    if (!refused_any()) {
      EXPECT_FALSE(thrown) << message;
      return n;
    }
    if (code) {
      EXPECT_EQ(*code, ErrorCode::device) << message;
      EXPECT_THAT(message, AnyOf(HasSubstr("out of memory"), HasSubstr("cannot start thread"),
                                 HasSubstr("Cannot allocate memory")))
          << "at allocation " << n;
    } else if (thrown) {
      EXPECT_EQ(how, Refuse::for_good) << "no Error at allocation " << n;
    }
    if (after) after();
    if (::testing::Test::HasFailure()) return -1;
  }
  ADD_FAILURE() << "no end of allocations";
  return -1;
}

class MemoryRefused : public ::testing::TestWithParam<Refuse> {
 protected:
  MemoryRefused() {
    testing::write_bytes(config, kModel);
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, shape] :
         std::initializer_list<std::pair<std::string, std::vector<std::int64_t>>>{{"norm.weight", {8}},
                                                                                  {"norm.bias", {8}},
                                                                                  {"qkv.weight", {24, 8}},
                                                                                  {"out.weight", {8, 8}},
                                                                                  {"out.bias", {8}}}) {
      tensors["row_" + name] = ones(shape);
      tensors["col_" + name] = ones(shape).to(DType::bf16);
    }
    save_safetensors(weights, tensors);
    testing::write_bytes(block,
                         "name: block\ninput: {dim: 8}\nlayers:\n"
                         "  - axial_attention: {axis: row, heads: 2, tensors: \"row_{name}\"}\n"
                         "  - axial_attention: {axis: column, heads: 2, tensors: \"col_{name}\"}\n");
  }
  static Tensor ones(std::vector<std::int64_t> shape) {
    Tensor t(DType::f32, std::move(shape));
    for (float& v : t.values<float>()) v = 1;
    return t;
  }
  static EngineOptions options(const char* plan, int threads = 2) {
    return {.device = Device::cpu(), .plan = plan, .threads = threads};
  }
  long each(const std::function<void()>& action, const std::function<void()>& after = {}) const {
    return refuse_each(GetParam(), action, after);
  }

  TemporaryFolder folder;
  const std::filesystem::path config = folder / "small.yaml", block = folder / "block.yaml",
                              weights = folder / "w.safetensors";
};
INSTANTIATE_TEST_SUITE_P(At, MemoryRefused, ::testing::Values(Refuse::once, Refuse::for_good),
                         [](const auto& test) {
                           return test.param == Refuse::once ? "OneAllocation" : "AllFromOneOn";
                         });

TEST_P(MemoryRefused, LoadingAModel) {
  EXPECT_GT(each([&] { Model::load(block, weights); }), 50);
  EXPECT_GT(each([&] { Model::random(config, 1); }), 200);
}

TEST_P(MemoryRefused, LoadingAModelOfSeparateTensors) {
  testing::write_bytes(
      block,
      "name: block\ninput: {dim: 4}\nlayers: [{axial_attention: {axis: row, heads: 2, norm: none, "
      "tensors: '{name}'}}]\n");
  std::map<std::string, Tensor> tensors;
  for (const char* name : {"q.weight", "k.weight", "v.weight", "out.weight"})
    tensors[name] = ones({4, 4}).to(DType::bf16);
  tensors["out.bias"] = ones({4});
  save_safetensors(weights, tensors);
  EXPECT_GT(each([&] { Model::load(block, weights); }), 50);
}

TEST_P(MemoryRefused, TensorFiles) {
  const Tensor tensor = ones({2, 3});
  for (const char* name : {"x.npy", "x.safetensors"}) {
    SCOPED_TRACE(name);
    const auto path = folder / name;
    save_tensor(path, tensor);
    const std::size_t files = folder.entries();
    EXPECT_GT(each([&] { load_tensor(path); }), 3);
    EXPECT_GT(each([&] { save_tensor(path, tensor); },
                   [&] {
                     EXPECT_EQ(load_tensor(path).elements(), 6);  // of the write before
                     EXPECT_EQ(folder.entries(), files);
                   }),
              3);
  }
}

TEST_P(MemoryRefused, MakingAnEngine) {
  const Model model = Model::load(block, weights);
  EXPECT_GT(each([&] { Engine(model, options("auto")); }), 1);
  EXPECT_GT(each([&] { Engine(model, options("auto", 5)); }), 4);
}

TEST_P(MemoryRefused, PlanningAndPreparing) {
  const Model model = Model::random(config, 1);
  const Shape shape{2, 8, 6};
  for (const char* plan : {"auto", "reference"}) {
    SCOPED_TRACE(plan);
    const Engine shared(model, options(plan));
    EXPECT_GT(each([&] { shared.plans(); }), 0);
    EXPECT_GT(each([&] { shared.plan(shape); }), 20);
    EXPECT_GT(each([&] { model.output_shape(shape); }), 0);
    // With packed weights that are new each time; a refused prepare leaves an engine that can prepare.
    const Tensor x = ones({2, 8, 6, 3});
    const Tensor expected = shared.run(x);
    EXPECT_GT(each([&] { Engine(model, options(plan, 1)).prepare(shape); }), 50);
    const Engine engine(model, options(plan));
    long refused = 0;
    for (;; ++refused) {
      const Refusal refusal(refused, GetParam());
      try {
        engine.prepare(shape);
      } catch (const std::exception&) {
      }
      if (!refused_any()) break;
    }
    EXPECT_GT(refused, 20);
    const Tensor y = engine.run(x);
    EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.bytes()), 0);
  }
}

TEST_P(MemoryRefused, Running) {
  const Model model = Model::random(config, 1);
  const Tensor x = ones({2, 8, 6, 3});
  for (const char* plan : {"auto", "reference"}) {
    SCOPED_TRACE(plan);
    const Engine engine(model, options(plan));
    const Tensor expected = engine.run(x);
    EXPECT_GT(each([&] { engine.run(x); },
                   [&] {
                     const Tensor y = engine.run(x);
                     EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.bytes()), 0);
                   }),
              20);
    // One thread: the refusals are this thread's.
    const Engine alone(model, options(plan, 1));
    Session session = alone.prepare({2, 8, 6});
    Tensor y = x;
    const long needed = each([&] { session.run(view(x), view(y)); });
    EXPECT_EQ(needed > 0, std::string(plan) == "reference") << "only the reference allocates in a run";
    session.run(view(x), view(y));
    EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.bytes()), 0);
    EXPECT_GT(each([&] { session.explain(); }), 10);
  }
}

// All of it in one go, as a program does it, with the output over the file of the input.
TEST_P(MemoryRefused, AWholeSmallRun) {
  const auto input = folder / "x.npy";
  const Tensor x = ones({1, 3, 4, 8});
  save_tensor(input, x);
  const std::size_t files = folder.entries();
  for (const char* plan : {"auto", "reference"}) {
    SCOPED_TRACE(plan);
    const auto output = folder / (std::string("y-") + plan + ".npy");
    save_tensor(output, x);
    EXPECT_GT(each(
                  [&] {
                    const Engine engine(Model::load(block, weights), options(plan));
                    save_tensor(output, engine.run(load_tensor(input)));
                  },
                  [&] {
                    EXPECT_EQ(load_tensor(output).elements(), 96);
                    EXPECT_EQ(folder.entries(), files + (std::string(plan) == "auto" ? 1 : 2));
                  }),
              200);
  }
}

TEST(MemoryRefusedHere, InMallocToo) {
  if (!refuses_malloc()) GTEST_SKIP() << "a sanitizer has its own malloc; operator new is refused";
  const Refusal refusal(0, Refuse::once);
  void* const p = std::malloc(10);
  EXPECT_EQ(p, nullptr);
  std::free(p);
}

}  // namespace
}  // namespace warpweave::reliability
