// A step of a plan on the GPU, and the implementations that build steps.
//
// Three stages: an implementation claims layers and names the kernels they need (no device, no weights: what
// `warpweave compile` uses); build() packs the weights on a device, once per engine; bind() fixes shapes,
// kernels and workspace for one session, so that enqueue() only launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/device.h"
#include "plan/implementation.h"
#include "weights/load.h"

namespace warpweave::cuda {

// Grids are dense, of storage_type(precision), on the device, and aligned to 16 bytes.
struct StepRun {
  cudaStream_t stream = nullptr;
  const void* x = nullptr;
  void* y = nullptr;                   // equals x where the step is in_place() and the executor chose so
  const std::uint8_t* mask = nullptr;  // one byte per cell of the step's input grid, or null
  std::byte* workspace = nullptr;      // workspace_bytes(), aligned to 256
};

struct StepShape {
  std::int64_t batch = 1;
  graph::CellShape input;            // of one sample
  std::int64_t workspace_limit = 0;  // bytes; 0 = none. Throws Error(device) from bind() when it is too small
};

struct SessionSize {
  std::int64_t batch = 1;
  int multiprocessors = 1;  // of the GPU
};

class BoundStep {
 public:
  virtual ~BoundStep() = default;
  virtual std::size_t workspace_bytes() const noexcept = 0;
  // Launches on the stream: allocates nothing, synchronises nothing, may be captured into a graph. Every
  // sample gets the same bits whatever the batch and the workspace limit.
  virtual void enqueue(const StepRun& run) const = 0;
};

// Packed weights on the device. Immutable; the sessions of an engine share it.
class Step {
 public:
  virtual ~Step() = default;
  virtual bool in_place() const noexcept = 0;  // whether y may be x (never a partial overlap)
  // The device is current, and the kernels named by kernels() for this shape are loaded.
  virtual std::unique_ptr<const BoundStep> bind(const StepShape& shape) const = 0;
};

class CudaImplementation : public plan::Implementation {
 public:
  // What claimed layers need, with and without a mask; depends on no batch.
  virtual std::vector<KernelSpec> kernels(std::span<const plan::LayerProblem> layers,
                                          const plan::Conditions& conditions) const = 0;
  // Those of them that a session of so many samples runs, so that no other is compiled while it is prepared.
  virtual std::vector<KernelSpec> kernels_of_session(std::span<const plan::LayerProblem> layers,
                                                     const plan::Conditions& conditions,
                                                     const SessionSize&) const {
    return kernels(layers, conditions);
  }
  // Whether they need cuBLASLt.
  virtual bool needs_blas(std::span<const plan::LayerProblem>, Precision) const { return false; }
  // For layers that claim() accepted. `weights` has one entry per layer and may be gone after the call; the
  // device is current and outlives the step.
  virtual std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                            std::span<const weights::LayerWeights> weights,
                                            Precision precision, const GpuDevice& device) const = 0;
};

// All implementations of the GPU, cheapest first. `blas_missing` is why cuBLASLt cannot be used, or empty.
std::vector<std::unique_ptr<const CudaImplementation>> make_implementations(const std::string& blas_missing);

}  // namespace warpweave::cuda
