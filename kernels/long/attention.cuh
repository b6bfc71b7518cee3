// Attention along rows or columns for compute capability 9.0: o = softmax(scale q k^T) v for each sequence and head.
//
//   qkv [token, (q heads, k heads, v heads), HEAD], o [token, heads, HEAD], 16-bit elements
//
// A block owns GROUPS x 64 queries of one head of one sequence. Its last warpgroup loads: queries, then KEYS keys and values
// at a time through a ring of STAGES (copy engine, mbarriers). Each group of four warps multiplies by wgmma: scores of
// its 64 queries into registers, which become weights and the left operand of the product by the values. That product
// runs beside the next scores and their exponentials. Rows and columns differ in the tensor map alone; what lies past
// the end of a sequence arrives as zeros.
//
// Weights are exp2(score - base), base being the row's maximum over its first KEYS keys: right as long as the sum stays
// in the range in which nothing overflows or loses digits (ptx/math.cuh). If it does not, the block runs again with a
// maximum that follows. The decision looks at one tile of one sequence alone.
//
// FOLDED: q comes multiplied by scale log2(e), and no base is needed in bf16.
//
// Shared memory: attention_params.h. Limit: 4 L^2 HEAD flops of wgmma against L^2 exponentials, per sequence and head.
#pragma once

#include "common/index.cuh"
#include "common/types.cuh"
#include "long/attention_params.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Whether weights far from 1 keep their digits.
template <class T>
constexpr bool kWide = false;
template <>
constexpr bool kWide<bf16> = true;

template <class T, int HEAD, int GROUPS, int KEYS, int STAGES, int BLOCKS, bool FOLDED, bool CAUSAL>
struct Block {
  static constexpr Plan plan{HEAD, GROUPS, KEYS, STAGES, BLOCKS, FOLDED};
  static constexpr int ROW = plan.row_bytes();
  static constexpr int STEPS = HEAD / 16;  // of k in the product by the keys
  static constexpr u32 QUERY_PANEL = 64 * ROW, KEY_PANEL = KEYS * ROW;
  using Scores = float[KEYS / 8][4];
  using Weights = u32[KEYS / 16][4];
  using Output = float[HEAD / 8][4];
  static constexpr bool BASED = !FOLDED || !kWide<T>;
  static constexpr bool HELD = HEAD <= 32;  // queries stay in registers
  using Query = u32[HELD ? STEPS : 1][4];
  using Rows = float[2];  // of the rows lane / 4 and lane / 4 + 8 of a warp's 16

  const Params& p;
  u32 shared;
  int length, first_query, head;
  int inner, outer;  // of the sequence
  int group;         // of this thread; the last one loads

  // Tiles of keys that queries from `first` to `last` attend to.
  __device__ __forceinline__ int tiles_for(int last) const {
    return (min(length, CAUSAL ? last + 1 : length) + KEYS - 1) / KEYS;
  }
  __device__ __forceinline__ int block_tiles() const { return tiles_for(first_query + plan.queries() - 1); }

  __device__ __forceinline__ u32 query_full() const { return shared + plan.barriers_at(); }
  __device__ __forceinline__ u32 barrier(int kind, u32 stage) const {
    return query_full() + 8 + (kind * STAGES + stage) * 8;
  }
  enum Kind { kKeysFull, kValuesFull, kKeysFree, kValuesFree };
  __device__ __forceinline__ u32 keys(u32 stage) const {
    return shared + plan.stages_at() + stage * plan.stage_bytes();
  }
  __device__ __forceinline__ u32 values(u32 stage) const { return keys(stage) + plan.tile_bytes(KEYS); }

  // A place in the ring, and the parity of the phase in which it is met there.
  struct Cursor {
    u32 stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  };

  // ---- the warp that loads

  // Rows of one of q, k, v of this head, ROWS of them, as panels.
  template <int ROWS>
  __device__ __forceinline__ void load(u32 to, u32 full, int part, int first) const {
    const int channel = (part * static_cast<int>(p.attention.heads) + head) * HEAD;
#pragma unroll
    for (int panel = 0; panel < plan.panels(); ++panel) {
#pragma unroll
      for (int row = 0; row < ROWS; row += Plan::kBoxRows) {
        copy_tensor(to + (panel * ROWS + row) * ROW, &p.qkv, full, channel + panel * plan.box_channels(), first + row,
                    inner, outer);
      }
    }
  }

  __device__ __forceinline__ void load_queries() const {
    barrier_expect(query_full(), plan.stages_at());
    for (int g = 0; g < GROUPS; ++g)
      load<64>(shared + g * plan.tile_bytes(64), query_full(), 0, first_query + g * 64);
  }

  __device__ __forceinline__ void load_tiles(Cursor& free) const {
    const int count = block_tiles();
    for (int tile = 0; tile < count; ++tile) {
      barrier_wait(barrier(kKeysFree, free.stage), free.parity ^ 1);
      barrier_expect(barrier(kKeysFull, free.stage), plan.tile_bytes(KEYS));
      load<KEYS>(keys(free.stage), barrier(kKeysFull, free.stage), 1, tile * KEYS);
      barrier_wait(barrier(kValuesFree, free.stage), free.parity ^ 1);
      barrier_expect(barrier(kValuesFull, free.stage), plan.tile_bytes(KEYS));
      load<KEYS>(values(free.stage), barrier(kValuesFull, free.stage), 2, tile * KEYS);
      free.advance();
    }
  }

