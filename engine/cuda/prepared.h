// A plan bound to one shape on a GPU: the steps, their workspace, and the way the grid takes through them.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/memory.h"
#include "cuda/staging.h"
#include "cuda/step.h"
#include "plan/backend.h"

namespace warpweave::cuda {

// A step with the grids before and after it, of one sample.
struct StepInPlan {
  std::shared_ptr<const Step> step;
  graph::CellShape input, output;
};

class GpuPrepared final : public plan::Prepared {
 public:
  // `limit` bytes of workspace, 0 = none. The device is current, the kernels of the steps are loaded.
  GpuPrepared(std::shared_ptr<const GpuDevice> device, Precision precision, const Shape& shape,
              std::vector<StepInPlan> steps, std::vector<PlannedLayer> layers, std::int64_t limit,
              std::string notice);
  ~GpuPrepared() override;

  void run(const ConstGridView& x, const GridView& y, const RunOptions& options) override;
  void run_host(const ConstGridView& x, const GridView& y, const RunOptions& options) override;
  std::int64_t workspace_bytes() const noexcept override {
    return static_cast<std::int64_t>(workspace_.bytes());
  }
  const std::vector<PlannedLayer>& layers() const noexcept override { return layers_; }
  std::string notice() const override { return notice_; }

 private:
  struct Host;  // what only run_host needs, made by its first call

  // Throws Error(input) where the device cannot reach the memory.
  void check_reachable(const char* what, const void* data) const;
  // On memory of the device.
  void enqueue(const ConstGridView& x, const GridView& y, const RunOptions& options);
  // Whether steps read and write the view as it is: the stored type, at a multiple of 16 bytes.
  bool direct(const void* data, DType type) const noexcept;
  void convert(cudaStream_t stream, const void* x, DType from, void* y, DType to, std::int64_t count) const;

  std::shared_ptr<const GpuDevice> device_;
  DType stored_;
  std::int64_t batch_;
  std::vector<StepInPlan> steps_;
  std::vector<std::unique_ptr<const BoundStep>> bound_;
  std::vector<PlannedLayer> layers_;
  std::string notice_;
  std::size_t first_tail_;  // all steps after this one run in place: it may write the output grid
  DeviceBuffer workspace_;
  std::byte* grids_[2] = {};  // where the grid waits between steps; the second is null when never needed
  std::byte* step_workspace_ = nullptr;
  Kernel convert_;
  std::unique_ptr<Host> host_;
};

}  // namespace warpweave::cuda
