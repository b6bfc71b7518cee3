// What the contract promises on the GPU beyond accuracy: the same bits whatever the batch, the slices and the
// stream; capture; aliasing; interface types; masked cells that stay where they are; errors that leave the
// engine usable.
#include <algorithm>
#include <cmath>

#include "support.h"

namespace warpweave::gpu_test {
namespace {

using properties::make_block;
using properties::make_model;
using properties::random_grid;
using properties::random_mask;
using properties::same_bits;
using properties::samples;
using properties::update_error;

Tensor run(const Engine& e, const Tensor& x, const Tensor* mask = nullptr, DType output = DType::f32) {
  return e.run(x, mask, output);
}

TEST(GpuRandom, ProblemsAgreeWithFloat64) {
  for (int seed = 0; seed < kRandomProblems; ++seed) {
    const properties::Problem p = properties::random_problem(static_cast<std::uint64_t>(seed));
    const Model model = make_model(p.attention.dim, {p.attention.yaml()}, p.seed);
    const Tensor x = random_grid(p.shape, p.attention.dim, p.seed);
    const Tensor mask = random_mask(p.shape, p.seed);
    const Tensor* used = p.masked ? &mask : nullptr;
    const Tensor y64 = properties::cpu_engine(model, "reference", Precision::fp64).run(x, used);
    for (const auto& plan : plans()) {
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        const Tensor y = run(engine(model, plan, precision), x, used);
        EXPECT_LE(update_error(y, y64, x, p.attention.residual), loose_limit(precision))
            << plan << " " << to_string(precision) << " " << p;
      }
    }
  }
}

// A sample's bits with any companions, in slices of any size.
TEST(GpuInvariance, OfBatchAndSlices) {
  const Model model =
      make_model(24, {"axial_attention: {axis: row, heads: 3, rope: {}}",
                      "axial_attention: {axis: column, heads: 3}", "feed_forward: {hidden: 40}"});
  const std::int64_t rows = 19, columns = 37;
  const Tensor x = random_grid({64, rows, columns}, 24, 5);
  for (const auto& plan : plans()) {
    for (const Precision precision : kPrecisions) {
      const Tensor whole = run(engine(model, plan, precision), x);
      for (const std::int64_t batch : {1, 2, 3}) {
        const Tensor part = run(engine(model, plan, precision), samples(x, 0, batch));
        EXPECT_TRUE(same_bits(part, samples(whole, 0, batch)))
            << plan << " " << to_string(precision) << " " << batch;
      }
      const std::int64_t grid = 3 * rows * columns * 24 * 4 + 4096;
      for (const std::int64_t extra : {60000, 200000, 700000}) {
        const Tensor part = run(engine(model, plan, precision, grid + extra), samples(x, 0, 3));
        EXPECT_TRUE(same_bits(part, samples(whole, 0, 3)))
            << plan << " " << to_string(precision) << " limit " << extra;
      }
    }
  }
}

// The same for models of the size that matrix-product libraries have several algorithms for; in bands of
// columns, of which at least the last is narrower than the grid is high.
TEST(GpuInvariance, OfBatchAndSlicesAtLargerSizes) {
  struct Case {
    std::int64_t dim, heads, batch;
  };
  const std::int64_t rows = 48, columns = 64;
  for (const auto& [dim, heads, batch] : {Case{128, 4, 17}, Case{320, 5, 6}}) {
    const std::string head = "heads: " + std::to_string(heads);
    const Model model = make_model(
        dim, {"axial_attention: {axis: row, " + head + "}", "axial_attention: {axis: column, " + head + "}"});
    const Tensor x = random_grid({batch, rows, columns}, dim, 6);
    for (const auto& plan : plans()) {
      for (const Precision precision : kPrecisions) {
        const Tensor whole = run(engine(model, plan, precision), x);
        for (const std::int64_t part : {1, 2, 5}) {
          EXPECT_TRUE(
              same_bits(run(engine(model, plan, precision), samples(x, 0, part)), samples(whole, 0, part)))
              << plan << " " << to_string(precision) << " " << dim << ", batch " << part;
        }
        const std::int64_t grid = 2 * rows * columns * dim * 4 + 4096;
        EXPECT_TRUE(same_bits(run(engine(model, plan, precision, grid + 7000 * dim), samples(x, 0, 2)),
                              samples(whole, 0, 2)))
            << plan << " " << to_string(precision) << " " << dim;
      }
    }
  }
}

TEST(GpuSession, CapturedIntoAGraphAndRepeated) {
  const Model model = make_block(64, 4);
  const Tensor x = random_grid({4, 32, 32}, 64, 7);
  for (const auto& plan : plans()) {
    for (const Precision precision : kPrecisions) {
      const Engine e = engine(model, plan, precision);
      Session session = e.prepare({4, 32, 32});
      const Tensor expected = run(e, x);
      Tensor y(DType::f32, x.shape());
      std::memset(y.data(), 0xff, y.bytes());
      const DeviceMemory device_x(x), device_y(y);
      const Stream stream;
      const ConstGridView in(device_x.data(), DType::f32, session.input_shape());
      const GridView out{device_y.data(), DType::f32, session.output_shape()};
      cudaGraphExec_t graph = capture(stream, [&] { session.run(in, out, {.stream = stream}); });
      for (int i = 0; i < 5; ++i) {
        REQUIRE_CUDA(cudaMemsetAsync(device_y.data(), 0xff, y.bytes(), stream));
        REQUIRE_CUDA(cudaGraphLaunch(graph, stream));
        stream.wait();
        device_y.copy_to(y);
        EXPECT_TRUE(same_bits(y, expected)) << plan << " " << to_string(precision) << " replay " << i;
      }
      cudaGraphExecDestroy(graph);
    }
  }
}

TEST(GpuSession, OutputMayBeTheInput) {
  for (const auto& layers : std::vector<std::vector<std::string>>{
           {"axial_attention: {axis: row, heads: 2}", "axial_attention: {axis: column, heads: 2}"},
           {"linear: {out: 16}"},
           {"linear: {out: 24}", "norm: {}", "linear: {out: 16}", "feed_forward: {hidden: 8}"}}) {
    const Model model = make_model(16, layers);
    const Tensor x = random_grid({2, 6, 7}, 16, 8);
    for (const auto& plan : plans()) {
      const Engine e = engine(model, plan, Precision::fp32);
      const Tensor expected = run(e, x);
      Session session = e.prepare({2, 6, 7});
      const DeviceMemory memory(x);
      Tensor y(DType::f32, x.shape());
      session.run({memory.data(), DType::f32, session.input_shape()},
                  {memory.data(), DType::f32, session.output_shape()});
      REQUIRE_CUDA(cudaDeviceSynchronize());
      memory.copy_to(y);
      EXPECT_TRUE(same_bits(y, expected)) << plan << " " << layers[0];
    }
  }
}

TEST(GpuSession, TakesEveryInterfaceTypeAtAnyAlignment) {
  const Model model = make_block(16, 2);
  const Tensor x = random_grid({2, 5, 6}, 16, 9).to(DType::bf16);  // exact in every type but f16
  const Engine e = engine(model, "composed", Precision::bf16);
  const Tensor expected = run(e, x);
  Session session = e.prepare({2, 5, 6});
  for (const DType type : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor typed = x.to(type);
    const std::size_t unit = itemsize(type);
    DeviceMemory memory(2 * (typed.bytes() + unit));
    std::byte* in = memory.data() + unit;  // not a multiple of 16
    std::byte* out = in + typed.bytes();
    REQUIRE_CUDA(cudaMemcpy(in, typed.data(), typed.bytes(), cudaMemcpyHostToDevice));
    session.run({in, type, session.input_shape()}, {out, type, session.output_shape()});
    REQUIRE_CUDA(cudaDeviceSynchronize());
    Tensor y(type, x.shape());
    REQUIRE_CUDA(cudaMemcpy(y.data(), out, y.bytes(), cudaMemcpyDeviceToHost));
    EXPECT_TRUE(same_bits(y.to(DType::f32), expected))
        << to_string(type) << " " << properties::difference(y.to(DType::f32), expected);
  }
}

// NaN in masked cells changes no valid cell.
TEST(GpuIsolation, OfMaskedCells) {
  const Model model = make_model(32, {"axial_attention: {axis: row, heads: 2}"});
  const Shape shape{2, 9, 70};
  const Tensor x = random_grid(shape, 32, 10), mask = random_mask(shape, 11);
  Tensor spoiled = x;
  const auto valid = mask.values<std::uint8_t>();
  auto values = spoiled.values<float>();
  for (std::size_t cell = 0; cell < valid.size(); ++cell) {
    if (!valid[cell]) values[cell * 32 + cell % 32] = cell % 2 ? NAN : INFINITY;
  }
  for (const auto& plan : plans()) {
    for (const Precision precision : kPrecisions) {
      const Engine e = engine(model, plan, precision);
      const Tensor a = run(e, x, &mask), b = run(e, spoiled, &mask);
      const auto va = a.values<float>(), vb = b.values<float>();
      int wrong = 0;
      for (std::size_t i = 0; i < va.size(); ++i) wrong += valid[i / 32] && !(va[i] == vb[i]);
      EXPECT_EQ(wrong, 0) << plan << " " << to_string(precision);
    }
  }
}

// A kernel that takes shared memory, or a weight, further than it was written meets NaN here: a grid of
// nothing else runs before, on every multiprocessor.
TEST(GpuIsolation, OfWhatWasThereBefore) {
  for (const std::int64_t dim : kOddDims) {
    const Model model = odd_model(dim);
    const Engine cpu = properties::cpu_engine(model, "reference", Precision::fp64);
    for (const std::int64_t length : kOddLengths) {
      Tensor nothing(DType::f32, {1, 300, length, dim});
      for (float& v : nothing.values<float>()) v = NAN;
      const Tensor x = random_grid({1, 3, length}, dim, 14), y64 = cpu.run(x);
      for (const auto& plan : plans()) {
        for (const Precision precision : kPrecisions) {
          const Engine e = engine(model, plan, precision);
          (void)run(e, nothing);
          EXPECT_LE(update_error(run(e, x), y64, x, true), loose_limit(precision))
              << plan << " " << to_string(precision) << " dim " << dim << " length " << length;
        }
      }
    }
  }
}

// Scores of 1e7 and more, where neighbouring float32 numbers lie further apart than fp16 has room above 1.
TEST(GpuRange, SteepScoresStayFinite) {
  for (const char* scale : {"1e4", "-1e6", "1e6"}) {
    const Model model = make_model(
        64, {std::string("axial_attention: {axis: row, heads: 2, head_dim: 32, scale: ") + scale + "}"});
    for (const std::int64_t length : {40, 300}) {
      const Tensor x = random_grid({1, 5, length}, 64, 15);
      for (const auto& plan : plans()) {
        for (const Precision precision : kPrecisions) {
          const Tensor y = run(engine(model, plan, precision), x);
          const auto values = y.values<float>();
          const auto broken =
              std::count_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
          EXPECT_EQ(broken, 0) << plan << " " << to_string(precision) << " scale " << scale << " length "
                               << length;
        }
      }
    }
  }
}

// A tiny scale multiplied into 16-bit weights would cost their digits.
TEST(GpuRange, TinyScalesKeepTheirDigits) {
  for (const char* scale : {"1e-4", "-1e-5", "1e-6", "0"}) {
    const Model model =
        make_model(128, {std::string("axial_attention: {axis: row, heads: 4, norm: none, residual: false, "
                                     "out_bias: false, scale: ") +
                         scale + "}"});
    Tensor x = random_grid({1, 3, 300}, 128, 16);
    for (float& v : x.values<float>()) v *= 300;
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      const Tensor stored = properties::rounded(x, precision);
      const Tensor y64 = properties::cpu_engine(model, "reference", Precision::fp64).run(stored);
      for (const auto& plan : plans()) {
        EXPECT_LE(update_error(run(engine(model, plan, precision), stored), y64, stored, false),
                  precision == Precision::bf16 ? 5e-2 : 6e-3)
            << plan << " " << to_string(precision) << " scale " << scale;
      }
    }
  }
}