  // ---- the groups that compute

  __device__ __forceinline__ int group_query() const { return first_query + group * 64; }
  __device__ __forceinline__ u32 warp_rows() const {
    return shared + group * plan.tile_bytes(64) + threadIdx.x / 32 % 4 * 16 * ROW;
  }
  __device__ __forceinline__ void release(Kind kind, u32 stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier(kind, stage));
  }

  // Where 16 bytes of a row of the warp's queries lie: the swizzle of the copy engine.
  __device__ __forceinline__ u32 piece(int row, int column) const {
    constexpr int PIECES = ROW / 16;
    const int turn = row / (128 / ROW) % PIECES;
    return warp_rows() + column / PIECES * QUERY_PANEL + row * ROW + ((column % PIECES) ^ turn) * 16;
  }

  __device__ __forceinline__ void read_queries(Query& q) const {
    if constexpr (HELD) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int k = 0; k < STEPS; ++k) load_matrices(q[k], piece(lane % 16, 2 * k + lane / 16));
    }
  }

  __device__ __forceinline__ void multiply_keys(Scores& s, const Query& q, u32 stage) const {
    const u64 k = swizzled_rows<ROW>(keys(stage));
    const u64 own = swizzled_rows<ROW>(shared + group * plan.tile_bytes(64));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const u64 b = k + (i * 32 / ROW * KEY_PANEL + i * 32 % ROW) / 16;
      const u64 a = own + (i * 32 / ROW * QUERY_PANEL + i * 32 % ROW) / 16;
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
    const u64 v = swizzled_rows<ROW>(values(stage), KEY_PANEL);
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
      const int end = (CAUSAL ? min(length, row + half * 8 + 1) : length) - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n) {
        if (8 * n >= end) s[n][2 * half] = minus_infinity();
        if (8 * n + 1 >= end) s[n][2 * half + 1] = minus_infinity();
      }
    }
  }
  __device__ __forceinline__ bool cut(int first_key) const {
    return first_key + KEYS > (CAUSAL ? min(length, group_query() + 1) : length);
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
    exponentiate<!FOLDED, BASED>(s, factor, base, total);
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

  // The base stays. False where the sums left the range.
  __device__ __forceinline__ bool attend(Output& o, Rows& total, const Query& q, Cursor& at, int count,
                                         float factor) const {
    Scores s;
    Weights w;
    Rows base;
    Cursor before = at;
    barrier_wait(barrier(kKeysFull, at.stage), at.parity);
    multiply_keys(s, q, at.stage);
    wgmma_wait<0>();
    wgmma_settle(s);
    release(kKeysFree, at.stage);
    if (cut(0)) select(s, 0);
    if constexpr (BASED) {
      maxima(s, base);
      base[0] = base_of(base[0], factor);
      base[1] = base_of(base[1], factor);
    }
    weigh(s, factor, base, total);
    pack(w, s);
    for (int tile = 1; tile < count; ++tile) {
      at.advance();
      barrier_wait(barrier(kKeysFull, at.stage), at.parity);
      multiply_keys(s, q, at.stage);
      barrier_wait(barrier(kValuesFull, before.stage), before.parity);
      multiply_values(o, w, before.stage);
      wgmma_wait<1>();
      wgmma_settle(s);
      release(kKeysFree, at.stage);
      if (tile + 1 == count && cut(tile * KEYS)) select(s, tile * KEYS);
      weigh(s, factor, base, total);
      wgmma_wait<0>();
      wgmma_settle(s);
      release(kValuesFree, before.stage);
      pack(w, s);
      before = at;
    }
    barrier_wait(barrier(kValuesFull, before.stage), before.parity);
    multiply_values(o, w, before.stage);
    wgmma_wait<0>();
    wgmma_settle(o);
    release(kValuesFree, before.stage);
    at.advance();
    add_up(total);
    return sum_in_range<T>(total[0]) && sum_in_range<T>(total[1]);
  }

  // The maximum follows.
  __device__ __forceinline__ void attend_safely(Output& o, Rows& total, const Query& q, Cursor& at, int count,
                                                float factor) const {
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
      barrier_wait(barrier(kKeysFull, at.stage), at.parity);
      multiply_keys(s, q, at.stage);
      wgmma_wait<0>();
      wgmma_settle(s);
      release(kKeysFree, at.stage);
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
      barrier_wait(barrier(kValuesFull, at.stage), at.parity);
      multiply_values(o, w, at.stage);
      wgmma_wait<0>();
      wgmma_settle(o);
      release(kValuesFree, at.stage);
      at.advance();
    }
    add_up(total);
  }

  // Tiles that others of the block attend to and this group does not.
  __device__ __forceinline__ void pass(Cursor& at, int tiles) const {
    for (; tiles > 0; --tiles) {
      barrier_wait(barrier(kKeysFull, at.stage), at.parity);
      release(kKeysFree, at.stage);
      barrier_wait(barrier(kValuesFull, at.stage), at.parity);
      release(kValuesFree, at.stage);
      at.advance();
    }
  }

  // Through the warp's own rows of shared memory, so that lanes write 16 bytes.
  __device__ __forceinline__ void store(const Output& o, const Rows& total) const {
    const int lane = threadIdx.x % 32;
    if constexpr (!HELD) named_barrier(2 + group, 128);  // the group's products read the rows until here
    const float gain[2] = {total[0] == 0.0f ? 0.0f : 1.0f / total[0], total[1] == 0.0f ? 0.0f : 1.0f / total[1]};
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_shared(piece(lane / 4 + half * 8, n) + lane % 4 * 4,
                     Pair<T>::pack(o[n][2 * half] * gain[half], o[n][2 * half + 1] * gain[half]));
      }
    }
    __syncwarp();
    constexpr int PIECES = HEAD / 8;
    const i64 width = p.attention.heads * HEAD;
    T* out = static_cast<T*>(p.attention.o) + (outer * p.attention.tokens.outer_stride + inner * p.attention.tokens.inner_stride) * width +
             head * HEAD;
    const int first = group_query() + threadIdx.x / 32 % 4 * 16;
    for (int i = lane; i < 16 * PIECES; i += 32) {
      const int row = i / PIECES, column = i % PIECES;
      if (first + row >= length) break;
      u32 v[4];
      load_shared(v, piece(row, column));
      store_global(out + (first + row) * p.attention.tokens.step * width + column * 8, v[0], v[1], v[2], v[3]);
    }
  }

  // ---- both

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == GROUPS * 128) {
      prefetch_tensor_map(&p.qkv);
      barrier_init(query_full(), 1);
      for (u32 stage = 0; stage < STAGES; ++stage) {
        barrier_init(barrier(kKeysFull, stage), 1);
        barrier_init(barrier(kValuesFull, stage), 1);
        barrier_init(barrier(kKeysFree, stage), GROUPS * 4);
        barrier_init(barrier(kValuesFree, stage), GROUPS * 4);
      }
      barrier_init_fence();
    }
    __syncthreads();
  }

  // Whether any row of the block has to be done again.
  static __device__ __forceinline__ bool vote(bool again) { return named_barrier_any(1, GROUPS * 128 + 32, again); }

  __device__ __forceinline__ void run_load() const {
    if (threadIdx.x / 32 != GROUPS * 4) return;
    const bool leader = threadIdx.x % 32 == 0;
    Cursor free;
    if (leader) {
      load_queries();
      load_tiles(free);
    }
    __syncwarp();
    if (vote(false) && leader) load_tiles(free);
  }

  __device__ __forceinline__ void run_compute() const {
    const float factor = p.attention.scale * 1.4426950408889634f;  // to base 2
    const int count = group_query() < length ? tiles_for(group_query() + 63) : 0, others = block_tiles() - count;
    Cursor at;
    Query q;
    Output o = {};
    Rows total = {};
    bool right = true;
    if (count > 0) {
      barrier_wait(query_full(), 0);
      read_queries(q);
      right = attend(o, total, q, at, count, factor);
    }
    pass(at, others);
    const bool again = vote(!right);
    if (again) {
      if (count > 0) attend_safely(o, total, q, at, count, factor);
      pass(at, others);
    }
    if (count > 0) store(o, total);
  }
};

