#include "cuda/composed/normed_qkv.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cuda/long/projection.h"
#include "cuda/memory.h"
#include "cuda/tensor_map.h"
#include "layout/norm_plan.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda {
namespace {

namespace device_side = kernels::long_attention;

constexpr std::int64_t kLeastChannels = 264;  // up to 256 the long family has its own
constexpr std::int64_t kMostChannels = 2048;  // that a warp's registers hold (composed/norm.cuh)

bool half_operands(Precision precision) { return itemsize(storage_type(precision)) == 2; }

// Whether the tokens' gains have to be found ahead.
bool needs_gains(const NormedQkvShape& shape) { return shape.norm != graph::NormKind::none; }

class PackedNormedQkv final : public NormedQkv {
 public:
  PackedNormedQkv(const NormedQkvShape& shape, const NormedQkvWeights& weights, Precision precision,
                  const GpuDevice& device)
      : shape_(shape), precision_(precision), device_(device), eps_(weights.eps) {
    const PackedQkv packed = pack_normed_qkv(shape, weights, precision);
    unit_ = packed.unit;
    weight_ = upload_operand(packed.weight, precision);
    bias_ = upload(packed.bias);
    prepare_tensor_maps();
  }

  std::int64_t gain_bytes_per_token() const noexcept override {
    return shape_.norm == graph::NormKind::none ? 0 : 4;
  }
  std::unique_ptr<const NormedQkvOperation> store() const override { return with(qkv_store_plan(shape_)); }
  std::unique_ptr<const NormedQkvOperation> attention(const AttentionShape& attention,
                                                      std::int64_t neighbours) const override {
    const auto plan = qkv_attention_plan(shape_, attention, neighbours);
    return plan ? with(*plan) : nullptr;
  }
  std::unique_ptr<const NormedQkvOperation> with(const QkvPlan& plan) const {
    return std::make_unique<Operation>(*this, plan);
  }

 private:
  class Operation final : public NormedQkvOperation {
   public:
    Operation(const PackedNormedQkv& owner, const QkvPlan& plan)
        : owner_(owner),
          plan_(plan),
          kernel_(owner.device_.kernels().get(qkv_kernel(plan, owner.precision_))) {
      kernel_.allow(static_cast<std::size_t>(plan.shared_bytes()));
      if (needs_gains(owner.shape_)) {
        gains_ = owner.device_.kernels().get(gains_kernel(owner.shape_, owner.precision_));
        const auto element = static_cast<int>(itemsize(storage_type(owner.precision_)));
        const auto dim = static_cast<int>(owner.shape_.dim);
        gain_tokens_ = layout::NormPlan{dim, dim, element}.tokens();
        most_gain_blocks_ = owner.device_.multiprocessors() * gains_.resident_blocks(128, 0);
      }
      p_.bias = reinterpret_cast<const float*>(owner.bias_.data());
      p_.rows = static_cast<int>(3 * owner.shape_.heads * owner.shape_.head_dim);
      p_.columns =
          attends() ? static_cast<int>(owner.shape_.heads) : (p_.rows + plan.rows() - 1) / plan.rows();
      p_.dim = static_cast<int>(owner.shape_.dim);
      p_.unit = owner.unit_;
      encode_weights();
    }

    bool copies() const noexcept override { return most_gain_blocks_ > 0; }