// In the last block some lanes have no token of their own.
TEST(GpuSession, NormOverItsInputTakesEveryTokenOnce) {
  for (const std::int64_t dim : {24, 64, 128, 256, 768}) {
    const Model model = make_model(dim, {"norm:"});
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const Engine e = engine(model, "composed", precision);
      for (const std::int64_t columns : {1, 16, 65, 16384}) {
        const DType type = storage_type(precision);
        const Tensor x = random_grid({1, 1, columns}, dim, 17).to(type), expected = e.run(x, nullptr, type);
        Session session = e.prepare({1, 1, columns});
        for (int turn = 0; turn < 20; ++turn) {
          const DeviceMemory memory(x);
          session.run({memory.data(), type, session.input_shape()},
                      {memory.data(), type, session.output_shape()});
          REQUIRE_CUDA(cudaDeviceSynchronize());
          Tensor y(type, x.shape());
          memory.copy_to(y);
          ASSERT_TRUE(same_bits(y, expected))
              << to_string(precision) << " dim " << dim << ", " << columns << " columns";
        }
      }
    }
  }
}

// NaN in a valid cell stays in its sequence, and is seen there.
TEST(GpuIsolation, OfSequences) {
  const Model model = make_model(32, {"axial_attention: {axis: column, heads: 2}"});
  const Tensor x = random_grid({2, 40, 9}, 32, 12);
  Tensor spoiled = x;
  const std::size_t cell = (1 * 40 + 7) * 9 + 4;
  spoiled.values<float>()[cell * 32 + 3] = NAN;
  for (const auto& plan : plans()) {
    for (const Precision precision : kPrecisions) {
      const Engine e = engine(model, plan, precision);
      const Tensor a = run(e, x), b = run(e, spoiled);
      const auto va = a.values<float>(), vb = b.values<float>();
      int wrong = 0;
      for (std::size_t i = 0; i < va.size(); ++i) {
        const std::size_t c = i / 32;
        if (c / (40 * 9) != 1 || c % 9 != 4) wrong += va[i] != vb[i];
      }
      EXPECT_EQ(wrong, 0) << plan << " " << to_string(precision);
      EXPECT_TRUE(std::isnan(vb[cell * 32])) << plan << " " << to_string(precision);
    }
  }
}

