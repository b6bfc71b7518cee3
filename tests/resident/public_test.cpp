// The implementation `resident` through the public interface, against `reference` in float64 on the CPU.
//
//   resident_gpu_tests                      needs a GPU; without one it says so and exits with 77
//   resident_gpu_tests --compile sm_90a     fills the kernel cache with what it needs, on all cores; needs no
//   GPU
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "accuracy/fixture.h"
#include "cuda/backend.h"
#include "cuda/compile_for.h"
#include "gpu/support.h"
#include "model_data.h"
#include "properties/problem.h"
#include "warpweave/error.h"
#include "warpweave/io.h"

namespace warpweave::resident_test {
namespace {

using gpu_test::DeviceMemory;
using properties::Attention;
using properties::Dice;
using properties::rounded;
using properties::same_bits;
using properties::update_error;

// Layers with sequences of at most 32 tokens have four kernels (few and many sequences, with and without a
// mask), others two.
constexpr int kShortLayers = 7, kLayers = 23, kProblems = 24, kDeclinedLayers = 4;
constexpr int kLeastRun = 500, kMostKernels = 60;

struct LayerCase {
  Attention attention;
  Precision precision = Precision::bf16;
  std::int64_t longest = 32;  // of the sequences it is run on
};

// Options of a layer and the bucket of lengths that it is run in.
LayerCase layer_case(int index) {
  Dice dice(static_cast<std::uint64_t>(index) * 131 + 5);
  LayerCase c;
  Attention& a = c.attention;
  const bool is_short = index < kShortLayers;
  a.dim = is_short ? dice.pick<std::int64_t>({8, 16, 24, 32, 40, 64, 64, 72, 96, 128})
                   : dice.pick<std::int64_t>({24, 64, 72, 96, 128, 128, 160, 192, 256});
  a.heads = dice.pick<std::int64_t>({1, 2, 3, 4, 4, 5, 8});
  a.head_dim = is_short ? dice.pick<std::int64_t>({8, 16, 16, 24, 32})
                        : dice.pick<std::int64_t>({8, 16, 24, 32, 32, 40, 64, 112});
  properties::draw_options(a, dice, {"layer", "layer", "rms", "none"});
  c.precision = dice.chance(50) ? Precision::bf16 : Precision::fp16;
  c.longest = is_short ? dice.pick<std::int64_t>({16, 32, 32})
                       : dice.pick<std::int64_t>({48, 64, 64, 128, 128, 192, 256});
  if (a.dim > 128 || a.head_dim > 40) c.longest = std::min<std::int64_t>(c.longest, 128);
  if (a.dim > 192 || a.head_dim > 64) c.longest = std::min<std::int64_t>(c.longest, 64);
  return c;
}

LayerCase declined_case(int index) {
  LayerCase c;
  c.attention.dim = 32, c.attention.heads = 2, c.attention.head_dim = 16;
  if (index == 0) c.attention.head_dim = 12;
  if (index == 1) c.attention.dim = 20;
  if (index == 2) c.longest = 400;
  if (index == 3) c.precision = Precision::fp32;
  return c;
}

Model model(const LayerCase& c, int seed) {
  return properties::make_model(c.attention.dim, {c.attention.yaml()}, static_cast<std::uint64_t>(seed));
}

Shape grid(const LayerCase& c, std::int64_t batch, std::int64_t other, std::int64_t length) {
  return c.attention.axis == "row" ? Shape{batch, other, length} : Shape{batch, length, other};
}

std::int64_t length_in_bucket(const LayerCase& c, Dice& dice) {
  std::int64_t least = 1;
  for (const std::int64_t slot : {16, 32, 48, 64, 128, 192, 256, 300})
    if (slot < c.longest) least = slot + 1;
  return least + dice.below(c.longest - least + 1);
}

// The first two problems of a short layer are more sequences than the kernel for few of them takes.
Shape shape(const LayerCase& c, int problem, Dice& dice) {
  const std::int64_t length = problem < 4 ? c.longest : length_in_bucket(c, dice);
  const std::int64_t other = 1 + dice.below(1 + 256 / c.longest), batch = 1 + dice.below(2);
  return c.longest <= 32 && problem < 2 ? grid(c, 5, 223, length) : grid(c, batch, other, length);
}

EngineOptions options(Precision precision, const std::string& plan = "resident") {
  EngineOptions o;
  o.device = Device::cuda(0);
  o.precision = precision, o.plan = plan, o.strict = true;
  return o;
}

// The rounding of y alone, which no implementation avoids, comes to most of this where the update is small;
// resident_harness compares with PyTorch's roundings instead.
double limit(Precision precision) { return precision == Precision::bf16 ? 1.5e-2 : 2e-3; }

TEST(Resident, RandomProblemsAgreeWithFloat64) {
  int run = 0, masked = 0, declined = 0;
  double worst[2] = {0, 0};
  for (int i = 0; i < kLayers + kDeclinedLayers; ++i) {
    const LayerCase c = i < kLayers ? layer_case(i) : declined_case(i - kLayers);
    const Model m = model(c, i);
    const Engine gpu(m, options(c.precision));
    const Engine cpu = properties::cpu_engine(m, "reference", Precision::fp64, 0);
    Dice dice(static_cast<std::uint64_t>(i));
    for (int k = 0; k < kProblems; ++k) {
      const Shape s = shape(c, k, dice);
      const std::uint64_t seed = static_cast<std::uint64_t>(i * kProblems + k);
      const Tensor x = rounded(properties::random_grid(s, c.attention.dim, seed), c.precision);
      const Tensor mask = properties::random_mask(s, seed);
      const Tensor* used = k % 2 ? &mask : nullptr;
      const auto y = properties::run_unless_declined(gpu, x, used);
      if (!y) {
        ++declined;
        EXPECT_GE(i, kLayers) << c.attention.yaml();
        continue;
      }
      ++run, masked += used != nullptr;
      const Tensor exact = cpu.run(x, used);
      const double error = update_error(*y, exact, x, c.attention.residual);
      worst[c.precision == Precision::fp16] = std::max(worst[c.precision == Precision::fp16], error);
      EXPECT_LE(error, limit(c.precision))
          << c.attention.yaml() << " dim " << c.attention.dim << " " << to_string(c.precision) << " on ["
          << s.batch << ", " << s.rows << ", " << s.columns << "]" << (used ? " masked" : "");
    }
  }
  std::printf("random problems: %d run (%d with a mask), %d declined; worst error bf16 %.2e, fp16 %.2e\n",
              run, masked, declined, worst[0], worst[1]);
  EXPECT_GE(run, kLeastRun);
  EXPECT_EQ(declined, kDeclinedLayers * kProblems);
}

// Every accuracy configuration whose layers are all of its kind.
TEST(Resident, AccuracyConfigurations) {
  int run = 0, declined = 0;
  for (const accuracy::Case& c : accuracy::load_cases()) {
    if (!c.narrow) continue;
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      const Engine e(accuracy::load_model(c), options(precision));
      try {
        e.plan(c.shape);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::device) << error.what();
        ++declined;
        continue;
      }
      ++run;
      const Tensor x = accuracy::make_input(c, e.model().input_channels());
      const std::optional<Tensor> mask = accuracy::make_mask(c);
      const Tensor y = e.run(x, mask ? &*mask : nullptr);
      const accuracy::Errors errors = accuracy::compare(c, accuracy::load_expected(c), y);
      EXPECT_LE(errors.values, accuracy::limit(c, precision)) << c.name << " " << to_string(precision);
      EXPECT_LE(errors.cells, 3 * accuracy::limit(c, precision)) << c.name << " " << to_string(precision);
    }
  }
  std::printf("accuracy configurations: %d run, %d declined\n", run, declined);
  EXPECT_GE(run, 30);
}

