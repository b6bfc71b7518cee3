// Random models and grids for the property tests, and what the tests do with them.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "warpweave/warpweave.h"

namespace warpweave::properties {

// Integers from a seed, the same with every standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n));
  }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T pick(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(static_cast<std::int64_t>(list.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

// One axial_attention layer as the model file writes it.
struct Attention {
  std::string axis = "row";
  std::int64_t dim = 16, heads = 2, head_dim = 8;
  std::string norm = "layer";
  bool qkv_bias = false, out_bias = true, residual = true, causal = false;
  std::string scale, rope;   // as in the file; empty: not given
  std::string yaml() const;  // "axial_attention: {...}"
};

// Everything of `a` that is no size, drawn anew; the norm is one of `norms`.
void draw_options(Attention& a, Dice& dice, const std::vector<std::string>& norms);

// Random options and sizes, tiny to moderate, ones and primes among them.
struct Problem {
  Attention attention;
  Shape shape;
  std::uint64_t seed = 0;
  bool masked = false;
};
Problem random_problem(std::uint64_t seed);
std::ostream& operator<<(std::ostream& out, const Problem& p);

// A model from layers as YAML one-liners ("norm: {}"), with random weights.
Model make_model(std::int64_t dim, const std::vector<std::string>& layers, std::uint64_t seed = 1);
// The seed block: a row layer, then a column layer.
Model make_block(std::int64_t dim = 16, std::int64_t heads = 2);

Engine cpu_engine(const Model& model, const std::string& plan, Precision precision = Precision::fp32,
                  int threads = 2);

Tensor random_grid(const Shape& shape, std::int64_t channels, std::uint64_t seed);   // float32
Tensor random_mask(const Shape& shape, std::uint64_t seed, int percent_valid = 60);  // u8

// Runs on memory poisoned with NaN, so that what is not written shows. The memory is the host's: throws
// std::logic_error for an engine on a GPU.
Tensor run(const Engine& engine, const Tensor& x, const Tensor* mask = nullptr, DType output = DType::f32);

// engine.run(), or nothing where the device declines (Error(device)).
std::optional<Tensor> run_unless_declined(const Engine& engine, const Tensor& x, const Tensor* mask);

// [B, H, W, ...] -> [B, W, H, ...], of a grid or a mask.
Tensor transposed(const Tensor& t);
// Samples [first, first + count) of a grid or a mask.
Tensor samples(const Tensor& t, std::int64_t first, std::int64_t count);
// The part of a grid or a mask with the first `rows` and `columns`.
Tensor corner(const Tensor& t, std::int64_t rows, std::int64_t columns);

bool same_bits(const Tensor& a, const Tensor& b);
// The same bits in every channel of cell (b, i, j).
bool same_cell(const Tensor& a, const Tensor& b, std::int64_t batch, std::int64_t row, std::int64_t column);
// ||a - b|| / ||b||; NaN where either has one.
double difference(const Tensor& a, const Tensor& b);
// ||y - exact|| / ||exact - x||, or over ||exact|| without a residual; all float32.
double update_error(const Tensor& y, const Tensor& exact, const Tensor& x, bool residual);
// In float32, each value rounded to the stored type of the precision.
Tensor rounded(const Tensor& x, Precision precision);

// The implementations of the CPU by name: "cpu_fused" where this build has it, and "reference".
const std::vector<std::string>& plans();

}  // namespace warpweave::properties
