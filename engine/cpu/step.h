// A step of a prepared plan on the CPU, and the implementations that build steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cpu/thread_pool.h"
#include "plan/implementation.h"
#include "warpweave/tensor.h"
#include "weights/load.h"

namespace warpweave::cpu {

// One run of a step. Grids are dense; elements are float (double in precision fp64) in memory: in bf16 and
// fp16 the *values* are rounded to that type, the storage stays float.
struct StepRun {
  const void* x = nullptr;
  void* y = nullptr;  // equals x where the step is in_place() and the executor chose so
  std::int64_t batch = 0;
  graph::CellShape input;              // of one sample
  const std::uint8_t* mask = nullptr;  // one byte per cell of the step's input grid, or null
  ThreadPool* pool = nullptr;
  std::byte* scratch = nullptr;  // scratch_bytes(input, pool threads), 64-byte aligned
};

// Packed weights and all decisions that do not depend on the grid's size. Immutable after construction: the
// sessions of an engine share it, each with its own scratch memory.
class Step {
 public:
  virtual ~Step() = default;
  // Whether y may be x. (y is never a partial overlap.)
  virtual bool in_place() const noexcept = 0;
  virtual std::size_t scratch_bytes(const graph::CellShape& input, int threads) const noexcept {
    (void)input, (void)threads;
    return 0;
  }
  // Must give every sample the same bits whatever the batch and the number of threads. Allocates nothing.
  virtual void run(const StepRun& run) const = 0;
};

class CpuImplementation : public plan::Implementation {
 public:
  // For layers that claim() accepted. `weights` has one entry per layer and may be gone after the call.
  virtual std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                            std::span<const weights::LayerWeights> weights,
                                            const plan::Conditions& conditions) const = 0;
};

// All implementations of the CPU, cheapest first; "reference" declines nothing.
std::span<const CpuImplementation* const> implementations();
const CpuImplementation& reference_implementation();
const CpuImplementation& fused_implementation();

}  // namespace warpweave::cpu
