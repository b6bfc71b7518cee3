// The saved float64 results that implementations are tested against, made by
// tests/reference/make_fixtures.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "warpweave/warpweave.h"

namespace warpweave::accuracy {

// How a case's mask is generated: a cell is valid where its normal number is above the threshold, and no cell
// is in the rows and columns named.
struct MaskRule {
  double threshold = 0;
  std::vector<std::int64_t> empty_rows, empty_columns;
};

struct Case {
  std::string name;
  Shape shape;  // of the input grid
  std::uint64_t seed = 0;
  std::filesystem::path config, weights, expected;  // no weights file: they are generated from the seed
  double input_mean = 0, input_scale = 1;
  std::optional<MaskRule> mask;
  GridShape output;
  double norm = 0;  // ||y64 - x||, or ||y64|| where nothing is added to x: what errors are relative to
  std::optional<double> fp32_limit;            // in place of the contract's
  bool narrow = true;                          // 16-bit precisions are well-conditioned
  std::map<std::string, double> torch_errors;  // PyTorch's own, by precision
};

// All cases, from fixtures/cases.json and torch_errors.json (which may lack some).
std::vector<Case> load_cases();

Model load_model(const Case& c);
Tensor make_input(const Case& c, std::int64_t channels);  // float32
std::optional<Tensor> make_mask(const Case& c);           // u8 [B, H, W]

struct Expected {
  std::vector<std::int64_t> positions;  // flat, ascending
  std::vector<double> values;           // at the positions
  std::vector<double> cell_sums;        // over the channels of every cell, so that no cell goes unseen
};
Expected load_expected(const Case& c);

// Both estimate ||y - y64|| / norm: `values` from the stored elements (all of them in a small output),
// `cells` from the sums of all cells, as if errors were independent within a cell.
struct Errors {
  double values = 0, cells = 0;
};
Errors compare(const Case& c, const Expected& expected, const Tensor& y);  // y of float32 or float64

// The largest error the contract allows: 1e-6, 2.5e-4, 8e-3, 1e-3 for fp32, tf32, bf16, fp16, or 1.1 times
// PyTorch's own on the same case where that is larger. A case's own limit in fp32 stands as it is.
double limit(const Case& c, Precision precision);

}  // namespace warpweave::accuracy
