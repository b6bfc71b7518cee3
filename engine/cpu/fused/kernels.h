// The inner loops of the fused steps, compiled once for each instruction set and chosen at run time.
//
// Only plain data crosses this line. The files behind it (kernels_*.cpp and the headers they include) keep
// all functions static, and nothing inline of the standard library is called there: the linker would
// otherwise be free to keep a copy with AVX-512 instructions for everyone.
#pragma once

#include <cstdint>

namespace warpweave::cpu::fused {

// A weight matrix W [outputs, inputs], packed as panels of Kernels::panel outputs, each [inputs][panel]; the
// last panel is as wide as the vectors that hold what is left. Outputs that fill it up are zero.
struct PackedMatrix {
  const float* values = nullptr;
  const float* bias = nullptr;  // [outputs] and zeros up to whole panels; zeros where the layer has none
  std::int64_t outputs = 0, inputs = 0;
  const float* next = nullptr;  // of the matrix that is used after this one, to fetch them in time; or null
  bool cached = false;  // it and the next stay in the second-level cache: nothing need be fetched in time
};

// c[rows[i] + n] = sum over k of a[i * a_stride + k] * W[n][k] + bias[n] (+ residual[rows[i] + n]), i in [0,
// m).
struct Gemm {
  const float* a = nullptr;
  std::int64_t a_stride = 0;
  const PackedMatrix* b = nullptr;
  const std::int64_t* rows = nullptr;  // where row i starts, in elements from c and from residual
  float* c = nullptr;
  const float* residual = nullptr;  // may be null, may equal c
  std::int64_t m = 0;
};

enum class NormType { none, layer, rms };

// out[i * out_stride + c] = norm(x[rows[i] + ..])[c], i in [0, m), of `channels` channels.
struct NormRows {
  NormType type = NormType::none;
  const float* weight = nullptr;
  const float* bias = nullptr;  // layer only
  float eps = 0;
  std::int64_t channels = 0;
  const float* x = nullptr;
  const std::int64_t* rows = nullptr;
  float* out = nullptr;
  const std::int64_t* out_rows = nullptr;  // where row i of the output starts
  std::int64_t m = 0;
};

enum class Rounding { none, bf16, fp16 };

// Rotates the first 2 * pairs channels of `heads` heads in each row, channel c with c + pairs, by the angle
// whose cosine and sine are at [position][c] of the tables.
struct RotateRows {
  float* x = nullptr;
  const std::int64_t* rows = nullptr;       // where row i starts
  const std::int64_t* positions = nullptr;  // of row i
  std::int64_t m = 0, heads = 0, head_dim = 0, pairs = 0;
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

// Attention of up to Kernels::panel queries of one head:
//   out[i * out_stride + c] = sum over j of softmax over j (factor * q[i] . k[j] * ln 2) * v[j][c]
// with `factor` holding log2(e), so that the exponential is a power of two.
struct Attention {
  const float* q = nullptr;  // [queries][head_dim], rows q_stride apart
  const float* k = nullptr;  // [keys][head_dim], rows kv_stride apart
  const float* v = nullptr;
  std::int64_t q_stride = 0, kv_stride = 0;
  std::int64_t queries = 0, keys = 0, head_dim = 0;
  float factor = 1;
  // Causal only, else null: place of key j in the sequence, rising. Query i is at first_query + i and sees
  // the keys at its own place and before.
  const std::int64_t* key_positions = nullptr;
  std::int64_t first_query = 0;
  Rounding rounding = Rounding::none;  // of the probabilities and of the result
  float* out = nullptr;                // [queries][head_dim]
  std::int64_t out_stride = 0;
  float* scratch = nullptr;  // attention_scratch(head_dim, keys, panel) floats
};

// Keys that one pass of the online softmax takes.
constexpr std::int64_t kKeyBlock = 128;
constexpr std::int64_t attention_scratch(std::int64_t head_dim, std::int64_t keys, std::int64_t panel) {
  return (2 * head_dim + (keys < kKeyBlock ? keys : kKeyBlock)) * panel;
}

enum class ActivationType { gelu, gelu_tanh, relu, silu };

struct Kernels {
  const char* name;    // "avx2", "avx512": the values of WARPWEAVE_CPU_ISA
  std::int64_t lanes;  // floats of a vector
  std::int64_t panel;  // columns of a panel of packed weights, and queries of an attention panel

  void (*gemm)(const Gemm&);
  void (*norm)(const NormRows&);
  void (*rotate)(const RotateRows&);
  void (*attend)(const Attention&);
  void (*activate)(ActivationType, float* x, std::int64_t n);
  void (*round)(Rounding, float* x, std::int64_t n);
  void (*add)(const float* a, const float* b, float* out, std::int64_t n);
  void (*exp2)(float* x, std::int64_t n);  // for the tests of its accuracy
};

#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif

// The widest set that this CPU has, or the one that the environment variable WARPWEAVE_CPU_ISA names; null
// where the CPU has none. Throws Error(input) on an unknown name, Error(device) on a set that the CPU lacks.
const Kernels* select_kernels();

}  // namespace warpweave::cpu::fused
