// Kernels that touch each element once: RoPE, position embedding, patches, activation, residual.
// One thread per element (per pair for RoPE) in a loop over the launch. Limit: bytes.
#pragma once

#include "common/activation.cuh"
#include "common/index.cuh"

namespace warpweave::kernels {

template <class T>
__global__ void rope(const RopeParams p) {
  const i64 pairs = p.dims / 2;
  const i64 count = p.tokens * 2 * p.heads * pairs;  // q and k
  for (i64 i = global_thread(); i < count; i += all_threads()) {
    const i64 c = i % pairs;
    const i64 head = i / pairs % (2 * p.heads);  // the heads of q, then those of k
    const i64 token = i / (pairs * 2 * p.heads);
    const float* angle = p.table + (token / p.position_divisor % p.length * pairs + c) * 2;
    T* row = static_cast<T*>(p.qkv) + (token * 3 * p.heads + head) * p.head_dim;
    T& first = row[p.interleaved ? 2 * c : c];
    T& second = row[p.interleaved ? 2 * c + 1 : c + pairs];
    const float a = to_float(first), b = to_float(second);
    first = from_float<T>(a * angle[0] - b * angle[1]);
    second = from_float<T>(a * angle[1] + b * angle[0]);
  }
}

template <class T>
__global__ void add_position(const PositionParams p) {
  for (i64 i = global_thread(); i < p.count; i += all_threads()) {
    const i64 d = i % p.dim, cell = i / p.dim;
    const float table = p.row_table[cell / p.columns % p.rows * p.dim + d] + p.column_table[cell % p.columns * p.dim + d];
    static_cast<T*>(p.y)[i] = from_float<T>(to_float(static_cast<const T*>(p.x)[i]) + table);
  }
}

// Where element `e` of patch `token` lies in the image; rows of patches of all samples follow one another.
__device__ __forceinline__ i64 pixel_of(const PatchParams& p, i64 token, i64 e) {
  const i64 channel = e % p.channels, across = e / p.channels % p.patch, down = e / (p.channels * p.patch);
  const i64 y = token / p.columns * p.patch + down, x = token % p.columns * p.patch + across;
  return (y * p.columns * p.patch + x) * p.channels + channel;
}

template <class T>
__global__ void image_to_patches(const PatchParams p) {
  const i64 size = p.patch * p.patch * p.channels;
  for (i64 i = global_thread(); i < p.tokens * p.pitch; i += all_threads()) {
    const i64 token = i / p.pitch, e = i % p.pitch;
    static_cast<T*>(p.y)[i] =
        e < size ? static_cast<const T*>(p.x)[pixel_of(p, p.first + token, e)] : from_float<T>(0.0f);
  }
}

template <class T>
__global__ void patches_to_image(const PatchParams p) {
  const i64 size = p.patch * p.patch * p.channels;
  for (i64 i = global_thread(); i < p.tokens * size; i += all_threads()) {
    const i64 token = i / size, e = i % size;
    static_cast<T*>(p.y)[pixel_of(p, p.first + token, e)] = static_cast<const T*>(p.x)[token * p.pitch + e];
  }
}

template <class T, Activation A>
__global__ void activate_all(const ActivateParams p) {
  T* h = static_cast<T*>(p.h);
  for (i64 i = global_thread(); i < p.count; i += all_threads()) h[i] = from_float<T>(activate<A>(to_float(h[i])));
}

// The end of a projection that ran on padded channels.
template <class T>
__global__ void finish(const FinishParams p) {
  for (i64 i = global_thread(); i < p.tokens * p.dim; i += all_threads()) {
    const i64 n = i % p.dim, token = i / p.dim, at = cell_of(p.cells, token) * p.dim + n;
    float v = p.p[token * p.pitch + n];
    if (p.bias) v += p.bias[n];
    if (p.residual) v += to_float(static_cast<const T*>(p.residual)[at]);
    static_cast<T*>(p.y)[at] = from_float<T>(v);
  }
}

}  // namespace warpweave::kernels