// Few sequences and many are run by different kernels: the bits must not tell.
TEST(Resident, ASampleKeepsItsBitsInAnyBatch) {
  const Model m = properties::make_block(64, 4);
  const Tensor x = properties::random_grid({96, 32, 32}, 64, 3);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Engine e(m, options(precision));
    const Tensor all = e.run(x);
    for (const std::int64_t batch : {1, 4, 40})
      EXPECT_TRUE(same_bits(e.run(properties::samples(x, 0, batch)), properties::samples(all, 0, batch)))
          << batch;
  }
}

// The rest holds for every layer of the random problems.
void for_each_layer(const std::function<void(const LayerCase&, const Model&, const Engine&, int)>& body) {
  for (int i = 0; i < kLayers; ++i) {
    const LayerCase c = layer_case(i);
    SCOPED_TRACE(c.attention.yaml() + " dim " + std::to_string(c.attention.dim) + " " +
                 std::string(to_string(c.precision)));
    const Model m = model(c, i);
    body(c, m, Engine(m, options(c.precision)), i);
  }
}

TEST(Resident, RepeatsItsBitsAloneAndInABatch) {
  for_each_layer([](const LayerCase& c, const Model&, const Engine& e, int i) {
    const Shape s = grid(c, 3, 5, c.longest);
    const Tensor x = properties::random_grid(s, c.attention.dim, static_cast<std::uint64_t>(i)),
                 mask = properties::random_mask(s, 2), one = properties::samples(mask, 1, 1);
    for (const bool masked : {false, true}) {
      const Tensor y = e.run(x, masked ? &mask : nullptr);
      EXPECT_TRUE(same_bits(y, e.run(x, masked ? &mask : nullptr)));
      EXPECT_TRUE(same_bits(properties::samples(y, 1, 1),
                            e.run(properties::samples(x, 1, 1), masked ? &one : nullptr)));
    }
  });
}

