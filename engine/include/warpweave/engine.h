// Engine: a model on a device in a precision. Session: the engine prepared for one grid shape.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "warpweave/model.h"
#include "warpweave/tensor.h"
#include "warpweave/types.h"

namespace warpweave {

struct EngineOptions {
  Device device = Device::automatic();
  Precision precision = Precision::fp32;
  // Preferred implementation for every layer that it does not decline; "auto" takes the cheapest. With
  // `strict` a decline is Error(device).
  std::string plan = "auto";
  bool strict = false;
  int threads = 0;  // CPU threads, the caller's included, at most 4096; 0 = all cores
  // Bytes of memory beyond input, output and weights; 0 = no limit. On the CPU the buffers for converting
  // interface types count, whether or not a run converts.
  std::int64_t workspace_limit = 0;
};

struct RunOptions {
  MaskView mask = {};      // of the input grid, in memory of the session's device
  void* stream = nullptr;  // the cudaStream_t to run on; must be null on the CPU
  // CPU only: called after each layer with (layers done, layers in all) from the calling thread.
  // An exception of it ends the run and reaches the caller.
  std::function<void(int, int)> progress = {};
};

// What `explain` prints, for programs.
struct PlannedLayer {
  std::string layer;           // "layers[0]: axial_attention row, 4 heads of 16"
  std::string implementation;  // which one runs it
  std::vector<std::pair<std::string, std::string>> declined;  // (implementation, reason) of the others
  GridShape output;
  double flops = 0;  // multiply-adds count two
  double bytes = 0;  // least memory traffic: input read once, output written once, weights read once
};

class Engine;

class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Runs on the grid x into y, both of the prepared shape and of any floating element type; y may alias x
  // where the shapes and types are equal. Grids and mask are in memory that the session's device can reach.
  // Throws Error(input) on a wrong shape, type or mask, and on memory that the GPU cannot reach. On the CPU
  // it returns when done; on a GPU it is asynchronous on the stream. Allocates nothing and synchronises
  // nothing (the CPU's `reference`, which is written to be read, allocates). After an Error(device) y holds
  // anything. A session is used by one thread at a time; a debug build throws Error(internal) where two meet.
  void run(const ConstGridView& x, const GridView& y, const RunOptions& options = {});
  // The same on host memory (grids and mask), whatever the device; returns when y is complete.
  void run_host(const ConstGridView& x, const GridView& y, const RunOptions& options = {});

  const Shape& input() const noexcept;
  GridShape input_shape() const noexcept;
  GridShape output_shape() const noexcept;
  std::int64_t workspace_bytes() const noexcept;  // memory this session owns on its device
  const std::vector<PlannedLayer>& plan() const noexcept;
  // What turned out while the session was prepared: that cuBLASLt is there but cannot be used, so that slower
  // kernels run. Empty when there is nothing to tell.
  std::string notice() const;
  std::string explain() const;  // a table of plan(), with totals

 private:
  friend class Engine;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Immutable and freely shared between threads; copies share the same packed weights.
class Engine {
 public:
  // Throws Error(device) when the device, threads or memory cannot be had, naming the reason; packs the
  // weights.
  explicit Engine(Model model, EngineOptions options = {});

  const Model& model() const noexcept;
  Device device() const noexcept;  // the one chosen
  Precision precision() const noexcept;
  // Why Device::automatic() fell back to the CPU, that the CPU computes tf32 as fp32, or that a library is
  // missing without which a GPU is slower; empty when there is nothing to tell.
  const std::string& notice() const noexcept;
  // The names that EngineOptions::plan can take on this device besides "auto", fastest kinds first.
  std::vector<std::string> plans() const;

  // Plans, compiles and allocates for one shape. Throws Error(input) when the model cannot take it,
  // Error(device) when memory or the plan does not allow it.
  Session prepare(const Shape& shape) const;
  // The plan, without taking memory for grids or workspace; what `inspect` shows.
  std::vector<PlannedLayer> plan(const Shape& shape) const;
  // What Session::workspace_bytes() would be. On the CPU nothing is allocated, so that it may exceed the
  // memory.
  std::int64_t workspace_bytes(const Shape& shape) const;

  // The easy way: host grid in, host grid out. The output has the type `output`.
  Tensor run(const Tensor& x, const Tensor* mask = nullptr, DType output = DType::f32) const;

 private:
  friend class Session;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace warpweave
