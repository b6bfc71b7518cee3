// Chooses an implementation for every layer: the cheapest cover of the model by claims that were not
// declined.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/implementation.h"
#include "warpweave/engine.h"

namespace warpweave::plan {

struct PlannedStep {
  int first = 0, layers = 1;  // of the model's nodes
  const Implementation* implementation = nullptr;
  std::vector<std::pair<std::string, std::string>> declined;  // (implementation, reason) at `first`
};

// The layers of a graph on a grid, with their weights where given (one entry per node, outliving the result).
// Throws Error(input) as Graph::shapes does.
std::vector<LayerProblem> problems(const graph::Graph& graph, const graph::CellShape& input,
                                   std::span<const weights::LayerWeights> weights = {});

// `preferred` is "auto" or an implementation's name; that one takes every layer it claims, the rest goes to
// the cheapest. Throws Error(device) when the name is unknown (listing the names), when `strict` and it
// declines a layer, or when every implementation declines one (none should: each device has one that takes
// all).
std::vector<PlannedStep> make_plan(const std::vector<LayerProblem>& problems,
                                   std::span<const Implementation* const> implementations,
                                   const Conditions& conditions, const std::string& preferred, bool strict);

// The plan as Session::plan() tells it, for `batch` samples; `element_bytes` is the size of a stored element.
std::vector<PlannedLayer> describe(const graph::Graph& graph, const std::vector<LayerProblem>& problems,
                                   const std::vector<PlannedStep>& steps, std::int64_t batch,
                                   std::size_t element_bytes);

}  // namespace warpweave::plan
