// The steps of cpu_fused, by layer type. Each packs its weights when made and runs on the grid in place of
// any copy: a task takes a block of cells, or of sequences, through the whole layer in cache.
#pragma once

#include <memory>

#include "cpu/fused/kernels.h"
#include "cpu/step.h"
#include "graph/layers/axial_attention.h"
#include "graph/layers/feed_forward.h"
#include "graph/layers/linear.h"
#include "graph/layers/norm.h"
#include "graph/layers/patch.h"
#include "graph/layers/position_embedding.h"

namespace warpweave::cpu::fused {

using StepPtr = std::unique_ptr<const Step>;
using weights::LayerWeights;

StepPtr make_step(const Kernels&, const graph::AxialAttention&, const LayerWeights&, Rounding);
StepPtr make_step(const Kernels&, const graph::FeedForward&, const LayerWeights&, Rounding);
StepPtr make_step(const Kernels&, const graph::NormLayer&, const LayerWeights&, Rounding);
StepPtr make_step(const Kernels&, const graph::Linear&, const LayerWeights&, Rounding);
StepPtr make_step(const Kernels&, const graph::PatchEmbed&, const LayerWeights&, Rounding);
StepPtr make_step(const Kernels&, const graph::PatchUnembed&, const LayerWeights&, Rounding);
StepPtr make_step(const Kernels&, const graph::PositionEmbedding&, const LayerWeights&, Rounding);

// Cells that a task works on at a time: enough to keep weights in use while they are in cache, few enough for
// the task's own data to stay in the second-level cache.
constexpr std::int64_t kBlock = 64;

}  // namespace warpweave::cpu::fused
