#include <cuda_runtime_api.h>

#include <string>

#include "bench/correctness.h"
#include "bench/timer.h"

namespace warpweave::bench {
namespace {

constexpr double kLargeFlops = 50e9;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(ErrorCode::device, std::string(what) + ": " + cudaGetErrorString(status));
}

class DeviceGrid {
 public:
  DeviceGrid(DType type, const GridShape& shape)
      : type_(type), shape_(shape), bytes_(static_cast<std::size_t>(shape.elements()) * itemsize(type)) {
    check(cudaMalloc(&data_, bytes_), "grids of the benchmark");
  }
  ~DeviceGrid() { cudaFree(data_); }
  DeviceGrid(const DeviceGrid&) = delete;
  DeviceGrid& operator=(const DeviceGrid&) = delete;

  // Both return when the grid is complete.
  void poison() const {
    check(cudaMemset(data_, 0xff, bytes_), "poisoning a grid");
    check(cudaDeviceSynchronize(), "poisoning a grid");
  }
  void upload(const Tensor& x) const {
    check(cudaMemcpy(data_, x.data(), bytes_, cudaMemcpyHostToDevice), "copying a grid");
    check(cudaDeviceSynchronize(), "copying a grid");
  }
  Tensor download() const {
    Tensor y(type_, {shape_.batch, shape_.rows, shape_.columns, shape_.channels});
    check(cudaMemcpy(y.data(), data_, bytes_, cudaMemcpyDeviceToHost), "copying a grid");
    return y;
  }
  GridView view() const { return {data_, type_, shape_}; }

 private:
  DType type_;
  GridShape shape_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const noexcept { return stream_; }  // NOLINT: implicit, as the C functions take it

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "making an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const noexcept { return event_; }  // NOLINT: as above

 private:
  cudaEvent_t event_ = nullptr;
};

class GraphTimer final : public Timer {
 public:
  GraphTimer(Session& session, const Tensor& x, double flops)
      : x_(x.dtype(), session.input_shape()),
        even_(x.dtype(), session.output_shape()),
        odd_(x.dtype(), session.output_shape()),
        chain_(flops > kLargeFlops ? 5 : 20) {
    x_.upload(x);
    even_.poison();
    odd_.poison();
    capture(session, session.input_shape() == session.output_shape());
  }
  ~GraphTimer() override { cudaGraphExecDestroy(graph_); }
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;

  double run() override {
    check(cudaEventRecord(begin_, stream_), "timing");
    check(cudaGraphLaunch(graph_, stream_), "replaying a graph");
    check(cudaEventRecord(end_, stream_), "timing");
    check(cudaStreamSynchronize(stream_), "replaying a graph");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing");
    return milliseconds / 1e3 / chain_;
  }
  bool finite() const override { return all_finite(output(chain_ - 1).download()); }
  int chain() const noexcept override { return chain_; }

 private:
  const DeviceGrid& output(int pass) const { return pass % 2 == 0 ? even_ : odd_; }

  void capture(Session& session, bool feeds_itself) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capturing a graph");
    try {
      for (int pass = 0; pass < chain_; ++pass) {
        const bool first = pass == 0 || !feeds_itself;
        session.run(first ? x_.view() : output(pass - 1).view(), output(pass).view(), {.stream = stream_});
      }
    } catch (...) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream_, &broken);
      if (broken) cudaGraphDestroy(broken);
      throw;
    }
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "capturing a graph");
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "making a graph");
  }

  DeviceGrid x_, even_, odd_;
  int chain_;
  Stream stream_;
  Event begin_, end_;
  cudaGraphExec_t graph_ = nullptr;
};

void make_current(Device device) { check(cudaSetDevice(device.index), "choosing the GPU"); }

}  // namespace

std::unique_ptr<Timer> graph_timer(Session& session, Device device, const Tensor& x, double flops) {
  make_current(device);
  return std::make_unique<GraphTimer>(session, x, flops);
}

void run_on_device(Session& session, Device device, const Tensor& x) {
  make_current(device);
  const DeviceGrid in(x.dtype(), session.input_shape()), out(x.dtype(), session.output_shape());
  in.upload(x);
  const Stream stream;
  session.run(in.view(), out.view(), {.stream = stream});
  check(cudaStreamSynchronize(stream), "running the model");
}

std::string gpu_name(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "reading the GPU's name");
  return properties.name;
}

}  // namespace warpweave::bench
