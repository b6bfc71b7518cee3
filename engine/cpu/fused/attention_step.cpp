// axial_attention: norm -> Q, K, V -> attention -> output projection -> residual, in cache.
//
// Work is done in two passes over blocks of about kBlock tokens of some sequences: `project` normalises a
// block and leaves its K and V in scratch; when that is done for all of a sequence, `attend` normalises the
// block again (which is cheaper than keeping all Q), makes Q, attends, projects, and adds to the grid.
// Sequences are read and written where they lie in the grid, row or column.
//
// Each thread takes sequences of its own through both passes; the last ones (for each thread, one) are shared
// block by block, so that the threads end together. Every number is computed by the same chain of operations
// either way.
//
// Masked keys are left out when K and V are written: their rows go to a dump, the valid ones move up. So
// nothing of a masked cell is ever multiplied, and the attention loops know nothing of masks.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/fused/flush_subnormals.h"
#include "cpu/fused/packing.h"
#include "cpu/fused/rope_table.h"
#include "cpu/fused/scratch.h"
#include "cpu/fused/steps.h"

namespace warpweave::cpu::fused {
namespace {

// Heads side by side in one row of Q, K or V: as many as fill a panel of the packed weights, at least one.
struct HeadGroups {
  HeadGroups(std::int64_t heads, std::int64_t head_dim, std::int64_t panel)
      : heads(heads),
        head_dim(head_dim),
        per_group(std::clamp<std::int64_t>(panel / head_dim, 1, heads)),
        count((heads + per_group - 1) / per_group),
        width(per_group * head_dim) {}
  std::int64_t in_group(std::int64_t g) const { return std::min(per_group, heads - g * per_group); }

  std::int64_t heads, head_dim;
  std::int64_t per_group, count;
  std::int64_t width;  // elements of a row
};

// How one run of the layer lies in memory.
struct Geometry {
  Geometry(const graph::AxialAttention& layer, const graph::CellShape& input)
      : row_axis(layer.axis == graph::Axis::row),
        length(layer.length(input)),
        per_sample(layer.sequences(input)),
        columns(input.columns),
        cells(input.cells()) {}
  // Cells from the grid's start to the first token of a sequence (of the whole batch), and from token to
  // token.
  std::int64_t start(std::int64_t sequence) const {
    const std::int64_t sample = sequence / per_sample, s = sequence % per_sample;
    return sample * cells + (row_axis ? s * columns : s);
  }
  std::int64_t step() const { return row_axis ? 1 : columns; }
  // Short sequences are taken several at a time, long ones in several blocks.
  std::int64_t sequences_per_block() const { return std::max<std::int64_t>(1, kBlock / length); }
  std::int64_t blocks_per_sequence() const { return (length + kBlock - 1) / kBlock; }

  bool row_axis;
  std::int64_t length, per_sample, columns, cells;
};

// Sequences [first, first + count) of the batch, and where in the K and V buffers their keys are.
struct Set {
  std::int64_t first, count;
  std::int64_t row;  // of the buffers, where the first one's keys start; each takes `length` rows
};

// Masked cells that are mapped at a time: fewer are not worth waking a thread.
constexpr std::int64_t kCellsToMap = 4096;

// Tokens [begin, end) of sequences [first, first + count) of a set (counted in the set).
struct Block {
  std::int64_t first, count, begin, end;
  std::int64_t tokens() const { return count * (end - begin); }
};

class AttentionStep final : public Step {
 public:
  AttentionStep(const Kernels& kernels, const graph::AxialAttention& layer, const LayerWeights& weights,
                Rounding rounding)
      : kernels_(kernels),
        layer_(layer),
        rounding_(rounding),
        groups_(layer.heads, layer.head_dim, kernels.panel),
        norm_(layer.norm, layer.dim, weights),
        out_(kernels, layer.dim, weights.find("out.weight"), layer.inner(), weights.find("out.bias"),
             rounding) {
    if (layer.rope && layer.rope->dims > 0) rope_.emplace(*layer.rope);
    for (std::int64_t g = 0; g < groups_.count; ++g)
      for (int part = 0; part < 3; ++part)
        projections_[part].emplace_back(kernels, channels_of(g, part), weights.find("qkv.weight"), layer.dim,
                                        weights.find("qkv.bias"), rounding);
    // In the order of project() and attend().
    auto& [q, k, v] = projections_;
    for (std::size_t g = 0; g < q.size(); ++g) {
      const bool last = g + 1 == q.size();
      k[g].then(v[g]);
      v[g].then(k[last ? 0 : g + 1]);
      q[g].then(last ? out_ : q[g + 1]);
    }
    out_.then(q[0]);
    if (!stays_cached(4 * layer.dim * layer.inner() * std::int64_t{sizeof(float)})) return;
    for (auto& projection : projections_)
      for (Matrix& matrix : projection) matrix.stay_cached();
    out_.stay_cached();
  }

