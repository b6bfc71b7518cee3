#include "weights/finite.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "numeric/shape_text.h"

namespace warpweave::weights {
namespace {

std::string place(const Tensor& tensor, std::size_t index) {
  std::vector<std::int64_t> position = tensor.shape();
  for (std::size_t d = position.size(); d-- > 0;) {
    const auto size = static_cast<std::size_t>(tensor.shape()[d]);
    position[d] = static_cast<std::int64_t>(index % size);
    index /= size;
  }
  return shape_text(position);
}

}  // namespace

std::string non_finite(const Tensor& stored, const Tensor& converted) {
  const std::span<const float> values = converted.values<float>();
  std::size_t count = 0, first = 0;
  for (std::size_t i = values.size(); i-- > 0;) {
    if (!std::isfinite(values[i])) {
      ++count;
      first = i;
    }
  }
  if (count == 0) return {};
  // float32 holds every float16 and bfloat16; only float64 can lose its finiteness on the way.
  if (stored.dtype() == DType::f64) {
    const double value = stored.values<double>()[first];
    if (std::isfinite(value))
      return fmt::format("has a value beyond float32, {:g} at {}", value, place(stored, first));
  }
  return fmt::format("has {} NaN or infinite value{}, the first at {}", count, count == 1 ? "" : "s",
                     place(stored, first));
}

}  // namespace warpweave::weights
