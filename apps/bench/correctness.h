// A fast answer counts only when it is right: checked before anything is timed.
#pragma once

#include <cstdint>
#include <vector>

#include "warpweave/warpweave.h"

namespace warpweave::bench {

// N(0, 1) numbers in float32, the same for one seed.
Tensor random_grid(const GridShape& shape, std::uint64_t seed);

// What a model gives on some inputs by the float64 reference of the CPU, computed once and compared with as
// many plans as wanted. Errors are e = |y - y64| / |y64 - x| (|y64| where the shapes of input and output
// differ).
class ExactResults {
 public:
  // Of a block of bare axial attention (no mask, RoPE or causal order), at its full shape and for the price
  // of two slabs: all rows of the first input are copies of four, shuffled and equally many of each, all
  // columns of the second. Softmax over equally repeated keys is softmax over the distinct ones, so the slab
  // of distinct rows (columns) has the results of the whole grid, and every element of it is compared.
  static ExactResults of_block(const Model& model, const Shape& shape);
  // Of any model, on two slabs of the shape: all columns of a few rows, and all rows of a few columns, so
  // that both axes have their full lengths. A plan may depend on the sizes, so this proves less.
  static ExactResults of_model(const Model& model, const Shape& shape);

  // The worst error of the engine, whose `session` is prepared for the shape; NaN when a result is not
  // finite.
  double error(const Engine& engine, Session& session) const;

 private:
  struct Probe {
    Shape shape;       // of the input
    Tensor x, exact;   // of the distinct cells
    bool rows = true;  // whether rows are copied, or columns
    // Sample by sample, the slab's line that each line copies; empty: the slab itself is the input.
    std::vector<std::int32_t> from;

    // Calls body(first element of the grid, of the slab, elements) for the pieces of a row of a sample.
    template <class Body>
    void visit(std::int64_t line, const Body& body) const;
  };
  static Probe on_slab(const Model& model, const Shape& slab);
  static double error_on_slab(const Engine& engine, const Probe& probe);
  static double error_on_grid(Session& session, const Probe& probe);

  std::vector<Probe> probes_;
};

// The largest error that passes, for a model of `layers` layers: the contract's for one block of two layers
// (tf32: the larger one, 1.1 times PyTorch's error), as much again for each further block.
double error_limit(Precision precision, std::size_t layers);

// Whether every element of a grid is a finite number.
bool all_finite(const Tensor& y);

}  // namespace warpweave::bench