  bool in_place() const noexcept override { return true; }

  std::size_t scratch_bytes(const graph::CellShape& input, int threads) const noexcept override {
    return carve(nullptr, Geometry(layer_, input), threads).bytes;
  }

  void run(const StepRun& run) const override {
    const Geometry geometry(layer_, run.input);
    const int threads = run.pool->threads();
    const Task task{run, geometry, carve(run.scratch, geometry, threads)};
    if (rope_) rope_->fill(geometry.length, *run.pool, task.shared.cosine, task.shared.sine);
    if (layer_.causal)
      for (std::int64_t t = 0; t < geometry.length; ++t) task.shared.positions[t] = t;

    const std::int64_t sequences = run.batch * geometry.per_sample;
    const std::int64_t taken = geometry.sequences_per_block();  // by a task
    const std::int64_t tasks = (sequences + taken - 1) / taken;
    const std::int64_t alone = threads > 1 ? std::max<std::int64_t>(0, tasks - threads) : tasks;
    together(task, alone, {alone * taken, sequences - alone * taken, rows_per_slot(geometry) * threads});
  }

 private:
  // What all threads share: the sequences' keys and values, and tables.
  struct Shared {
    float *cosine, *sine;         // [length][pairs]
    std::int64_t* positions;      // 0, 1, 2, ...: causal without a mask
    std::int64_t capacity;        // rows of K and V in a group: each thread's, the shared ones, a dump each
    float *keys, *values;         // [groups][capacity][width]
    std::int64_t* key_rows;       // row of a token's key, by its row without a mask; masked: -1
    std::int64_t* key_positions;  // and the token of a row
    std::int64_t* key_counts;     // by the row of a sequence's first key
    std::int64_t* projected;      // blocks of a shared sequence whose K and V are there
    std::byte* slots;
    std::size_t slot_bytes, bytes;
  };
  // What a thread has for itself, for one block.
  struct Slot {
    float* normed;                                                       // [kBlock][dim]
    float* queries;                                                      // [groups][kBlock][width]
    float* attended;                                                     // [kBlock][inner]
    float* attention;                                                    // the kernel's own
    std::int64_t *cells, *normed_rows, *key_rows, *query_rows, *places;  // [kBlock] each
    std::size_t bytes;
  };
  struct Task {
    const StepRun& run;
    const Geometry& geometry;
    Shared shared;
  };

  // Rows of Wqkv that make up q (part 0), k or v of a group. Pairs of interleaved RoPE are moved to where the
  // `half` style has them: q and k alike, so their products stay the same.
  std::vector<std::int64_t> channels_of(std::int64_t group, int part) const {
    std::vector<std::int64_t> channels;
    const bool sorted = part < 2 && rope_ && layer_.rope->style == graph::Rope::Style::interleaved;
    const std::int64_t pairs = rope_ ? rope_->pairs() : 0;
    for (std::int64_t h = 0; h < groups_.in_group(group); ++h)
      for (std::int64_t c = 0; c < layer_.head_dim; ++c) {
        const std::int64_t from = !sorted || c >= 2 * pairs ? c : c < pairs ? 2 * c : 2 * (c - pairs) + 1;
        channels.push_back(part * layer_.inner() + (group * groups_.per_group + h) * layer_.head_dim + from);
      }
    return channels;
  }

  static std::int64_t rows_per_slot(const Geometry& g) { return g.sequences_per_block() * g.length; }

  Shared carve(std::byte* base, const Geometry& g, int threads) const noexcept {
    Carver carver(base);
    Shared s{};
    const std::int64_t pairs = rope_ ? rope_->pairs() : 0;
    s.cosine = carver.take<float>(g.length * pairs);
    s.sine = carver.take<float>(g.length * pairs);
    s.positions = carver.take<std::int64_t>(layer_.causal ? g.length : 0);
    const std::int64_t rows = rows_per_slot(g) * threads * (threads > 1 ? 2 : 1);
    s.capacity = rows + threads;
    s.keys = carver.take<float>(groups_.count * s.capacity * groups_.width);
    s.values = carver.take<float>(groups_.count * s.capacity * groups_.width);
    s.key_rows = carver.take<std::int64_t>(rows);
    s.key_positions = carver.take<std::int64_t>(rows);
    s.key_counts = carver.take<std::int64_t>(rows);
    s.projected = carver.take<std::int64_t>(threads);
    s.slots = carver.take<std::byte>(0);
    s.slot_bytes = carve_slot(nullptr, g).bytes;
    s.bytes = carver.used() + s.slot_bytes * static_cast<std::size_t>(threads);
    return s;
  }