TEST(Resident, RowsAndColumnsGiveTheSameBits) {
  for_each_layer([](const LayerCase& c, const Model&, const Engine& e, int i) {
    LayerCase other = c;
    other.attention.axis = c.attention.axis == "row" ? "column" : "row";
    const Engine f(model(other, i), options(c.precision));
    const Tensor x = properties::random_grid(grid(c, 2, 3, c.longest), c.attention.dim, 5);
    EXPECT_TRUE(same_bits(properties::transposed(e.run(x)), f.run(properties::transposed(x))));
  });
}

TEST(Resident, AMaskedTailIsAShorterSequence) {
  for_each_layer([](const LayerCase& c, const Model&, const Engine& e, int i) {
    const std::int64_t kept = std::max<std::int64_t>(1, c.longest - 3);
    const Shape s = grid(c, 2, 3, c.longest), shorter = grid(c, 2, 3, kept);
    const Tensor x = properties::random_grid(s, c.attention.dim, static_cast<std::uint64_t>(i));
    Tensor mask(DType::u8, {s.batch, s.rows, s.columns}), all(DType::u8, {2, shorter.rows, shorter.columns});
    std::memset(all.data(), 1, all.bytes());
    const auto keys = mask.values<std::uint8_t>();
    const bool row = c.attention.axis == "row";
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const auto cell = static_cast<std::int64_t>(k);
      keys[k] = (row ? cell % s.columns : cell / s.columns % s.rows) < kept;
    }
    const Tensor y = e.run(x, &mask), z = e.run(properties::corner(x, shorter.rows, shorter.columns), &all);
    EXPECT_LT(properties::difference(properties::corner(y, shorter.rows, shorter.columns), z), 1e-6);
  });
}

// Not a bit of a valid cell depends on what masked cells hold: not numbers, or rows that the norm treats with
// care.
TEST(Resident, WhatIsInMaskedCellsReachesNoOther) {
  for_each_layer([](const LayerCase& c, const Model&, const Engine& e, int i) {
    const Shape s = grid(c, 2, 3, c.longest);
    const std::int64_t dim = c.attention.dim;
    const Tensor clean = properties::random_grid(s, dim, static_cast<std::uint64_t>(i)),
                 mask = properties::random_mask(s, static_cast<std::uint64_t>(i), 70);
    const auto keys = mask.values<std::uint8_t>();
    const Tensor expected = e.run(clean, &mask);
    const auto want = expected.values<float>();
    for (const float poison : {NAN, INFINITY, 1000.0f}) {
      Tensor x = clean;
      const auto values = x.values<float>();
      for (std::size_t k = 0; k < values.size(); ++k)
        if (!keys[k / dim]) values[k] = poison;
      const Tensor y = e.run(x, &mask);
      const auto got = y.values<float>();
      int wrong = 0;
      for (std::size_t k = 0; k < got.size(); ++k) wrong += keys[k / dim] && !(got[k] == want[k]);
      EXPECT_EQ(wrong, 0) << poison;
    }
  });
}

TEST(Resident, MayWriteOverItsInput) {
  for_each_layer([](const LayerCase& c, const Model&, const Engine& e, int) {
    const Shape s = grid(c, 2, 5, c.longest);
    const DType type = storage_type(c.precision);
    const Tensor x = properties::random_grid(s, c.attention.dim, 9).to(type);
    const Tensor expected = e.run(x, nullptr, type);
    Session session = e.prepare(s);
    const DeviceMemory memory(x);
    REQUIRE_CUDA(cudaDeviceSynchronize());
    session.run({memory.data(), type, session.input_shape()}, {memory.data(), type, session.output_shape()});
    REQUIRE_CUDA(cudaDeviceSynchronize());
    Tensor y(type, x.shape());
    memory.copy_to(y);
    EXPECT_TRUE(same_bits(y, expected));
  });
}

TEST(Resident, SaysWhatItDeclines) {
  const Model m = properties::make_model(20, {"axial_attention: {axis: row, heads: 2, head_dim: 8}"});
  try {
    Engine(m, options(Precision::bf16)).prepare({1, 4, 4});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("dim 20 is not a multiple of 8"), std::string::npos) << e.what();
  }
}

