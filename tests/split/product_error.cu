// How exact a product of float32 matrices on tensor cores is, by scheme and length of the sum; the table of docs/split.md.
//
//   nvcc -std=c++20 -O2 -gencode arch=compute_90a,code=sm_90a -I kernels -o product_error tests/split/product_error.cu
//   ./product_error
//
// Relative error |c - c64| / |c64| over 128 x 128 results, a and b normal numbers; "positive": |a|, as weights of a
// softmax are. Every scheme multiplies by mma.sync; "cut n" adds the tensor core's sums up in float32 every n of k.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "composed/products.cuh"
#include "split/parts.cuh"

namespace {

using namespace warpweave;
using namespace warpweave::kernels;
using Tf32 = composed::FloatProducts<8, false>;

constexpr int kSize = 128;

// A warp: 16 rows of a by 16 rows of b; K a multiple of 16. CUT 0: one sum.
template <int A, int B, int CUT>
__global__ void halves(const float* a, const float* b, float* c, int k) {
  const int lane = threadIdx.x, g = lane / 4, q = lane % 4, row = blockIdx.x * 16, column = blockIdx.y * 16;
  float total[2][4] = {}, sums[2][4] = {};
  for (int at = 0; at < k; at += 16) {
    u32 x[A][4], y[B][4];
    for (int r = 0; r < 4; ++r) {
      const float* p = a + (row + g + r % 2 * 8) * k + at + 2 * q + r / 2 * 8;
      const split::Parts<A> v(p[0] * 1024.0f, p[1] * 1024.0f);
      for (int i = 0; i < A; ++i) x[i][r] = v.part[i];
      const float* s = b + (column + r / 2 * 8 + g) * k + at + 2 * q + r % 2 * 8;
      const split::Parts<B> w(s[0] * 1024.0f, s[1] * 1024.0f);
      for (int i = 0; i < B; ++i) y[i][r] = w.part[i];
    }
    split::multiply(sums[0], sums[1], x, y);
    if ((CUT && (at + 16) % CUT == 0) || at + 16 >= k) {
      for (int r = 0; r < 8; ++r) total[r / 4][r % 4] += sums[r / 4][r % 4], sums[r / 4][r % 4] = 0.0f;
    }
  }
  for (int r = 0; r < 8; ++r)
    c[(row + g + r % 4 / 2 * 8) * kSize + column + r / 4 * 8 + 2 * q + r % 2] = total[r / 4][r % 4] * 0x1p-20f;
}

template <int CUT>
__global__ void tf32_three(const float* a, const float* b, float* c, int k) {
  const int lane = threadIdx.x, g = lane / 4, q = lane % 4, row = blockIdx.x * 16, column = blockIdx.y * 8;
  float total[4] = {}, sums[4] = {};
  for (int at = 0; at < k; at += 8) {
    Tf32::Operand<4> x;
    Tf32::Operand<2> y;
    for (int r = 0; r < 4; ++r) x.set(r, a[(row + g + r % 2 * 8) * k + at + q + r / 2 * 4]);
    for (int r = 0; r < 2; ++r) y.set(r, b[(column + g) * k + at + q + r * 4]);
    Tf32::multiply(sums, x, y);
    if ((CUT && (at + 8) % CUT == 0) || at + 8 >= k) {
      for (int r = 0; r < 4; ++r) total[r] += sums[r], sums[r] = 0.0f;
    }
  }
  for (int r = 0; r < 4; ++r) c[(row + g + r / 2 * 8) * kSize + column + 2 * q + r % 2] = total[r];
}

__global__ void plain(const float* a, const float* b, float* c, int k) {
  float sum = 0.0f;
  for (int at = 0; at < k; ++at) sum = fmaf(a[blockIdx.x * k + at], b[threadIdx.x * k + at], sum);
  c[blockIdx.x * kSize + threadIdx.x] = sum;
}

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(status));
  std::exit(1);
}

struct Scheme {
  const char* name;
  void (*kernel)(const float*, const float*, float*, int);
  dim3 blocks;
  int threads;
};

void table(bool positive) {
  const dim3 tiles(kSize / 16, kSize / 16), narrow(kSize / 16, kSize / 8);
  const Scheme schemes[] = {{"float32, one chain", plain, kSize, kSize},
                            {"3 tf32, one sum", tf32_three<0>, narrow, 32},
                            {"3 tf32, cut 32", tf32_three<32>, narrow, 32},
                            {"3 fp16 of two parts, one sum", halves<2, 2, 0>, tiles, 32},
                            {"3 fp16 of two parts, cut 32", halves<2, 2, 32>, tiles, 32},
                            {"2 fp16, parts 1 and 2", halves<1, 2, 32>, tiles, 32},
                            {"1 fp16", halves<1, 1, 32>, tiles, 32}};
  std::printf("%-30s", positive ? "positive a; k =" : "k =");
  for (int k = 16; k <= 1024; k *= 2) std::printf("%9d", k);
  std::printf("\n");
  for (const Scheme& s : schemes) {
    std::printf("%-30s", s.name);
    for (int k = 16; k <= 1024; k *= 2) {
      std::mt19937_64 random(static_cast<unsigned>(k));
      std::normal_distribution<float> normal;
      std::vector<float> a(kSize * k), b(kSize * k), c(kSize * kSize, NAN);
      for (float& v : a) v = positive ? std::fabs(normal(random)) : normal(random);
      for (float& v : b) v = normal(random);
      float *da, *db, *dc;
      check(cudaMalloc(&da, a.size() * 4));
      check(cudaMalloc(&db, b.size() * 4));
      check(cudaMalloc(&dc, c.size() * 4));
      check(cudaMemcpy(da, a.data(), a.size() * 4, cudaMemcpyHostToDevice));
      check(cudaMemcpy(db, b.data(), b.size() * 4, cudaMemcpyHostToDevice));
      check(cudaMemcpy(dc, c.data(), c.size() * 4, cudaMemcpyHostToDevice));
      s.kernel<<<s.blocks, s.threads>>>(da, db, dc, k);
      check(cudaGetLastError());
      check(cudaMemcpy(c.data(), dc, c.size() * 4, cudaMemcpyDeviceToHost));
      double error = 0, size = 0;
      for (int i = 0; i < kSize; ++i) {
        for (int j = 0; j < kSize; ++j) {
          double exact = 0;
          for (int at = 0; at < k; ++at) exact += static_cast<double>(a[i * k + at]) * b[j * k + at];
          error += (c[i * kSize + j] - exact) * (c[i * kSize + j] - exact);
          size += exact * exact;
        }
      }
      std::printf("%9.1e", std::sqrt(error / size));
      cudaFree(da), cudaFree(db), cudaFree(dc);
    }
    std::printf("\n");
  }
}

}  // namespace

int main() {
  table(false);
  table(true);
}
