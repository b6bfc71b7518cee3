// Attention along rows or columns for compute capability 9.0: o = softmax(scale q k^T) v for each sequence and head.
//
//   qkv [token, (q heads, k heads, v heads), HEAD], o [token, heads, HEAD], 16-bit elements
//
// Blocks stay on their multiprocessor and go from item to item, an item being 64 queries of one head of one sequence for
// each of GROUPS groups of four warps. A block's last warpgroup loads (attention_ring.cuh), ahead of the others, also of
// the items to come. A group multiplies by wgmma: scores of its 64 queries into registers, which become weights and the
// left operand of the product by the values. That product runs beside the next scores and their exponentials. Rows and
// columns differ in the tensor map alone; what lies past the end of a sequence arrives as zeros.
//
// Weights are exp2(score - base), base being the row's maximum over its first tile of keys: right as long as the sum stays
// in the range in which nothing overflows or loses digits (ptx/math.cuh). Where it does not, the group does the item
// again at the end, with a maximum that follows. The decision looks at 16 rows or 64 of one sequence alone.
//
// FOLDED: q comes multiplied by scale log2(e), and no base is needed in bf16.
// PANELS: an item is all heads of its queries, one after another without a pause, and ends with the output projection
// (attention_output.cuh).
//
// Shared memory: attention_params.h. Limit: 4 L^2 HEAD flops of wgmma against L^2 exponentials, per sequence and head.
#pragma once

#include "common/index.cuh"
#include "common/types.cuh"
#include "long/attention_output.cuh"
#include "long/attention_params.h"
#include "long/attention_ring.cuh"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Whether weights far from 1 keep their digits.
template <class T>
constexpr bool kWide = false;
template <>
constexpr bool kWide<bf16> = true;

__device__ __forceinline__ void or_shared(u32 address, u32 bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}

template <class F>
struct Block {
  using T = typename F::T;
  using Site = Ring<F>;
  using Stage = typename Site::Stage;
  static constexpr Plan plan = F::plan;
  static constexpr int HEAD = F::head, KEYS = F::keys, ROW = F::row;
  static constexpr int STEPS = HEAD / 16;  // of k in the product by the keys
  static constexpr u32 QUERY_PANEL = 64 * ROW, KEY_PANEL = KEYS * ROW;
  static constexpr int FIRST_KEYS = plan.first_keys();  // of the first tile
  using Scores = float[KEYS / 8][4];
  using Weights = u32[KEYS / 16][4];
  using Output = float[HEAD / 8][4];
  static constexpr bool BASED = !F::folded || !kWide<T>;
  // Whether queries stay in registers, beside scores, weights, results and what else there is.
  static constexpr bool HELD = HEAD / 4 + KEYS / 2 + KEYS / 4 + HEAD / 2 + 28 <= plan.compute_registers();
  using Query = u32[HELD ? STEPS : 1][4];
  using Rows = float[2];  // of the rows lane / 4 and lane / 4 + 8 of a warp's 16

  const Site& at;
  const Params& p;
  typename Site::QueryPlace query = {};

  // Of the group's item.
  int first_query = 0, head = 0;  // the first of its heads
  u32 inner = 0, outer = 0;       // of the sequence
  int tiles = 0, rounds = 0;      // of keys: that these queries attend to, and that go through the ring
  u32 streams = 1, stream = 0;    // whose stages take turns, and which of them is the group's

  // Where 16 bytes of a row of the warp lie among the group's queries: the swizzle of the copy engine.
  static __device__ __forceinline__ u32 piece(u32 own, int row, int column) {
    constexpr int PIECES = ROW / 16;
    const int turn = row / (128 / ROW) % PIECES;
    return own + threadIdx.x / 32 % 4 * 16 * ROW + column / PIECES * QUERY_PANEL + row * ROW +
           ((column % PIECES) ^ turn) * 16;
  }

