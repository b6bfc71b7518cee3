#include "properties/problem.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <stdexcept>
#include <system_error>

#include "cpu/step.h"
#include "weights/random.h"

namespace warpweave::properties {
namespace {

// A model file that is removed again; several threads may have one each.
class ModelFile {
 public:
  explicit ModelFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("warpweave-properties-" + std::to_string(getpid()) +
                                                        "-" + std::to_string(next()++) + ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~ModelFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  static std::atomic<int>& next() {
    static std::atomic<int> number{0};
    return number;
  }
  std::filesystem::path path_;
};

const std::byte* bytes_at(const Tensor& t, std::int64_t index, std::int64_t unit) {
  return static_cast<const std::byte*>(t.data()) + index * unit;
}

// Bytes of one cell of a grid [B, H, W, D] or a mask [B, H, W].
std::int64_t cell_bytes(const Tensor& t) {
  const std::int64_t cells = t.shape()[0] * t.shape()[1] * t.shape()[2];
  return static_cast<std::int64_t>(t.bytes()) / cells;
}

std::vector<std::int64_t> resized(const Tensor& t, std::int64_t batch, std::int64_t rows,
                                  std::int64_t columns) {
  std::vector<std::int64_t> shape = t.shape();
  shape[0] = batch, shape[1] = rows, shape[2] = columns;
  return shape;
}

// A new grid or mask whose cell (b, i, j) is cell source(b, i, j) of `t`.
template <class Source>
Tensor gather(const Tensor& t, std::int64_t batch, std::int64_t rows, std::int64_t columns,
              const Source& source) {
  Tensor out(t.dtype(), resized(t, batch, rows, columns));
  const std::int64_t unit = cell_bytes(t);
  auto* to = static_cast<std::byte*>(out.data());
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j, to += unit)
        std::memcpy(to, bytes_at(t, source(b, i, j), unit), static_cast<std::size_t>(unit));
  return out;
}

std::string on_off(bool value) { return value ? "true" : "false"; }

}  // namespace

std::string Attention::yaml() const {
  std::string text = "axial_attention: {axis: " + axis + ", heads: " + std::to_string(heads) +
                     ", head_dim: " + std::to_string(head_dim) + ", norm: " + norm +
                     ", qkv_bias: " + on_off(qkv_bias) + ", out_bias: " + on_off(out_bias) +
                     ", residual: " + on_off(residual) + ", causal: " + on_off(causal);
  if (!scale.empty()) text += ", scale: " + scale;
  if (!rope.empty()) text += ", rope: " + rope;
  return text + "}";
}

void draw_options(Attention& a, Dice& dice, const std::vector<std::string>& norms) {
  a.axis = dice.chance(50) ? "row" : "column";
  a.norm = dice.pick(norms);
  a.qkv_bias = dice.chance(40), a.out_bias = dice.chance(75), a.residual = dice.chance(75);
  a.causal = dice.chance(30);
  if (dice.chance(20)) a.scale = dice.pick<std::string>({"0.3", "0.05", "-0.2"});
  if (dice.chance(35))
    a.rope = "{style: " + dice.pick<std::string>({"half", "interleaved"}) +
             ", dims: " + std::to_string(2 * (1 + dice.below(a.head_dim / 2))) + "}";
}

Problem random_problem(std::uint64_t seed) {
  Dice dice(seed * 7919 + 1);
  Problem p;
  p.seed = seed;
  Attention& a = p.attention;
  a.axis = dice.chance(50) ? "row" : "column";
  a.heads = dice.pick<std::int64_t>({1, 1, 2, 3, 4, 5});
  a.head_dim = dice.pick<std::int64_t>({1, 2, 3, 4, 5, 7, 8, 12, 16, 16, 24, 32, 33});
  a.dim = dice.chance(60) ? a.heads * a.head_dim : 2 + dice.below(50);
  a.norm = dice.pick<std::string>({"layer", "layer", "rms", "none"});
  a.qkv_bias = dice.chance(40);
  a.out_bias = dice.chance(75);
  a.residual = dice.chance(75);
  a.causal = dice.chance(30);
  if (dice.chance(20)) a.scale = dice.pick<std::string>({"0.3", "1.0", "-0.2"});
  if (a.head_dim > 1 && dice.chance(35)) {
    const std::int64_t dims = 2 * (1 + dice.below(a.head_dim / 2));
    a.rope = "{style: " + dice.pick<std::string>({"half", "interleaved"}) +
             ", dims: " + std::to_string(dims) + "}";
  }
  const std::vector<std::int64_t> sizes = {1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 15, 16, 17, 19, 31, 32, 33};
  p.shape = {1 + dice.below(3), dice.pick(sizes), dice.pick(sizes)};
  if (dice.chance(10)) {  // a long sequence
    (a.axis == "row" ? p.shape.columns : p.shape.rows) = 60 + dice.below(140);
    (a.axis == "row" ? p.shape.rows : p.shape.columns) = 1 + dice.below(3);
  }
  p.masked = dice.chance(40);
  return p;
}

std::ostream& operator<<(std::ostream& out, const Problem& p) {
  return out << "seed " << p.seed << ": " << p.attention.yaml() << " dim " << p.attention.dim << " on ["
             << p.shape.batch << ", " << p.shape.rows << ", " << p.shape.columns << "]"
             << (p.masked ? " masked" : "");
}

Model make_model(std::int64_t dim, const std::vector<std::string>& layers, std::uint64_t seed) {
  std::string text = "name: test\ninput: {dim: " + std::to_string(dim) + "}\nlayers:\n";
  for (const std::string& layer : layers) text += "  - " + layer + "\n";
  const ModelFile file(text);
  return Model::random(file.path(), seed);
}

Model make_block(std::int64_t dim, std::int64_t heads) {
  const std::string h = std::to_string(heads);
  return make_model(dim, {"axial_attention: {axis: row, heads: " + h + "}",
                          "axial_attention: {axis: column, heads: " + h + "}"});
}

Engine cpu_engine(const Model& model, const std::string& plan, Precision precision, int threads) {
  return Engine(model, {.device = Device::cpu(), .precision = precision, .plan = plan, .threads = threads});
}

Tensor random_grid(const Shape& shape, std::int64_t channels, std::uint64_t seed) {
  Tensor x(DType::f32, {shape.batch, shape.rows, shape.columns, channels});
  weights::fill_normal(x.values<float>(), seed, "input");
  return x;
}

Tensor random_mask(const Shape& shape, std::uint64_t seed, int percent_valid) {
  Dice dice(seed + 99);
  Tensor mask(DType::u8, {shape.batch, shape.rows, shape.columns});
  // Any non-zero byte is valid.
  for (std::uint8_t& v : mask.values<std::uint8_t>()) {
    v = dice.chance(percent_valid) ? static_cast<std::uint8_t>(1 + dice.below(255)) : std::uint8_t{0};
  }
  return mask;
}

std::optional<Tensor> run_unless_declined(const Engine& engine, const Tensor& x, const Tensor* mask) {
  try {
    return engine.run(x, mask);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::device) throw;
    return {};
  }
}

