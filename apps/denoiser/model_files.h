// Where the saved model of the denoiser is.
#pragma once

#include <filesystem>

namespace warpweave::denoiser {

struct ModelFiles {
  std::filesystem::path config, weights;
};

// configs/denoiser.yaml and weights/denoiser.safetensors of the first folder that holds both: the one that
// WARPWEAVE_DATA_DIR names, ../share/warpweave beside the executable's folder (an installed program), the
// source tree this was built from. Throws Error(input) that lists where it looked.
ModelFiles find_model_files();

}  // namespace warpweave::denoiser
