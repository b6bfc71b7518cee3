// Gaussian noise on pictures: adding it, measuring it, and the score of what is left.
#pragma once

#include <cstdint>
#include <vector>

#include "denoiser/picture.h"

namespace warpweave::denoiser {

// Standard normal deviates by Marsaglia's polar method (1964) on uniform numbers of splitmix64 (Steele, Lea
// and Flood 2014). Written with the operations that IEEE 754 rounds exactly, its logarithm included, so that
// a seed gives the same numbers on every machine.
class NormalDeviates {
 public:
  explicit NormalDeviates(std::uint64_t seed) : state_(seed) {}
  double next();

 private:
  double uniform();  // in (-1, 1)

  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

// The picture with N(0, sigma^2) added to every colour sample (alpha is left alone), in row-major order,
// rounded and clipped to 8 bits. `sigma` is in 8-bit steps.
Picture add_noise(const Picture& clean, double sigma, std::uint64_t seed);

// Standard deviation of the noise, in 8-bit steps: median |d| / 0.6745 of the diagonal Haar details
// d = (a - b - c + e) / 2 of 2 x 2 blocks, averaged over the colours (Donoho and Johnstone 1994). Blocks that
// are all black or all white say nothing, since clipping took their noise. A picture one pixel high or wide
// is measured by the differences of neighbours, one of a single pixel is taken as clean.
double estimate_noise(const Picture& picture);

// Peak signal-to-noise ratio in dB over the colour samples, peak 255; infinite for equal pictures. The
// pictures must have the same size and number of colours.
double psnr(const Picture& picture, const Picture& clean);

}  // namespace warpweave::denoiser
