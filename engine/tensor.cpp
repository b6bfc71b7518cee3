#include "warpweave/tensor.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <new>

#include "numeric/convert.h"
#include "numeric/shape_text.h"
#include "warpweave/error.h"

namespace warpweave {
namespace {

constexpr std::align_val_t kAlignment{64};

std::int64_t count_elements(DType type, const std::vector<std::int64_t>& shape) {
  const std::int64_t limit =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(itemsize(type));
  // A zero anywhere makes the count zero, but the other sizes must be sane on their own.
  std::int64_t elements = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0)
      throw Error(ErrorCode::input, fmt::format("tensor shape {} has a negative size", shape_text(shape)));
    if (size == 0) {
      empty = true;
      continue;
    }
    if (elements > limit / size)
      throw Error(
          ErrorCode::input,
          fmt::format("tensor shape {} has too many elements to address with 64 bits", shape_text(shape)));
    elements *= size;
  }
  return empty ? 0 : elements;
}

template <class T>
void require_size(DType type) {
  if (sizeof(T) != itemsize(type))
    throw Error(ErrorCode::input,
                fmt::format("a {} tensor does not have elements of {} bytes", to_string(type), sizeof(T)));
}

}  // namespace

void Tensor::Free::operator()(void* p) const noexcept { ::operator delete(p, kAlignment); }

Tensor::Tensor(DType type, std::vector<std::int64_t> shape)
    : type_(type), shape_(std::move(shape)), elements_(count_elements(type_, shape_)) {
  const std::size_t size = bytes();
  data_.reset(::operator new(size > 0 ? size : 1, kAlignment, std::nothrow));
  if (!data_)
    throw Error(ErrorCode::device, fmt::format("out of memory: {} bytes for a {} tensor {}", size,
                                               to_string(type_), shape_text(shape_)));
}

Tensor::Tensor(const Tensor& other) {
  if (!other.data_) return;
  *this = Tensor(other.type_, other.shape_);
  std::memcpy(data(), other.data(), bytes());
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}

Tensor Tensor::from(std::vector<std::int64_t> shape, std::span<const float> values) {
  Tensor tensor(DType::f32, std::move(shape));
  if (values.size() != static_cast<std::size_t>(tensor.elements()))
    throw Error(ErrorCode::input, fmt::format("tensor shape {} needs {} values, not {}",
                                              shape_text(tensor.shape()), tensor.elements(), values.size()));
  if (!values.empty()) std::memcpy(tensor.data(), values.data(), values.size_bytes());
  return tensor;
}

template <class T>
std::span<T> Tensor::values() {
  require_size<T>(type_);
  return {static_cast<T*>(data()), static_cast<std::size_t>(elements_)};
}
template <class T>
std::span<const T> Tensor::values() const {
  require_size<T>(type_);
  return {static_cast<const T*>(data()), static_cast<std::size_t>(elements_)};
}

template std::span<double> Tensor::values();
template std::span<float> Tensor::values();
template std::span<std::uint16_t> Tensor::values();
template std::span<std::uint8_t> Tensor::values();
template std::span<const double> Tensor::values() const;
template std::span<const float> Tensor::values() const;
template std::span<const std::uint16_t> Tensor::values() const;
template std::span<const std::uint8_t> Tensor::values() const;

Tensor Tensor::to(DType type) const {
  if (type == type_) return *this;
  const bool mask_target = type == DType::u8 || type == DType::boolean;
  if (mask_target && type_ != DType::u8 && type_ != DType::boolean)
    throw Error(ErrorCode::input,
                fmt::format("cannot convert a {} tensor to {}", to_string(type_), to_string(type)));
  Tensor result(type, shape_);
  if (mask_target) {
    const auto* source = static_cast<const std::uint8_t*>(data());
    auto* target = static_cast<std::uint8_t*>(result.data());
    for (std::int64_t i = 0; i < elements_; ++i) target[i] = source[i] != 0 ? 1 : 0;
  } else {
    convert_elements(type_, data(), type, result.data(), elements_);
  }
  return result;
}

GridShape Tensor::grid() const {
  if (shape_.size() != 4)
    throw Error(ErrorCode::input,
                fmt::format("a grid has four sizes [batch, rows, columns, channels], this tensor has {}: {}",
                            shape_.size(), shape_text(shape_)));
  return {shape_[0], shape_[1], shape_[2], shape_[3]};
}

GridView view(Tensor& tensor) {
  const GridShape shape = tensor.grid();
  return {tensor.data(), tensor.dtype(), shape};
}

ConstGridView view(const Tensor& tensor) { return {tensor.data(), tensor.dtype(), tensor.grid()}; }

MaskView mask_view(const Tensor& tensor) {
  const std::vector<std::int64_t>& shape = tensor.shape();
  if (shape.size() != 3)
    throw Error(ErrorCode::input,
                fmt::format("a mask has three sizes [batch, rows, columns], this tensor has {}: {}",
                            shape.size(), shape_text(shape)));
  if (tensor.dtype() != DType::u8 && tensor.dtype() != DType::boolean)
    throw Error(ErrorCode::input, fmt::format("a mask is uint8 or bool (non-zero = valid), this tensor is {}",
                                              to_string(tensor.dtype())));
  return {tensor.values<std::uint8_t>().data(), shape[0], shape[1], shape[2]};
}

}  // namespace warpweave
