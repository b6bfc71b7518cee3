// Layers of more than 256 channels on compute capability 9.0, whose norm, q, k and v, and attention where
// sequences are short, are one kernel of `composed`; through the public interface, but for which kernel a
// case gets, against `reference` in float64 on the CPU.
#include "wide_layer_test.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/composed/wide_layer.h"
#include "properties/problem.h"

namespace warpweave::long_test {
namespace {

using properties::Attention;
using properties::Dice;
using properties::rounded;
using properties::update_error;

struct WideCase {
  Attention attention;
  Precision precision = Precision::bf16;
  Shape shape;
  bool masked = false;
};

// Lengths of all slots and around their ends, beyond 128 too; channels that are no multiple of 64; heads that
// are padded, and of sizes that attention has no kernel of its own for.
std::vector<WideCase> wide_cases() {
  std::vector<WideCase> list;
  Dice dice(23);
  for (const std::int64_t length : {1, 2, 7, 16, 17, 31, 32, 33, 60, 64, 65, 100, 127, 128, 129, 150, 300}) {
    for (int turn = 0; turn < 4; ++turn) {
      WideCase c;
      Attention& a = c.attention;
      a.dim = dice.pick<std::int64_t>({264, 320, 384, 392, 520, 768, 776});
      a.head_dim = dice.pick<std::int64_t>({48, 64, 64, 40, 56, 48, 32, 80});
      a.heads = dice.pick<std::int64_t>({1, 2, 3, 5, 6});
      properties::draw_options(a, dice, {"layer", "layer", "rms", "none"});
      if (turn != 3) a.rope.clear();  // with it, attention is a kernel of its own
      if (turn != 2) a.causal = false;
      c.precision = turn % 2 ? Precision::fp16 : Precision::bf16;
      c.masked = list.size() % 6 == 5;
      const std::int64_t batch = 1 + dice.below(2);
      // As many beside each other as leave few rows of an item to padding, or a few.
      const std::int64_t beside = turn == 1     ? 1 + dice.below(5)
                                  : length > 64 ? 3
                                                : 64 / ((length + 15) / 16) + dice.below(3);
      c.shape = a.axis == "row" ? Shape{batch, beside, length} : Shape{batch, length, beside};
      list.push_back(c);
    }
  }
  return list;
}
Model model(const WideCase& c) { return properties::make_model(c.attention.dim, {c.attention.yaml()}, 3); }

// A row and a column layer of these channels.
struct Block {
  std::int64_t dim, heads;
};
constexpr Block kBlocks[] = {{384, 8}, {320, 5}};  // heads of 48, of 64
const Shape kBoth{3, 60, 37};

EngineOptions options(Precision precision, std::int64_t limit = 0) {
  EngineOptions o;
  o.device = Device::cuda(0);
  o.precision = precision, o.plan = "composed", o.strict = true, o.workspace_limit = limit;
  return o;
}
double limit(Precision precision) { return precision == Precision::bf16 ? 1.5e-2 : 2e-3; }
int threads() { return static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u)); }

// The slot that a sequence has in the kernel with attention; 0: that one is not for it.
int slot(const Attention& a, const Shape& s, Precision precision) {
  const std::int64_t head = (a.head_dim + 15) / 16 * 16, length = a.axis == "row" ? s.columns : s.rows,
                     neighbours = a.axis == "row" ? s.rows : s.columns;
  const cuda::WideShape shape{a.heads, head, a.dim};
  EXPECT_TRUE(cuda::takes_wide_layer(shape, {precision, 90, 227 * 1024}));
  const auto plan = cuda::wide_attention_plan(shape, {a.heads, head, length, a.causal}, neighbours);
  return plan && a.rope.empty() ? plan->slot : 0;
}

TEST(WideLayers, AgreeWithFloat64) {
  double worst[2] = {};
  std::map<int, int> slots;
  for (const WideCase& c : wide_cases()) {
    if (!c.masked) ++slots[slot(c.attention, c.shape, c.precision)];
    const Model m = model(c);
    const Tensor x = rounded(properties::random_grid(c.shape, c.attention.dim, 9), c.precision);
    const Tensor mask = properties::random_mask(c.shape, 9);
    const Tensor* used = c.masked ? &mask : nullptr;
    const Tensor y = Engine(m, options(c.precision)).run(x, used);
    const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64, threads()).run(x, used);
    const double error = update_error(y, exact, x, c.attention.residual);
    double& most = worst[c.precision == Precision::fp16];
    most = std::max(most, error);
    EXPECT_LE(error, limit(c.precision))
        << c.attention.yaml() << " dim " << c.attention.dim << " " << to_string(c.precision) << " on ["
        << c.shape.batch << ", " << c.shape.rows << ", " << c.shape.columns << "]"
        << (c.masked ? " masked" : "");
  }
  std::printf("wide layers: worst error bf16 %.2e, fp16 %.2e\n", worst[0], worst[1]);
  for (const int each : {0, 16, 32, 64, 128}) EXPECT_GE(slots[each], 3) << each;
}

