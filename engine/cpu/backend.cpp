#include "cpu/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "cpu/route.h"
#include "cpu/step.h"
#include "numeric/convert.h"
#include "plan/planner.h"
#include "warpweave/error.h"

namespace warpweave::cpu {
namespace {

// Memory of our own, aligned for vector loads.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : memory_(DType::u8, {static_cast<std::int64_t>(bytes)}) {}
  std::byte* data() noexcept { return static_cast<std::byte*>(memory_.data()); }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  Tensor memory_;
};

// The element type as which a grid is held in memory: see StepRun.
DType held_type(Precision precision) { return precision == Precision::fp64 ? DType::f64 : DType::f32; }

struct PreparedStep {
  std::shared_ptr<const Step> step;
  graph::CellShape input, output;
  int layers_done = 0;  // of the model, once this step is through
};

// Memory of a session beyond input, output and weights, in bytes.
struct Workspace {
  std::size_t scratch = 0, a = 0, b = 0;
  std::size_t total() const noexcept { return scratch + a + b; }
};

// Converting an input or output is another way through the buffers: one route for each combination.
class Routes {
 public:
  Routes(const std::vector<PreparedStep>& prepared, std::int64_t batch) {
    const auto elements = [&](const graph::CellShape& s) { return batch * s.cells() * s.channels; };
    std::vector<RouteStep> steps;
    for (const PreparedStep& s : prepared) steps.push_back({s.step->in_place(), elements(s.output)});
    const std::int64_t input = elements(prepared.front().input);
    for (const bool in : {false, true})
      for (const bool out : {false, true})
        for (const bool aliased : {false, true})
          routes_[index(in, out, aliased)] = make_route(steps, input, in, out, aliased);
  }

  const Route& of(bool convert_input, bool convert_output, bool aliased) const {
    return routes_[index(convert_input, convert_output, aliased)];
  }
  const std::array<Route, 8>& all() const noexcept { return routes_; }

 private:
  static int index(bool in, bool out, bool aliased) { return in * 4 + out * 2 + aliased; }
  std::array<Route, 8> routes_;
};

// Sizes for any interface types, so that a run never has to allocate.
Workspace workspace(const std::vector<PreparedStep>& steps, const Routes& routes, Precision precision,
                    int threads) {
  Workspace w;
  for (const PreparedStep& s : steps)
    w.scratch = std::max(w.scratch, s.step->scratch_bytes(s.input, threads));
  const std::size_t size = itemsize(held_type(precision));
  for (const Route& r : routes.all()) {
    w.a = std::max(w.a, static_cast<std::size_t>(r.a_elements) * size);
    w.b = std::max(w.b, static_cast<std::size_t>(r.b_elements) * size);
  }
  return w;
}

class CpuPrepared final : public plan::Prepared {
 public:
  CpuPrepared(std::vector<PreparedStep> steps, std::vector<PlannedLayer> layers, const Shape& shape,
              Precision precision, std::shared_ptr<ThreadPool> pool, std::int64_t workspace_limit)
      : steps_(std::move(steps)),
        layers_(std::move(layers)),
        batch_(shape.batch),
        precision_(precision),
        pool_(std::move(pool)),
        routes_(steps_, batch_) {
    const Workspace w = workspace(steps_, routes_, precision_, pool_->threads());
    const std::string needs =
        fmt::format("this plan needs a workspace of {} bytes for a grid of {} x {} x {}", w.total(),
                    shape.batch, shape.rows, shape.columns);
    if (workspace_limit > 0 && w.total() > static_cast<std::size_t>(workspace_limit))
      throw Error(ErrorCode::device, fmt::format("{}, but the limit is {}", needs, workspace_limit));
    try {
      scratch_ = std::make_unique<Buffer>(w.scratch);
      a_ = std::make_unique<Buffer>(w.a);
      b_ = std::make_unique<Buffer>(w.b);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::device) throw;
      throw Error(ErrorCode::device, "out of memory: " + needs);
    }
  }

  void run_host(const ConstGridView& x, const GridView& y, const RunOptions& options) override {
    run(x, y, options);
  }

  void run(const ConstGridView& x, const GridView& y, const RunOptions& options) override {
    const DType held = held_type(precision_);
    const bool rounds = precision_ == Precision::bf16 || precision_ == Precision::fp16;
    const Route& way = routes_.of(x.type != held || rounds, y.type != held, x.data == y.data);
    const void* at = x.data;
    if (way.start != Place::x) {
      void* start = place(way.start, y);
      enter(x, start);
      at = start;
    }
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const PreparedStep& s = steps_[i];
      void* target = place(way.targets[i], y);
      s.step->run({.x = at,
                   .y = target,
                   .batch = batch_,
                   .input = s.input,
                   .mask = options.mask.data,
                   .pool = pool_.get(),
                   .scratch = scratch_->data()});
      at = target;
      if (options.progress) options.progress(s.layers_done, static_cast<int>(layers_.size()));
    }
    if (way.convert_output) convert(held, at, y.type, y.data, y.shape.elements());
  }

  std::int64_t workspace_bytes() const noexcept override {
    return static_cast<std::int64_t>(scratch_->bytes() + a_->bytes() + b_->bytes());
  }
  const std::vector<PlannedLayer>& layers() const noexcept override { return layers_; }

 private:
  void* place(Place where, const GridView& y) {
    switch (where) {
      case Place::a:
        return a_->data();
      case Place::b:
        return b_->data();
      default:
        return y.data;
    }
  }

  // The input as the steps want it: in the held type, rounded to the precision.
  void enter(const ConstGridView& x, void* target) {
    const DType held = held_type(precision_);
    const DType rounded = storage_type(precision_);
    const std::int64_t count = x.shape.elements();
    constexpr std::int64_t kGrain = 1 << 16;
    pool_->parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
      const auto* source = static_cast<const std::byte*>(x.data) + begin * itemsize(x.type);
      auto* to = static_cast<std::byte*>(target) + begin * itemsize(held);
      if (itemsize(rounded) == 2)
        convert_rounded(x.type, source, rounded, reinterpret_cast<float*>(to), end - begin);
      else
        convert_elements(x.type, source, held, to, end - begin);
    });
  }

  void convert(DType from, const void* source, DType to, void* target, std::int64_t count) {
    constexpr std::int64_t kGrain = 1 << 16;
    pool_->parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
      convert_elements(from, static_cast<const std::byte*>(source) + begin * itemsize(from), to,
                       static_cast<std::byte*>(target) + begin * itemsize(to), end - begin);
    });
  }

  std::vector<PreparedStep> steps_;
  std::vector<PlannedLayer> layers_;
  std::int64_t batch_;
  Precision precision_;
  std::shared_ptr<ThreadPool> pool_;
  Routes routes_;
  std::unique_ptr<Buffer> scratch_, a_, b_;
};

