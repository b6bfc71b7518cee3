// Part of resident_harness: 16-bit numbers on the host, random layers, loading and launching a cubin.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>

#include "harness.h"

namespace warpweave::cuda::resident {

// float32 <-> 16 bit on the host.
float widen(Element e, std::uint16_t v) {
  if (e == Element::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16);
  const int exponent = v >> 10 & 31, fraction = v & 1023;
  float m = exponent == 31  ? (fraction ? NAN : INFINITY)
            : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                            : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return v & 0x8000 ? -m : m;
}

double round_to(Element e, double v) {  // for normal numbers and f16 subnormals
  if (v == 0 || !std::isfinite(v)) return v;
  int exponent;
  std::frexp(v, &exponent);
  int unit = exponent - (e == Element::bf16 ? 8 : 11);
  if (e == Element::f16) unit = std::max(unit, -24);
  return std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
}

std::uint16_t narrow(Element e, double v) {
  const double r = round_to(e, v);
  if (e == Element::bf16)
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(r)) >> 16);
  const std::uint16_t sign = std::signbit(r) ? 0x8000 : 0;
  const double m = std::fabs(r);
  if (m >= 65520) return sign | 0x7c00;
  if (m < std::ldexp(1.0, -14)) return sign | static_cast<std::uint16_t>(std::ldexp(m, 24));
  int exponent;
  const double f = std::frexp(m, &exponent);
  return static_cast<std::uint16_t>(sign | ((exponent + 14) << 10) |
                                    (static_cast<int>(std::ldexp(f, 11)) - 1024));
}

// A file name for a specialisation.
std::string key(const Problem& p, const Variant& v) {
  const std::string text = kernel_expression(p, v);
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char ch : text) hash = (hash ^ static_cast<unsigned char>(ch)) * 1099511628211u;
  char name[20];
  std::snprintf(name, sizeof(name), "%016llx", static_cast<unsigned long long>(hash));
  return name;
}

cudaKernel_t load(const std::string& dir, const Case& c) {
  static std::map<std::string, cudaKernel_t> cache;
  const std::string k = key(c.problem, c.variant);
  if (const auto it = cache.find(k); it != cache.end()) return it->second;
  std::ifstream file(dir + "/" + k + ".sm_90a.cubin", std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.empty()) throw std::runtime_error("no cubin for " + c.name + " " + k);
  cudaLibrary_t library;
  CHECK(cudaLibraryLoadData(&library, bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  cudaKernel_t kernel;
  std::string name;
  std::ifstream(dir + "/" + k + ".sm_90a.name") >> name;
  CHECK(cudaLibraryGetKernel(&kernel, library, name.c_str()));
  CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, c.variant.shared_bytes));
  return cache[k] = kernel;
}

Tensors LayerWeights::tensors() const {
  const auto p = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  return {p(nw), p(nb), p(qw), p(qb), p(ow), p(ob)};
}

LayerWeights random_weights(const Problem& p, std::mt19937& r) {
  std::normal_distribution<float> n;
  LayerWeights w;
  const auto fill = [&](std::vector<float>& v, std::size_t count, float scale, float offset) {
    v.resize(count);
    for (float& f : v) f = offset + scale * n(r);
  };
  const int inner = p.heads * p.head_dim;
  if (p.norm != Norm::none) fill(w.nw, p.dim, 0.1f, 1);
  if (p.norm == Norm::layer) fill(w.nb, p.dim, 0.1f, 0);
  fill(w.qw, static_cast<std::size_t>(3) * inner * p.dim, 1 / std::sqrt(static_cast<float>(p.dim)), 0);
  if (p.qkv_bias) fill(w.qb, 3 * inner, 0.1f, 0);
  fill(w.ow, static_cast<std::size_t>(p.dim) * inner, 1 / std::sqrt(static_cast<float>(inner)), 0);
  if (p.out_bias) fill(w.ob, p.dim, 0.1f, 0);
  return w;
}

ResidentArguments arguments(const Problem& p, int B, int H, int W, bool row) {
  ResidentArguments a{};
  a.sample_cells = static_cast<long long>(H) * W;
  a.sequence_cells = row ? W : 1;
  a.token_cells = row ? 1 : W;
  a.per_sample = static_cast<unsigned>(row ? H : W);
  a.sequences = static_cast<unsigned>(B) * a.per_sample;
  a.by_sample = layout::Divisor::of(a.per_sample);
  a.length = row ? W : H;
  a.eps = static_cast<float>(p.eps);
  return a;
}

void launch(cudaKernel_t kernel, const Variant& v, ResidentArguments a, cudaStream_t stream, int sms,
            bool chained) {
  const unsigned blocks = (a.sequences + v.sequences_per_block - 1) / v.sequences_per_block;
  cudaLaunchConfig_t config{};
  config.gridDim = {v.kind == Variant::Kind::many ? std::min<unsigned>(blocks, sms) : blocks, 1, 1};
  config.blockDim = {static_cast<unsigned>(v.warps) * 32, 1, 1};
  config.dynamicSmemBytes = static_cast<std::size_t>(v.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = chained ? 1 : 0;
  void* args[] = {&a};
  CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), args));
}

}  // namespace warpweave::cuda::resident
