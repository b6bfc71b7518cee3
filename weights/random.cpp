// Random weights (weights/load.h). The key of a tensor is "INDEX.NAME", the layer's index in the model and
// the canonical name ("0.qkv.weight"); elements are counted row-major. With normal_k as in random.h:
//
//   matrices (rank 2)              normal_k / sqrt(columns)
//   "norm.weight"                  1 + 0.1 * normal_k
//   all other vectors (biases)     0.1 * normal_k
//   tables of position_embedding   0.1 * normal_k
//
// computed in double and rounded to float once.
#include "weights/random.h"

#include <cmath>

#include "weights/load.h"

namespace warpweave::weights {
namespace {

std::uint64_t mix(std::uint64_t z) noexcept {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9;
  z ^= z >> 27;
  z *= 0x94D049BB133111EB;
  z ^= z >> 31;
  return z;
}

std::uint64_t fnv1a(std::string_view text) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3;
  }
  return hash;
}

Tensor random_tensor(const graph::Layer& layer, const graph::TensorSpec& spec, const NormalStream& normal) {
  Tensor tensor(DType::f32, spec.shape);
  const std::span<float> values = tensor.values<float>();
  const bool matrix = spec.shape.size() == 2 && layer.type() != "position_embedding";
  const double root = matrix ? std::sqrt(static_cast<double>(spec.shape[1])) : 1;
  const double mean = spec.name == "norm.weight" ? 1 : 0;
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] = static_cast<float>(matrix ? normal[k] / root : mean + 0.1 * normal[k]);
  return tensor;
}

}  // namespace

NormalStream::NormalStream(std::uint64_t seed, std::string_view key) noexcept
    : state_(mix(seed ^ fnv1a(key))) {}

double NormalStream::operator[](std::uint64_t k) const noexcept {
  const std::uint64_t u = mix(state_ + (k + 1) * 0x9E3779B97F4A7C15);
  const std::uint64_t sum = (u & 0xFFFF) + (u >> 16 & 0xFFFF) + (u >> 32 & 0xFFFF) + (u >> 48);
  constexpr double kRootOf3 = 1.7320508075688772;
  return (static_cast<double>(sum) - 131070.0) * kRootOf3 / 65536.0;  // in this order; the division is exact
}

void fill_normal(std::span<float> out, std::uint64_t seed, std::string_view key) noexcept {
  const NormalStream normal(seed, key);
  for (std::size_t k = 0; k < out.size(); ++k) out[k] = static_cast<float>(normal[k]);
}

std::vector<LayerWeights> random_weights(const graph::Graph& graph, std::uint64_t seed) {
  std::vector<LayerWeights> all;
  all.reserve(graph.nodes.size());
  for (const graph::Node& node : graph.nodes) {
    LayerWeights weights;
    for (const graph::TensorSpec& spec : node.layer->tensors()) {
      const std::string key = std::to_string(all.size()) + "." + spec.name;
      weights.set(spec.name, random_tensor(*node.layer, spec, NormalStream(seed, key)));
    }
    all.push_back(std::move(weights));
  }
  return all;
}

}  // namespace warpweave::weights
