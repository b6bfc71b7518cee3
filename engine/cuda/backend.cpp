// The GPU as a device: plans, compiles, packs each step's weights once, and binds plans to shapes.
#include "cuda/backend.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/compile_for.h"
#include "cuda/prepared.h"
#include "cuda/verbose.h"
#include "plan/planner.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

class CudaBackend final : public plan::Backend {
 public:
  CudaBackend(std::shared_ptr<const detail::ModelData> model, const EngineOptions& options)
      : model_(std::move(model)),
        options_(options),
        device_(std::make_shared<const GpuDevice>(options.device.index)),
        implementations_(make_implementations(device_->blas_missing())) {}

  std::vector<PlannedLayer> plan(const Shape& shape) const override {
    const auto problems = plan::problems(model_->graph, cells(shape), model_->weights);
    return describe(problems, make(problems), shape.batch);
  }

  std::string notice() const override {
    if (device_->blas()) return {};
    return "the plan composed cannot run, slower kernels take its place: " + device_->blas_missing();
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> list;
    for (const auto& implementation : implementations_) list.emplace_back(implementation->name());
    return list;
  }

  std::unique_ptr<plan::Prepared> prepare(const Shape& shape) const override {
    const auto problems = plan::problems(model_->graph, cells(shape), model_->weights);
    const auto planned = make(problems);
    const CurrentDevice current(device_->index());
    device_->kernels().load(plan_kernels(problems, planned, device_->conditions(options_.precision)));
    std::vector<StepInPlan> steps;
    Phase packing("packing and uploading weights");
    for (const auto& step : planned) {
      if (verbose()) {
        std::fprintf(stderr, "warpweave: layers[%d]: %s by %s\n", step.first,
                     model_->graph.nodes[step.first].layer->describe().c_str(),
                     std::string(step.implementation->name()).c_str());
      }
      steps.push_back(
          {packed(step), problems[step.first].input, problems[step.first + step.layers - 1].output});
    }
    packing.end();
    const Phase binding("binding the plan to the shape");
    return std::make_unique<GpuPrepared>(device_, options_.precision, shape, std::move(steps),
                                         describe(problems, planned, shape.batch), options_.workspace_limit);
  }

 private:
  using Key = std::tuple<int, int, const plan::Implementation*>;  // first layer, layers, who runs them

  graph::CellShape cells(const Shape& shape) const {
    return {shape.rows, shape.columns, model_->graph.input_channels};
  }

  std::vector<plan::PlannedStep> make(const std::vector<plan::LayerProblem>& problems) const {
    std::vector<const plan::Implementation*> list;
    for (const auto& implementation : implementations_) list.push_back(implementation.get());
    return plan::make_plan(problems, list, device_->conditions(options_.precision), options_.plan,
                           options_.strict);
  }

  std::vector<PlannedLayer> describe(const std::vector<plan::LayerProblem>& problems,
                                     const std::vector<plan::PlannedStep>& planned,
                                     std::int64_t batch) const {
    return plan::describe(model_->graph, problems, planned, batch,
                          itemsize(storage_type(options_.precision)));
  }

  // The step with its weights on the device, packed when it is first planned.
  std::shared_ptr<const Step> packed(const plan::PlannedStep& planned) const {
    const std::lock_guard lock(mutex_);
    auto& entry = steps_[{planned.first, planned.layers, planned.implementation}];
    if (auto alive = entry) return alive;
    std::vector<const graph::Layer*> layers;
    for (int i = 0; i < planned.layers; ++i)
      layers.push_back(model_->graph.nodes[planned.first + i].layer.get());
    const auto& implementation = static_cast<const CudaImplementation&>(*planned.implementation);
    entry = implementation.build(
        layers, std::span(model_->weights).subspan(planned.first, static_cast<std::size_t>(planned.layers)),
        options_.precision, *device_);
    return entry;
  }

  std::shared_ptr<const detail::ModelData> model_;
  EngineOptions options_;
  std::shared_ptr<const GpuDevice> device_;
  std::vector<std::unique_ptr<const CudaImplementation>> implementations_;
  mutable std::mutex mutex_;
  mutable std::map<Key, std::shared_ptr<const Step>> steps_;
};

}  // namespace

std::unique_ptr<plan::Backend> make_backend(std::shared_ptr<const detail::ModelData> model,
                                            const EngineOptions& options) {
  if (std::string problem = unusable(options.device.index); !problem.empty()) {
    throw Error(ErrorCode::device, to_string(Device::cuda(options.device.index)) + ": " + problem);
  }
  return std::make_unique<CudaBackend>(std::move(model), options);
}

}  // namespace warpweave::cuda
