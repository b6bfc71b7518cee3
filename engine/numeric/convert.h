// Arrays of elements from one type to another, one rounding to nearest even each.
#pragma once

#include <cstdint>

#include "warpweave/types.h"

namespace warpweave {

// `count` elements; source and target may be the same memory where both types are equal in size, and must not
// overlap otherwise. The target is a floating type.
void convert_elements(DType from, const void* source, DType to, void* target, std::int64_t count) noexcept;

// To float, each value rounded to the 16-bit type `rounded` (f16 or bf16). Source and target may be the same
// memory where the source is f32.
void convert_rounded(DType from, const void* source, DType rounded, float* target,
                     std::int64_t count) noexcept;

}  // namespace warpweave