// The scale of the scores is folded into weights of Q and K, which fp16 cannot hold here; other
// implementations scale scores.
Model beyond_f16() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("warpweave-resident-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const auto config = folder / "model.yaml", file = folder / "weights.safetensors";
  std::ofstream(config)
      << "name: test\ninput: {dim: 16}\nlayers:\n  - axial_attention: {axis: row, heads: 2, "
         "scale: 1e6, tensors: \"{name}\"}\n";
  std::map<std::string, Tensor> tensors;
  const Model random = Model::random(config, 3);
  for (const auto& [name, tensor] : random.data()->weights[0].all())
    tensors.emplace(name, tensor.to(DType::f32));
  const auto qkv = tensors.at("qkv.weight").values<float>();
  for (std::size_t i = 0; i < qkv.size() / 3 * 2; ++i) qkv[i] *= 200;
  save_safetensors(file, tensors);
  Model model = Model::load(config, file);
  std::filesystem::remove_all(folder);
  return model;
}

TEST(Resident, LeavesWeightsBeyondTheRangeOfF16ToOthers) {
  const Model m = beyond_f16();
  const Shape s{3, 5, 1};  // a single key has all the weight, however large its score
  const Engine e(m, {.device = Device::cuda(0), .precision = Precision::fp16});
  const std::vector<PlannedLayer> planned = e.plan(s);
  ASSERT_EQ(planned.size(), 1u);
  EXPECT_NE(planned[0].implementation, "resident");
  std::string reason;
  for (const auto& [name, why] : planned[0].declined)
    if (name == "resident") reason = why;
  EXPECT_NE(reason.find("leaves the range of fp16"), std::string::npos) << reason;
  const Tensor x = properties::random_grid(s, 16, 3).to(DType::f16).to(DType::f32);
  const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64).run(x);
  EXPECT_LT(update_error(e.run(x), exact, x, true), 2e-3);
  try {
    Engine(m, options(Precision::fp16)).prepare(s);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_NE(std::string(error.what()).find("leaves the range of fp16"), std::string::npos) << error.what();
  }
  EXPECT_EQ(Engine(m, options(Precision::bf16)).plan(s)[0].implementation, "resident");
}

// ---- compiling ahead

struct Work {
  Model model;
  Shape shape;
  Precision precision;
  std::string plan = "resident";
};

// Specialisations that the work needs, and compiles; none where resident declines.
std::vector<std::string> compile(const Work& w, const std::string& architecture) {
  std::vector<std::string> names;
  try {
    for (const auto& k :
         cuda::compile_for(w.model.data()->graph, w.shape, architecture, options(w.precision, w.plan)))
      if (k.spec.file.starts_with("resident/")) names.push_back(k.spec.expression);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::device) throw;  // declined
  }
  return names;
}

std::vector<Work> random_work() {
  std::vector<Work> list;
  for (int i = 0; i < kLayers; ++i) {
    const LayerCase c = layer_case(i);
    list.push_back({model(c, i), grid(c, 1, 1, c.longest), c.precision});
  }
  return list;
}

int compile_all(const std::string& architecture) {
  std::vector<Work> list = random_work();
  const std::size_t random = list.size();
  list.push_back({beyond_f16(), {3, 5, 1}, Precision::fp16, "composed"});
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    list.push_back({properties::make_block(64, 4), {1, 32, 32}, precision});
    for (const auto& c : accuracy::load_cases())
      if (c.narrow) list.push_back({accuracy::load_model(c), c.shape, precision});
  }
  std::vector<std::vector<std::string>> names(list.size());
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
      threads.emplace_back([&] {
        for (std::size_t i = next++; i < list.size(); i = next++) names[i] = compile(list[i], architecture);
      });
  }
  std::set<std::string> all, of_random;
  for (std::size_t i = 0; i < list.size(); ++i) {
    all.insert(names[i].begin(), names[i].end());
    if (i < random) of_random.insert(names[i].begin(), names[i].end());
  }
  std::printf("%zu specialisations, %zu of them for the random problems\n", all.size(), of_random.size());
  return of_random.size() <= kMostKernels ? 0 : 1;
}

}  // namespace
}  // namespace warpweave::resident_test

int main(int argc, char** argv) {
  using namespace warpweave;
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--compile") return resident_test::compile_all(argv[2]);
  if (const std::string reason = cuda::unusable(0); !reason.empty()) {
    std::printf("GPU tests skipped: %s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
