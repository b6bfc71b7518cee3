#include "denoiser/denoiser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace warpweave::denoiser {
namespace {

constexpr int kInputChannels = 4, kOutputChannels = 3;
constexpr std::int64_t kLargestPatch = 64;

// The network's units, as it was trained (see configs/denoiser.yaml); `steps` are 8-bit steps, 0 to 255.
float normalise_sample(double steps) { return static_cast<float>(steps / 255 - 0.5); }
float normalise_sigma(double steps) { return static_cast<float>(steps / 50 - 0.5); }

// Index into n elements of position i, reflected at both ends without repeating the edge.
std::int64_t reflect(std::int64_t i, std::int64_t n) {
  if (n == 1) return 0;
  const std::int64_t period = 2 * (n - 1), r = i % period;
  return r < n ? r : period - r;
}

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The smallest square that the model takes: its patch.
std::int64_t find_patch(const Model& model) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::input,
                fmt::format("{}: {}; a denoiser maps 4 channels (R, G, B, noise level) to 3 (the "
                            "noise of R, G, B) at the same size",
                            model.name(), what));
  };
  if (model.input_channels() != kInputChannels)
    refuse(fmt::format("takes {} channels", model.input_channels()));
  for (std::int64_t side = 1; side <= kLargestPatch; ++side) {
    GridShape out;
    try {
      out = model.output_shape({.batch = 1, .rows = side, .columns = side});
    } catch (const Error&) {
      continue;  // not a multiple of the patch
    }
    if (out != GridShape{1, side, side, kOutputChannels})
      refuse(fmt::format("gives {} for {} pixels", to_string(out), side));
    return side;
  }
  refuse("takes no small picture");
  return 0;
}

Tensor network_input(const Picture& picture, std::int64_t rows, std::int64_t columns, double sigma) {
  Tensor x(DType::f32, {1, rows, columns, kInputChannels});
  float* to = x.values<float>().data();
  const float level = normalise_sigma(sigma);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::uint8_t* row =
        picture.samples.data() + reflect(i, picture.height) * picture.width * picture.channels;
    for (std::int64_t j = 0; j < columns; ++j, to += kInputChannels) {
      const std::uint8_t* pixel = row + reflect(j, picture.width) * picture.channels;
      for (int c = 0; c < 3; ++c) to[c] = normalise_sample(pixel[picture.colours() == 3 ? c : 0]);
      to[3] = level;
    }
  }
  return x;
}

// `noise` [1, rows, columns, 3] is in units of sigma; a grey picture takes the mean of its three predictions.
Picture subtract_noise(const Picture& noisy, const Tensor& noise, double sigma) {
  Picture clean = noisy;
  const std::int64_t columns = noise.shape()[2];
  const float* predicted = noise.values<float>().data();
  for (std::int64_t i = 0; i < noisy.height; ++i) {
    for (std::int64_t j = 0; j < noisy.width; ++j) {
      const float* p = predicted + (i * columns + j) * kOutputChannels;
      std::uint8_t* pixel = clean.samples.data() + (i * noisy.width + j) * noisy.channels;
      const auto subtract = [&](int c, double n) {
        const double value = pixel[c] - sigma * n;
        if (!std::isfinite(value))
          throw Error(ErrorCode::internal, "the denoiser's network gave a number that is not finite");
        pixel[c] = static_cast<std::uint8_t>(std::floor(std::clamp(value, 0.0, 255.0) + 0.5));
      };
      if (noisy.colours() == 3) {
        for (int c = 0; c < 3; ++c) subtract(c, p[c]);
      } else {
        subtract(0, (static_cast<double>(p[0]) + p[1] + p[2]) / 3);
      }
    }
  }
  return clean;
}

}  // namespace

Denoiser::Denoiser(Engine engine, std::function<void(const std::string&)> notice)
    : engine_(std::move(engine)), notice_(std::move(notice)), patch_(find_patch(engine_.model())) {}

Picture Denoiser::denoise(const Picture& noisy, double sigma,
                          const std::function<void(int, int)>& progress) const {
  const std::int64_t rows = round_up(noisy.height, patch_), columns = round_up(noisy.width, patch_);
  const Tensor x = network_input(noisy, rows, columns, sigma);
  Tensor noise(DType::f32, {1, rows, columns, kOutputChannels});
  Session session = engine_.prepare({.batch = 1, .rows = rows, .columns = columns});
  if (const std::string notice = session.notice(); notice_ && !notice.empty()) notice_(notice);
  session.run_host(view(x), view(noise), {.progress = progress});
  return subtract_noise(noisy, noise, sigma);
}

Picture side_by_side(const std::vector<Picture>& pictures) {
  constexpr std::int64_t kGap = 4;
  std::int64_t width = -kGap;
  bool alpha = false;
  for (const Picture& p : pictures) {
    width += p.width + kGap;
    alpha = alpha || p.has_alpha();
  }
  Picture out = Picture::blank(width, pictures.front().height, alpha ? 4 : 3);
  std::fill(out.samples.begin(), out.samples.end(), std::uint8_t{255});
  std::int64_t left = 0;
  for (const Picture& p : pictures) {
    for (std::int64_t y = 0; y < p.height; ++y) {
      for (std::int64_t x = 0; x < p.width; ++x) {
        const std::uint8_t* from = p.samples.data() + (y * p.width + x) * p.channels;
        std::uint8_t* to = out.samples.data() + (y * out.width + left + x) * out.channels;
        for (int c = 0; c < 3; ++c) to[c] = from[p.colours() == 3 ? c : 0];
        if (p.has_alpha()) to[3] = from[p.channels - 1];
      }
    }
    left += p.width + kGap;
  }
  return out;
}

}  // namespace warpweave::denoiser