  __device__ __forceinline__ u32 queries() const { return at.queries(query.place, at.group); }
  // Of the next head.
  __device__ __forceinline__ void read_queries(Query& q) {
    barrier_wait(at.queries_full(query.place, at.group), query.parity);
    if constexpr (HELD) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int k = 0; k < STEPS; ++k) load_matrices(q[k], piece(queries(), lane % 16, 2 * k + lane / 16));
    }
    if constexpr (F::projects) query.advance();
  }

  // Of the same matrix in another stage; the addresses are far from a carry.
  static __device__ __forceinline__ u64 of_stage(u64 descriptor, u32 stage) {
    return (descriptor & 0xffffffff00000000ull) | (static_cast<u32>(descriptor) + stage * (plan.stage_bytes() / 16));
  }

  // Of COUNT keys of the tile, as in what follows.
  template <int COUNT = KEYS>
  __device__ __forceinline__ void multiply_keys(Scores& s, const Query& q, u32 stage) const {
    const u64 k = of_stage(swizzled_rows<ROW>(at.keys(0)), stage);
    const u64 left = swizzled_rows<ROW>(queries());
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const u64 b = k + (i * 32 / ROW * KEY_PANEL + i * 32 % ROW) / 16;
      const u64 a = left + (i * 32 / ROW * QUERY_PANEL + i * 32 % ROW) / 16;
      if constexpr (HELD) {
        if (i == 0)
          Wgmma<T, COUNT>::template registers<false>(s, q[i], b);
        else
          Wgmma<T, COUNT>::template registers<true>(s, q[i], b);
      } else {
        if (i == 0)
          Wgmma<T, COUNT>::template shared<false>(s, a, b);
        else
          Wgmma<T, COUNT>::template shared<true>(s, a, b);
      }
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void multiply_values(Output& o, const Weights& w, u32 stage) const {
    const u64 v = of_stage(swizzled_rows<ROW>(at.values(0), KEY_PANEL), stage);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) {
      Wgmma<T, HEAD>::template registers<true, true>(o, w[i], v + static_cast<u64>(i) * ROW);  // 16 rows on
    }
    wgmma_commit();
  }

  // -infinity for keys past the end, and past the query where causal.
  __device__ __forceinline__ void select(Scores& s, int first_key) const {
    const int lane = threadIdx.x % 32;
    const int row = first_query + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int end = (F::causal ? min(at.length, row + half * 8 + 1) : at.length) - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n) {
        if (8 * n >= end) s[n][2 * half] = minus_infinity();
        if (8 * n + 1 >= end) s[n][2 * half + 1] = minus_infinity();
      }
    }
  }
  static __device__ __forceinline__ void drop_second_half(Scores& s) {
#pragma unroll
    for (int n = KEYS / 16; n < KEYS / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) s[n][r] = minus_infinity();
    }
  }
  __device__ __forceinline__ bool cut(int first_key) const {
    return first_key + KEYS > (F::causal ? min(at.length, first_query + 1) : at.length);
  }

  template <int COUNT = KEYS>
  static __device__ __forceinline__ void maxima(const Scores& s, Rows& top) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
      for (int n = 1; n < COUNT / 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      top[half] = quad_max(most);
    }
  }

  // Scores to weights, and their sums.
  template <bool MULTIPLY, bool SUBTRACT, int COUNT = KEYS>
  static __device__ __forceinline__ void exponentiate(Scores& s, float factor, const Rows& base, Rows& total) {
    float sum[2][2] = {};
#pragma unroll
    for (int n = 0; n < COUNT / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float power = MULTIPLY && !SUBTRACT ? s[n][r] * factor : s[n][r];
        s[n][r] = exp2_approx(SUBTRACT ? MULTIPLY ? s[n][r] * factor - base[r / 2] : power - base[r / 2] : power);
        sum[r / 2][r % 2] += s[n][r];
      }
    }
    total[0] += sum[0][0] + sum[0][1];
    total[1] += sum[1][0] + sum[1][1];
  }
  template <int COUNT = KEYS>
  static __device__ __forceinline__ void weigh(Scores& s, float factor, const Rows& base, Rows& total) {
    exponentiate<!F::folded, BASED, COUNT>(s, factor, base, total);
#pragma unroll
    for (int n = COUNT / 8; n < KEYS / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) s[n][r] = 0.0f;
    }
  }

  static __device__ __forceinline__ void pack(Weights& w, const Scores& s) {
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) w[i][r] = Pair<T>::pack(s[2 * i + r / 2][r % 2 * 2], s[2 * i + r / 2][r % 2 * 2 + 1]);
    }
  }

  static __device__ __forceinline__ float base_of(float top, float factor) {
    return top == minus_infinity() ? 0.0f : top * factor;
  }
  template <int COUNT = KEYS>
  static __device__ __forceinline__ void find_base(Rows& base, const Scores& s, float factor) {
    if constexpr (BASED) {
      maxima<COUNT>(s, base);
      base[0] = base_of(base[0], factor);
      base[1] = base_of(base[1], factor);
    }
  }

  // Row sums of the whole tile.
  static __device__ __forceinline__ void add_up(Rows& total) {
    total[0] = quad_sum(total[0]);
    total[1] = quad_sum(total[1]);
  }

  __device__ __forceinline__ void wait_for_keys(const Stage& of) const {
    barrier_wait(at.barrier(Site::kKeysFull, of.place), of.parity);
  }
  __device__ __forceinline__ void wait_for_values(const Stage& of) const {
    barrier_wait(at.barrier(Site::kValuesFull, of.place), of.parity);
  }
  __device__ __forceinline__ bool keys_there(const Stage& of) const {
    return barrier_passed(at.barrier(Site::kKeysFull, of.place), of.parity);
  }
  __device__ __forceinline__ bool values_there(const Stage& of) const {
    return barrier_passed(at.barrier(Site::kValuesFull, of.place), of.parity);
  }

  static __device__ __forceinline__ void clear(Output& o) {
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) o[n][r] = 0.0f;
    }
  }

  // What is under way from tile to tile.
  struct Flow {
    Scores s;
    Weights w;  // whose values are to come
    Output o;
    Query q;
    Rows base, total;
    Stage before;         // of these values
    bool ready, filled;  // whether the next keys and these values have come
  };

  // Scores of a tile, beside the product by the values of the one before. TURN: the first tile of the next head; then
  // `ended` gets the sums of the one before, whose results are complete at the end.
  template <bool TURN>
  __device__ __forceinline__ void step(Flow& f, Stage& stage, int first_key, bool may_be_cut, float factor,
                                       Rows& ended) const {
    if (streams > 1) pass_others(f.before);
    if (!f.ready) wait_for_keys(stage);
    multiply_keys(f.s, f.q, stage.place);
    if (!f.filled) wait_for_values(f.before);
    multiply_values(f.o, f.w, f.before.place);
    wgmma_wait<1>();
    wgmma_settle(f.s);
    at.release(at.barrier(Site::kKeysFree, stage.place));
    if (may_be_cut && cut(first_key)) select(f.s, first_key);
    if constexpr (TURN) {
      ended[0] = f.total[0], ended[1] = f.total[1];
      f.total[0] = f.total[1] = 0.0f;
      find_base(f.base, f.s, factor);
    }
    const Stage now = stage;
    stage.advance(streams);  // no more than all stages on, so that all before it of the same place have been waited for
    f.ready = keys_there(stage), f.filled = values_there(now);
    weigh(f.s, factor, f.base, f.total);
    wgmma_wait<0>();
    wgmma_settle(f.s);
    if constexpr (TURN) wgmma_settle(f.o);
    at.release(at.barrier(Site::kValuesFree, f.before.place));
    f.before = now;
  }

  // `count` heads from head i on. The base stays; false where a sum left the range. The product by the values runs beside
  // the next scores, from one head to the next too. Whether keys and values have come is asked before the exponentials,
  // and the answer used behind them.
  __device__ __forceinline__ bool attend(int i, int count, Stage& stage, float factor) {
    Flow f;
    Rows ended;
    bool right = true;
    clear(f.o);
    f.total[0] = f.total[1] = 0.0f;
    at.pass(stage, stream);
    read_queries(f.q);
    wait_for_keys(stage);
    multiply_keys<FIRST_KEYS>(f.s, f.q, stage.place);
    wgmma_wait<0>();
    wgmma_settle(f.s);
    at.release(at.barrier(Site::kKeysFree, stage.place));
    if (!F::short_start && cut(0)) select(f.s, 0);
    find_base<FIRST_KEYS>(f.base, f.s, factor);
    f.before = stage;
    stage.advance(streams);
    f.ready = keys_there(stage), f.filled = values_there(f.before);
    weigh<FIRST_KEYS>(f.s, factor, f.base, f.total);
    pack(f.w, f.s);
#pragma unroll 1
    for (const int end = i + count;;) {
#pragma unroll 1
      for (int tile = 1; tile < tiles; ++tile) {
        step<false>(f, stage, at.first_key(tile), tile + 1 == tiles, factor, ended);
        pack(f.w, f.s);
      }
      if (!F::projects || ++i == end) break;
      read_queries(f.q);
      step<true>(f, stage, 0, tiles == 1, factor, ended);
      right &= finish(f.o, ended, i - 1);
      clear(f.o);
      pack(f.w, f.s);
    }
    if (!f.filled) wait_for_values(f.before);
    multiply_values(f.o, f.w, f.before.place);
    wgmma_wait<0>();
    wgmma_settle(f.o);
    at.release(at.barrier(Site::kValuesFree, f.before.place));
    stage = f.before;
    stage.advance();
    at.pass(stage, rest());
    return finish(f.o, f.total, F::projects ? i - 1 : i) && right;
  }
  // Stages between the group's last and its next.
  __device__ __forceinline__ void pass_others(Stage last) const {
    last.advance();
    at.pass(last, streams - 1);
  }
  // Stages of a head behind the group's last.
  __device__ __forceinline__ u32 rest() const { return (rounds - tiles + 1) * streams - 1 - stream; }

  // The maximum follows.
  __device__ __forceinline__ void attend_safely(Stage& stage, float factor) {
#pragma unroll 1
    for (int i = 0; i < at.heads_together(); ++i) {
      Output o;
      Query q;
      clear(o);
      read_queries(q);
      Rows total = {}, top = {minus_infinity(), minus_infinity()};
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        at.pass(stage, tile == 0 ? stream : streams - 1);
        Scores s;
        Weights w;
        wait_for_keys(stage);
        multiply_keys(s, q, stage.place);
        wgmma_wait<0>();
        wgmma_settle(s);
        at.release(at.barrier(Site::kKeysFree, stage.place));
        if (cut(at.first_key(tile))) select(s, at.first_key(tile));
        if (F::short_start && tile == 0) drop_second_half(s);
        Rows most, base;
        maxima(s, most);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          most[half] = fmaxf(most[half], top[half]);
          const float shrink = top[half] == most[half] ? 1.0f : exp2_approx((top[half] - most[half]) * factor);
          top[half] = most[half];
          base[half] = base_of(most[half], factor);
          total[half] *= shrink;
#pragma unroll
          for (int n = 0; n < HEAD / 8; ++n) {
            o[n][2 * half] *= shrink;
            o[n][2 * half + 1] *= shrink;
          }
        }
        exponentiate<true, true>(s, factor, base, total);
        pack(w, s);
        wait_for_values(stage);
        multiply_values(o, w, stage.place);
        wgmma_wait<0>();
        wgmma_settle(o);
        at.release(at.barrier(Site::kValuesFree, stage.place));
        stage.advance();
      }
      at.pass(stage, rest());
      finish(o, total, i);
    }
  }

  // The i-th head is done, `total` being this lane's part of the sums. Whether they are in range.
  __device__ __forceinline__ bool finish(const Output& o, Rows& total, int i) {
    add_up(total);
    if constexpr (F::projects) {
      put(o, total, [&](int row, int column) { return OutputPart<F>::place(at, row, i * (HEAD / 8) + column); });
      at.release(at.queries_free(i % 2, at.group));  // heads are an even number
    } else {
      store(o, total);
      at.release(at.queries_free(query.place, at.group));
      query.advance();
    }
    return sum_in_range<T>(total[0]) && sum_in_range<T>(total[1]);
  }

  // Through the warp's own rows of shared memory, those of the queries, so that lanes write 16 bytes.
  __device__ __forceinline__ void store(const Output& o, const Rows& total) const {
    const int lane = threadIdx.x % 32;
    if constexpr (!HELD) named_barrier(2 + at.group, 128);  // the group's products read the rows until here
    put(o, total, [&](int row, int column) { return piece(queries(), row, column); });
    __syncwarp();
    constexpr int PIECES = HEAD / 8;
    const kernels::Sequences& tokens = p.attention.tokens;
    // Tokens are fewer than 2^24, and 32 bits suffice for them.
    const u32 step = static_cast<u32>(tokens.step), first = first_query + threadIdx.x / 32 % 4 * 16,
              token = outer * static_cast<u32>(tokens.outer_stride) + inner * static_cast<u32>(tokens.inner_stride) +
                      first * step;
    const u32 token_bytes = static_cast<u32>(p.attention.heads) * HEAD * 2;
    char* const out = static_cast<char*>(p.attention.o) + head * HEAD * 2;
    const u64 policy = keep_in_l2(p.keep);
#pragma unroll
    for (int i = 0; i < PIECES / 2; ++i) {
      const int row = (i * 32 + lane) / PIECES, column = (i * 32 + lane) % PIECES;
      if (first + row < static_cast<u32>(at.length)) {
        u32 v[4];
        load_shared(v, piece(queries(), row, column));
        store_global(out + static_cast<u64>(token + row * step) * token_bytes + column * 16, v[0], v[1], v[2], v[3], policy);
      }
    }
    fence_async_proxy();  // the copy engine writes there next
  }

  // Divided by the sums of weights: 16 bytes of a row and 8 columns at `place`.
  template <class Place>
  static __device__ __forceinline__ void put(const Output& o, const Rows& total, const Place& place) {
    const int lane = threadIdx.x % 32;
    const float gain[2] = {total[0] == 0.0f ? 0.0f : reciprocal_approx(total[0]),
                           total[1] == 0.0f ? 0.0f : reciprocal_approx(total[1])};
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_shared(place(lane / 4 + half * 8, n) + lane % 4 * 4,
                     Pair<T>::pack(o[n][2 * half] * gain[half], o[n][2 * half + 1] * gain[half]));
      }
    }
  }

  // ---- the items of the block

  // Takes up the item with this tile of the group.
  __device__ __forceinline__ void take(const Digits& own) {
    int tile = static_cast<int>(own.tile) - at.group;  // the item's first
    for (stream = 0; tile < 0; tile += static_cast<int>(at.tile_count())) ++stream;
    first_query = at.first_query(own.tile), head = static_cast<int>(own.head), inner = own.inner, outer = own.outer;
    tiles = at.key_tiles(first_query), rounds = at.rounds(tile), streams = at.streams(tile);
  }

  // All items, or again those that were wrong. Whether all are right.
  __device__ __forceinline__ bool compute_items(bool again, Stage& stage) {
    const float factor = p.attention.scale * 1.4426950408889634f;  // to base 2
    bool all_right = true;
    at.for_items(again, at.group, [&](u32 turn, u32 wanted, const Digits& own) {
      take(own);
      // The same in all lanes, and known to be.
      if (!__shfl_sync(0xffffffffu, wanted >> at.group & 1, 0)) {
        at.pass(stage, at.heads_together() * rounds * streams + at.weight_panels());
      } else if (!compute(again, stage, factor)) {
        if (threadIdx.x % 32 == 0) or_shared(at.verdict(turn), 1u << at.group);
        all_right = false;
      }
    });
    return all_right;
  }

  // Whether the item is right, the same in all lanes.
  __device__ __forceinline__ bool compute(bool again, Stage& stage, float factor) {
    bool right = true;
    if (again) {
      attend_safely(stage, factor);
    } else if constexpr (F::causal) {
      // One by one, since a group may have so few tiles that its next stage is further away than the ring is long.
      for (int i = 0; i < at.heads_together(); ++i) right &= attend(i, 1, stage, factor);
    } else {
      right = attend(0, at.heads_together(), stage, factor);
    }
    if constexpr (F::projects) right = OutputPart<F>{at}.run(places(), stage, right);
    return !__any_sync(0xffffffffu, !right);
  }

  // Of y's cells of this lane's two rows.
  __device__ __forceinline__ typename OutputPart<F>::Places places() const {
    const kernels::Sequences& cells = p.attention.mask_cells;
    typename OutputPart<F>::Places to;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8;
      to.row[half] = (outer * cells.outer_stride + inner * cells.inner_stride + query * cells.step) * p.output.dim;
      to.present[half] = query < at.length;
    }
    return to;
  }
};

