// A fast answer counts only when it is right: checked before anything is timed.
#pragma once

#include "warpweave/warpweave.h"

namespace warpweave::bench {

// N(0, 1) numbers in float32, the same for one seed.
Tensor random_grid(const GridShape& shape, std::uint64_t seed);

// Error of the engine against the float64 reference on the CPU, e = |y - y64| / |y64 - x| (|y64| where the
// shapes of input and output differ), the worst of two thin slabs of the shape: all columns of a few rows,
// and all rows of a few columns, so that both axes have their full lengths at a fraction of the cost.
double reference_error(const Engine& engine, const Shape& shape);

// The largest error that passes, for a model of `layers` layers: the limit of one block of two layers for the
// engine's precision (docs/accuracy.md), and as much again for each further block.
double error_limit(Precision precision, std::size_t layers);

// Whether every element of a float32 grid is a finite number.
bool all_finite(const Tensor& y);

}  // namespace warpweave::bench
