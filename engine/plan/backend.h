// What an Engine asks of a device. The CPU and CUDA each have one; neither knows of the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model_data.h"
#include "warpweave/engine.h"

namespace warpweave::plan {

// A model planned for one shape, with its workspace. Used by one thread at a time.
class Prepared {
 public:
  virtual ~Prepared() = default;
  // Shapes, types and mask are checked by the caller. See Session::run.
  virtual void run(const ConstGridView& x, const GridView& y, const RunOptions& options) = 0;
  // The same on host memory, whatever the device; returns when y is complete.
  virtual void run_host(const ConstGridView& x, const GridView& y, const RunOptions& options) = 0;
  virtual std::int64_t workspace_bytes() const noexcept = 0;
  virtual const std::vector<PlannedLayer>& layers() const noexcept = 0;
  // What turned out while it was prepared and Backend::notice could not know; empty for nothing.
  virtual std::string notice() const { return {}; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::vector<PlannedLayer> plan(const Shape& shape) const = 0;
  // What the user should be told of this device, like a library that is missing; empty for nothing.
  virtual std::string notice() const { return {}; }
  // Names of its implementations, see Engine::plans.
  virtual std::vector<std::string> names() const { return {}; }
  // Of a session prepared for the shape.
  virtual std::int64_t workspace_bytes(const Shape& shape) const { return prepare(shape)->workspace_bytes(); }
  // Throws Error(device) when memory or the plan does not allow it.
  virtual std::unique_ptr<Prepared> prepare(const Shape& shape) const = 0;
};

}  // namespace warpweave::plan