// A token's mean is taken away, however far it is. In 16 bits one of 10^4 leaves a spread of some 10, of 3
// where one channel is off by a digit, or none at all.
TEST(WideLayers, MeansMayBeFarAway) {
  double worst[2] = {};
  for (const Block& b : kBlocks) {
    Attention a;
    a.dim = b.dim, a.heads = b.heads, a.head_dim = b.dim / b.heads, a.residual = false, a.axis = "column";
    const Model m = properties::make_model(a.dim, {a.yaml()});
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      for (const float mean : {300.0f, -1e4f}) {
        Tensor drawn = properties::random_grid(kBoth, a.dim, 4);
        const float spread = std::fabs(mean) / (precision == Precision::bf16 ? 100.0f : 800.0f);
        for (float& v : drawn.values<float>()) v = v * spread + mean;
        // Every other token has the same value in all channels, and some of them for one.
        const std::int64_t tokens = kBoth.batch * kBoth.rows * kBoth.columns;
        for (std::int64_t t = 0; t < tokens; t += 2) {
          float* const token = drawn.values<float>().data() + t * a.dim;
          std::fill_n(token, a.dim, mean);
          if (precision == Precision::bf16 && t % 6 == 0) token[t % a.dim] *= 1.0f + 0x1p-7f;
        }
        const Tensor x = rounded(drawn, precision);
        const Tensor y = Engine(m, options(precision)).run(x);
        const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64, threads()).run(x);
        const double error = update_error(y, exact, x, false);
        double& most = worst[precision == Precision::fp16];
        most = std::max(most, error);
        EXPECT_LE(error, limit(precision)) << a.dim << " " << to_string(precision) << " mean " << mean;
      }
    }
  }
  std::printf("wide layers, far means: worst error bf16 %.2e, fp16 %.2e\n", worst[0], worst[1]);
}

// In any batch, in slices of any size (bands of columns lie apart in the grid), and again.
TEST(WideLayers, ASampleKeepsItsBits) {
  for (const Block& b : kBlocks) {
    const Model m = properties::make_block(b.dim, b.heads);
    const Tensor x = properties::random_grid(kBoth, b.dim, 3);
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      const Tensor all = Engine(m, options(precision)).run(x);
      EXPECT_TRUE(properties::same_bits(all, Engine(m, options(precision)).run(x))) << b.dim;
      EXPECT_TRUE(properties::same_bits(Engine(m, options(precision)).run(properties::samples(x, 1, 1)),
                                        properties::samples(all, 1, 1)))
          << b.dim;
      const std::int64_t grid = 3 * 60 * 37 * b.dim * 2 + 4096;  // what waits between the layers
      for (const std::int64_t sequences : {1, 3, 20})
        EXPECT_TRUE(properties::same_bits(
            Engine(m, options(precision, grid + sequences * 60 * b.dim * 9)).run(x), all))
            << b.dim << " " << sequences;
    }
  }
}

// What is not finite in one sequence stays there: the others have the bits that they have without it.
TEST(WideLayers, ASequenceIsAlone) {
  for (const std::int64_t length : {12, 20, 40, 64, 100}) {
    for (const Block& b : kBlocks) {
      Attention a;
      a.dim = b.dim, a.heads = b.heads, a.head_dim = b.dim / b.heads;
      const Model m = properties::make_model(a.dim, {a.yaml()});
      const Shape shape{1, 24, length};
      EXPECT_GT(slot(a, shape, Precision::bf16), 0);
      const Tensor x = properties::random_grid(shape, a.dim, 8);
      const Tensor y = Engine(m, options(Precision::bf16)).run(x);
      Tensor broken = properties::random_grid(shape, a.dim, 8);
      const std::int64_t sequence = length * a.dim, first = 5 * sequence;
      std::fill_n(broken.values<float>().begin() + first, sequence, std::numeric_limits<float>::quiet_NaN());
      const Tensor z = Engine(m, options(Precision::bf16)).run(broken);
      std::int64_t other = 0, finite = 0;
      for (std::int64_t i = 0; i < 24 * sequence; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (i >= first && i < first + sequence)
          finite += std::isfinite(z.values<float>()[at]);
        else
          other += z.values<float>()[at] != y.values<float>()[at];
      }
      EXPECT_EQ(other, 0) << a.dim << " length " << length;
      EXPECT_EQ(finite, 0) << a.dim << " length " << length;
    }
  }
}

