#include "warpweave/engine.h"

#include <fmt/format.h>

#include <atomic>

#include "cpu/backend.h"
#include "cuda/backend.h"
#include "edge.h"
#include "model_data.h"
#include "plan/backend.h"
#include "plan/explain.h"
#include "warpweave/error.h"
#include "warpweave/warpweave.h"

namespace warpweave {
namespace {

bool is_grid_type(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 || type == DType::f64;
}

void check_view(const char* what, const void* data, DType type, const GridShape& shape,
                const GridShape& expected) {
  if (!data) throw Error(ErrorCode::input, fmt::format("{}: the data pointer is null", what));
  if (!is_grid_type(type))
    throw Error(ErrorCode::input, fmt::format("{}: a grid is float32, float16, bfloat16 or float64, not {}",
                                              what, to_string(type)));
  if (shape != expected)
    throw Error(ErrorCode::input, fmt::format("{}: the shape is {}, but this session is prepared for {}",
                                              what, to_string(shape), to_string(expected)));
}

bool overlap(const ConstGridView& x, const GridView& y) {
  const auto begin = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
  const auto end = [&](const void* data, DType type, const GridShape& shape) {
    return begin(data) + static_cast<std::uintptr_t>(shape.elements()) * itemsize(type);
  };
  return begin(x.data) < end(y.data, y.type, y.shape) && begin(y.data) < end(x.data, x.type, x.shape);
}

// A mask belongs to the cells of the input grid; layers that change the cells leave it without a meaning.
void check_mask(const MaskView& mask, const Shape& input, const detail::ModelData& model) {
  if (!mask.data) return;
  if (mask.batch != input.batch || mask.rows != input.rows || mask.columns != input.columns)
    throw Error(ErrorCode::input,
                fmt::format("mask: the shape is [{}, {}, {}], but the input grid has [{}, {}, {}]",
                            mask.batch, mask.rows, mask.columns, input.batch, input.rows, input.columns));
  graph::CellShape cells{input.rows, input.columns, model.graph.input_channels};
  for (const graph::Node& node : model.graph.nodes) {
    const graph::CellShape next = node.layer->output(cells);
    if (next.rows != cells.rows || next.columns != cells.columns)
      throw Error(ErrorCode::input,
                  fmt::format("mask: {} changes the cells of the grid, so that a mask of its input means "
                              "nothing; run this model without a mask",
                              node.layer->type()));
    cells = next;
  }
}

}  // namespace

// ---------------------------------------------------------------- Engine

struct Engine::Impl {
  Model model;
  EngineOptions options;
  Device device;
  std::string notice;
  std::unique_ptr<plan::Backend> backend;

  GridShape input_shape(const Shape& shape) const {
    return {shape.batch, shape.rows, shape.columns, model.input_channels()};
  }

  // Throws Error(input) unless the model can take the grid, and every grid on the way can be addressed.
  void check_grids(const Shape& shape) const {
    check(input_shape(shape), "input grid");
    const graph::Graph& graph = model.data()->graph;
    const auto cells = graph.shapes({shape.rows, shape.columns, model.input_channels()});
    for (std::size_t i = 0; i < cells.size(); ++i)
      check({shape.batch, cells[i].rows, cells[i].columns, cells[i].channels},
            graph.nodes[i].path + ": output grid");
  }
};

namespace {

// The device to use; says in `notice` why an automatic choice fell on the CPU.
Device choose(const EngineOptions& options, std::string& notice) {
  if (options.device.kind != Device::Kind::automatic) return options.device;
  if (options.precision == Precision::fp64) return Device::cpu();
  const std::string reason = cuda::unusable(0);
  if (reason.empty()) return Device::cuda(0);
  notice = "running on the CPU: " + reason;
  return Device::cpu();
}

// Far beyond the cores of any machine: a slip of the finger must not start threads until the system refuses.
constexpr int kMostThreads = 4096;

void append_notice(std::string& notice, const std::string& text) {
  notice += (notice.empty() ? "" : "; ") + text;
}

}  // namespace

Engine::Engine(Model model, EngineOptions options) {
  if (options.threads < 0)
    throw Error(ErrorCode::input, fmt::format("threads: {} is negative; 0 takes all cores", options.threads));
  if (options.threads > kMostThreads)
    throw Error(ErrorCode::input,
                fmt::format("threads: {} is more than {}; 0 takes all cores", options.threads, kMostThreads));
  if (options.workspace_limit < 0)
    throw Error(ErrorCode::input,
                fmt::format("workspace limit: {} bytes is negative", options.workspace_limit));
  impl_ = at_edge("making the engine", [&] {
    auto impl = std::make_shared<Impl>(Impl{std::move(model), options, {}, {}, {}});
    impl->device = choose(options, impl->notice);
    if (impl->device.kind == Device::Kind::cpu) {
      if (options.precision == Precision::tf32) append_notice(impl->notice, "the CPU computes tf32 as fp32");
      impl->backend = cpu::make_backend(impl->model.data(), options);
    } else {
      if (options.precision == Precision::fp64)
        throw Error(ErrorCode::device, "precision fp64 exists on the CPU only");
      impl->backend = cuda::make_backend(impl->model.data(), options);
    }
    if (const std::string text = impl->backend->notice(); !text.empty()) append_notice(impl->notice, text);
    return impl;
  });
}

const Model& Engine::model() const noexcept { return impl_->model; }
Device Engine::device() const noexcept { return impl_->device; }
Precision Engine::precision() const noexcept { return impl_->options.precision; }
const std::string& Engine::notice() const noexcept { return impl_->notice; }

std::vector<std::string> Engine::plans() const {
  return at_edge("listing the plans", [&] { return impl_->backend->names(); });
}

std::vector<PlannedLayer> Engine::plan(const Shape& shape) const {
  return at_edge("planning", [&] {
    impl_->check_grids(shape);
    return impl_->backend->plan(shape);
  });
}

std::int64_t Engine::workspace_bytes(const Shape& shape) const {
  return at_edge("planning", [&] {
    impl_->check_grids(shape);
    return impl_->backend->workspace_bytes(shape);
  });
}

// ---------------------------------------------------------------- Session

struct Session::Impl {
  std::shared_ptr<const Engine::Impl> engine;
  Shape shape;
  GridShape input, output;
  std::unique_ptr<plan::Prepared> prepared;
#ifndef NDEBUG
  std::atomic<bool> busy{false};
#endif

