// Runs one layer of cpu_fused by itself, on either instruction set, any number of threads, any precision.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/fused/kernels.h"
#include "cpu/step.h"
#include "graph/layers/axial_attention.h"
#include "graph/layers/feed_forward.h"

namespace warpweave::test {

// Sets WARPWEAVE_CPU_ISA for its lifetime; empty unsets it.
class ForcedIsa {
 public:
  explicit ForcedIsa(const std::string& name) {
    name.empty() ? unsetenv("WARPWEAVE_CPU_ISA") : setenv("WARPWEAVE_CPU_ISA", name.c_str(), 1);
  }
  ~ForcedIsa() { unsetenv("WARPWEAVE_CPU_ISA"); }
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;
};

// The instruction sets that this machine can run.
inline std::vector<const cpu::fused::Kernels*> all_kernels() {
  std::vector<const cpu::fused::Kernels*> list;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    list.push_back(&cpu::fused::kernels_avx2());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    list.push_back(&cpu::fused::kernels_avx512());
#endif
  return list;
}

// Matrices N(0, 1/inputs), norm weights 1 + 0.1 N, vectors 0.1 N.
inline weights::LayerWeights random_layer_weights(const graph::Layer& layer, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  weights::LayerWeights result;
  for (const graph::TensorSpec& spec : layer.tensors()) {
    Tensor t(DType::f32, spec.shape);
    const bool matrix = spec.shape.size() == 2, gain = spec.name == "norm.weight";
    const float scale = matrix ? 1 / std::sqrt(static_cast<float>(spec.shape[1])) : 0.1f;
    for (float& v : t.values<float>()) v = normal(random) * scale + (gain ? 1 : 0);
    result.set(spec.name, std::move(t));
  }
  return result;
}

inline std::vector<float> random_grid(std::int64_t n, unsigned seed = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = normal(random);
  return x;
}

struct Scratch {
  explicit Scratch(std::size_t bytes) : size((bytes + 63) / 64 * 64) {
    data.reset(static_cast<std::byte*>(std::aligned_alloc(64, size ? size : 64)));
    std::memset(data.get(), 0xff, size);  // NaN: nobody may count on zeros
  }
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::size_t size;
  std::unique_ptr<std::byte, Free> data;
};

struct FusedLayer {
  FusedLayer(const graph::Layer& layer, const weights::LayerWeights& weights, const std::string& isa = "",
             Precision precision = Precision::fp32)
      : layer(layer) {
    const ForcedIsa forced(isa);
    plan::Conditions conditions;
    conditions.precision = precision;
    const graph::Layer* layers[] = {&layer};
    step = cpu::fused_implementation().build(layers, {&weights, 1}, conditions);
  }

  std::vector<float> run(const std::vector<float>& x, std::int64_t batch, const graph::CellShape& input,
                         const std::vector<std::uint8_t>& mask = {}, int threads = 2,
                         bool in_place = false) const {
    cpu::ThreadPool pool(threads);
    const Scratch scratch(step->scratch_bytes(input, threads));
    const graph::CellShape output = layer.output(input);
    std::vector<float> y(static_cast<std::size_t>(batch * output.cells() * output.channels), NAN), copy = x;
    cpu::StepRun r;
    r.x = in_place ? copy.data() : x.data(), r.y = in_place ? copy.data() : y.data();
    r.batch = batch, r.input = input, r.mask = mask.empty() ? nullptr : mask.data();
    r.pool = &pool, r.scratch = scratch.data.get();
    step->run(r);
    return in_place ? copy : y;
  }

  const graph::Layer& layer;
  std::unique_ptr<const cpu::Step> step;
};

// ||y - exact|| / ||exact - x||, or / ||exact|| without a residual (x empty).
inline double update_error(const std::vector<float>& y, const std::vector<double>& exact,
                           const std::vector<float>& x) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double e = double(y[i]) - exact[i], u = exact[i] - (x.empty() ? 0.0 : double(x[i]));
    error += e * e, norm += u * u;
  }
  return std::sqrt(error / norm);
}

inline graph::AxialAttention attention_layer(std::int64_t dim, std::int64_t heads,
                                             graph::Axis axis = graph::Axis::row, std::int64_t head_dim = 0) {
  graph::AxialAttention l;
  l.dim = dim, l.heads = heads, l.axis = axis, l.head_dim = head_dim ? head_dim : dim / heads;
  l.scale = 1 / std::sqrt(double(l.head_dim));
  return l;
}

}  // namespace warpweave::test
