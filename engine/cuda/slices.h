// Cutting a grid into slices of whole sequences, so that a step's workspace stays within a limit.
//
// Sequences are independent, so any cut gives the same bits. A slice is a run of whole samples, or a band of
// rows or of columns of one sample.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/params.h"
#include "cuda/memory.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

enum class Cut { rows, columns };  // which bands keep sequences whole

struct Slice {
  std::int64_t samples, rows, columns;
  kernels::Cells cells;
  std::int64_t tokens() const noexcept { return samples * rows * columns; }
};

// A kernel launch and a matrix product count their work in 32 bits.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

class Slices {
 public:
  // `bytes_per_token` (and 256 bytes for each of `buffers`) is what a slice needs; `limit` 0 = none. Throws
  // Error(device) when one sequence does not fit.
  Slices(std::int64_t batch, std::int64_t rows, std::int64_t columns, Cut cut, std::int64_t bytes_per_token,
         std::int64_t buffers, std::int64_t limit)
      : batch_(batch), rows_(rows), columns_(columns), step_rows_(rows), step_columns_(columns) {
    std::int64_t most = kMostTokens;
    if (limit > 0)
      most = std::min(most, std::max<std::int64_t>(limit - 256 * buffers, 0) /
                                std::max<std::int64_t>(bytes_per_token, 1));
    const std::int64_t length = cut == Cut::rows ? columns : rows;
    if (most < length) {
      if (limit <= 0)
        throw Error(ErrorCode::device, "a sequence of " + std::to_string(length) +
                                           " cells is longer than the " + std::to_string(kMostTokens) +
                                           " that one launch takes");
      throw Error(ErrorCode::device, "the workspace limit leaves " + bytes_in_words(limit) +
                                         " for a layer, but one sequence of " + std::to_string(length) +
                                         " cells needs " +
                                         bytes_in_words(length * bytes_per_token + 256 * buffers));
    }
    step_batch_ = std::clamp<std::int64_t>(most / (rows * columns), 1, batch);
    if (most < rows * columns) (cut == Cut::rows ? step_rows_ : step_columns_) = most / length;
  }

  std::int64_t largest() const noexcept { return step_batch_ * step_rows_ * step_columns_; }

  template <class Body>
  void for_each(const Body& body) const {
    for (std::int64_t b = 0; b < batch_; b += step_batch_) {
      for (std::int64_t r = 0; r < rows_; r += step_rows_) {
        for (std::int64_t c = 0; c < columns_; c += step_columns_) {
          Slice s;
          s.samples = std::min(step_batch_, batch_ - b);
          s.rows = std::min(step_rows_, rows_ - r);
          s.columns = std::min(step_columns_, columns_ - c);
          s.cells = {(b * rows_ + r) * columns_ + c, s.columns, columns_};
          body(s);
        }
      }
    }
  }

 private:
  std::int64_t batch_, rows_, columns_, step_batch_ = 1, step_rows_, step_columns_;
};

}  // namespace warpweave::cuda
