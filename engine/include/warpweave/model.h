// A loaded model: the layer graph with its weights. Immutable; copies share the same data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "warpweave/types.h"

namespace warpweave {

namespace detail {
struct ModelData;
}

struct LoadOptions {
  bool allow_unused =
      false;  // tensors of the weight file that no layer takes are an error unless this is set
};

class Model {
 public:
  // Reads a YAML layer graph and a safetensors weight file. Throws Error(input) that names file, line and
  // key.
  static Model load(const std::filesystem::path& config, const std::filesystem::path& weights,
                    const LoadOptions& options = {});
  // The same graph with random weights: N(0, 1/fan_in) for matrices, norm weights near 1, biases near 0, the
  // same for one seed on every machine. For benchmarks and tests.
  static Model random(const std::filesystem::path& config, std::uint64_t seed = 0);

  const std::string& name() const noexcept;
  std::int64_t input_channels() const noexcept;
  // The output grid for an input of this shape; throws Error(input) when the model cannot take it.
  GridShape output_shape(const Shape& input) const;

  const std::shared_ptr<const detail::ModelData>& data() const noexcept { return data_; }

 private:
  explicit Model(std::shared_ptr<const detail::ModelData> data) : data_(std::move(data)) {}
  std::shared_ptr<const detail::ModelData> data_;
};

}  // namespace warpweave
