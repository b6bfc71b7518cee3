// The work and the shared memory of a block of attention.cuh, and the warp that loads.
//
// Queries of an item go into one of two places in turn; tiles of KEYS keys and values go through a ring of STAGES. Every
// place has a barrier that fills and one that frees it (copy engine, mbarriers), so that the loads of the next items run
// ahead of the groups that compute. The ring also carries the weights of the output projection.
#pragma once

#include "common/types.cuh"
#include "long/attention_params.h"
#include "ptx/copy.cuh"
#include "ptx/matrix.cuh"
#include "ptx/tma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Element, int HEAD, int GROUPS, int KEYS, int STAGES, int BLOCKS, int PANELS, bool FOLDED, bool CAUSAL>
struct Form {
  using T = Element;
  static constexpr Plan plan{HEAD, GROUPS, KEYS, STAGES, BLOCKS, PANELS, FOLDED};
  static constexpr int head = HEAD, groups = GROUPS, keys = KEYS, stages = STAGES, panels = PANELS;
  static constexpr bool folded = FOLDED, causal = CAUSAL, projects = PANELS > 0;
  static constexpr int row = plan.row_bytes();
};

// A place among Count, and the parity of the phase in which it is met there.
template <int Count>
struct Cursor {
  u32 place = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++place == Count) place = 0, parity ^= 1;
  }
};

// Whether the phase is over; does not wait.
__device__ __forceinline__ bool barrier_passed(u32 barrier, u32 parity) {
  u32 passed;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}

template <class F>
struct Ring {
  static constexpr Plan plan = F::plan;
  enum Kind { kKeysFull, kValuesFull, kKeysFree, kValuesFree };
  using Stage = Cursor<F::stages>;
  using QueryPlace = Cursor<2>;

  const Params& p;
  u32 shared;
  int length;
  int group;  // of this thread; the last one loads
  int first_query = 0, head = 0;
  int inner = 0, outer = 0;  // of the sequence

  __device__ __forceinline__ u32 queries_full(u32 place) const { return shared + plan.barriers_at() + place * 16; }
  __device__ __forceinline__ u32 queries_free(u32 place) const { return queries_full(place) + 8; }
  __device__ __forceinline__ u32 barrier(Kind kind, u32 stage) const {
    return shared + plan.barriers_at() + 32 + (kind * F::stages + stage) * 8;
  }
  __device__ __forceinline__ u32 queries(u32 place) const { return shared + place * plan.query_bytes(); }
  __device__ __forceinline__ u32 keys(u32 stage) const {
    return shared + plan.stages_at() + stage * plan.stage_bytes();
  }
  __device__ __forceinline__ u32 values(u32 stage) const { return keys(stage) + plan.tile_bytes(F::keys); }
  __device__ __forceinline__ u32 verdict(u32 turn) const { return shared + plan.verdicts_at() + turn * 4; }

  // Tiles of keys that queries up to `last` attend to.
  __device__ __forceinline__ int tiles_for(int last) const {
    return (min(length, F::causal ? last + 1 : length) + F::keys - 1) / F::keys;
  }
  __device__ __forceinline__ int block_tiles() const { return tiles_for(first_query + plan.queries() - 1); }

  // Item: plan.queries() queries of one sequence and one head, or, with the output projection, of all heads. Its number
  // as digits, so that the block's next item takes additions and no divisions.
  struct Digits {
    u32 tile, head, inner, outer;
  };
  __device__ __forceinline__ u32 tile_count() const { return (length + plan.queries() - 1) / plan.queries(); }
  __device__ __forceinline__ u32 head_count() const { return F::projects ? 1 : static_cast<u32>(p.attention.heads); }
  __device__ __forceinline__ u32 inner_count() const { return static_cast<u32>(p.attention.tokens.inner); }
  __device__ __forceinline__ Digits digits(u32 number) const {
    Digits d;
    d.tile = number % tile_count(), number /= tile_count();
    d.head = number % head_count(), number /= head_count();
    d.inner = number % inner_count(), d.outer = number / inner_count();
    return d;
  }
  __device__ __forceinline__ void add(Digits& to, const Digits& d) const {
    to.tile += d.tile, to.head += d.head, to.inner += d.inner, to.outer += d.outer;
    if (to.tile >= tile_count()) to.tile -= tile_count(), ++to.head;
    if (to.head >= head_count()) to.head -= head_count(), ++to.inner;
    if (to.inner >= inner_count()) to.inner -= inner_count(), ++to.outer;
  }

