// Carves arrays out of one block of scratch memory; with a null block it only measures.
#pragma once

#include <cstddef>
#include <cstdint>

namespace warpweave::cpu::fused {

class Carver {
 public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}

  // `count` elements, starting on a cache line of its own.
  template <class T>
  T* take(std::int64_t count) {
    std::byte* at = base_ ? base_ + used_ : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  std::size_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace warpweave::cpu::fused
