// One axial attention layer as the resident kernels see it: what is compiled in, and how its weights are
// packed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "layout/block_plan.h"

namespace warpweave::cuda::resident {

enum class Element { bf16, f16 };
enum class Norm { none = 0, layer = 1, rms = 2 };

struct Problem {
  int dim = 0, heads = 0, head_dim = 0;
  Element element = Element::bf16;
  Norm norm = Norm::layer;
  double eps = 1e-5, scale = 0;  // scale of the scores
  bool qkv_bias = false, out_bias = true, residual = true, causal = false, mask = false;
  int rope_dims = 0;      // 0: no RoPE
  bool rope_half = true;  // channel pairs (c, c + dims / 2), else (2c, 2c + 1)
  double rope_theta = 10000;

  layout::AttentionWeights weights() const { return {dim, heads, head_dim}; }
};

// The layer's tensors in PyTorch's layout; null where the layer has none.
struct Tensors {
  const float* norm_weight = nullptr;  // [dim]
  const float* norm_bias = nullptr;    // [dim]
  const float* qkv_weight = nullptr;   // [3 heads head_dim, dim]
  const float* qkv_bias = nullptr;     // [3 heads head_dim]
  const float* out_weight = nullptr;   // [dim, heads head_dim]
  const float* out_bias = nullptr;     // [dim]
};

// Folded and packed as layout::AttentionWeights says:
//   norm gain -> columns of Wqkv; norm bias -> the qkv bias; scale log2(e) -> Wq and its bias;
//   K bias -> nothing without RoPE (it adds the same to all scores of a query);
//   V bias -> the output bias without a mask (weights sum to one); with one a query without keys must not get
//   it.
// Head channels of Q and K are reordered so that RoPE's pairs are neighbours. In fp16, whose range is narrow
// (65504 to 2^-14 at full precision), powers of two move between Wq and Wk, and between Wv and Wout, of a
// head until their largest weights are of one size; the product is the same. Throws Error(device) with
// out_of_range() where it says anything.
std::vector<std::byte> pack(const Problem& problem, const Tensors& tensors);

// Why the folded weights cannot be told in the problem's element, in words; empty when they can.
std::string out_of_range(const Problem& problem, const Tensors& tensors);

// (cos, sin) of every token and channel pair of a head: [length][head_width / 2][2]; (1, 0) beyond rope_dims.
std::vector<float> rotation(const Problem& problem, int length);

// How a problem is run. Bits may differ between kinds, but not between `many` and `few`.
struct Variant {
  enum class Kind { many, few, block };
  Kind kind = Kind::many;
  int slot = 32, warps = 8, tiles = 2;
  int stages = 0;        // block only: of streamed weights
  bool wgmma = false;    // block only: warpgroup products, compute capability 9.0
  int shared_bytes = 0;  // dynamic
  int sequences_per_block = 1;
};

// Sets the members that follow from the others: shared_bytes, sequences_per_block.
void finish(const Problem& problem, Variant& variant);

// The kernel: the file under kernels/ that has it, and the template with its arguments filled in.
std::string kernel_file(const Variant& variant);
std::string kernel_expression(const Problem& problem, const Variant& variant);

}  // namespace warpweave::cuda::resident