  // For each item of the block; again: for each that has a verdict. DIVIDE: fewer registers, more time.
  template <bool DIVIDE, class Body>
  __device__ __forceinline__ void for_items(bool again, const Body& body) {
    Digits now, step;
    if constexpr (!DIVIDE) now = digits(blockIdx.x), step = digits(gridDim.x);
    u32 turn = 0;
#pragma unroll 1
    for (u32 item = blockIdx.x; item < static_cast<u32>(p.items); item += gridDim.x, ++turn) {
      if (!again || load_shared(verdict(turn)) != 0) {
        if constexpr (DIVIDE) now = digits(item);
        first_query = (F::causal ? tile_count() - 1 - now.tile : now.tile) * plan.queries();  // most keys first
        head = now.head, inner = now.inner, outer = now.outer;
        body(turn);
      }
      if constexpr (!DIVIDE) add(now, step);
    }
  }
  template <class Body>
  __device__ __forceinline__ void for_heads(const Body& body) {
    if constexpr (F::projects) {
#pragma unroll 1
      for (head = 0; head < static_cast<int>(p.attention.heads); ++head) body();
    } else {
      body();
    }
  }
  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == F::groups * 128) {
      prefetch_tensor_map(&p.qkv);
      for (u32 place = 0; place < 2; ++place) {
        barrier_init(queries_full(place), 1);
        barrier_init(queries_free(place), F::groups * 4);
      }
      for (u32 stage = 0; stage < F::stages; ++stage) {
        barrier_init(barrier(kKeysFull, stage), 1);
        barrier_init(barrier(kValuesFull, stage), 1);
        barrier_init(barrier(kKeysFree, stage), F::groups * 4);
        barrier_init(barrier(kValuesFree, stage), F::groups * 4);
      }
      barrier_init_fence();
    }
    if (threadIdx.x < Plan::kMostItems) store_shared(verdict(threadIdx.x), 0u);
    __syncthreads();
  }

  // ---- what one thread loads

  // Rows of one of q, k, v of this head, ROWS of them, as panels.
  template <int ROWS>
  __device__ __forceinline__ void load(u32 to, u32 full, int part, int first) const {
    const int channel = (part * static_cast<int>(p.attention.heads) + head) * F::head;
#pragma unroll
    for (int panel = 0; panel < plan.head_panels(); ++panel) {
#pragma unroll
      for (int row = 0; row < ROWS; row += Plan::kBoxRows) {
        copy_tensor(to + (panel * ROWS + row) * F::row, &p.qkv, full, channel + panel * plan.box_channels(),
                    first + row, inner, outer);
      }
    }
  }

  __device__ __forceinline__ void load_queries(QueryPlace& at) const {
    barrier_wait(queries_free(at.place), at.parity ^ 1);
    barrier_expect(queries_full(at.place), plan.query_bytes());
#pragma unroll 1
    for (int g = 0; g < F::groups; ++g)
      load<64>(queries(at.place) + g * plan.tile_bytes(64), queries_full(at.place), 0, first_query + g * 64);
    at.advance();
  }

  __device__ __forceinline__ void load_tiles(Stage& at) const {
    const int count = block_tiles();
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile) {
      barrier_wait(barrier(kKeysFree, at.place), at.parity ^ 1);
      barrier_expect(barrier(kKeysFull, at.place), plan.tile_bytes(F::keys));
      load<F::keys>(keys(at.place), barrier(kKeysFull, at.place), 1, tile * F::keys);
      barrier_wait(barrier(kValuesFree, at.place), at.parity ^ 1);
      barrier_expect(barrier(kValuesFull, at.place), plan.tile_bytes(F::keys));
      load<F::keys>(values(at.place), barrier(kValuesFull, at.place), 2, tile * F::keys);
      at.advance();
    }
  }

  // A panel of the output projection's weights takes a stage.
  __device__ __forceinline__ void load_weights(Stage& at) const {
    static_assert(!F::projects || plan.stage_bytes() >= Plan::kPanelBytes);
    const int count = Plan::chunks(p.output.dim) * F::panels;
    const char* from = static_cast<const char*>(p.output.weights);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      barrier_wait(barrier(kKeysFree, at.place), at.parity ^ 1);
      barrier_wait(barrier(kValuesFree, at.place), at.parity ^ 1);
      barrier_expect(barrier(kKeysFull, at.place), Plan::kPanelBytes);
      copy_bulk(keys(at.place), from + i * Plan::kPanelBytes, Plan::kPanelBytes, barrier(kKeysFull, at.place));
      barrier_arrive(barrier(kValuesFull, at.place));
      at.advance();
    }
  }

  __device__ __forceinline__ void load_items(bool again, QueryPlace& query, Stage& stage) {
    for_items<true>(again, [&](u32) {
      for_heads([&] {
        load_queries(query);
        load_tiles(stage);
      });
      if constexpr (F::projects) load_weights(stage);
    });
  }

  // ---- for those who compute

  // The warp no longer needs what the barrier guards.
  static __device__ __forceinline__ void release(u32 barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  // Tiles that others of the block use and this group does not.
  __device__ __forceinline__ void pass(Stage& at, int tiles) const {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      barrier_wait(barrier(kKeysFull, at.place), at.parity);
      release(barrier(kKeysFree, at.place));
      barrier_wait(barrier(kValuesFull, at.place), at.parity);
      release(barrier(kValuesFree, at.place));
      at.advance();
    }
  }
};

#endif

}  // namespace warpweave::kernels::long_attention