Tensor run(const Engine& engine, const Tensor& x, const Tensor* mask, DType output) {
  if (engine.device() != Device::cpu()) throw std::logic_error("a session on a GPU takes device memory");
  const GridShape shape = x.grid();
  Session session = engine.prepare({shape.batch, shape.rows, shape.columns});
  const GridShape out = session.output_shape();
  Tensor y(output, {out.batch, out.rows, out.columns, out.channels});
  std::memset(y.data(), 0xff, y.bytes());
  session.run(view(x), view(y), {.mask = mask ? mask_view(*mask) : MaskView{}});
  return y;
}

Tensor transposed(const Tensor& t) {
  const std::int64_t rows = t.shape()[1], columns = t.shape()[2];
  return gather(t, t.shape()[0], columns, rows,
                [=](std::int64_t b, std::int64_t i, std::int64_t j) { return (b * rows + j) * columns + i; });
}

Tensor samples(const Tensor& t, std::int64_t first, std::int64_t count) {
  const std::int64_t rows = t.shape()[1], columns = t.shape()[2];
  return gather(t, count, rows, columns, [=](std::int64_t b, std::int64_t i, std::int64_t j) {
    return ((first + b) * rows + i) * columns + j;
  });
}

Tensor corner(const Tensor& t, std::int64_t rows, std::int64_t columns) {
  const std::int64_t all_rows = t.shape()[1], all_columns = t.shape()[2];
  return gather(t, t.shape()[0], rows, columns, [=](std::int64_t b, std::int64_t i, std::int64_t j) {
    return (b * all_rows + i) * all_columns + j;
  });
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

bool same_cell(const Tensor& a, const Tensor& b, std::int64_t batch, std::int64_t row, std::int64_t column) {
  const std::int64_t cell = (batch * a.shape()[1] + row) * a.shape()[2] + column;
  const std::int64_t unit = cell_bytes(a);
  return std::memcmp(bytes_at(a, cell, unit), bytes_at(b, cell, unit), static_cast<std::size_t>(unit)) == 0;
}

double difference(const Tensor& a, const Tensor& b) {
  const Tensor wide_a = a.to(DType::f64), wide_b = b.to(DType::f64);
  const auto u = wide_a.values<double>(), v = wide_b.values<double>();
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    apart += (u[i] - v[i]) * (u[i] - v[i]);
    size += v[i] * v[i];
  }
  return size > 0 ? std::sqrt(apart / size) : std::sqrt(apart);
}

double update_error(const Tensor& y, const Tensor& exact, const Tensor& x, bool residual) {
  const auto a = y.values<float>(), b = exact.values<float>(), c = x.values<float>();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double delta = static_cast<double>(b[i]) - (residual ? static_cast<double>(c[i]) : 0.0);
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += delta * delta;
  }
  return std::sqrt(error / std::max(size, 1e-30));
}

Tensor rounded(const Tensor& x, Precision precision) { return x.to(storage_type(precision)).to(DType::f32); }

const std::vector<std::string>& plans() {
  static const std::vector<std::string> list = [] {
    std::vector<std::string> names;
    for (const auto* implementation : cpu::implementations()) names.emplace_back(implementation->name());
    return names;
  }();
  return list;
}

}  // namespace warpweave::properties