// One problem of each form of the kernels, small enough for compute-sanitizer.
std::vector<WideCase> few() {
  std::vector<WideCase> list;
  for (const std::int64_t length : {13, 30, 60, 100, 140}) {
    WideCase c;
    Attention& a = c.attention;
    a.dim = 264, a.heads = 2, a.head_dim = length % 4 == 0 ? 48 : 64,
    a.axis = length == 60 ? "column" : "row";
    c.precision = length == 13 ? Precision::fp16 : Precision::bf16;
    const std::int64_t beside = length == 13 ? 16 : 8;
    c.shape = a.axis == "row" ? Shape{1, beside, length} : Shape{1, length, beside};
    list.push_back(c);
  }
  return list;
}
TEST(WideLayers, FewProblems) {
  std::set<int> slots;
  for (const WideCase& c : few()) {
    slots.insert(slot(c.attention, c.shape, c.precision));
    const Model m = model(c);
    const Tensor x = rounded(properties::random_grid(c.shape, c.attention.dim, 1), c.precision);
    const Tensor y = Engine(m, options(c.precision)).run(x);
    const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64).run(x);
    EXPECT_LE(update_error(y, exact, x, true), limit(c.precision)) << c.attention.yaml();
  }
  EXPECT_EQ(slots, (std::set<int>{0, 16, 32, 64, 128}));
}

// Layers with and without a norm, whose residual is then copied in another way; grids in the GPU's memory and
// in locked memory of the host, y elsewhere and in place, captured and launched again.
const std::vector<std::string>& captured_layers() {
  static const std::vector<std::string> list = {
      "axial_attention: {axis: row, heads: 6, head_dim: 48, norm: none}",
      "axial_attention: {axis: column, heads: 6, head_dim: 48}"};
  return list;
}
constexpr std::int64_t kCapturedDim = 288;
const Shape kCaptured{2, 60, 30};

void require_cuda(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

TEST(WideLayers, CapturedWithGridsAnywhere) {
  const Model m = properties::make_model(kCapturedDim, captured_layers());
  const Engine engine(m, options(Precision::bf16));
  const Tensor x = properties::random_grid(kCaptured, kCapturedDim, 6).to(DType::bf16);
  Session session = engine.prepare(kCaptured);
  Tensor expected(DType::bf16, x.shape());
  session.run_host({x.data(), DType::bf16, session.input_shape()},
                   {expected.data(), DType::bf16, session.output_shape()});
  for (const bool host : {false, true}) {
    void *in = nullptr, *out = nullptr;
    require_cuda(host ? cudaMallocHost(&in, x.bytes()) : cudaMalloc(&in, x.bytes()));
    require_cuda(host ? cudaMallocHost(&out, x.bytes()) : cudaMalloc(&out, x.bytes()));
    cudaStream_t stream = nullptr;
    require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (void* to : {out, in}) {
      require_cuda(cudaMemcpy(in, x.data(), x.bytes(), cudaMemcpyDefault));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      session.run({in, DType::bf16, session.input_shape()}, {to, DType::bf16, session.output_shape()},
                  {.stream = stream});
      require_cuda(cudaStreamEndCapture(stream, &graph));
      require_cuda(cudaGraphInstantiate(&replay, graph, 0));
      for (int i = 0; i < 2; ++i) {
        require_cuda(cudaMemcpy(in, x.data(), x.bytes(), cudaMemcpyDefault));
        if (to != in) require_cuda(cudaMemset(to, 0xff, x.bytes()));
        require_cuda(cudaDeviceSynchronize());  // which the stream does not wait for
        require_cuda(cudaGraphLaunch(replay, stream));
        require_cuda(cudaStreamSynchronize(stream));
        Tensor y(DType::bf16, x.shape());
        require_cuda(cudaMemcpy(y.data(), to, y.bytes(), cudaMemcpyDefault));
        EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.bytes()), 0)
            << (host ? "host" : "device") << (to == in ? ", in place" : "");
      }
      cudaGraphExecDestroy(replay);
      cudaGraphDestroy(graph);
    }
    cudaStreamDestroy(stream);
    for (void* each : {in, out}) host ? cudaFreeHost(each) : cudaFree(each);
  }
}

}  // namespace

void for_wide_layers(const std::function<void(const Model&, const Shape&, Precision)>& body) {
  for (const WideCase& c : wide_cases()) body(model(c), c.shape, c.precision);
  for (const WideCase& c : few()) body(model(c), c.shape, c.precision);
  body(properties::make_model(kCapturedDim, captured_layers()), kCaptured, Precision::bf16);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    for (const Block& b : kBlocks) body(properties::make_block(b.dim, b.heads), kBoth, precision);
  }
  for (const std::int64_t length : {5, 20, 40, 64, 100}) {
    for (const Block& b : kBlocks)
      body(properties::make_block(b.dim, b.heads), {1, 24, length}, Precision::bf16);
  }
}

}  // namespace warpweave::long_test