TEST(GpuErrors, LeaveTheEngineUsable) {
  const Model model = make_block(16, 2);
  const auto message = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      return (error.code() == ErrorCode::device ? "device: " : "other: ") + std::string(error.what());
    }
    return "no error";
  };
  EXPECT_THAT(message([&] { Engine(model, {.device = Device::cuda(99)}); }),
              testing::HasSubstr("there is no cuda:99; this machine has"));
  const Engine e = engine(model, "auto", Precision::fp32);
  EXPECT_THAT(
      message([&] {
        (void)e.prepare({1 << 20, 1024, 1024});
      }),
      testing::AllOf(testing::HasSubstr("device: "), testing::HasSubstr("of device memory are needed")));
  EXPECT_THAT(message([&] {
                (void)engine(model, "auto", Precision::fp32, 100000).prepare({1, 64, 64});
              }),
              testing::HasSubstr("device: the workspace limit"));
  EXPECT_THAT(message([&] {
                (void)engine(model, "nonesuch", Precision::fp32).prepare({1, 4, 4});
              }),
              testing::HasSubstr("composed"));
  const Tensor x = random_grid({1, 4, 5}, 16, 13);
  const Tensor y64 = properties::cpu_engine(model, "reference", Precision::fp64).run(x);
  EXPECT_LE(update_error(run(e, x), y64, x, true), loose_limit(Precision::fp32));
}