  enum class Memory { device, host };

  void run(const ConstGridView& x, const GridView& y, const RunOptions& options, Memory memory) {
#ifndef NDEBUG
    if (busy.exchange(true))
      throw Error(ErrorCode::internal, "two threads use one session at the same time; prepare one for each");
    struct Release {
      std::atomic<bool>& flag;
      ~Release() { flag = false; }
    } release{busy};
#endif
    check_view("input grid", x.data, x.type, x.shape, input);
    check_view("output grid", y.data, y.type, y.shape, output);
    check_mask(options.mask, shape, *engine->model.data());
    if (x.data == y.data && (x.type != y.type || input != output))
      throw Error(
          ErrorCode::input,
          fmt::format("output grid: it may be the input's memory only where type and shape are equal; "
                      "these are {} {} and {} {}",
                      to_string(x.type), to_string(input), to_string(y.type), to_string(output)));
    if (x.data != y.data && overlap(x, y))
      throw Error(ErrorCode::input,
                  "output grid: it overlaps the input's memory in part; it may be the same or apart");
    if (engine->device.kind == Device::Kind::cpu && options.stream)
      throw Error(ErrorCode::input, "stream: there are no streams on the CPU; leave it null");
    if (memory == Memory::host)
      prepared->run_host(x, y, options);
    else
      prepared->run(x, y, options);
  }
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Session Engine::prepare(const Shape& shape) const {
  return at_edge("preparing a session", [&] {
    impl_->check_grids(shape);
    auto session = std::make_unique<Session::Impl>();
    session->engine = impl_;
    session->shape = shape;
    session->input = impl_->input_shape(shape);
    session->output = impl_->model.output_shape(shape);
    session->prepared = impl_->backend->prepare(shape);
    return Session(std::move(session));
  });
}

void Session::run(const ConstGridView& x, const GridView& y, const RunOptions& options) {
  at_edge("running", [&] { impl_->run(x, y, options, Impl::Memory::device); });
}

void Session::run_host(const ConstGridView& x, const GridView& y, const RunOptions& options) {
  at_edge("running", [&] { impl_->run(x, y, options, Impl::Memory::host); });
}

const Shape& Session::input() const noexcept { return impl_->shape; }
GridShape Session::input_shape() const noexcept { return impl_->input; }
GridShape Session::output_shape() const noexcept { return impl_->output; }
std::int64_t Session::workspace_bytes() const noexcept { return impl_->prepared->workspace_bytes(); }
const std::vector<PlannedLayer>& Session::plan() const noexcept { return impl_->prepared->layers(); }
std::string Session::notice() const {
  return at_edge("reading the notice", [&] { return impl_->prepared->notice(); });
}
std::string Session::explain() const {
  return at_edge("explaining the plan", [&] { return plan::explain(plan(), workspace_bytes()); });
}

Tensor Engine::run(const Tensor& x, const Tensor* mask, DType output) const {
  const GridShape shape = x.grid();
  if (shape.channels != impl_->model.input_channels())
    throw Error(ErrorCode::input,
                fmt::format("input grid: {} has {} channels, but the model takes {}", to_string(shape),
                            shape.channels, impl_->model.input_channels()));
  if (!is_grid_type(output))
    throw Error(ErrorCode::input, fmt::format("output type: a grid cannot be {}", to_string(output)));
  return at_edge("running", [&] {
    Session session = prepare({shape.batch, shape.rows, shape.columns});
    const GridShape out = session.output_shape();
    Tensor y(output, {out.batch, out.rows, out.columns, out.channels});
    RunOptions options;
    if (mask) options.mask = mask_view(*mask);
    session.run_host(view(x), view(y), options);
    return y;
  });
}

const char* version() noexcept { return WARPWEAVE_VERSION; }

}  // namespace warpweave
