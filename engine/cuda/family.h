// The operations that layers are put together from. A family (reference, composed) supplies each of them, but
// for WideLayer, which it may; the steps in cuda/layers/ say in which order they run and where results lie.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/params.h"
#include "cuda/compiler.h"
#include "cuda/device.h"
#include "graph/layers/axial_attention.h"
#include "graph/layers/feed_forward.h"
#include "plan/implementation.h"

namespace warpweave::cuda {

struct NormShape {
  graph::NormKind kind = graph::NormKind::layer;
  std::int64_t dim = 0, pitch = 0;  // the result has zeros from `dim` to `pitch`
  bool operand = true;              // of a product, not a grid: tf32 rounds it
};

class NormOperation {
 public:
  virtual ~NormOperation() = default;
  virtual void enqueue(cudaStream_t stream, const kernels::NormParams& params) const = 0;
};

struct ProjectionShape {
  std::int64_t n = 0, k = 0;  // of the weight [n, k]; both as the operands lie in memory, padding included
  graph::Activation activation = graph::Activation::gelu;
  bool activated = false;
  bool residual = false;
  // Whether an own kernel may take it where channels are few. Not for attention, whose projections of many
  // tokens are faster by a library.
  bool own_kernel = false;
};

struct ProjectionRun {
  const void* a = nullptr;         // [tokens, k], dense, in the workspace or a grid
  const void* residual = nullptr;  // null, or y: what is added to
  void* y = nullptr;               // [cell, n]
  kernels::Cells cells{};          // of y and residual
  std::int64_t tokens = 0;
  std::byte* scratch = nullptr;  // scratch_bytes(tokens), aligned to 256
};

// With everything fixed that may depend on the size of a sample (never on the batch).
class BoundProjection {
 public:
  virtual ~BoundProjection() = default;
  virtual void enqueue(cudaStream_t stream, const ProjectionRun& run) const = 0;
};

// With its packed weights; outlives what it binds.
class Projection {
 public:
  virtual ~Projection() = default;
  virtual std::int64_t scratch_bytes_per_token() const noexcept = 0;
  virtual std::unique_ptr<const BoundProjection> bind(std::int64_t tokens_of_sample) const = 0;
};

struct AttentionShape {
  std::int64_t heads = 0, head_dim = 0;  // head_dim as it lies in memory
  std::int64_t length = 0;
  bool causal = false;
  bool folded = false;  // q comes multiplied by scale log2(e), and AttentionParams::scale is ln 2
};

class AttentionOperation {
 public:
  virtual ~AttentionOperation() = default;
  virtual void enqueue(cudaStream_t stream, const kernels::AttentionParams& params) const = 0;
};

// An attention layer whose norm and projection to q, k, v are one operation, with or without attention.
struct WideShape {
  std::int64_t heads = 0, head_dim = 0;  // as they lie in memory
  std::int64_t dim = 0;                  // channels of the grid
  graph::NormKind norm = graph::NormKind::layer;
};
struct WideWeights {
  std::span<const float> qkv, qkv_bias = {};  // [3 heads head_dim, dim]; [3 heads head_dim] or empty
  const float *norm_weight = nullptr, *norm_bias = nullptr;  // [dim]; null: 1 and 0
  float eps = 0;
};
struct WideRun {
  const void* x = nullptr;  // the grid
  kernels::Cells cells{};   // of its slice
  std::int64_t tokens = 0;
  void* out = nullptr;    // dense: q, k, v, or the heads' results
  void* gains = nullptr;  // gain_bytes_per_token() for each token
  void* copy = nullptr;   // a grid that gets the cells as they are, where the operation copies(); null: none
  // For attention: where the sequences' cells are, from the slice's first one on, and their tokens.
  kernels::Sequences grid_sequences{}, token_sequences{};
  std::int64_t sequences = 0, length = 0;
  float scale = 1;
};
class WideOperation {
 public:
  virtual ~WideOperation() = default;
  virtual bool copies() const noexcept = 0;  // whether it takes WideRun::copy
  virtual void enqueue(cudaStream_t stream, const WideRun& run) const = 0;
};
// With its packed weights; outlives its operations.
class WideLayer {
 public:
  virtual ~WideLayer() = default;
  virtual std::int64_t gain_bytes_per_token() const noexcept = 0;  // scratch
  virtual std::unique_ptr<const WideOperation> store() const = 0;
  // Without a mask; null where attention is an operation of its own. `neighbours`: sequences of a sample
  // beside each other, rows or columns.
  virtual std::unique_ptr<const WideOperation> attention(const AttentionShape& shape,
                                                         std::int64_t neighbours) const = 0;
};

class Family {
 public:
  virtual ~Family() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual plan::Claim claim(const plan::LayerProblem& problem, const plan::Conditions& conditions) const = 0;

  // Whether that projection needs cuBLASLt.
  virtual bool needs_blas(const ProjectionShape&, Precision) const { return false; }

  // How many elements apart tokens of `channels`, and heads of `head_dim`, lie in the workspace.
  virtual std::int64_t token_pitch(std::int64_t channels, Precision precision) const noexcept = 0;
  virtual std::int64_t head_pitch(std::int64_t head_dim, Precision precision) const noexcept = 0;

  // Whether q comes with |scale| log2(e) multiplied into its weights (AttentionShape::folded).
  virtual bool folds_scale(double, Precision) const { return false; }

  // The kernels of an operation, and the operation itself on a device where they are loaded.
  virtual std::vector<KernelSpec> norm_kernels(const NormShape& shape, Precision precision) const = 0;
  virtual std::unique_ptr<const NormOperation> norm(const NormShape& shape, Precision precision,
                                                    const GpuDevice& device) const = 0;
  virtual std::vector<KernelSpec> attention_kernels(const AttentionShape& shape,
                                                    const plan::Conditions& conditions) const = 0;
  virtual std::unique_ptr<const AttentionOperation> attention(const AttentionShape& shape,
                                                              Precision precision,
                                                              const GpuDevice& device) const = 0;
  // Whether the family has a WideLayer for such a layer, its kernels (attention: null where it is an
  // operation of its own), and itself.
  virtual bool takes_wide_layer(const WideShape&, const plan::Conditions&) const { return false; }
  virtual std::vector<KernelSpec> wide_layer_kernels(const WideShape&, const AttentionShape*, std::int64_t,
                                                     Precision) const {
    return {};
  }
  virtual std::unique_ptr<const WideLayer> wide_layer(const WideShape&, const WideWeights&, Precision,
                                                      const GpuDevice&) const {
    return nullptr;
  }

  virtual std::vector<KernelSpec> projection_kernels(const ProjectionShape& shape,
                                                     Precision precision) const = 0;
  // `weight` [n, k] and `bias` [n] or empty.
  virtual std::unique_ptr<const Projection> projection(const ProjectionShape& shape,
                                                       std::span<const float> weight,
                                                       std::span<const float> bias, Precision precision,
                                                       const GpuDevice& device) const = 0;
};

// In device code: "float", "warpweave::bf16", ...
std::string device_type(Precision precision);
std::string device_type(DType type);
std::string device_norm(graph::NormKind kind);
std::string device_activation(bool activated, graph::Activation activation);

// Blocks for a loop over `count` elements with `threads` each: enough to fill any GPU, each thread loops.
std::int64_t loop_blocks(std::int64_t count, int threads);

}  // namespace warpweave::cuda
