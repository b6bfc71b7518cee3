#include "cuda/prepared.h"

#include <algorithm>
#include <cstdint>

#include "cuda/convert.h"
#include "cuda/family.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

struct GpuPrepared::Host {
  Staging staging;
  DeviceBuffer x, y, mask;
  cudaStream_t stream = nullptr;
  Host() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"); }
  ~Host() {
    if (stream) cudaStreamDestroy(stream);
  }
};

GpuPrepared::GpuPrepared(std::shared_ptr<const GpuDevice> device, Precision precision, const Shape& shape,
                         std::vector<StepInPlan> steps, std::vector<PlannedLayer> layers, std::int64_t limit,
                         std::string notice)
    : device_(std::move(device)),
      stored_(storage_type(precision)),
      batch_(shape.batch),
      steps_(std::move(steps)),
      layers_(std::move(layers)),
      notice_(std::move(notice)) {
  std::int64_t largest = 0;  // grid that may have to wait in the workspace, in bytes
  bool second = false;
  const auto grid_bytes = [&](const graph::CellShape& s) {
    return batch_ * s.cells() * s.channels * static_cast<std::int64_t>(itemsize(stored_));
  };
  for (const auto& s : steps_) {
    largest = std::max({largest, grid_bytes(s.input), grid_bytes(s.output)});
    second = second || !s.step->in_place();
  }
  first_tail_ = steps_.size() - 1;
  while (first_tail_ > 0 && steps_[first_tail_].step->in_place()) --first_tail_;

  const std::size_t grid = aligned(static_cast<std::size_t>(largest));
  const std::size_t grids = grid * (second ? 2 : 1);
  std::int64_t left = 0;
  if (limit > 0) {
    left = limit - static_cast<std::int64_t>(grids);
    if (left <= 0) {
      throw Error(ErrorCode::device, "the workspace limit of " + bytes_in_words(limit) +
                                         " does not hold the grid between layers, which takes " +
                                         bytes_in_words(static_cast<std::int64_t>(grids)));
    }
  }
  std::size_t most = 0;
  for (const auto& s : steps_) {
    bound_.push_back(s.step->bind({batch_, s.input, left}));
    most = std::max(most, bound_.back()->workspace_bytes());
  }
  workspace_ = DeviceBuffer(grids + most, "workspace");
  grids_[0] = workspace_.data();
  grids_[1] = second ? workspace_.data() + grid : nullptr;
  step_workspace_ = workspace_.data() + grids;

  convert_ = device_->kernels().get(convert_kernel());
}

GpuPrepared::~GpuPrepared() = default;

bool GpuPrepared::direct(const void* data, DType type) const noexcept {
  return type == stored_ && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

void GpuPrepared::convert(cudaStream_t stream, const void* x, DType from, void* y, DType to,
                          std::int64_t count) const {
  convert_.launch(stream, {.blocks = loop_blocks(count, 256), .threads = 256},
                  kernels::ConvertParams{x, y, count, element_type(from), element_type(to)});
}

// A kernel that reads the host's memory ends every use of the device in the process. To ask costs less than a
// microsecond and is allowed while a stream is captured.
void GpuPrepared::check_reachable(const char* what, const void* data) const {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "looking at the caller's memory");
  if (attributes.type == cudaMemoryTypeUnregistered && device_->reaches_host_memory()) return;
  if (attributes.type != cudaMemoryTypeUnregistered && attributes.devicePointer) return;
  const std::string device = to_string(Device::cuda(device_->index()));
  if (attributes.type == cudaMemoryTypeDevice)
    throw Error(ErrorCode::input, std::string(what) + ": it is memory of " +
                                      to_string(Device::cuda(attributes.device)) + ", which " + device +
                                      " cannot reach");
  throw Error(ErrorCode::input, std::string(what) + ": it is memory of the host, which " + device +
                                    " cannot reach; copy it there, or call run_host");
}

void GpuPrepared::run(const ConstGridView& x, const GridView& y, const RunOptions& options) {
  const CurrentDevice current(device_->index());
  check_reachable("input grid", x.data);
  if (y.data != x.data) check_reachable("output grid", y.data);
  if (options.mask.data) check_reachable("mask", options.mask.data);
  enqueue(x, y, options);
}

void GpuPrepared::enqueue(const ConstGridView& x, const GridView& y, const RunOptions& options) {
  const auto stream = static_cast<cudaStream_t>(options.stream);
  const void* now = x.data;
  if (!direct(x.data, x.type)) {
    convert(stream, x.data, x.type, grids_[0], stored_, x.shape.elements());
    now = grids_[0];
  }
  const bool to_y = direct(y.data, y.type);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const bool in_place = steps_[i].step->in_place();
    void* next;
    if (to_y && i >= first_tail_ && (in_place || now != y.data)) {
      next = y.data;
    } else if (in_place && (now == grids_[0] || now == grids_[1])) {
      next = const_cast<void*>(now);
    } else {
      next = now == grids_[0] ? grids_[1] : grids_[0];
    }
    bound_[i]->enqueue({stream, now, next, options.mask.data, step_workspace_});
    now = next;
  }
  if (now != y.data) convert(stream, now, stored_, y.data, y.type, y.shape.elements());
}

void GpuPrepared::run_host(const ConstGridView& x, const GridView& y, const RunOptions& options) {
  const CurrentDevice current(device_->index());
  const auto bytes = [](const auto& v) {
    return static_cast<std::size_t>(v.shape.elements()) * itemsize(v.type);
  };
  const auto ensure = [](DeviceBuffer& buffer, std::size_t size, const char* what) {
    if (buffer.bytes() < size) {
      buffer = DeviceBuffer();
      buffer = DeviceBuffer(size, what);
    }
  };
  if (!host_) host_ = std::make_unique<Host>();
  Host& host = *host_;
  // The caller's stream comes before: what it holds may use this session's workspace.
  const auto stream = options.stream ? static_cast<cudaStream_t>(options.stream) : host.stream;
  ensure(host.x, bytes(x), "input grid");
  ensure(host.y, bytes(y), "output grid");
  RunOptions device_options = options;
  device_options.stream = stream;
  host.staging.to_device(stream, host.x.data(), x.data, bytes(x));
  if (options.mask.data) {
    const auto cells = static_cast<std::size_t>(x.shape.cells());
    ensure(host.mask, cells, "mask");
    host.staging.to_device(stream, host.mask.data(), options.mask.data, cells);
    device_options.mask.data = reinterpret_cast<const std::uint8_t*>(host.mask.data());
  }
  enqueue({host.x.data(), x.type, x.shape}, {host.y.data(), y.type, y.shape}, device_options);
  host.staging.to_host(stream, y.data, host.y.data(), bytes(y));
  check(cudaStreamSynchronize(stream), "running the model");
}

}  // namespace warpweave::cuda