class CpuBackend final : public plan::Backend {
 public:
  CpuBackend(std::shared_ptr<const detail::ModelData> model, const EngineOptions& options)
      : model_(std::move(model)),
        options_(options),
        conditions_{.precision = options.precision == Precision::tf32 ? Precision::fp32 : options.precision},
        pool_(std::make_shared<ThreadPool>(options.threads)) {}

  std::vector<PlannedLayer> plan(const Shape& shape) const override {
    const auto layers = plan::problems(model_->graph, sample(shape));
    return describe(layers, make_plan(layers), shape.batch);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> list;
    for (const CpuImplementation* implementation : implementations())
      list.emplace_back(implementation->name());
    return list;
  }

  std::int64_t workspace_bytes(const Shape& shape) const override {
    const auto layers = plan::problems(model_->graph, sample(shape));
    const std::vector<PreparedStep> steps = pack(layers, make_plan(layers));
    const Routes routes(steps, shape.batch);
    return static_cast<std::int64_t>(
        workspace(steps, routes, conditions_.precision, pool_->threads()).total());
  }

  std::unique_ptr<plan::Prepared> prepare(const Shape& shape) const override {
    const auto layers = plan::problems(model_->graph, sample(shape));
    const std::vector<plan::PlannedStep> planned = make_plan(layers);
    return std::make_unique<CpuPrepared>(pack(layers, planned), describe(layers, planned, shape.batch), shape,
                                         conditions_.precision, pool_, options_.workspace_limit);
  }

 private:
  graph::CellShape sample(const Shape& shape) const {
    return {shape.rows, shape.columns, model_->graph.input_channels};
  }

  std::vector<plan::PlannedStep> make_plan(const std::vector<plan::LayerProblem>& layers) const {
    std::vector<const plan::Implementation*> list;
    for (const CpuImplementation* implementation : implementations()) list.push_back(implementation);
    return plan::make_plan(layers, list, conditions_, options_.plan, options_.strict);
  }

  std::vector<PlannedLayer> describe(const std::vector<plan::LayerProblem>& layers,
                                     const std::vector<plan::PlannedStep>& steps, std::int64_t batch) const {
    return plan::describe(model_->graph, layers, steps, batch, itemsize(held_type(conditions_.precision)));
  }

  std::vector<PreparedStep> pack(const std::vector<plan::LayerProblem>& layers,
                                 const std::vector<plan::PlannedStep>& planned) const {
    std::vector<PreparedStep> steps;
    for (const plan::PlannedStep& p : planned) {
      const int last = p.first + p.layers - 1;
      steps.push_back({packed(p), layers[p.first].input, layers[last].output, last + 1});
    }
    return steps;
  }

  // The step with its packed weights; built when first wanted, then shared by all sessions.
  std::shared_ptr<const Step> packed(const plan::PlannedStep& p) const {
    const Key key{p.implementation, p.first, p.layers};
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Step>& step = steps_[key];
    if (!step) {
      std::vector<const graph::Layer*> layers;
      for (int i = p.first; i < p.first + p.layers; ++i) layers.push_back(model_->graph.nodes[i].layer.get());
      const auto weights = std::span(model_->weights).subspan(p.first, p.layers);
      step = static_cast<const CpuImplementation*>(p.implementation)->build(layers, weights, conditions_);
    }
    return step;
  }

  using Key = std::tuple<const plan::Implementation*, int, int>;
  std::shared_ptr<const detail::ModelData> model_;
  EngineOptions options_;
  plan::Conditions conditions_;
  std::shared_ptr<ThreadPool> pool_;
  mutable std::mutex mutex_;
  mutable std::map<Key, std::shared_ptr<const Step>> steps_;
};

}  // namespace

std::span<const CpuImplementation* const> implementations() {
  static const std::array<const CpuImplementation*, 2> list{&fused_implementation(),
                                                            &reference_implementation()};
  return list;
}

std::unique_ptr<plan::Backend> make_backend(std::shared_ptr<const detail::ModelData> model,
                                            const EngineOptions& options) {
  return std::make_unique<CpuBackend>(std::move(model), options);
}

}  // namespace warpweave::cpu
