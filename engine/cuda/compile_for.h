// Which kernels a plan needs, and compiling them ahead of time. Needs no GPU.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/step.h"
#include "graph/layer.h"
#include "plan/planner.h"
#include "warpweave/engine.h"

namespace warpweave::cuda {

// Of any session, or of sessions of this size.
std::vector<KernelSpec> plan_kernels(const std::vector<plan::LayerProblem>& problems,
                                     const std::vector<plan::PlannedStep>& planned,
                                     const plan::Conditions& conditions,
                                     const std::optional<SessionSize>& size);

// Conditions of a GPU of this compute capability (90 for 9.0), as far as plans depend on them.
plan::Conditions conditions_for(int compute_capability, Precision precision);

// Fills the kernel cache for a model on grids of this shape, on an architecture ("sm_90a"), so that a machine
// without a compiler can run it. Returns the kernels. Throws Error(input) on a bad architecture or shape,
// Error(device) when NVRTC is absent.
struct Compiled {
  KernelSpec spec;
  CompiledKernel kernel;
};
std::vector<Compiled> compile_for(const graph::Graph& graph, const Shape& shape,
                                  const std::string& architecture, const EngineOptions& options);

}  // namespace warpweave::cuda
