#include "bench/correctness.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace warpweave::bench {
namespace {

constexpr std::int64_t kSlab = 4;  // rows or columns

bool takes(const Model& model, const Shape& shape) {
  try {
    (void)model.output_shape(shape);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// `side`, or the least multiple of kSlab below it that the model takes in its place.
template <class Replace>
Shape thinned(const Model& model, std::int64_t side, Replace replace) {
  for (std::int64_t thin = kSlab; thin < side; thin *= 2) {
    if (takes(model, replace(thin))) return replace(thin);
  }
  return replace(side);
}

double error_on(const Engine& engine, const Engine& reference, const Shape& shape) {
  const Tensor x = random_grid({shape.batch, shape.rows, shape.columns, engine.model().input_channels()}, 1);
  const Tensor y = engine.run(x), exact = reference.run(x, nullptr, DType::f64);
  const auto a = y.values<float>(), in = x.values<float>();
  const auto e = exact.values<double>();
  const bool same_shape = x.shape() == exact.shape();
  double squares = 0, norm = 0;
  for (std::size_t i = 0; i < e.size(); ++i) {
    const double d = a[i] - e[i], update = same_shape ? e[i] - in[i] : e[i];
    squares += d * d;
    norm += update * update;
  }
  return squares == 0 ? 0 : std::sqrt(squares / norm);
}

}  // namespace

Tensor random_grid(const GridShape& shape, std::uint64_t seed) {
  Tensor x(DType::f32, {shape.batch, shape.rows, shape.columns, shape.channels});
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> normal;
  for (float& value : x.values<float>()) value = normal(bits);
  return x;
}

double reference_error(const Engine& engine, const Shape& shape) {
  const Model& model = engine.model();
  const Engine reference(model, {.device = Device::cpu(), .precision = Precision::fp64});
  const Shape few_rows = thinned(model, shape.rows, [&](std::int64_t rows) {
    return Shape{1, rows, shape.columns};
  });
  const Shape few_columns = thinned(model, shape.columns, [&](std::int64_t columns) {
    return Shape{1, shape.rows, columns};
  });
  double worst = 0;
  for (const Shape& slab : {few_rows, few_columns}) {
    const double error = error_on(engine, reference, slab);
    if (!(error <= worst)) worst = error;  // a NaN is taken too, and kept below
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

double error_limit(Precision precision, std::size_t layers) {
  const double blocks = std::max(1.0, static_cast<double>(layers) / 2);
  switch (precision) {
    case Precision::fp64:
      return 1e-12 * blocks;
    case Precision::tf32:
      return 2.5e-4 * blocks;
    case Precision::fp16:
      return 1e-3 * blocks;
    case Precision::bf16:
      return 8e-3 * blocks;
    case Precision::fp32:
      break;
  }
  return 1e-6 * blocks;
}

bool all_finite(const Tensor& y) {
  const auto values = y.values<float>();
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace warpweave::bench