  Slot carve_slot(std::byte* base, const Geometry& g) const noexcept {
    Carver carver(base);
    Slot s{};
    s.normed = carver.take<float>(kBlock * layer_.dim);
    s.queries = carver.take<float>(kBlock * groups_.count * groups_.width);
    s.attended = carver.take<float>(kBlock * layer_.inner());
    s.attention = carver.take<float>(attention_scratch(layer_.head_dim, g.length, kernels_.panel));
    for (std::int64_t** list : {&s.cells, &s.normed_rows, &s.key_rows, &s.query_rows, &s.places})
      *list = carver.take<std::int64_t>(kBlock);
    s.bytes = carver.used();
    return s;
  }

  static std::int64_t blocks(const Geometry& g, const Set& set) {
    const std::int64_t per = g.sequences_per_block();
    return (set.count + per - 1) / per * g.blocks_per_sequence();
  }
  static Block block(const Geometry& g, const Set& set, std::int64_t index) {
    const std::int64_t per = g.sequences_per_block();
    const std::int64_t first = index / g.blocks_per_sequence() * per;
    const std::int64_t begin = index % g.blocks_per_sequence() * kBlock;
    return {first, std::min(per, set.count - first), begin, std::min(begin + kBlock, g.length)};
  }

  Slot slot_of(const Task& task, int slot) const {
    return carve_slot(task.shared.slots + static_cast<std::size_t>(slot) * task.shared.slot_bytes,
                      task.geometry);
  }

  // One thread, all of a set.
  void whole(const Task& task, const Set& set, const Slot& slot, int slot_index) const {
    for (std::int64_t s = 0; s < set.count; ++s) map_keys(task, set, s);
    const std::int64_t n = blocks(task.geometry, set);
    for (std::int64_t i = 0; i < n; ++i) {
      const Block b = block(task.geometry, set, i);
      normalise(task, set, b, slot);
      project(task, set, b, slot, slot_index);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const Block b = block(task.geometry, set, i);
      if (n > 1) normalise(task, set, b, slot);
      attend(task, set, b, slot);
    }
  }

  // Half of a block, first or second: of its sequences, or of the tokens of its only one. It may be empty.
  static Block half(const Block& b, bool second) {
    const auto cut = [&](std::int64_t from, std::int64_t to) {
      const std::int64_t middle = (from + to + 1) / 2;
      return second ? std::pair(middle, to) : std::pair(from, middle);
    };
    if (b.count > 1) {
      const auto [from, to] = cut(b.first, b.first + b.count);
      return {from, to - from, b.begin, b.end};
    }
    const auto [from, to] = cut(b.begin, b.end);
    return {b.first, b.count, from, to};
  }

  // The items of a run, in the order in which threads take them: sequences (or neighbours, short ones) that a
  // thread takes whole; the blocks of the shared set, to be projected; the same blocks, to attend, the last
  // ones, one for each thread, in halves, so that no thread waits long for another's last item.
  struct Items {
    Items(std::int64_t alone, std::int64_t blocks, std::int64_t threads)
        : alone(alone), blocks(blocks), undivided(std::max<std::int64_t>(0, blocks - threads)) {}
    std::int64_t count() const { return alone + 2 * blocks + (blocks - undivided); }

    std::int64_t alone, blocks, undivided;
  };

  // All threads, in one loop. A block of the set attends when all of its sequence are projected; they were
  // handed out long before, so there is next to nothing to wait for; and nothing throws, so it comes.
  void together(const Task& task, std::int64_t alone, const Set& set) const {
    ThreadPool& pool = *task.run.pool;
    const Geometry& g = task.geometry;
    if (task.run.mask) {
      const std::int64_t grain = std::max<std::int64_t>(1, kCellsToMap / g.length);
      pool.parallel_for(set.count, grain, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t s = begin; s < end; ++s) map_keys(task, set, s);
      });
    }
    std::fill_n(task.shared.projected, pool.threads(), 0);
    const Items items(alone, blocks(g, set), pool.threads());
    pool.parallel_for(items.count(), 1, [&](std::int64_t begin, std::int64_t end, int slot_index) {
      const FlushSubnormals mode;
      for (std::int64_t i = begin; i < end; ++i) run_item(task, items, set, i, slot_index);
    });
  }

