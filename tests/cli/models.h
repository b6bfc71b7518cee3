// Small models with weights, written into a folder.
#pragma once

#include <string>
#include <vector>

#include "cli/process.h"
#include "warpweave/warpweave.h"

namespace warpweave::test {

// A tensor of numbers spread over [-scale, scale], the same for one seed.
Tensor spread(std::vector<std::int64_t> shape, double scale = 1, unsigned seed = 1);
Tensor filled(std::vector<std::int64_t> shape, float value);

// block.yaml and block.safetensors: a row and a column layer on 8 channels, 2 heads.
struct BlockFiles {
  Folder folder;
  std::string config, weights, input,
      output;  // the input x.npy is [2, 3, 5, 8]; the output y.npy is not there yet
  BlockFiles();
  // The arguments that name the model and the input.
  std::vector<std::string> arguments(const std::string& command) const;
};

// A denoiser without attention on patches of 2 x 2 pixels, whose predicted noise is its own input: r / 255 -
// 1/2, and so on. What it makes of a sample v at noise level s is exactly v - s * (v / 255 - 1/2).
void write_mirror_denoiser(const std::string& config, const std::string& weights);

}  // namespace warpweave::test
