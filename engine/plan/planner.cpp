#include "plan/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "warpweave/error.h"
#include "weights/load.h"

namespace warpweave::plan {
namespace {

// Claims of every implementation at one layer.
std::vector<Claim> ask(std::span<const LayerProblem> rest,
                       std::span<const Implementation* const> implementations, const Conditions& conditions) {
  std::vector<Claim> claims;
  for (const Implementation* implementation : implementations)
    claims.push_back(implementation->claim(rest, conditions));
  return claims;
}

std::string names(std::span<const Implementation* const> implementations) {
  std::vector<std::string_view> list;
  for (const Implementation* implementation : implementations) list.push_back(implementation->name());
  return fmt::format("{}", fmt::join(list, ", "));
}

std::string where(const LayerProblem& problem, std::size_t index) {
  return fmt::format("layer {} ({})", index, problem.layer->describe());
}

// Names the first layer that nothing allowed (or, where `only` is given, that one) runs, with the reasons.
[[noreturn]] void throw_uncovered(const std::vector<LayerProblem>& problems,
                                  std::span<const Implementation* const> implementations,
                                  const std::vector<std::vector<Claim>>& claims, const Implementation* only) {
  for (std::size_t i = 0; i < problems.size(); ++i) {
    std::string reasons;
    bool declined_by_all = true;
    for (std::size_t k = 0; k < implementations.size(); ++k) {
      if (only && implementations[k] != only) continue;
      if (claims[i][k])
        declined_by_all = false;
      else
        reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", implementations[k]->name(),
                               claims[i][k].declined);
    }
    if (declined_by_all)
      throw Error(ErrorCode::device, fmt::format("{} is declined by {}", where(problems[i], i), reasons));
  }
  throw Error(ErrorCode::internal, "the claims of the implementations do not cover the model");
}

}  // namespace

std::vector<LayerProblem> problems(const graph::Graph& graph, const graph::CellShape& input,
                                   std::span<const weights::LayerWeights> weights) {
  const std::vector<graph::CellShape> outputs = graph.shapes(input);
  std::vector<LayerProblem> list;
  graph::CellShape reaching = input;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    list.push_back(
        {graph.nodes[i].layer.get(), reaching, outputs[i], weights.empty() ? nullptr : &weights[i]});
    reaching = outputs[i];
  }
  return list;
}

std::vector<PlannedStep> make_plan(const std::vector<LayerProblem>& problems,
                                   std::span<const Implementation* const> implementations,
                                   const Conditions& conditions, const std::string& preferred, bool strict) {
  const Implementation* wanted = nullptr;
  if (preferred != "auto") {
    for (const Implementation* implementation : implementations)
      if (implementation->name() == preferred) wanted = implementation;
    if (!wanted)
      throw Error(ErrorCode::device, fmt::format("no plan is named '{}' on this device; there are auto, {}",
                                                 preferred, names(implementations)));
  }

  // best[i]: the cheapest way to run the layers from i on. The preferred implementation counts first: as many
  // layers as possible go to it, then cost decides.
  struct Best {
    double cost = std::numeric_limits<double>::infinity();
    std::size_t others = std::numeric_limits<std::size_t>::max();  // layers not run by the preferred one
    std::size_t choice = 0;
    int layers = 0;
  };
  const std::size_t n = problems.size();
  std::vector<Best> best(n + 1);
  std::vector<std::vector<Claim>> claims(n);
  best[n] = {0, 0, 0, 0};
  const auto covered = [&](std::size_t i) { return i == n || best[i].layers > 0; };
  for (std::size_t i = n; i-- > 0;) {
    claims[i] = ask(std::span(problems).subspan(i), implementations, conditions);
    for (std::size_t k = 0; k < implementations.size(); ++k) {
      const Claim& claim = claims[i][k];
      const bool own = implementations[k] == wanted;
      if (!claim || (strict && wanted && !own) || !covered(i + claim.layers)) continue;
      const Best& after = best[i + claim.layers];
      const Best candidate{claim.cost + after.cost, after.others + (own ? 0 : claim.layers), k, claim.layers};
      if (candidate.others < best[i].others ||
          (candidate.others == best[i].others && candidate.cost < best[i].cost))
        best[i] = candidate;
    }
  }
  if (!covered(0)) throw_uncovered(problems, implementations, claims, strict ? wanted : nullptr);

  std::vector<PlannedStep> steps;
  for (std::size_t i = 0; i < n; i += best[i].layers) {
    PlannedStep step{static_cast<int>(i), best[i].layers, implementations[best[i].choice], {}};
    for (std::size_t k = 0; k < implementations.size(); ++k)
      if (!claims[i][k])
        step.declined.emplace_back(std::string(implementations[k]->name()), claims[i][k].declined);
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<PlannedLayer> describe(const graph::Graph& graph, const std::vector<LayerProblem>& problems,
                                   const std::vector<PlannedStep>& steps, std::int64_t batch,
                                   std::size_t element_bytes) {
  const auto count = [](const graph::CellShape& s) {
    return static_cast<double>(s.cells()) * static_cast<double>(s.channels);
  };
  std::vector<PlannedLayer> layers;
  for (const PlannedStep& step : steps) {
    for (int i = step.first; i < step.first + step.layers; ++i) {
      const LayerProblem& problem = problems[i];
      PlannedLayer layer;
      layer.layer = fmt::format("{}: {}", graph.nodes[i].path, problem.layer->describe());
      layer.implementation = step.implementation->name();
      if (i == step.first) layer.declined = step.declined;
      layer.output = {batch, problem.output.rows, problem.output.columns, problem.output.channels};
      layer.flops = static_cast<double>(batch) * problem.layer->flops(problem.input);
      double parameters = 0;
      for (const graph::TensorSpec& tensor : problem.layer->tensors()) {
        double size = 1;
        for (const std::int64_t d : tensor.shape) size *= static_cast<double>(d);
        parameters += size;
      }
      layer.bytes =
          static_cast<double>(element_bytes) *
          (static_cast<double>(batch) * (count(problem.input) + count(problem.output)) + parameters);
      layers.push_back(std::move(layer));
    }
  }
  return layers;
}

}  // namespace warpweave::plan