  void run_item(const Task& task, const Items& items, const Set& set, std::int64_t i, int slot_index) const {
    const Geometry& g = task.geometry;
    const Slot slot = slot_of(task, slot_index);
    if (i < items.alone) {
      const std::int64_t taken = g.sequences_per_block(), rows = rows_per_slot(g);
      whole(task, {i * taken, std::min(taken, task.run.batch * g.per_sample - i * taken), slot_index * rows},
            slot, slot_index);
      return;
    }
    i -= items.alone;
    // Blocks of this sequence whose K and V are in the buffers.
    const auto projected = [&](std::int64_t index) {
      return std::atomic_ref(task.shared.projected[index / g.blocks_per_sequence()]);
    };
    if (i < items.blocks) {
      const Block b = block(g, set, i);
      normalise(task, set, b, slot);
      project(task, set, b, slot, slot_index);
      projected(i).fetch_add(1, std::memory_order_release);
      return;
    }
    i -= items.blocks;
    const std::int64_t over = i - items.undivided;  // among the halves
    const std::int64_t index = over < 0 ? i : items.undivided + over / 2;
    const Block all = block(g, set, index), b = over < 0 ? all : half(all, over % 2 != 0);
    if (b.tokens() == 0) return;
    normalise(task, set, b, slot);
    while (projected(index).load(std::memory_order_acquire) < g.blocks_per_sequence())
      std::this_thread::yield();
    attend(task, set, b, slot);
  }

  // Valid keys of sequence s of the set move up to the start of its rows.
  void map_keys(const Task& task, const Set& set, std::int64_t s) const {
    if (!task.run.mask) return;
    const Geometry& g = task.geometry;
    const std::uint8_t* mask = task.run.mask + g.start(set.first + s);
    const std::int64_t row = set.row + s * g.length;
    std::int64_t count = 0;
    for (std::int64_t t = 0; t < g.length; ++t) {
      const bool valid = mask[t * g.step()] != 0;
      task.shared.key_rows[row + t] = valid ? row + count : -1;
      if (valid) task.shared.key_positions[row + count++] = t;
    }
    task.shared.key_counts[row] = count;
  }

  // norm(X) of the block, and where its cells are.
  void normalise(const Task& task, const Set& set, const Block& b, const Slot& slot) const {
    const Geometry& g = task.geometry;
    std::int64_t i = 0;
    for (std::int64_t s = b.first; s < b.first + b.count; ++s) {
      const std::int64_t start = g.start(set.first + s);
      for (std::int64_t t = b.begin; t < b.end; ++t, ++i) {
        slot.cells[i] = (start + t * g.step()) * layer_.dim;
        slot.normed_rows[i] = i * layer_.dim;
        slot.places[i] = t;
      }
    }
    NormRows norm = norm_.rows();
    norm.x = static_cast<const float*>(task.run.x), norm.rows = slot.cells;
    norm.out = slot.normed, norm.out_rows = slot.normed_rows, norm.m = b.tokens();
    kernels_.norm(norm);
    kernels_.round(rounding_, slot.normed, b.tokens() * layer_.dim);
  }

  // The block's K and V into the buffers.
  void project(const Task& task, const Set& set, const Block& b, const Slot& slot, int slot_index) const {
    const Geometry& g = task.geometry;
    const std::int64_t dump = task.shared.capacity - 1 - slot_index;
    std::int64_t i = 0;
    for (std::int64_t s = b.first; s < b.first + b.count; ++s)
      for (std::int64_t t = b.begin; t < b.end; ++t, ++i) {
        std::int64_t row = set.row + s * g.length + t;
        if (task.run.mask) row = task.shared.key_rows[row] < 0 ? dump : task.shared.key_rows[row];
        slot.key_rows[i] = row * groups_.width;
      }
    for (std::int64_t group = 0; group < groups_.count; ++group) {
      const std::int64_t at = group * task.shared.capacity * groups_.width;
      multiply(projections_[1], group, slot, slot.key_rows, task.shared.keys + at, b.tokens());
      finish(task, group, slot, slot.key_rows, task.shared.keys + at, b.tokens(), rope_.has_value());
      multiply(projections_[2], group, slot, slot.key_rows, task.shared.values + at, b.tokens());
      finish(task, group, slot, slot.key_rows, task.shared.values + at, b.tokens(), false);
    }
  }

