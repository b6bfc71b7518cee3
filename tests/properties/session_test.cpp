// The promises of Engine and Session: interface types, aliasing, threads, reuse, and errors in words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>

#include "properties/problem.h"

namespace warpweave::properties {
namespace {

using testing::HasSubstr;

// The message of the Error that `call` throws, after checking its code.
template <class Call>
std::string error_of(const Call& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

const Shape kShape{2, 5, 7};

class SessionTest : public testing::TestWithParam<std::string> {
 protected:
  Engine engine(const Model& model, Precision precision = Precision::fp32) const {
    return cpu_engine(model, GetParam(), precision);
  }
  // Layers that keep, and that change, the number of channels, of every kind.
  std::vector<Model> models() const {
    return {
        make_block(),
        make_model(16, {"axial_attention: {axis: column, heads: 2, residual: false}"}),
        make_model(16, {"feed_forward: {hidden: 40}"}),
        make_model(16, {"norm: {kind: rms}"}),
        make_model(16, {"linear: {out: 16}"}),
        make_model(16, {"linear: {out: 24}", "axial_attention: {axis: row, heads: 4}", "linear: {out: 16}"}),
        make_model(
            16, {"position_embedding: {rows: 8, columns: 8}", "linear: {out: 16, bias: false}", "norm: {}"}),
    };
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, SessionTest, testing::ValuesIn(plans()),
                         [](const auto& test) { return test.param; });

TEST_P(SessionTest, OutputMayAliasInput) {
  for (const Model& model : models()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const Engine e = engine(model);
      const Tensor x = random_grid(kShape, 16, 1).to(type);
      const Tensor expected = run(e, x, nullptr, type);
      Session session = e.prepare(kShape);
      Tensor both = x;
      session.run(view(std::as_const(both)), view(both));
      EXPECT_TRUE(same_bits(both, expected)) << session.explain();
    }
  }
}

TEST_P(SessionTest, InputIsNotWritten) {
  for (const Model& model : models()) {
    const Tensor x = random_grid(kShape, 16, 2);
    const Tensor before = x;
    run(engine(model), x);
    EXPECT_TRUE(same_bits(x, before));
  }
}

// A narrow input is its float32 values; a narrow output the rounded float32 result.
TEST_P(SessionTest, InterfaceTypesConvertAtTheEdges) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    for (const Model& model : models()) {
      const Engine e = engine(model, precision);
      for (const DType in : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
        const Tensor x = random_grid(kShape, 16, 3).to(in);
        const Tensor y = run(e, x.to(DType::f32));
        for (const DType out : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
          EXPECT_TRUE(same_bits(run(e, x, nullptr, out), y.to(out)))
              << to_string(precision) << ": " << to_string(in) << " to " << to_string(out);
        }
      }
    }
  }
}

TEST_P(SessionTest, ASessionKeepsNothingOfTheRunBefore) {
  const Engine e = engine(make_block());
  const Tensor x = random_grid(kShape, 16, 4), other = random_grid(kShape, 16, 5);
  const Tensor mask = random_mask(kShape, 4);
  const Tensor plain = run(e, x), masked = run(e, x, &mask);
  EXPECT_FALSE(same_bits(plain, masked));
  Session session = e.prepare(kShape);
  Tensor y = x;
  session.run(view(other), view(y), {.mask = mask_view(mask)});
  session.run(view(x), view(y));
  EXPECT_TRUE(same_bits(y, plain));
  session.run(view(x), view(y), {.mask = mask_view(mask)});
  EXPECT_TRUE(same_bits(y, masked));
}

TEST_P(SessionTest, AMaskOfBooleansIsAMask) {
  const Engine e = engine(make_block());
  const Tensor x = random_grid(kShape, 16, 12), bytes = random_mask(kShape, 12);
  Tensor booleans(DType::boolean, bytes.shape());
  for (std::size_t k = 0; k < bytes.values<std::uint8_t>().size(); ++k) {
    booleans.values<std::uint8_t>()[k] = bytes.values<std::uint8_t>()[k] != 0;
  }
  EXPECT_TRUE(same_bits(run(e, x, &booleans), run(e, x, &bytes)));
  error_of([&] { mask_view(x); }, ErrorCode::input);
  error_of([&] { mask_view(Tensor(DType::f32, {2, 5, 7})); }, ErrorCode::input);
}

TEST_P(SessionTest, TwoSessionsOfOneEngineRunInTwoThreads) {
  const Engine e = cpu_engine(make_block(24, 3), GetParam(), Precision::fp32, 3);
  const Shape shapes[] = {{1, 17, 13}, {2, 9, 21}, {1, 4, 30}};
  std::vector<Tensor> expected;
  for (const Shape& s : shapes) expected.push_back(run(e, random_grid(s, 24, 6)));
  std::vector<std::thread> threads;
  std::vector<int> wrong(std::size(shapes), 0);
  for (std::size_t t = 0; t < std::size(shapes); ++t) {
    threads.emplace_back([&, t] {
      const Tensor x = random_grid(shapes[t], 24, 6);
      Session session = e.prepare(shapes[t]);
      for (int i = 0; i < 25; ++i) {
        Tensor y(DType::f32, x.shape());
        session.run(view(x), view(y));
        wrong[t] += !same_bits(y, expected[t]);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST_P(SessionTest, EngineRunGivesTheBitsOfASession) {
  const Engine e = engine(make_block());
  const Tensor x = random_grid(kShape, 16, 7), mask = random_mask(kShape, 7);
  EXPECT_TRUE(same_bits(e.run(x), run(e, x)));
  EXPECT_TRUE(same_bits(e.run(x, &mask, DType::bf16), run(e, x, &mask, DType::bf16)));
}

TEST_P(SessionTest, ProgressCountsTheLayers) {
  const Engine e = engine(make_model(16, {"norm: {}", "feed_forward: {hidden: 8}", "norm: {}"}));
  Session session = e.prepare(kShape);
  const Tensor x = random_grid(kShape, 16, 8);
  Tensor y = x;
  std::vector<int> done;
  session.run(view(x), view(y), {.progress = [&](int i, int all) {
                EXPECT_EQ(all, 3);
                done.push_back(i);
              }});
  ASSERT_FALSE(done.empty());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 3);
}

TEST_P(SessionTest, Tf32OnTheCpuComputesFp32AndSaysSo) {
  const Model model = make_block();
  const Tensor x = random_grid(kShape, 16, 9);
  const Engine e = engine(model, Precision::tf32);
  EXPECT_THAT(e.notice(), HasSubstr("tf32"));
  EXPECT_TRUE(same_bits(run(e, x), run(engine(model), x)));
}

TEST_P(SessionTest, NarrowPrecisionsRound) {
  const Model model = make_block();
  const Tensor x = random_grid(kShape, 16, 10);
  const Tensor y = run(engine(model), x);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Tensor narrow = run(engine(model, precision), x);
    EXPECT_GT(difference(narrow, y), 1e-5);
    EXPECT_TRUE(same_bits(narrow.to(storage_type(precision)).to(DType::f32), narrow))
        << "the stored grid is rounded";
  }
}

// ------------------------------------------------------------------ errors

struct Wrong {
  const char* name;
  ErrorCode code;
  std::vector<std::string> words;
  void (*call)(Session&, const Tensor& x, Tensor& y, const Tensor& mask);
};

class RefusedRun : public testing::TestWithParam<Wrong> {};

TEST_P(RefusedRun, NamesWhatIsWrong) {
  const Engine e = cpu_engine(make_block(), "auto");
  Session session = e.prepare(kShape);
  const Tensor x = random_grid(kShape, 16, 11), mask = random_mask(kShape, 11);
  Tensor y = x;
  const std::string message = error_of([&] { GetParam().call(session, x, y, mask); }, GetParam().code);
  for (const std::string& word : GetParam().words) EXPECT_THAT(message, HasSubstr(word));
  EXPECT_TRUE(same_bits(y, x)) << "a refused run writes nothing";
  session.run(view(x), view(y));  // and leaves the session usable
  EXPECT_TRUE(same_bits(y, run(e, x)));
}

constexpr ErrorCode kInput = ErrorCode::input;
const Wrong kWrong[] = {
    {"input_batch",
     kInput,
     {"input", "[3, 5, 7, 16]", "[2, 5, 7, 16]"},
     [](Session& s, const Tensor&, Tensor& y, const Tensor&) {
       const Tensor other = random_grid({3, 5, 7}, 16, 1);
       s.run(view(other), view(y));
     }},
    {"input_channels",
     kInput,
     {"input", "[2, 5, 7, 8]"},
     [](Session& s, const Tensor&, Tensor& y, const Tensor&) {
       const Tensor other = random_grid(kShape, 8, 1);
       s.run(view(other), view(y));
     }},
    {"output_rows_and_columns_swapped",
     kInput,
     {"output", "[2, 7, 5, 16]"},
     [](Session& s, const Tensor& x, Tensor&, const Tensor&) {
       Tensor other(DType::f32, {2, 7, 5, 16});
       s.run(view(x), view(other));
     }},
    {"input_type",
     kInput,
     {"input", "uint8"},
     [](Session& s, const Tensor&, Tensor& y, const Tensor&) {
       const Tensor other(DType::u8, {2, 5, 7, 16});
       s.run(view(other), view(y));
     }},
    {"output_type",
     kInput,
     {"output", "bool"},
     [](Session& s, const Tensor& x, Tensor&, const Tensor&) {
       Tensor other(DType::boolean, {2, 5, 7, 16});
       s.run(view(x), view(other));
     }},
    {"null_input",
     kInput,
     {"input", "null"},
     [](Session& s, const Tensor&, Tensor& y, const Tensor&) {
       s.run({nullptr, DType::f32, {2, 5, 7, 16}}, view(y));
     }},
    {"null_output",
     kInput,
     {"output", "null"},
     [](Session& s, const Tensor& x, Tensor&, const Tensor&) {
       s.run(view(x), GridView{nullptr, DType::f32, {2, 5, 7, 16}});
     }},
    {"mask_shape",
     kInput,
     {"mask", "[2, 7, 5]", "[2, 5, 7]"},
     [](Session& s, const Tensor& x, Tensor& y, const Tensor& mask) {
       const Tensor other = transposed(mask);
       s.run(view(x), view(y), {.mask = mask_view(other)});
     }},
    {"alias_of_another_type",
     kInput,
     {"type"},
     [](Session& s, const Tensor& x, Tensor& y, const Tensor&) {
       s.run(view(x), view(y), {});  // would be fine
       std::memcpy(y.data(), x.data(), x.bytes());
       s.run({y.data(), DType::f32, y.grid()}, GridView{y.data(), DType::bf16, y.grid()});
     }},
    {"stream_on_the_cpu",
     kInput,
     {"stream"},
     [](Session& s, const Tensor& x, Tensor& y, const Tensor&) {
       int stream = 0;
       s.run(view(x), view(y), {.stream = &stream});
     }},
};
INSTANTIATE_TEST_SUITE_P(Run, RefusedRun, testing::ValuesIn(kWrong),
                         [](const auto& test) { return test.param.name; });

TEST(RefusedPrepare, SizesOfZeroAndBelow) {
  const Engine e = cpu_engine(make_block(), "auto");
  for (const Shape& shape :
       {Shape{0, 5, 7}, Shape{2, 0, 7}, Shape{2, 5, 0}, Shape{-1, 5, 7}, Shape{2, 5, -7}}) {
    EXPECT_THAT(error_of([&] { e.prepare(shape); }, kInput), HasSubstr("input"));
    error_of([&] { e.plan(shape); }, kInput);
    error_of([&] { e.model().output_shape(shape); }, kInput);
  }
}

TEST(RefusedPrepare, SizesThatOverflow) {
  const Engine e = cpu_engine(make_block(), "auto");
  const std::int64_t big = std::int64_t{1} << 31;
  for (const Shape& shape : {Shape{big, big, 1}, Shape{1, big, big}, Shape{big, big, big},
                             Shape{std::numeric_limits<std::int64_t>::max(), 1, 1}}) {
    error_of([&] { e.prepare(shape); }, kInput);
    error_of([&] { e.plan(shape); }, kInput);
  }
}

// 2^35 elements plan without memory: no 32-bit arithmetic in shapes, operations and bytes.
TEST(Plan, OfAHugeGrid) {
  const Engine e = cpu_engine(make_block(128, 4), "auto");
  const std::vector<PlannedLayer> plan = e.plan({1, 16384, 16384});
  ASSERT_EQ(plan.size(), 2u);
  for (const PlannedLayer& layer : plan) {
    EXPECT_EQ(layer.output.elements(), std::int64_t{1} << 35);
    EXPECT_GT(layer.bytes, 2.0 * 4 * 0x1p35 * 0.99);
    EXPECT_GT(layer.flops, 0x1p28 * 8 * 128 * 128);
  }
}

TEST(RefusedRunOfEngine, InputsThatTheModelCannotTake) {
  const Engine e = cpu_engine(make_block(), "auto");
  EXPECT_THAT(error_of([&] { e.run(random_grid(kShape, 17, 1)); }, kInput), HasSubstr("17"));
  EXPECT_FALSE(error_of([&] { e.run(Tensor(DType::f32, {5, 7, 16})); }, kInput).empty());
  EXPECT_FALSE(error_of([&] { e.run(Tensor(DType::f32, {0, 5, 7, 16})); }, kInput).empty());
  const Tensor x = random_grid(kShape, 16, 1), short_mask = random_mask({2, 5, 6}, 1);
  EXPECT_THAT(error_of([&] { e.run(x, &short_mask); }, kInput), HasSubstr("mask"));
  EXPECT_FALSE(error_of([&] { e.run(x, nullptr, DType::u8); }, kInput).empty());
}

TEST(RefusedRunOfEngine, GridsLargerThanTheTables) {
  const Engine e = cpu_engine(make_model(8, {"position_embedding: {rows: 4, columns: 6}"}), "auto");
  e.run(random_grid({1, 4, 6}, 8, 1));
  error_of([&] { e.run(random_grid({1, 5, 6}, 8, 1)); }, kInput);
  error_of([&] { e.run(random_grid({1, 4, 7}, 8, 1)); }, kInput);
}

TEST(RefusedRunOfEngine, SidesThatThePatchDoesNotDivide) {
  const Engine e = cpu_engine(make_model(3, {"patch_embed: {patch: 4, channels: 3, dim: 8}"}), "auto");
  e.run(random_grid({1, 8, 12}, 3, 1));
  EXPECT_THAT(error_of([&] { e.run(random_grid({1, 8, 13}, 3, 1)); }, kInput), HasSubstr("4"));
}

// A mask of pixels has no meaning for patches.
TEST(RefusedRunOfEngine, AMaskOfAnImageModel) {
  const Engine e = cpu_engine(make_model(3, {"patch_embed: {patch: 2, channels: 3, dim: 8}"}), "auto");
  const Tensor mask = random_mask({1, 4, 4}, 1);
  EXPECT_THAT(error_of([&] { e.run(random_grid({1, 4, 4}, 3, 1), &mask); }, kInput), HasSubstr("mask"));
}

TEST(Plans, AnUnknownNameListsTheNames) {
  const std::string message =
      error_of([] { cpu_engine(make_block(), "cpu_fussed").prepare(kShape); }, ErrorCode::device);
  EXPECT_THAT(message, HasSubstr("cpu_fussed"));
  EXPECT_THAT(message, HasSubstr("reference"));
}

TEST(Plans, AStrictPlanThatDeclinesIsADeviceError) {
  // fp64 exists in `reference` alone.
  const EngineOptions options{.device = Device::cpu(), .precision = Precision::fp64, .plan = "cpu_fused"};
  EngineOptions strict = options;
  strict.strict = true;
  EXPECT_THAT(error_of([&] { Engine(make_block(), strict).prepare(kShape); }, ErrorCode::device),
              HasSubstr("cpu_fused"));
  const Session session = Engine(make_block(), options).prepare(kShape);  // not strict: the rest goes to auto
  for (const PlannedLayer& layer : session.plan()) EXPECT_EQ(layer.implementation, "reference");
}

TEST(Plans, ANamedPlanRunsWhatItDoesNotDecline) {
  for (const std::string& plan : plans()) {
    const Session session =
        Engine(make_block(64, 4), {.device = Device::cpu(), .plan = plan, .strict = true}).prepare({1, 8, 8});
    for (const PlannedLayer& layer : session.plan()) EXPECT_EQ(layer.implementation, plan);
  }
}

TEST(Plans, TheChoiceDoesNotDependOnTheBatch) {
  const Engine e = cpu_engine(make_block(64, 4), "auto");
  const auto one = e.plan({1, 33, 17}), many = e.plan({1000, 33, 17});
  ASSERT_EQ(one.size(), many.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i].implementation, many[i].implementation);
}

// The reference is written to be read: where another implementation takes a layer, it is the faster one.
TEST(Plans, AutoLeavesNothingToTheReferenceThatAnotherTakes) {
  if (plans().size() == 1)
    GTEST_SKIP() << "cpu_fused needs AVX2, FMA and F16C, which this CPU lacks: only the reference is there";
  const Model model = make_model(
      3, {"patch_embed: {patch: 2, channels: 3, dim: 32}", "position_embedding: {rows: 512, columns: 512}",
          "norm: {}", "axial_attention: {axis: row, heads: 4}",
          "axial_attention: {axis: column, heads: 4, causal: true}", "feed_forward: {hidden: 64}",
          "linear: {out: 16}", "norm: {kind: rms}", "patch_unembed: {patch: 2, channels: 3}"});
  for (const Shape& shape : {Shape{1, 2, 2}, Shape{1, 14, 22}, Shape{3, 200, 300}, Shape{1, 1024, 1024}}) {
    const auto automatic = cpu_engine(model, "auto").plan(shape),
               named = cpu_engine(model, plans().front()).plan(shape);
    ASSERT_EQ(automatic.size(), named.size());
    for (std::size_t i = 0; i < named.size(); ++i) {
      EXPECT_EQ(automatic[i].implementation, named[i].implementation)
          << automatic[i].layer << " on " << to_string(automatic[i].output);
    }
  }
}

TEST(Workspace, ALimitThatIsTooSmallIsADeviceError) {
  const Model model = make_block(64, 4);
  const Engine free(model, {.device = Device::cpu(), .plan = "cpu_fused", .threads = 1});
  const std::int64_t bytes = free.prepare({1, 32, 32}).workspace_bytes();
  ASSERT_GT(bytes, 0);
  const auto with_limit = [&](std::int64_t limit) {
    return Engine(model,
                  {.device = Device::cpu(), .plan = "cpu_fused", .threads = 1, .workspace_limit = limit});
  };
  with_limit(bytes).prepare({1, 32, 32});
  EXPECT_THAT(error_of(
                  [&] {
                    with_limit(bytes - 1).prepare({1, 32, 32});
                  },
                  ErrorCode::device),
              HasSubstr(std::to_string(bytes)));
}

// No L x L matrix of scores is held.
TEST(Workspace, OfTheFusedImplementationIsLinearInTheSequence) {
  if (plans().size() == 1)
    GTEST_SKIP() << "cpu_fused needs AVX2, FMA and F16C, which this CPU lacks: only the reference is there";
  const Engine e = cpu_engine(make_block(64, 4), "cpu_fused", Precision::fp32, 1);
  const auto bytes = [&](std::int64_t length) { return e.prepare({1, 2, length}).workspace_bytes(); };
  EXPECT_LE(static_cast<double>(bytes(8192)), 2.1 * static_cast<double>(bytes(4096)));
  EXPECT_LE(bytes(8192), std::int64_t{8192} * 64 * 4 * 12);  // a few grids of one sequence
}

}  // namespace
}  // namespace warpweave::properties
