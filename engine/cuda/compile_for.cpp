#include "cuda/compile_for.h"

#include <algorithm>

#include "cuda/convert.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

std::vector<KernelSpec> plan_kernels(const std::vector<plan::LayerProblem>& problems,
                                     const std::vector<plan::PlannedStep>& planned,
                                     const plan::Conditions& conditions,
                                     const std::optional<SessionSize>& size) {
  std::vector<KernelSpec> list = {convert_kernel()};
  for (const auto& step : planned) {
    const auto layers = std::span(problems).subspan(step.first, static_cast<std::size_t>(step.layers));
    const auto& implementation = static_cast<const CudaImplementation&>(*step.implementation);
    for (auto& spec : size ? implementation.kernels_of_session(layers, conditions, *size)
                           : implementation.kernels(layers, conditions))
      list.push_back(std::move(spec));
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

plan::Conditions conditions_for(int compute_capability, Precision precision) {
  // Shared memory that a block may ask for, CUDA C++ programming guide, "Technical specifications".
  const auto kib = [&]() -> std::int64_t {
    if (compute_capability == 80 || compute_capability == 87) return 163;
    if (compute_capability == 90 || compute_capability / 10 == 10 || compute_capability / 10 == 11)
      return 227;
    return 99;
  };
  return {precision, compute_capability, kib() * 1024};
}

std::vector<Compiled> compile_for(const graph::Graph& graph, const Shape& shape,
                                  const std::string& architecture, const EngineOptions& options) {
  const int capability = parse_architecture(architecture);
  const auto conditions = conditions_for(capability, options.precision);
  const auto problems = plan::problems(graph, {shape.rows, shape.columns, graph.input_channels});
  const auto implementations = make_implementations("");
  std::vector<const plan::Implementation*> list;
  for (const auto& implementation : implementations) list.push_back(implementation.get());
  const auto planned = plan::make_plan(problems, list, conditions, options.plan, options.strict);
  const auto specs = plan_kernels(problems, planned, conditions, std::nullopt);
  auto kernels = Compiler().compile(specs, capability);
  std::vector<Compiled> result;
  for (std::size_t i = 0; i < specs.size(); ++i) result.push_back({specs[i], std::move(kernels[i])});
  return result;
}

}  // namespace warpweave::cuda