  void multiply(const std::vector<Matrix>& projection, std::int64_t group, const Slot& slot,
                const std::int64_t* rows, float* to, std::int64_t tokens) const {
    const PackedMatrix weight = projection[static_cast<std::size_t>(group)].view();
    kernels_.gemm(
        {.a = slot.normed, .a_stride = layer_.dim, .b = &weight, .rows = rows, .c = to, .m = tokens});
  }

  // RoPE and rounding of rows of a group.
  void finish(const Task& task, std::int64_t group, const Slot& slot, const std::int64_t* rows, float* x,
              std::int64_t tokens, bool rotated) const {
    if (rotated)
      kernels_.rotate({.x = x,
                       .rows = rows,
                       .positions = slot.places,
                       .m = tokens,
                       .heads = groups_.in_group(group),
                       .head_dim = layer_.head_dim,
                       .pairs = rope_->pairs(),
                       .cosine = task.shared.cosine,
                       .sine = task.shared.sine});
    if (rounding_ != Rounding::none)
      for (std::int64_t i = 0; i < tokens; ++i) kernels_.round(rounding_, x + rows[i], groups_.width);
  }

  // The block's queries through attention and output projection into the grid.
  void attend(const Task& task, const Set& set, const Block& b, const Slot& slot) const {
    const std::int64_t tokens = b.tokens(), inner = layer_.inner();
    for (std::int64_t i = 0; i < tokens; ++i) slot.query_rows[i] = i * groups_.width;
    for (std::int64_t group = 0; group < groups_.count; ++group) {
      float* q = slot.queries + group * kBlock * groups_.width;
      multiply(projections_[0], group, slot, slot.query_rows, q, tokens);
      finish(task, group, slot, slot.query_rows, q, tokens, rope_.has_value());
      for (std::int64_t s = 0; s < b.count; ++s)
        for (std::int64_t h = 0; h < groups_.in_group(group); ++h)
          attend_head(task, set, b, slot, s, group, h);
    }

    const PackedMatrix weight = out_.view();
    const auto* x = static_cast<const float*>(task.run.x);
    auto* y = static_cast<float*>(task.run.y);
    kernels_.gemm({.a = slot.attended,
                   .a_stride = inner,
                   .b = &weight,
                   .rows = slot.cells,
                   .c = y,
                   .residual = layer_.residual ? x : nullptr,
                   .m = tokens});
    if (rounding_ != Rounding::none)
      for (std::int64_t i = 0; i < tokens; ++i) kernels_.round(rounding_, y + slot.cells[i], layer_.dim);
  }

  // Head h of a group, for the block's tokens of its sequence s.
  void attend_head(const Task& task, const Set& set, const Block& b, const Slot& slot, std::int64_t s,
                   std::int64_t group, std::int64_t h) const {
    const Geometry& g = task.geometry;
    const Shared& shared = task.shared;
    const std::int64_t row = set.row + (b.first + s) * g.length, span = b.end - b.begin;
    const std::int64_t at = (group * shared.capacity + row) * groups_.width + h * layer_.head_dim;
    Attention a;
    a.k = shared.keys + at, a.v = shared.values + at, a.kv_stride = groups_.width;
    a.keys = task.run.mask ? shared.key_counts[row] : g.length;
    if (layer_.causal) a.key_positions = task.run.mask ? shared.key_positions + row : shared.positions;
    a.head_dim = layer_.head_dim;
    a.factor = static_cast<float>(layer_.scale * std::numbers::log2e);
    a.rounding = rounding_;
    a.q_stride = groups_.width, a.out_stride = layer_.inner();
    a.scratch = slot.attention;
    for (std::int64_t t = 0; t < span; t += kernels_.panel) {
      const std::int64_t token = s * span + t;
      a.q = slot.queries + (group * kBlock + token) * groups_.width + h * layer_.head_dim;
      a.out = slot.attended + token * layer_.inner() + (group * groups_.per_group + h) * layer_.head_dim;
      a.queries = std::min(kernels_.panel, span - t);
      a.first_query = b.begin + t;
      kernels_.attend(a);
    }
  }

  const Kernels& kernels_;
  graph::AxialAttention layer_;
  Rounding rounding_;
  HeadGroups groups_;
  NormWeights norm_;
  Matrix out_;
  std::optional<RopeTable> rope_;
  std::vector<Matrix> projections_[3];  // q, k, v; one for each group
};

}  // namespace

StepPtr make_step(const Kernels& kernels, const graph::AxialAttention& layer, const LayerWeights& weights,
                  Rounding r) {
  return std::make_unique<AttentionStep>(kernels, layer, weights, r);
}

}  // namespace warpweave::cpu::fused