    void enqueue(cudaStream_t stream, const NormedQkvRun& run) const override {
      device_side::QkvParams p = p_;
      if (most_gain_blocks_ > 0) {
        find_gains(stream, run);
        p.gains = reinterpret_cast<const float*>(run.gains);
      }
      const Site site = attends() ? of_sequences(run) : in_order_of_memory(run);
      const std::int64_t inner = std::min<std::int64_t>(site.tokens.inner, site.sequences),
                         outer = (site.sequences + inner - 1) / inner, dim = p.dim,
                         width = attends() ? p.rows / 3 : p.rows;
      p.slot_bits = attends() ? 0 : slot_bits(site.length, inner);
      const std::int64_t elements = attends() ? plan_.slot : std::int64_t{1} << p.slot_bits,
                         beside = QkvPlan::kTokens / elements;
      const auto map = [&](void* to, const void* address, std::int64_t channels, const kernels::Sequences& at,
                           std::int64_t box_channels, std::int64_t box_elements, std::int64_t box_sequences) {
        // The stride of a single element may be anything, and longer than a map can tell.
        const auto stride = [channels](std::int64_t extent, std::int64_t cells) {
          return (extent > 1 ? cells : 1) * channels * 2;
        };
        encode_tensor_map(
            to, {.address = address,
                 .extent = {channels, site.length, inner, outer},
                 .stride = {stride(site.length, at.step), stride(inner, at.inner_stride),
                            stride(outer, at.outer_stride)},
                 .box = {static_cast<std::uint32_t>(box_channels), static_cast<std::uint32_t>(box_elements),
                         static_cast<std::uint32_t>(box_sequences), 1},
                 .swizzle = 128});
      };
      map(&p.x, static_cast<const std::byte*>(run.x) + run.cells.first * dim * 2, dim, site.cells, 64,
          elements, beside);
      const std::int64_t stored = std::min<std::int64_t>(elements, 16);  // rows of a warp
      map(&p.out, run.out, width, site.tokens, plan_.head, stored, 16 / stored);
      p.tokens = site.tokens;
      p.length = static_cast<int>(site.length), p.inner = static_cast<int>(inner);
      p.along = static_cast<int>((site.length + elements - 1) / elements);
      p.across = static_cast<int>((inner + beside - 1) / beside);
      p.items = static_cast<int>(std::int64_t{p.along} * p.across * outer * p.columns);
      p.by_columns = divisor(p.columns), p.by_along = divisor(p.along), p.by_across = divisor(p.across);
      p.scale = run.scale == 0.0f ? 1e-30f : run.scale;  // the kernel multiplies -infinity by it
      p.keep = owner_.device_.kept_share(run.tokens * width * 2);
      kernel_.launch(stream,
                     {.blocks = std::min(p.items, owner_.device_.multiprocessors()),
                      .threads = QkvPlan::kThreads,
                      .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes()),
                      .overlap_previous = true},
                     p);
    }

   private:
    bool attends() const noexcept { return plan_.slot > 0; }

    // Where tokens are: in the grid, and dense.
    struct Site {
      kernels::Sequences cells, tokens;
      std::int64_t sequences, length;
    };
    static Site of_sequences(const NormedQkvRun& run) {
      Site s{run.grid_sequences, run.token_sequences, run.sequences, run.length};
      // Rows of several samples are one row of sequences.
      const auto even = [](const kernels::Sequences& q) {
        return q.outer_stride == q.inner * q.inner_stride;
      };
      if (even(s.cells) && even(s.tokens))
        s.cells.inner = s.tokens.inner = std::max<std::int64_t>(s.cells.inner, run.sequences);
      return s;
    }
    static Site in_order_of_memory(const NormedQkvRun& run) {
      const std::int64_t rows = run.cells.columns == run.cells.pitch ? 1 : run.tokens / run.cells.columns,
                         length = run.tokens / rows;
      return {{rows, 0, run.cells.pitch, 1}, {rows, 0, length, 1}, rows, length};
    }
    static layout::Divisor divisor(int n) { return layout::Divisor::of(static_cast<unsigned>(n)); }

    void encode_weights() {
      const std::int64_t dim = p_.dim, row = dim * 2, head = owner_.shape_.head_dim,
                         heads = owner_.shape_.heads;
      TensorMapShape map{.address = owner_.weight_.data(), .swizzle = 128};
      if (attends()) {
        map.extent = {dim, head, heads, 3}, map.stride = {row, row * head, row * head * heads};
        map.box = {64, static_cast<std::uint32_t>(head), 1, 3};
      } else {
        map.extent = {dim, p_.rows, 1, 1}, map.stride = {row, row, row};
        map.box = {64, static_cast<std::uint32_t>(plan_.rows()), 1, 1};
      }
      encode_tensor_map(&p_.weight, map);
    }

    // How many elements of a sequence an item has, as a power of two: as leave the fewest rows to padding.
    static int slot_bits(std::int64_t length, std::int64_t sequences) {
      int best = 7;
      std::int64_t least = 0;
      for (int bits = 7; bits >= 0; --bits) {
        const std::int64_t elements = std::int64_t{1} << bits, beside = QkvPlan::kTokens / elements;
        const std::int64_t items = (length + elements - 1) / elements * ((sequences + beside - 1) / beside);
        if (bits == 7 || items < least) least = items, best = bits;
      }
      return best;
    }

