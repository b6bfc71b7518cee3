// Attention along rows or columns for compute capability 9.0: o = softmax(scale q k^T) v for each sequence and head.
//
//   qkv [token, (q heads, k heads, v heads), HEAD], o [token, heads, HEAD], 16-bit elements
//
// Blocks stay on their multiprocessor and go from item to item, an item being GROUPS x 64 queries of one head of one
// sequence. A block's last warpgroup loads (attention_ring.cuh), ahead of the others, also of the items to come. Each
// group of four warps multiplies by wgmma: scores of its 64 queries into registers, which become weights and the left
// operand of the product by the values. That product runs beside the next scores and their exponentials. Rows and
// columns differ in the tensor map alone; what lies past the end of a sequence arrives as zeros.
//
// Weights are exp2(score - base), base being the row's maximum over its first KEYS keys: right as long as the sum stays
// in the range in which nothing overflows or loses digits (ptx/math.cuh). Where it does not, the group does the item
// again at the end, with a maximum that follows. The decision looks at 16 rows or 64 of one sequence alone.
//
// FOLDED: q comes multiplied by scale log2(e), and no base is needed in bf16.
// PANELS: an item is all heads of its queries, and ends with the output projection (attention_output.cuh).
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
  using Scores = float[KEYS / 8][4];
  using Weights = u32[KEYS / 16][4];
  using Output = float[HEAD / 8][4];
  static constexpr bool BASED = !F::folded || !kWide<T>;
  static constexpr bool HELD = HEAD <= 32;  // queries stay in registers
  using Query = u32[HELD ? STEPS : 1][4];
  using Rows = float[2];  // of the rows lane / 4 and lane / 4 + 8 of a warp's 16

  Site& at;
  const Params& p;

  __device__ __forceinline__ int group_query() const { return at.first_query + at.group * 64; }

  // Where 16 bytes of a row of the warp lie among the group's queries: the swizzle of the copy engine.
  static __device__ __forceinline__ u32 piece(u32 own, int row, int column) {
    constexpr int PIECES = ROW / 16;
    const int turn = row / (128 / ROW) % PIECES;
    return own + threadIdx.x / 32 % 4 * 16 * ROW + column / PIECES * QUERY_PANEL + row * ROW + ((column % PIECES) ^ turn) * 16;
  }

  __device__ __forceinline__ void read_queries(Query& q, u32 own) const {
    if constexpr (HELD) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int k = 0; k < STEPS; ++k) load_matrices(q[k], piece(own, lane % 16, 2 * k + lane / 16));
    }
  }

  // Of the same matrix in another stage; the addresses are far from a carry.
  static __device__ __forceinline__ u64 of_stage(u64 descriptor, u32 stage) {
    return (descriptor & 0xffffffff00000000ull) | (static_cast<u32>(descriptor) + stage * (plan.stage_bytes() / 16));
  }

  __device__ __forceinline__ void multiply_keys(Scores& s, const Query& q, u32 own, u32 stage) const {
    const u64 k = of_stage(swizzled_rows<ROW>(at.keys(0)), stage);
    const u64 queries = swizzled_rows<ROW>(own);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const u64 b = k + (i * 32 / ROW * KEY_PANEL + i * 32 % ROW) / 16;
      const u64 a = queries + (i * 32 / ROW * QUERY_PANEL + i * 32 % ROW) / 16;
      if constexpr (HELD) {
        if (i == 0)
          Wgmma<T, KEYS>::template registers<false>(s, q[i], b);
        else
          Wgmma<T, KEYS>::template registers<true>(s, q[i], b);
      } else {
        if (i == 0)
          Wgmma<T, KEYS>::template shared<false>(s, a, b);
        else
          Wgmma<T, KEYS>::template shared<true>(s, a, b);
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
    const int row = group_query() + threadIdx.x / 32 % 4 * 16 + lane / 4;
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
  __device__ __forceinline__ bool cut(int first_key) const {
    return first_key + KEYS > (F::causal ? min(at.length, group_query() + 1) : at.length);
  }

  static __device__ __forceinline__ void maxima(const Scores& s, Rows& top) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
      for (int n = 1; n < KEYS / 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      top[half] = quad_max(most);
    }
  }

  // Scores to weights, and their sums.
  template <bool MULTIPLY, bool SUBTRACT>
  static __device__ __forceinline__ void exponentiate(Scores& s, float factor, const Rows& base, Rows& total) {
    float sum[2][2] = {};
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
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
  static __device__ __forceinline__ void weigh(Scores& s, float factor, const Rows& base, Rows& total) {
    exponentiate<!F::folded, BASED>(s, factor, base, total);
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

  // The base stays. False where the sums left the range. The product by the values runs beside the next scores. Whether
  // keys and values have come is asked before the exponentials, and the answer used behind them.
  __device__ __forceinline__ bool attend(Output& o, Rows& total, const Query& q, u32 own, Stage& stage, int count,
                                         float factor) const {
    Scores s;
    Weights w;
    Rows base;
    wait_for_keys(stage);
    multiply_keys(s, q, own, stage.place);
    wgmma_wait<0>();
    wgmma_settle(s);
    at.release(at.barrier(Site::kKeysFree, stage.place));
    if (cut(0)) select(s, 0);
    if constexpr (BASED) {
      maxima(s, base);
      base[0] = base_of(base[0], factor);
      base[1] = base_of(base[1], factor);
    }
    Stage before = stage;
    stage.advance();
    bool ready = keys_there(stage), filled = values_there(before);
    weigh(s, factor, base, total);
    pack(w, s);
    for (int tile = 1; tile < count; ++tile) {
      if (!ready) wait_for_keys(stage);
      multiply_keys(s, q, own, stage.place);
      if (!filled) wait_for_values(before);
      multiply_values(o, w, before.place);
      wgmma_wait<1>();
      wgmma_settle(s);
      at.release(at.barrier(Site::kKeysFree, stage.place));
      if (tile + 1 == count && cut(tile * KEYS)) select(s, tile * KEYS);
      const Stage now = stage;
      stage.advance();
      ready = keys_there(stage), filled = values_there(now);
      weigh(s, factor, base, total);
      wgmma_wait<0>();
      wgmma_settle(s);
      at.release(at.barrier(Site::kValuesFree, before.place));
      pack(w, s);
      before = now;
    }
    if (!filled) wait_for_values(before);
    multiply_values(o, w, before.place);
    add_up(total);
    wgmma_wait<0>();
    wgmma_settle(o);
    at.release(at.barrier(Site::kValuesFree, before.place));
    return sum_in_range<T>(total[0]) && sum_in_range<T>(total[1]);
  }

  // The maximum follows.
  __device__ __forceinline__ void attend_safely(Output& o, Rows& total, const Query& q, u32 own, Stage& stage,
                                                int count, float factor) const {
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) o[n][r] = 0.0f;
    }
    total[0] = total[1] = 0.0f;
    Rows top = {minus_infinity(), minus_infinity()};
    for (int tile = 0; tile < count; ++tile) {
      Scores s;
      Weights w;
      barrier_wait(at.barrier(Site::kKeysFull, stage.place), stage.parity);
      multiply_keys(s, q, own, stage.place);
      wgmma_wait<0>();
      wgmma_settle(s);
      at.release(at.barrier(Site::kKeysFree, stage.place));
      if (cut(tile * KEYS)) select(s, tile * KEYS);
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
      barrier_wait(at.barrier(Site::kValuesFull, stage.place), stage.parity);
      multiply_values(o, w, stage.place);
      wgmma_wait<0>();
      wgmma_settle(o);
      at.release(at.barrier(Site::kValuesFree, stage.place));
      stage.advance();
    }
    add_up(total);
  }

  // Through the warp's own rows of shared memory, so that lanes write 16 bytes.
  __device__ __forceinline__ void store(const Output& o, const Rows& total, u32 own) const {
    const int lane = threadIdx.x % 32;
    if constexpr (!HELD) named_barrier(2 + at.group, 128);  // the group's products read the rows until here
    put(o, total, [&](int row, int column) { return piece(own, row, column); });
    __syncwarp();
    constexpr int PIECES = HEAD / 8;
    const kernels::Sequences& tokens = p.attention.tokens;
    // Tokens are fewer than 2^24, and 32 bits suffice for them.
    const u32 step = static_cast<u32>(tokens.step), first = group_query() + threadIdx.x / 32 % 4 * 16,
              token = at.outer * static_cast<u32>(tokens.outer_stride) +
                      at.inner * static_cast<u32>(tokens.inner_stride) + first * step;
    const u32 token_bytes = static_cast<u32>(p.attention.heads) * HEAD * 2;
    char* const out = static_cast<char*>(p.attention.o) + at.head * HEAD * 2;
#pragma unroll
    for (int i = 0; i < PIECES / 2; ++i) {
      const int row = (i * 32 + lane) / PIECES, column = (i * 32 + lane) % PIECES;
      if (first + row < static_cast<u32>(at.length)) {
        u32 v[4];
        load_shared(v, piece(own, row, column));
        store_global(out + static_cast<u64>(token + row * step) * token_bytes + column * 16, v[0], v[1], v[2], v[3]);
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

  // One head of an item. False where its weights left the range.
  template <bool AGAIN>
  __device__ __forceinline__ bool attend_head(typename Site::QueryPlace& query, Stage& stage, bool mine, float factor) {
    const int all = at.block_tiles(), count = mine && group_query() < at.length ? at.tiles_for(group_query() + 63) : 0;
    const u32 own = at.queries(query.place) + at.group * plan.tile_bytes(64);
    bool right = true;
    barrier_wait(at.queries_full(query.place), query.parity);
    if (count > 0) {
      Query q;
      Output o = {};
      Rows total = {};
      read_queries(q, own);
      if constexpr (AGAIN)
        attend_safely(o, total, q, own, stage, count, factor);
      else
        right = attend(o, total, q, own, stage, count, factor);
      if constexpr (F::projects)
        put(o, total, [&](int row, int column) { return OutputPart<F>::place(at, row, at.head * (HEAD / 8) + column); });
      else
        store(o, total, own);
    }
    at.pass(stage, all - count);
    at.release(at.queries_free(query.place));
    query.advance();
    return right;
  }

  // Whether all are right.
  template <bool AGAIN>
  __device__ __forceinline__ bool compute_items(typename Site::QueryPlace& query, Stage& stage) {
    const float factor = p.attention.scale * 1.4426950408889634f;  // to base 2
    bool all_right = true;
    at.template for_items<false>(AGAIN, [&](u32 turn) {
      bool right = true, mine = true;
      // The same in all lanes, and known to be.
      if constexpr (AGAIN) mine = __shfl_sync(0xffffffffu, load_shared(at.verdict(turn)) >> at.group & 1, 0) != 0;
      at.for_heads([&] { right &= attend_head<AGAIN>(query, stage, mine, factor); });
      if constexpr (F::projects) right = OutputPart<F>{at}.run(stage, mine && group_query() < at.length, right);
      if (__any_sync(0xffffffffu, !right)) {
        if (threadIdx.x % 32 == 0) or_shared(at.verdict(turn), 1u << at.group);
        all_right = false;
      }
    });
    return all_right;
  }
};

// Whether any item of the block has to be done again.
template <class F>
__device__ __forceinline__ bool vote(bool again) {
  return named_barrier_any(1, F::groups * 128 + 32, again);
}

template <class F>
__device__ __forceinline__ void run_load(Ring<F>& ring) {
  if (threadIdx.x / 32 != F::groups * 4) return;
  const bool leader = threadIdx.x % 32 == 0;
  typename Ring<F>::QueryPlace query;
  typename Ring<F>::Stage stage;
  for (bool again = false;; again = true) {
    if (leader) ring.load_items(again, query, stage);
    __syncwarp();
    if (again || !vote<F>(false)) break;
  }
}

template <class F>
__device__ __forceinline__ void run_compute(Ring<F>& ring, const Params& p) {
  Block<F> block{ring, p};
  typename Ring<F>::QueryPlace query;
  typename Ring<F>::Stage stage;
  const bool right = block.template compute_items<false>(query, stage);
  if (vote<F>(!right)) block.template compute_items<true>(query, stage);
}

#endif

template <class T, int HEAD, int GROUPS, int KEYS, int STAGES, int BLOCKS, int PANELS, bool FOLDED, bool CAUSAL>
__global__ void __launch_bounds__((GROUPS + 1) * 128, BLOCKS) attention(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using F = Form<T, HEAD, GROUPS, KEYS, STAGES, BLOCKS, PANELS, FOLDED, CAUSAL>;
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
