// What `run` and `compare` share: the files of one evaluation, read and checked, and the evaluation itself.
#pragma once

#include <string>

#include "cli/options.h"

namespace warpweave::cli {

struct EvaluationFiles {
  std::string config, weights, input, mask;  // the mask may be empty
};

// --config, --weights, --input, --mask.
void add_evaluation_options(CLI::App& command, EvaluationFiles& files);

// A tensor of rank 4 and a floating type; Error(input) names the file otherwise.
Tensor load_grid(const std::string& path);

// The model's output for the files, of element type `output`. Everything that can be refused is refused
// before the engine starts: usage, model, weights, and the shapes of grid and mask.
Tensor evaluate(const EvaluationFiles& files, const CommonOptions& options, DType output);

}  // namespace warpweave::cli