    void find_gains(cudaStream_t stream, const NormedQkvRun& run) const {
      kernels::NormParams n{run.x,     run.gains,  run.copy, nullptr, nullptr,
                            run.cells, run.tokens, p_.dim,   p_.dim,  owner_.eps_};
      n.keep = owner_.device_.kept_share(run.tokens * 4);
      gains_.launch(stream,
                    {.blocks = std::min<std::int64_t>((run.tokens + gain_tokens_ - 1) / gain_tokens_,
                                                      most_gain_blocks_),
                     .threads = 128,
                     .overlap_previous = true},
                    n);
    }

    const PackedNormedQkv& owner_;
    QkvPlan plan_;
    Kernel kernel_, gains_;
    std::int64_t gain_tokens_ = 1, most_gain_blocks_ = 0;
    device_side::QkvParams p_{};
  };

  NormedQkvShape shape_;
  Precision precision_;
  const GpuDevice& device_;
  float eps_, unit_ = 1;
  DeviceBuffer weight_, bias_;
};

}  // namespace

bool takes_normed_qkv(const NormedQkvShape& shape, const plan::Conditions& conditions) {
  return conditions.compute_capability == 90 && half_operands(conditions.precision) &&
         shape.dim >= kLeastChannels && shape.dim <= kMostChannels && shape.dim % 8 == 0;
}

QkvPlan qkv_store_plan(const NormedQkvShape& shape) {
  const std::int64_t rows = 3 * shape.heads * shape.head_dim;
  const auto padded = [rows](int head) { return (rows + 3 * head - 1) / (3 * head) * (3 * head); };
  return {padded(48) < padded(64) ? 48 : 64, 0};
}

std::optional<QkvPlan> any_qkv_attention_plan(const NormedQkvShape& shape, const AttentionShape& attention) {
  if ((shape.head_dim != 48 && shape.head_dim != 64) || attention.length > QkvPlan::kTokens ||
      attention.causal)
    return {};
  QkvPlan plan{static_cast<int>(shape.head_dim), 16};
  while (plan.slot < attention.length) plan.slot *= 2;
  return plan;
}

std::optional<QkvPlan> qkv_attention_plan(const NormedQkvShape& shape, const AttentionShape& attention,
                                          std::int64_t neighbours) {
  const auto plan = any_qkv_attention_plan(shape, attention);
  if (!plan) return {};
  // The share of an item's rows that are tokens.
  const std::int64_t items = (neighbours + plan->sequences() - 1) / plan->sequences();
  const double filled =
      static_cast<double>(neighbours * attention.length) / static_cast<double>(items * QkvPlan::kTokens);
  // Padding costs products; writing and reading q, k and v, a kernel of its own.
  return 1 / filled - 1 < 260.0 / static_cast<double>(shape.dim) ? plan : std::nullopt;
}

KernelSpec qkv_kernel(const QkvPlan& plan, Precision precision) {
  const std::string type = device_type(precision), head = std::to_string(plan.head);
  const std::string scope = "warpweave::kernels::long_attention::";
  if (plan.slot == 0) return {"long/qkv_store.cuh", scope + "qkv_store<" + type + ", " + head + ">"};
  return {"long/qkv_attention.cuh",
          scope + "qkv_attention<" + type + ", " + head + ", " + std::to_string(plan.slot) + ">"};
}

KernelSpec gains_kernel(const NormedQkvShape& shape, Precision precision) {
  return {"composed/norm.cuh", "warpweave::kernels::composed::gains<" + device_type(precision) + ", " +
                                   device_norm(shape.norm) + ", " + std::to_string(shape.dim) + ">"};
}

