#include "bench/correctness.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "bench/parallel.h"

namespace warpweave::bench {
namespace {

constexpr std::int64_t kSlab = 4;        // rows or columns
constexpr std::int64_t kPart = 1 << 18;  // elements that a thread takes at a time
constexpr std::uint64_t kProbeSeed = 1;  // of the inputs that are checked

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

// For `samples` times `lines` lines, which of `distinct` lines each copies: equally many of each in a sample.
std::vector<std::int32_t> shuffled_copies(std::int64_t samples, std::int64_t lines, std::int64_t distinct) {
  std::vector<std::int32_t> from(static_cast<std::size_t>(samples * lines));
  std::mt19937 dice(7);
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto begin = from.begin() + s * lines;
    for (std::int64_t i = 0; i < lines; ++i) begin[i] = static_cast<std::int32_t>(i % distinct);
    std::shuffle(begin, begin + lines, dice);
  }
  return from;
}

// Sums of squares: of the differences from the exact results, and of the updates that they are relative to.
struct Squares {
  double error = 0, update = 0;

  // Elements of y that the slab's elements from `exact` on must equal; `x` is the slab's input, or null where
  // y is no update of it.
  void add(const float* y, const double* exact, const float* x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double d = y[i] - exact[i], u = x ? exact[i] - x[i] : exact[i];
      error += d * d;
      update += u * u;
    }
  }
};

double relative_error(const std::vector<Squares>& parts) {
  Squares all;
  for (const Squares& part : parts) all.error += part.error, all.update += part.update;
  return all.error == 0 ? 0 : std::sqrt(all.error / all.update);
}

}  // namespace

Tensor random_grid(const GridShape& shape, std::uint64_t seed) {
  Tensor x(DType::f32, {shape.batch, shape.rows, shape.columns, shape.channels});
  const auto values = x.values<float>();
  const auto size = static_cast<std::int64_t>(values.size());
  in_parallel((size + kPart - 1) / kPart, [&](std::int64_t part) {
    std::seed_seq mixed{seed, static_cast<std::uint64_t>(part)};
    std::mt19937_64 bits(mixed);
    std::normal_distribution<float> normal;
    const std::int64_t end = std::min(size, (part + 1) * kPart);
    for (std::int64_t i = part * kPart; i < end; ++i) values[static_cast<std::size_t>(i)] = normal(bits);
  });
  return x;
}

ExactResults::Probe ExactResults::on_slab(const Model& model, const Shape& slab) {
  const Engine reference(model, {.device = Device::cpu(), .precision = Precision::fp64});
  Probe probe;
  probe.shape = slab;
  probe.x = random_grid({slab.batch, slab.rows, slab.columns, model.input_channels()}, kProbeSeed);
  probe.exact = reference.run(probe.x, nullptr, DType::f64);
  return probe;
}

ExactResults ExactResults::of_block(const Model& model, const Shape& shape) {
  ExactResults results;
  for (const bool rows : {true, false}) {
    const std::int64_t lines = rows ? shape.rows : shape.columns;
    const std::int64_t distinct = std::gcd(lines, kSlab);
    Probe probe = on_slab(model, rows ? Shape{1, distinct, shape.columns} : Shape{1, shape.rows, distinct});
    probe.shape = shape;
    probe.rows = rows;
    probe.from = shuffled_copies(shape.batch, lines, distinct);
    results.probes_.push_back(std::move(probe));
  }
  return results;
}

ExactResults ExactResults::of_model(const Model& model, const Shape& shape) {
  ExactResults results;
  results.probes_.push_back(on_slab(model, thinned(model, shape.rows, [&](std::int64_t rows) {
                                      return Shape{1, rows, shape.columns};
                                    })));
  results.probes_.push_back(on_slab(model, thinned(model, shape.columns, [&](std::int64_t columns) {
                                      return Shape{1, shape.rows, columns};
                                    })));
  return results;
}

template <class Body>
void ExactResults::Probe::visit(std::int64_t line, const Body& body) const {
  const std::int64_t channels = x.shape()[3], grid = line * shape.columns * channels;
  if (rows) {
    const std::int64_t copied = from[static_cast<std::size_t>(line)];
    body(grid, copied * shape.columns * channels, shape.columns * channels);
    return;
  }
  const std::int64_t sample = line / shape.rows, row = line % shape.rows, distinct = x.shape()[2];
  for (std::int64_t j = 0; j < shape.columns; ++j) {
    const std::int64_t copied = from[static_cast<std::size_t>(sample * shape.columns + j)];
    body(grid + j * channels, (row * distinct + copied) * channels, channels);
  }
}

double ExactResults::error_on_slab(const Engine& engine, const Probe& probe) {
  const Tensor y = engine.run(probe.x);
  std::vector<Squares> sum(1);
  sum[0].add(y.values<float>().data(), probe.exact.values<double>().data(),
             probe.x.shape() == probe.exact.shape() ? probe.x.values<float>().data() : nullptr, y.elements());
  return relative_error(sum);
}

double ExactResults::error_on_grid(Session& session, const Probe& probe) {
  const Shape& s = probe.shape;
  const float* const slab = probe.x.values<float>().data();
  const double* const exact = probe.exact.values<double>().data();
  Tensor x(DType::f32, {s.batch, s.rows, s.columns, probe.x.shape()[3]}), y(DType::f32, x.shape());
  std::memset(y.data(), 0xff, y.bytes());  // a NaN in every element
  float* const in = x.values<float>().data();
  const float* const out = y.values<float>().data();
  const std::int64_t lines = s.batch * s.rows;
  in_parallel(lines, [&](std::int64_t line) {
    probe.visit(line, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      std::copy_n(slab + from, count, in + to);
    });
  });
  session.run_host(view(x), view(y));
  std::vector<Squares> sums(static_cast<std::size_t>(lines));
  in_parallel(lines, [&](std::int64_t line) {
    probe.visit(line, [&](std::int64_t at, std::int64_t from, std::int64_t count) {
      sums[static_cast<std::size_t>(line)].add(out + at, exact + from, slab + from, count);
    });
  });
  return relative_error(sums);
}

double ExactResults::error(const Engine& engine, Session& session) const {
  double worst = 0;
  for (const Probe& probe : probes_) {
    const double error = probe.from.empty() ? error_on_slab(engine, probe) : error_on_grid(session, probe);
    if (!std::isfinite(error)) return std::numeric_limits<double>::quiet_NaN();
    worst = std::max(worst, error);
  }
  return worst;
}

double error_limit(Precision precision, std::size_t layers) {
  const double blocks = std::max(1.0, static_cast<double>(layers) / 2);
  switch (precision) {
    case Precision::fp64:
      return 1e-7 * blocks;  // results are compared as they leave, in float32
    case Precision::tf32:
      return 5.55e-4 * blocks;  // 1.1 times PyTorch's, seed_block in tests/gpu/torch_errors.json
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
  const Tensor wide = y.to(DType::f32);
  const auto values = wide.values<float>();
  const auto size = static_cast<std::int64_t>(values.size());
  std::atomic<bool> finite{true};
  in_parallel((size + kPart - 1) / kPart, [&](std::int64_t part) {
    const auto begin = values.begin() + part * kPart,
               end = values.begin() + std::min(size, (part + 1) * kPart);
    if (!std::all_of(begin, end, [](float v) { return std::isfinite(v); })) finite = false;
  });
  return finite;
}

}  // namespace warpweave::bench