// More than 2^31 elements: the last sequence gets the bits that the same sequence gets at the first place.
TEST(GpuLarge, SixtyFourBitIndices) {
  const std::int64_t dim = 64, sequences = 40000, length = 900;  // 2.3e9 elements
  const std::size_t bytes = static_cast<std::size_t>(sequences * length * dim * 2);
  const DeviceMemory memory(bytes);
  for (const auto& plan : plans()) {
    for (const bool row : {true, false}) {
      const Model model =
          make_model(dim, {std::string("axial_attention: {heads: 4, axis: ") + (row ? "row}" : "column}")});
      const Engine e = engine(model, plan, Precision::bf16, std::int64_t{12} << 30);
      Session session = e.prepare({1, row ? sequences : length, row ? length : sequences});
      const Tensor x = random_grid({1, 1, length}, dim, 14).to(DType::bf16);
      REQUIRE_CUDA(cudaMemset(memory.data(), 0x3c, bytes));
      const std::size_t token = dim * 2, step = row ? token : token * static_cast<std::size_t>(sequences);
      std::byte* places[] = {
          memory.data(),
          memory.data() + (sequences - 1) * static_cast<std::int64_t>(row ? token * length : token)};
      for (std::byte* place : places) {
        REQUIRE_CUDA(cudaMemcpy2D(place, step, x.data(), token, token, static_cast<std::size_t>(length),
                                  cudaMemcpyHostToDevice));
      }
      session.run({memory.data(), DType::bf16, session.input_shape()},
                  {memory.data(), DType::bf16, session.output_shape()});
      REQUIRE_CUDA(cudaDeviceSynchronize());
      Tensor first(DType::bf16, x.shape()), last(DType::bf16, x.shape());
      REQUIRE_CUDA(cudaMemcpy2D(first.data(), token, places[0], step, token, static_cast<std::size_t>(length),
                                cudaMemcpyDeviceToHost));
      REQUIRE_CUDA(cudaMemcpy2D(last.data(), token, places[1], step, token, static_cast<std::size_t>(length),
                                cudaMemcpyDeviceToHost));
      EXPECT_TRUE(same_bits(first, last)) << plan << (row ? " rows" : " columns");
      EXPECT_FALSE(same_bits(first, x)) << plan << (row ? " rows" : " columns");
    }
  }
}

}  // namespace
}  // namespace warpweave::gpu_test