// Whether any item of the block has to be done again.
template <class F>
__device__ __forceinline__ bool vote(bool again) {
  return named_barrier_any(1, F::groups * 128 + 96, again);
}

// A thread loads keys, one of another warp values, one of a third queries.
template <class F>
__device__ __forceinline__ void run_load(const Ring<F>& ring) {
  const int warp = threadIdx.x / 32 - F::groups * 4, lane = threadIdx.x % 32;
  if (warp > 2) return;
  typename Ring<F>::Stage stage;
  u32 queries = 0;
#pragma unroll 1
  for (bool again = false;; again = true) {
    if (warp == 0 && lane == 0) ring.template load_items<1>(again, stage);
    if (warp == 1 && lane == 0) ring.template load_items<2>(again, stage);
    if (warp == 2 && lane == 0) ring.load_queries(again, queries);
    __syncwarp();
    if (again || !vote<F>(false)) break;
  }
}

template <class F>
__device__ __forceinline__ void run_compute(const Ring<F>& ring, const Params& p) {
  Block<F> block{ring, p};
  typename Ring<F>::Stage stage;
#pragma unroll 1
  for (bool again = false;; again = true) {
    const bool right = block.compute_items(again, stage);
    if (again || !vote<F>(!right)) break;
  }
}

#endif

template <class T, int HEAD, int GROUPS, int KEYS, int STAGES, int BLOCKS, int PANELS, bool FOLDED, bool SHORT_START,
          bool CAUSAL>
__global__ void __launch_bounds__((GROUPS + 1) * 128, BLOCKS) attention(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using F = Form<T, HEAD, GROUPS, KEYS, STAGES, BLOCKS, PANELS, FOLDED, SHORT_START, CAUSAL>;
  // The same in all lanes, and known to be.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  // A launch has fewer than 2^31 tokens.
  Ring<F> ring{p, shared_address(memory), static_cast<int>(p.attention.length), group};
  ring.prepare();
  wait_for_previous_grid();
  let_next_grid_start();
  if (group == GROUPS) {
    give_registers_back<Plan::kLoadRegisters>();
    run_load(ring);
  } else {
    take_registers<F::plan.compute_registers()>();
    run_compute(ring, p);
  }
#endif
}

}  // namespace warpweave::kernels::long_attention
