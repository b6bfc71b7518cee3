// A grid of 8192 x 8192 cells of 128 channels in bf16, 16 GiB, in place: whole rows and columns of it against
// float64.
//
// The grid is made of 64 x 64 distinct cells, each of which comes equally often in every row and column, in
// an order that is another one in every 64. Softmax over keys that are all repeated equally often is softmax
// over the distinct ones, so a sequence of 8192 has the results of one of 64.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "properties/problem.h"

namespace warpweave::long_test {
namespace {

constexpr std::int64_t kSide = 8192, kDim = 128, kDistinct = 64;
constexpr std::size_t kCell = kDim * 2, kRow = kSide * kCell;  // bytes

void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Which of the distinct ones row or column `i` is.
std::int64_t kind(std::int64_t i) { return (i * 37 + i / kDistinct * 11) % kDistinct; }

class Grid {
 public:
  // `distinct`: [1, 64, 64, 128].
  explicit Grid(const Tensor& distinct) {
    std::vector<std::byte> wide(kDistinct * kRow);
    const auto* const from = static_cast<const std::byte*>(distinct.data());
    for (std::int64_t r = 0; r < kDistinct; ++r) {
      for (std::int64_t c = 0; c < kSide; ++c)
        std::memcpy(wide.data() + r * kRow + c * kCell, from + (r * kDistinct + kind(c)) * kCell, kCell);
    }
    void* rows = nullptr;
    require(cudaMalloc(&data_, kSide * kRow));
    require(cudaMalloc(&rows, wide.size()));
    require(cudaMemcpy(rows, wide.data(), wide.size(), cudaMemcpyHostToDevice));
    for (std::int64_t r = 0; r < kSide; ++r)
      require(cudaMemcpy(cell(r, 0), static_cast<std::byte*>(rows) + kind(r) * kRow, kRow,
                         cudaMemcpyDeviceToDevice));
    require(cudaDeviceSynchronize());
    cudaFree(rows);
  }
  ~Grid() { cudaFree(data_); }
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;
  std::byte* cell(std::int64_t r, std::int64_t c) const {
    return static_cast<std::byte*>(data_) + r * kRow + c * kCell;
  }

 private:
  void* data_ = nullptr;
};

// A layer along `axis` on the grid in place; then sequence `which` of it.
void check(const std::string& axis, const std::vector<std::int64_t>& which) {
  const bool row = axis == "row";
  const Model model = properties::make_model(kDim, {"axial_attention: {axis: " + axis + ", heads: 4}"});
  const Tensor distinct = properties::random_grid({1, kDistinct, kDistinct}, kDim, 1).to(DType::bf16);
  const Tensor x = distinct.to(DType::f32);
  const Tensor exact = properties::cpu_engine(model, "reference", Precision::fp64).run(x);
  const Grid grid(distinct);
  EngineOptions options;
  options.device = Device::cuda(0), options.precision = Precision::bf16;
  Session session = Engine(model, options).prepare({1, kSide, kSide});
  session.run({grid.cell(0, 0), DType::bf16, session.input_shape()},
              {grid.cell(0, 0), DType::bf16, session.output_shape()});
  require(cudaDeviceSynchronize());
  for (const std::int64_t i : which) {
    Tensor y(DType::bf16, {1, 1, kSide, kDim});
    require(cudaMemcpy2D(y.data(), kCell, row ? grid.cell(i, 0) : grid.cell(0, i), row ? kCell : kRow, kCell,
                         kSide, cudaMemcpyDeviceToHost));
    Tensor expected(DType::f32, {1, 1, kSide, kDim}), before(DType::f32, {1, 1, kSide, kDim});
    for (std::int64_t l = 0; l < kSide; ++l) {
      const std::int64_t from = row ? kind(i) * kDistinct + kind(l) : kind(l) * kDistinct + kind(i);
      std::memcpy(expected.values<float>().data() + l * kDim, exact.values<float>().data() + from * kDim,
                  kDim * 4);
      std::memcpy(before.values<float>().data() + l * kDim, x.values<float>().data() + from * kDim, kDim * 4);
    }
    EXPECT_LE(properties::update_error(y.to(DType::f32), expected, before, true), 1.5e-2) << axis << " " << i;
  }
}

TEST(LongLarge, SixteenGibibytesInPlace) {
  std::size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total));
  if (free < (std::size_t{48} << 30)) GTEST_SKIP() << "48 GiB of free device memory are needed";
  check("row", {0, 3, 4097, kSide - 1});
  check("column", {0, 5, 4097, kSide - 1});
}

}  // namespace
}  // namespace warpweave::long_test
