// The work and the shared memory of a block of attention.cuh, and the warps that load.
//
// The work is a row of tiles, 64 queries each, of one stream after another: of a sequence, or of a head of a sequence
// where the heads are items of their own. An item is GROUPS tiles in a row, one a group, so that short sequences, and the
// ends of long ones, leave no group without work; its tiles may belong to several streams. Queries go into the group's
// own places. Keys and values go through a ring of STAGES: the first tile of KEYS of each stream of the item, then the
// second of each, and so on; the ring also carries the weights of the output projection. Every place has a barrier that
// fills and one that frees it (copy engine, mbarriers), so that the loads of the next items run ahead of the groups that
// compute. A group waits for every stage and frees it, also where the stage is of another stream: a barrier tells one
// phase from the next, but not from the one after.
#pragma once

#include "common/types.cuh"
#include "long/attention_params.h"
#include "ptx/copy.cuh"
#include "ptx/l2.cuh"
#include "ptx/matrix.cuh"
#include "ptx/tma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Element, int HEAD, int GROUPS, int KEYS, int STAGES, int BLOCKS, int PANELS, bool FOLDED, bool SHORT_START,
          bool CAUSAL>
struct Form {
  using T = Element;
  static constexpr Plan plan{HEAD, GROUPS, KEYS, STAGES, BLOCKS, PANELS, FOLDED, SHORT_START};
  static constexpr int head = HEAD, groups = GROUPS, keys = KEYS, stages = STAGES, panels = PANELS;
  static constexpr bool folded = FOLDED, short_start = SHORT_START, causal = CAUSAL, projects = PANELS > 0;
  static constexpr int row = plan.row_bytes();
  static_assert(GROUPS <= STAGES);
  static_assert(!SHORT_START || (!CAUSAL && PANELS == 0));
  static_assert(!projects || plan.stage_bytes() == Plan::kPanelBytes);  // weights pass through the same ring
  static_assert(!projects || PANELS * 64 / HEAD % 2 == 0);               // heads take the two places of queries in turn
};