#endif

template <class T, int HEAD, int GROUPS, int KEYS, int STAGES, int BLOCKS, bool FOLDED, bool CAUSAL>
__global__ void __launch_bounds__((GROUPS + 1) * 128, BLOCKS) attention(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using Work = Block<T, HEAD, GROUPS, KEYS, STAGES, BLOCKS, FOLDED, CAUSAL>;
  // A launch has fewer than 2^31 blocks and tokens.
  const auto length = static_cast<u32>(p.attention.length), heads = static_cast<u32>(p.attention.heads);
  const u32 tiles = (length + Work::plan.queries() - 1) / Work::plan.queries();
  const u32 place = blockIdx.x % tiles, rest = blockIdx.x / tiles, sequence = rest / heads;
  const u32 tile = CAUSAL ? tiles - 1 - place : place;  // those with most keys first
  const auto inner = static_cast<u32>(p.attention.tokens.inner);
  // The same in all lanes, and known to be.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  const Work work{p,
                  shared_address(memory),
                  static_cast<int>(length),
                  static_cast<int>(tile * Work::plan.queries()),
                  static_cast<int>(rest % heads),
                  static_cast<int>(sequence % inner),
                  static_cast<int>(sequence / inner),
                  group};
  work.prepare();
  if (group == GROUPS) {
    give_registers_back<Plan::kLoadRegisters>();
    work.run_load();
  } else {
    take_registers<Work::plan.compute_registers()>();
    work.run_compute();
  }
#endif
}

}  // namespace warpweave::kernels::long_attention
