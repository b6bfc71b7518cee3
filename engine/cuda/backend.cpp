// The GPU as a device: plans, compiles, packs each step's weights once, and binds plans to shapes.
#include "cuda/backend.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <span>
#include <tuple>

#include "cuda/compile_for.h"
#include "cuda/parallel.h"
#include "cuda/prepared.h"
#include "cuda/verbose.h"
#include "plan/planner.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

constexpr char kWithoutBlas[] = "the plan composed cannot run, slower kernels take its place: ";

class CudaBackend final : public plan::Backend {
 public:
  CudaBackend(std::shared_ptr<const detail::ModelData> model, const EngineOptions& options)
      : model_(std::move(model)),
        options_(options),
        device_(std::make_shared<const GpuDevice>(options.device.index)),
        implementations_(make_implementations(device_->blas_missing())) {}

  std::vector<PlannedLayer> plan(const Shape& shape) const override {
    const auto problems = plan::problems(model_->graph, cells(shape), model_->weights);
    auto planned = make(problems);
    if (needs_blas(problems, planned) && !device_->blas()) planned = make_without_blas(problems);
    return describe(problems, planned, shape.batch);
  }

  std::string notice() const override {
    const std::string missing = device_->blas_missing();
    return missing.empty() ? missing : kWithoutBlas + missing;
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> list;
    for (const auto& implementation : implementations_) list.emplace_back(implementation->name());
    return list;
  }

  std::unique_ptr<plan::Prepared> prepare(const Shape& shape) const override {
    const auto problems = plan::problems(model_->graph, cells(shape), model_->weights);
    const CurrentDevice current(device_->index());
    auto planned = make(problems);
    const bool blas = needs_blas(problems, planned);
    if (blas) device_->expect_blas(options_.precision);
    auto steps = load(problems, planned, shape.batch);
    if (blas) {
      const Phase waiting("waiting for cuBLASLt");
      if (!device_->blas()) {
        planned = make_without_blas(problems);
        steps = load(problems, planned, shape.batch);
      }
    }
    const Phase binding("binding the plan to the shape");
    return std::make_unique<GpuPrepared>(device_, options_.precision, shape, std::move(steps),
                                         describe(problems, planned, shape.batch), options_.workspace_limit,
                                         found_without_blas());
  }

 private:
  using Key = std::tuple<int, int, const plan::Implementation*>;  // first layer, layers, who runs them

  graph::CellShape cells(const Shape& shape) const {
    return {shape.rows, shape.columns, model_->graph.input_channels};
  }

  // As if cuBLASLt worked where it is there, until make_without_blas() was called.
  std::vector<plan::PlannedStep> make(const std::vector<plan::LayerProblem>& problems) const {
    std::vector<const plan::Implementation*> list;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& implementation : without_blas_.empty() ? implementations_ : without_blas_)
        list.push_back(implementation.get());
    }
    return plan::make_plan(problems, list, device_->conditions(options_.precision), options_.plan,
                           options_.strict);
  }

  // Its file is there, but it cannot be opened: who needs it declines from now on.
  std::vector<plan::PlannedStep> make_without_blas(const std::vector<plan::LayerProblem>& problems) const {
    const std::string missing = device_->blas_missing();
    {
      const std::lock_guard lock(mutex_);
      if (without_blas_.empty()) without_blas_ = make_implementations(missing);
    }
    return make(problems);
  }

  // That make_without_blas() was called, for the session's notice; else empty.
  std::string found_without_blas() const {
    const std::lock_guard lock(mutex_);
    return without_blas_.empty() ? std::string() : kWithoutBlas + device_->blas_missing();
  }

  static std::span<const plan::LayerProblem> layers_of(const std::vector<plan::LayerProblem>& problems,
                                                       const plan::PlannedStep& step) {
    return std::span(problems).subspan(static_cast<std::size_t>(step.first),
                                       static_cast<std::size_t>(step.layers));
  }

  bool needs_blas(const std::vector<plan::LayerProblem>& problems,
                  const std::vector<plan::PlannedStep>& planned) const {
    return std::any_of(planned.begin(), planned.end(), [&](const plan::PlannedStep& step) {
      return static_cast<const CudaImplementation&>(*step.implementation)
          .needs_blas(layers_of(problems, step), options_.precision);
    });
  }

  std::vector<PlannedLayer> describe(const std::vector<plan::LayerProblem>& problems,
                                     const std::vector<plan::PlannedStep>& planned,
                                     std::int64_t batch) const {
    return plan::describe(model_->graph, problems, planned, batch,
                          itemsize(storage_type(options_.precision)));
  }

  // Kernels and packed weights of a plan, on the device.
  std::vector<StepInPlan> load(const std::vector<plan::LayerProblem>& problems,
                               const std::vector<plan::PlannedStep>& planned, std::int64_t batch) const {
    device_->kernels().load(plan_kernels(problems, planned, device_->conditions(options_.precision),
                                         SessionSize{batch, device_->multiprocessors()}));
    std::vector<StepInPlan> steps(planned.size());
    const Phase packing("packing and uploading weights");
    const std::lock_guard lock(mutex_);
    in_parallel(planned.size(), [&](std::size_t i) {
      const auto layers = layers_of(problems, planned[i]);
      steps[i] = {step(planned[i]), layers.front().input, layers.back().output};
    });
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const plan::PlannedStep& p = planned[i];
      steps_[{p.first, p.layers, p.implementation}] = steps[i].step;
      if (verbose()) {
        std::fprintf(stderr, "warpweave: layers[%d]: %s by %s\n", p.first,
                     model_->graph.nodes[p.first].layer->describe().c_str(),
                     std::string(p.implementation->name()).c_str());
      }
    }
    return steps;
  }

  // With its weights on the device, packed when it is first planned. mutex_ is held.
  std::shared_ptr<const Step> step(const plan::PlannedStep& planned) const {
    const auto known = steps_.find({planned.first, planned.layers, planned.implementation});
    if (known != steps_.end()) return known->second;
    const CurrentDevice current(device_->index());
    std::vector<const graph::Layer*> layers;
    for (int i = 0; i < planned.layers; ++i)
      layers.push_back(model_->graph.nodes[planned.first + i].layer.get());
    return static_cast<const CudaImplementation&>(*planned.implementation)
        .build(layers,
               std::span(model_->weights).subspan(planned.first, static_cast<std::size_t>(planned.layers)),
               options_.precision, *device_);
  }

  std::shared_ptr<const detail::ModelData> model_;
  EngineOptions options_;
  std::shared_ptr<const GpuDevice> device_;
  std::vector<std::unique_ptr<const CudaImplementation>> implementations_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::vector<std::unique_ptr<const CudaImplementation>> without_blas_;
  mutable std::map<Key, std::shared_ptr<const Step>> steps_;
};

}  // namespace

std::unique_ptr<plan::Backend> make_backend(std::shared_ptr<const detail::ModelData> model,
                                            const EngineOptions& options) {
  return std::make_unique<CudaBackend>(std::move(model), options);
}

}  // namespace warpweave::cuda