// A place among Count, and the parity of the phase in which it is met there.
template <int Count>
struct Cursor {
  u32 place = 0, parity = 0;
  // By no more than Count.
  __device__ __forceinline__ void advance(u32 steps = 1) {
    place += steps;
    if (place >= Count) place -= Count, parity ^= 1;
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

// Number of a tile, as digits.
struct Digits {
  u32 tile, head, inner, outer;
};

template <class F>
struct Ring {
  static constexpr Plan plan = F::plan;
  enum Kind { kKeysFull, kValuesFull, kKeysFree, kValuesFree };
  using Stage = Cursor<F::stages>;
  using QueryPlace = Cursor<Plan::kPlaces>;

  const Params& p;
  u32 shared;
  int length;
  int group;  // of this thread; the last one loads

  __device__ __forceinline__ u32 queries(u32 place, int of) const {
    return shared + (place * F::groups + of) * plan.query_bytes();
  }
  __device__ __forceinline__ u32 queries_full(u32 place, int of) const {
    return shared + plan.barriers_at() + (place * F::groups + of) * 16;
  }
  __device__ __forceinline__ u32 queries_free(u32 place, int of) const { return queries_full(place, of) + 8; }
  __device__ __forceinline__ u32 barrier(Kind kind, u32 stage) const {
    return shared + plan.barriers_at() + 16 * Plan::kPlaces * F::groups + (kind * F::stages + stage) * 8;
  }
  __device__ __forceinline__ u32 keys(u32 stage) const {
    return shared + plan.stages_at() + stage * plan.stage_bytes();
  }
  __device__ __forceinline__ u32 values(u32 stage) const { return keys(stage) + plan.tile_bytes(F::keys); }
  __device__ __forceinline__ u32 verdict(u32 turn) const { return shared + plan.verdicts_at() + turn * 4; }

  // Tiles of keys that the 64 queries from `first` on attend to.
  __device__ __forceinline__ int key_tiles(int first) const {
    return (min(length, F::causal ? first + 64 : length) + F::keys - 1) / F::keys;
  }

  // Where a tile of keys begins.
  static __device__ __forceinline__ int first_key(int tile) {
    return tile == 0 ? 0 : tile * F::keys - (F::keys - plan.first_keys());
  }

  __device__ __forceinline__ u32 tile_count() const { return (length + 63u) / 64; }  // of a stream
  __device__ __forceinline__ u32 head_count() const { return F::projects ? 1 : static_cast<u32>(p.attention.heads); }
  __device__ __forceinline__ u32 inner_count() const { return static_cast<u32>(p.attention.tokens.inner); }
  __device__ __forceinline__ u32 all_tiles() const { return static_cast<u32>(p.tiles); }
  __device__ __forceinline__ Digits digits(u32 number) const {
    Digits d;
    d.tile = number % tile_count(), number /= tile_count();
    d.head = number % head_count(), number /= head_count();
    d.inner = number % inner_count(), d.outer = number / inner_count();
    return d;
  }
  // On to the next item of the block, by additions instead of divisions.
  __device__ __forceinline__ void add_step(Digits& to) const {
    u32 step[4];
    load_shared(step, shared + plan.step_at());
    to.tile += step[0], to.inner += step[2], to.outer += step[3];
    to.head = F::projects ? 0 : to.head + step[1];
    if (to.tile >= tile_count()) to.tile -= tile_count(), ++to.head;
    if (to.head >= head_count()) to.head -= head_count(), ++to.inner;
    if (to.inner >= inner_count()) to.inner -= inner_count(), ++to.outer;
  }
  __device__ __forceinline__ void next_stream(Digits& d) const {
    d.tile = 0;
    if (++d.head == head_count()) {
      d.head = 0;
      if (++d.inner == inner_count()) d.inner = 0, ++d.outer;
    }
  }
  // Most keys first.
  __device__ __forceinline__ int first_query(u32 tile) const {
    return static_cast<int>(F::causal ? tile_count() - 1 - tile : tile) * 64;
  }
  // Of an item whose first tile is the `tile`-th of its stream.
  __device__ __forceinline__ u32 streams(u32 tile) const {
    u32 count = 1;
    for (u32 last = tile + F::groups - 1; last >= tile_count(); last -= tile_count()) ++count;
    return count;
  }
  // Tiles of keys that each stream of the item puts through the ring.
  __device__ __forceinline__ int rounds(u32 tile) const {
    // Where causal, those of the tile with the most: the first one, or one that begins a stream.
    return key_tiles(F::causal && tile + F::groups <= tile_count() ? first_query(tile) : length - 1);
  }
  __device__ __forceinline__ int heads_together() const { return F::projects ? static_cast<int>(p.attention.heads) : 1; }
  // Of the output projection.
  __device__ __forceinline__ u32 weight_panels() const {
    return F::projects ? Plan::chunks(p.output.dim) * F::panels : 0;
  }

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == F::groups * 128) {
      prefetch_tensor_map(&p.qkv);
      for (u32 place = 0; place < Plan::kPlaces; ++place) {
        for (int g = 0; g < F::groups; ++g) {
          barrier_init(queries_full(place, g), 1);
          barrier_init(queries_free(place, g), 4);
        }
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
    if (threadIdx.x == 0) {
      const Digits d = digits(gridDim.x * F::groups);
      store_shared(shared + plan.step_at(), {d.tile, d.head, d.inner, d.outer});
    }
    __syncthreads();
  }

  // ---- what one thread loads

  // Whether tile `g` of the item is there and wanted, as a bit.
  __device__ __forceinline__ u32 wanted(u32 item, bool again, u32 turn) const {
    const u32 left = all_tiles() - item * F::groups, all = left < F::groups ? (1u << left) - 1 : (1u << F::groups) - 1;
    return again ? load_shared(verdict(turn)) & all : all;
  }

  // For each item of the block of which any tile is wanted, with the tile of group `g`.
  template <class Body>
  __device__ __forceinline__ void for_items(bool again, int g, const Body& body) const {
    Digits d = digits(blockIdx.x * F::groups + g);
    u32 turn = 0;
#pragma unroll 1
    for (u32 item = blockIdx.x; item * F::groups < all_tiles(); item += gridDim.x, ++turn) {
      const u32 tiles = wanted(item, again, turn);
      if (tiles) body(turn, tiles, d);
      add_step(d);
    }
  }

  // Where the tiles of the item's streams are: channel of the first head, inner, outer, whether any is wanted. Kept in
  // shared memory, since the warp has few registers.
  __device__ __forceinline__ void put_sources(u32 at, u32 tiles, const Digits& first, int part) const {
    Digits d = first;
#pragma unroll 1
    for (u32 g = 0; g < F::groups; at += 16) {
      const u32 count = min(F::groups - g, tile_count() - d.tile);
      store_shared(at, {(part * static_cast<u32>(p.attention.heads) + d.head) * F::head, d.inner, d.outer,
                        tiles >> g & ((1u << count) - 1)});
      g += count;
      next_stream(d);
    }
  }

  // ROWS of q, k or v, as panels.
  template <int ROWS>
  __device__ __forceinline__ void load(u32 to, u32 full, u32 channel, int first, u32 inner, u32 outer) const {
    const u64 policy = leave_l2(p.once);
#pragma unroll
    for (int panel = 0; panel < plan.head_panels(); ++panel) {
#pragma unroll
      for (int row = 0; row < ROWS; row += Plan::kBoxRows) {
        copy_tensor(to + (panel * ROWS + row) * F::row, &p.qkv, full, channel + panel * plan.box_channels(), first + row,
                    inner, outer, policy);
      }
    }
  }

  // All keys (part 1) or all values (part 2), and that half of the output projection's weights.
  template <int PART>
  __device__ __forceinline__ void load_items(bool again, Stage& at) const {
    constexpr Kind FULL = PART == 1 ? kKeysFull : kValuesFull, FREE = PART == 1 ? kKeysFree : kValuesFree;
    constexpr u32 HALF = plan.tile_bytes(F::keys);
    const u32 sources = shared + plan.sources_at() + (PART - 1) * 16 * F::groups;
    const auto place = [&] { return PART == 1 ? keys(at.place) : values(at.place); };
    for_items(again, 0, [&](u32, u32 tiles, const Digits& first) {
      const int rounds = this->rounds(first.tile);
      const u32 streams = this->streams(first.tile);
      put_sources(sources, tiles, first, PART);
#pragma unroll 1
      for (int head = 0; head < heads_together(); ++head) {
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
#pragma unroll 1
          for (u32 u = 0; u < streams; ++u) {
            u32 source[4];
            load_shared(source, sources + u * 16);
            barrier_wait(barrier(FREE, at.place), at.parity ^ 1);
            if (source[3]) {
              barrier_expect(barrier(FULL, at.place), plan.copied_bytes(F::keys));
              load<F::keys>(place(), barrier(FULL, at.place), source[0] + head * F::head, first_key(round), source[1],
                            source[2]);
            } else {
              barrier_arrive(barrier(FULL, at.place));
            }
            at.advance();
          }
        }
      }
      if constexpr (F::projects) {
        const char* from = static_cast<const char*>(p.output.weights) + (PART - 1) * HALF;
#pragma unroll 1
        for (u32 i = weight_panels(); i > 0; --i, from += 2 * HALF) {
          barrier_wait(barrier(FREE, at.place), at.parity ^ 1);
          barrier_expect(barrier(FULL, at.place), HALF);
          copy_bulk(place(), from, HALF, barrier(FULL, at.place));
          at.advance();
        }
      }
    });
  }

  // Of all groups. One thread, since several of a warp, each at another place, would share the uniform registers that the
  // copy engine is handed its arguments in.
  __device__ __forceinline__ void load_queries(bool again, u32& counts) const {
    for_items(again, 0, [&](u32, u32 tiles, const Digits& first) {
#pragma unroll 1
      for (int head = 0; head < heads_together(); ++head) {
        Digits d = first;
#pragma unroll 1
        for (int g = 0; g < F::groups; ++g) {
          if (tiles >> g & 1) {
            const u32 place = counts >> 2 * g & 1, parity = counts >> (2 * g + 1) & 1, full = queries_full(place, g);
            barrier_wait(queries_free(place, g), parity ^ 1);
            barrier_expect(full, plan.copied_bytes(64));
            load<64>(queries(place, g), full, (d.head + head) * F::head, first_query(d.tile), d.inner, d.outer);
            // How many of this group there were, modulo 4.
            counts = (counts & ~(3u << 2 * g)) | (((counts >> 2 * g) + 1 & 3) << 2 * g);
          }
          if (++d.tile == tile_count()) next_stream(d);
        }
      }
    });
  }

  // ---- for those who compute

  // The warp no longer needs what the barrier guards.
  static __device__ __forceinline__ void release(u32 barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  // Stages that this group does not use.
  __device__ __forceinline__ void pass(Stage& at, u32 stages) const {
#pragma unroll 1
    for (; stages > 0; --stages) {
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
