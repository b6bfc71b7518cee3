// One token's channels in a lane: loading, normalising, storing. A lane of a quad (c = lane % 4) holds a
// quarter of the row: two channels of every group of 8, in the order of layout::channel_of.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/types.cuh"
#include "resident/arguments.h"

namespace warpweave {

// The first cell of a sequence.
__device__ __forceinline__ i64 first_cell(const ResidentArguments& a, u32 sequence) {
  const u32 sample = sequence / a.per_sample;
  return sample * a.sample_cells + (sequence - sample * a.per_sample) * a.sequence_cells;
}

// Calls piece(bytes, byte offset in the row, first group) for each access that makes up a lane's share of a
// row.
template <int Dim, class F>
__device__ __forceinline__ void for_each_piece(int c, F&& piece) {
  constexpr int full = Dim / 32;
#pragma unroll
  for (int p = 0; p < full; ++p) piece.template operator()<16>(p * 64 + c * 16, p * 4);
  if constexpr (Dim % 32 >= 16) piece.template operator()<8>(full * 64 + c * 8, full * 4);
  if constexpr (Dim % 16 == 8) piece.template operator()<4>((Dim - 8) * 2 + c * 4, Dim / 8 - 1);
}

template <int Dim>
struct LoadRow {
  u32 (&v)[Dim / 8];
  const char* row;
  template <int Bytes>
  __device__ __forceinline__ void operator()(int offset, int group) const {
    if constexpr (Bytes == 16) {
      u32 w[4];
      load_global(w, row + offset);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[group + i] = w[i];
    } else if constexpr (Bytes == 8) {
      u32 w[2];
      load_global(w, row + offset);
      v[group] = w[0], v[group + 1] = w[1];
    } else {
      v[group] = load_global(row + offset);
    }
  }
};

// `row` is the row's address; nothing is read and zeros are set where it is not valid.
template <int Dim>
__device__ __forceinline__ void load_row(u32 (&v)[Dim / 8], const char* row, bool valid, int c) {
  if (valid) {
    for_each_piece<Dim>(c, LoadRow<Dim>{v, row});
  } else {
#pragma unroll
    for (int i = 0; i < Dim / 8; ++i) v[i] = 0;
  }
}

template <int Dim>
struct StoreRow {
  const u32 (&v)[Dim / 8];
  char* row;
  template <int Bytes>
  __device__ __forceinline__ void operator()(int offset, int group) const {
    if constexpr (Bytes == 16) {
      store_global(row + offset, v[group], v[group + 1], v[group + 2], v[group + 3]);
    } else if constexpr (Bytes == 8) {
      store_global(row + offset, v[group], v[group + 1]);
    } else {
      store_global(row + offset, v[group]);
    }
  }
};

template <int Dim>
__device__ __forceinline__ void store_row(char* row, const u32 (&v)[Dim / 8], int c) {
  for_each_piece<Dim>(c, StoreRow<Dim>{v, row});
}

// Normalises a row in place, the gain and bias being folded into the weights. Kind as in Spec::norm. The mean
// is subtracted before squaring: a variance from sums of squares would cancel at large means.
template <class T, int Dim, int Kind>
__device__ __forceinline__ void normalise_row(u32 (&v)[Dim / 8], float eps) {
  if constexpr (Kind == 0) return;
  float x[Dim / 8][2], sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < Dim / 8; ++i) {
    x[i][0] = Pair<T>::first(v[i]), x[i][1] = Pair<T>::second(v[i]);
    if constexpr (Kind == 1) sum += x[i][0] + x[i][1];
  }
  const float mean = Kind == 1 ? quad_sum(sum) * (1.0f / Dim) : 0;
#pragma unroll
  for (int i = 0; i < Dim / 8; ++i) {
    if constexpr (Kind == 1) x[i][0] -= mean, x[i][1] -= mean;
    squares += x[i][0] * x[i][0] + x[i][1] * x[i][1];
  }
  const float scale = rsqrt_approx(quad_sum(squares) * (1.0f / Dim) + eps);
#pragma unroll
  for (int i = 0; i < Dim / 8; ++i) v[i] = Pair<T>::pack(x[i][0] * scale, x[i][1] * scale);
}

}  // namespace warpweave
