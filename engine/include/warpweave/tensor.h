// Host tensors that own their memory, and views of memory that somebody else owns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "warpweave/types.h"

namespace warpweave {

// A dense row-major host tensor of any rank; its memory is 64-byte aligned. Copies are deep.
class Tensor {
 public:
  Tensor() = default;
  // Uninitialised elements. Throws Error(input) on a negative or overflowing shape, Error(device) when the
  // memory cannot be had.
  Tensor(DType type, std::vector<std::int64_t> shape);
  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) noexcept = default;

  // A float32 tensor holding `values`; their number must match the shape.
  static Tensor from(std::vector<std::int64_t> shape, std::span<const float> values);

  DType dtype() const noexcept { return type_; }
  const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  std::int64_t elements() const noexcept { return elements_; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(elements_) * itemsize(type_); }
  void* data() noexcept { return data_.get(); }
  const void* data() const noexcept { return data_.get(); }

  // The elements as T (float, double, std::uint16_t for the 16-bit types, std::uint8_t). Throws Error(input)
  // when sizeof(T) is not the element size.
  template <class T>
  std::span<T> values();
  template <class T>
  std::span<const T> values() const;

  // A converted copy, rounding to nearest even.
  Tensor to(DType type) const;
  // [batch, rows, columns, channels] of a rank-4 tensor; throws Error(input) otherwise.
  GridShape grid() const;

 private:
  struct Free {
    void operator()(void* p) const noexcept;
  };
  DType type_ = DType::f32;
  std::vector<std::int64_t> shape_;
  std::int64_t elements_ = 0;
  std::unique_ptr<void, Free> data_;
};

// A grid in memory of the session's device (host memory for the CPU). Dense, row-major.
struct GridView {
  void* data = nullptr;
  DType type = DType::f32;
  GridShape shape;
};
struct ConstGridView {
  const void* data = nullptr;
  DType type = DType::f32;
  GridShape shape;

  ConstGridView() = default;
  ConstGridView(const void* data, DType type, GridShape shape) : data(data), type(type), shape(shape) {}
  ConstGridView(const GridView& v) : data(v.data), type(v.type), shape(v.shape) {}  // NOLINT: implicit
};

// One byte per cell, [batch, rows, columns], non-zero = valid. A null pointer: every cell is valid.
struct MaskView {
  const std::uint8_t* data = nullptr;
  std::int64_t batch = 0, rows = 0, columns = 0;
};

GridView view(Tensor& tensor);  // of a rank-4 tensor
ConstGridView view(const Tensor& tensor);
MaskView mask_view(const Tensor& tensor);  // of a rank-3 u8 or boolean tensor

}  // namespace warpweave