namespace {

// `row`, whose sum is nearly zero, rounded so that the sum of what is stored is exactly zero: elements that
// are nearly as near to their other neighbour go there; what is left, less than the last digit of most, goes
// to the smallest.
void round_to_zero_sum(std::span<float> row, DType type) {
  const std::vector<float> exact(row.begin(), row.end());
  const Tensor rounded = Tensor::from({static_cast<std::int64_t>(row.size())}, exact).to(type).to(DType::f32);
  const auto values = rounded.values<float>();
  std::copy(values.begin(), values.end(), row.begin());
  double sum = 0;
  for (const float v : row) sum += v;
  if (!std::isfinite(sum)) return;
  const int digits = type == DType::bf16 ? 8 : 11, least = type == DType::bf16 ? -133 : -24;
  const auto last_digit = [&](double v) {
    int exponent = 0;
    std::frexp(v, &exponent);
    return std::ldexp(1.0, std::max(exponent - digits, least));
  };
  const auto change = [&](std::size_t i, double to) {
    sum += to - row[i];
    row[i] = static_cast<float>(to);
  };
  // What it costs, in squared error, to bring the sum nearer by one.
  struct Neighbour {
    double cost, to;
    std::size_t i;
  };
  std::vector<Neighbour> neighbours;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double step = last_digit(row[i]), to = row[i] - std::copysign(step, sum), off = row[i] - exact[i];
    if (off * sum > 0 && last_digit(to) <= step) neighbours.push_back({step - 2 * std::fabs(off), to, i});
  }
  std::sort(neighbours.begin(), neighbours.end(), [](const Neighbour& a, const Neighbour& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.i < b.i;
  });
  for (const Neighbour& n : neighbours)
    if (std::fabs(sum + (n.to - row[n.i])) < std::fabs(sum)) change(n.i, n.to);
  std::vector<std::size_t> order(row.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto smallest = order.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(order.size(), 16));
  std::partial_sort(order.begin(), smallest, order.end(), [&](std::size_t a, std::size_t b) {
    return std::fabs(row[a]) != std::fabs(row[b]) ? std::fabs(row[a]) < std::fabs(row[b]) : a < b;
  });
  for (int pass = 0; pass < 4 && sum != 0; ++pass) {
    for (auto i = order.begin(); i != smallest && sum != 0; ++i) {
      const double wanted = row[*i] - sum, step = last_digit(wanted),
                   to = std::nearbyint(wanted / step) * step;
      if (std::fabs(sum + (to - row[*i])) < std::fabs(sum)) change(*i, to);
    }
  }
}

}  // namespace

PackedQkv pack_normed_qkv(const NormedQkvShape& shape, const NormedQkvWeights& weights, Precision precision) {
  const auto dim = static_cast<std::size_t>(shape.dim), rows = weights.qkv.size() / dim;
  PackedQkv packed;
  packed.weight.resize(rows * dim);
  packed.bias.assign(rows, 0.0f);
  for (std::size_t row = 0; row < rows; ++row) {
    double bias = weights.qkv_bias.empty() ? 0.0 : weights.qkv_bias[row];
    for (std::size_t k = 0; k < dim; ++k) {
      const double w = weights.qkv[row * dim + k];
      packed.weight[row * dim + k] =
          static_cast<float>(w * (weights.norm_weight ? weights.norm_weight[k] : 1.0));
      if (weights.norm_bias) bias += w * weights.norm_bias[k];
    }
    packed.bias[row] = static_cast<float>(bias);
  }
  const bool centred = shape.norm == graph::NormKind::layer;
  if (centred) long_sequences::centre_rows(packed.weight, static_cast<int>(dim));
  if (precision == Precision::fp16) {
    float largest = 0;
    for (const float w : packed.weight) largest = std::max(largest, std::fabs(w));
    int exponent = 0;
    if (largest > 0) std::frexp(largest, &exponent);
    exponent = std::max(exponent - 14, -120);  // at most 2^14 is left
    packed.unit = std::ldexp(1.0f, exponent);
    for (float& w : packed.weight) w = std::ldexp(w, -exponent);
  }
  for (std::size_t row = 0; centred && row < rows; ++row)
    round_to_zero_sum(std::span(packed.weight).subspan(row * dim, dim), storage_type(precision));
  return packed;
}

std::vector<KernelSpec> normed_qkv_kernels(const NormedQkvShape& shape, const AttentionShape& attention,
                                           std::int64_t neighbours, Precision precision) {
  std::vector<QkvPlan> plans = {qkv_store_plan(shape)};
  if (const auto plan = qkv_attention_plan(shape, attention, neighbours)) plans.push_back(*plan);
  std::vector<KernelSpec> list;
  for (const QkvPlan& plan : plans) {
    list.push_back(qkv_kernel(plan, precision));
    if (needs_gains(shape)) list.push_back(gains_kernel(shape, precision));
  }
  return list;
}

std::unique_ptr<const NormedQkv> make_normed_qkv(const NormedQkvShape& shape, const NormedQkvWeights& weights,
                                                 Precision precision, const GpuDevice& device) {
  return std::make_unique<PackedNormedQkv>(shape, weights, precision, device);
}

std::unique_ptr<const NormedQkvOperation> make_qkv_operation(const NormedQkv& of, const QkvPlan& plan) {
  return dynamic_cast<const PackedNormedQkv&>(of).with(plan);
}

}  // namespace warpweave::cuda
