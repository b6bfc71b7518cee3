#include "numeric/convert.h"

#include "numeric/half.h"

namespace warpweave {
namespace {

// How elements of each DType are stored, and how they convert: `read` to the narrowest of float and double
// that holds every value, `write` from either with one rounding.
template <DType type>
struct Element;
template <>
struct Element<DType::f64> {
  using Storage = double;
  static double read(double v) noexcept { return v; }
  static double write(float v) noexcept { return v; }
  static double write(double v) noexcept { return v; }
};
template <>
struct Element<DType::f32> {
  using Storage = float;
  static float read(float v) noexcept { return v; }
  static float write(float v) noexcept { return v; }
  static float write(double v) noexcept { return static_cast<float>(v); }
};
template <>
struct Element<DType::f16> {
  using Storage = std::uint16_t;
  static float read(std::uint16_t v) noexcept { return f16_to_float(v); }
  static std::uint16_t write(float v) noexcept { return float_to_f16(v); }
  static std::uint16_t write(double v) noexcept { return double_to_f16(v); }
};
template <>
struct Element<DType::bf16> {
  using Storage = std::uint16_t;
  static float read(std::uint16_t v) noexcept { return bf16_to_float(v); }
  static std::uint16_t write(float v) noexcept { return float_to_bf16(v); }
  static std::uint16_t write(double v) noexcept { return double_to_bf16(v); }
};
template <>
struct Element<DType::u8> {
  using Storage = std::uint8_t;
  static float read(std::uint8_t v) noexcept { return v; }
};
template <>
struct Element<DType::boolean> {
  using Storage = std::uint8_t;
  static float read(std::uint8_t v) noexcept { return v != 0 ? 1.0f : 0.0f; }
};

template <DType from, DType to>
void convert(const void* source, void* target, std::int64_t count) noexcept {
  const auto* s = static_cast<const typename Element<from>::Storage*>(source);
  auto* t = static_cast<typename Element<to>::Storage*>(target);
  for (std::int64_t i = 0; i < count; ++i) t[i] = Element<to>::write(Element<from>::read(s[i]));
}

template <DType to>
void convert_from(DType from, const void* source, void* target, std::int64_t count) noexcept {
  switch (from) {
    case DType::f64:
      return convert<DType::f64, to>(source, target, count);
    case DType::f32:
      return convert<DType::f32, to>(source, target, count);
    case DType::f16:
      return convert<DType::f16, to>(source, target, count);
    case DType::bf16:
      return convert<DType::bf16, to>(source, target, count);
    case DType::u8:
      return convert<DType::u8, to>(source, target, count);
    case DType::boolean:
      return convert<DType::boolean, to>(source, target, count);
  }
}

template <DType from, DType rounded>
void round_all(const void* source, float* target, std::int64_t count) noexcept {
  const auto* s = static_cast<const typename Element<from>::Storage*>(source);
  for (std::int64_t i = 0; i < count; ++i)
    target[i] = Element<rounded>::read(Element<rounded>::write(Element<from>::read(s[i])));
}

template <DType rounded>
void round_from(DType from, const void* source, float* target, std::int64_t count) noexcept {
  switch (from) {
    case DType::f64:
      return round_all<DType::f64, rounded>(source, target, count);
    case DType::f32:
      return round_all<DType::f32, rounded>(source, target, count);
    case DType::f16:
      return round_all<DType::f16, rounded>(source, target, count);
    case DType::bf16:
      return round_all<DType::bf16, rounded>(source, target, count);
    case DType::u8:
      return round_all<DType::u8, rounded>(source, target, count);
    case DType::boolean:
      return round_all<DType::boolean, rounded>(source, target, count);
  }
}

}  // namespace

void convert_elements(DType from, const void* source, DType to, void* target, std::int64_t count) noexcept {
  switch (to) {
    case DType::f64:
      return convert_from<DType::f64>(from, source, target, count);
    case DType::f32:
      return convert_from<DType::f32>(from, source, target, count);
    case DType::f16:
      return convert_from<DType::f16>(from, source, target, count);
    case DType::bf16:
      return convert_from<DType::bf16>(from, source, target, count);
    case DType::u8:
    case DType::boolean:
      return;  // not a floating type
  }
}

void convert_rounded(DType from, const void* source, DType rounded, float* target,
                     std::int64_t count) noexcept {
  if (rounded == DType::bf16) return round_from<DType::bf16>(from, source, target, count);
  return round_from<DType::f16>(from, source, target, count);
}

}  // namespace warpweave
