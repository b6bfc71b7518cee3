// The demo model: an axial-attention network that predicts the noise of a picture.
#pragma once

#include <functional>
#include <string>

#include "denoiser/picture.h"
#include "warpweave/warpweave.h"

namespace warpweave::denoiser {

// Input and output of the network for one picture: see configs/denoiser.yaml. The input has four channels per
// pixel, R, G, B (grey three times) and the noise level; the output is the predicted noise of R, G, B in
// units of the noise level.
class Denoiser {
 public:
  // Throws Error(input) when the engine's model does not map four channels to three at equal size.
  // `notice` is called with what a session has to tell, see Session::notice.
  explicit Denoiser(Engine engine, std::function<void(const std::string&)> notice = {});

  // The picture without its noise; alpha is kept. `sigma` is the noise level in 8-bit steps. Pictures of any
  // size: they are extended by reflection to whole patches, and cut again. `progress` as in RunOptions.
  Picture denoise(const Picture& noisy, double sigma,
                  const std::function<void(int, int)>& progress = {}) const;

 private:
  Engine engine_;
  std::function<void(const std::string&)> notice_;
  std::int64_t patch_;  // the model takes sides that are multiples of this
};

// The pictures, all of one height, from left to right with thin white gaps; RGB, or RGBA where one has alpha.
Picture side_by_side(const std::vector<Picture>& pictures);

}  // namespace warpweave::denoiser
