// warpweave denoise: a picture without its noise.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "denoiser/denoiser.h"
#include "denoiser/model_files.h"
#include "denoiser/noise.h"

namespace warpweave::cli {
namespace {

using denoiser::Picture;

constexpr double kTrainedLow = 4, kTrainedHigh = 52;  // noise levels that the model has seen

std::string decibels(double psnr) { return std::isinf(psnr) ? "identical" : fmt::format("{:.2f} dB", psnr); }

bool same_file(const std::string& a, const std::string& b) {
  const auto full = [](const std::string& path) {
    std::error_code error;  // then the path stays empty, and is equal to no other
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  return !full(a).empty() && full(a) == full(b);
}

struct DenoiseCommand {
  CommonOptions common;
  std::string input, output, reference, side_by_side, config, weights;
  std::optional<double> sigma, added;
  std::uint64_t seed = 0;

  int operator()() const {
    check_usage();
    check_output(output, {".png"});
    if (!side_by_side.empty()) check_output(side_by_side, {".png"});

    const Picture source = read(input);
    const Picture noisy = added ? denoiser::add_noise(source, *added, seed) : source;
    const std::optional<Picture> clean = clean_picture(source);
    const denoiser::Denoiser model = load_model();
    const double level = noise_level(noisy);

    Progress progress("denoising", common.quiet);
    const auto start = std::chrono::steady_clock::now();
    const Picture denoised = model.denoise(noisy, level, progress.callback());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    write_whole(output, denoiser::encode_png(denoised));
    if (!side_by_side.empty()) {
      std::vector<Picture> pictures = {noisy, denoised};
      if (clean) pictures.push_back(*clean);
      write_whole(side_by_side, denoiser::encode_png(denoiser::side_by_side(pictures)));
    }
    report(noisy, denoised, clean, level, seconds);
    return 0;
  }

  void check_usage() const {
    const auto check_level = [](const char* option, const std::optional<double>& value) {
      if (value && !(*value >= 0 && *value <= 255)) {
        throw Error(ErrorCode::input,
                    fmt::format("{}: {} is not a noise level from 0 to 255", option, *value));
      }
    };
    check_level("--sigma", sigma);
    check_level("--add-noise", added);
    if (!side_by_side.empty() && same_file(side_by_side, output)) {
      throw Error(ErrorCode::input,
                  fmt::format("--side-by-side: {} is the output already; give it another name", output));
    }
    if (config.empty() != weights.empty()) {
      throw Error(ErrorCode::input,
                  "--config and --weights: give both, or none for the model that comes along");
    }
    (void)engine_options(common);
    (void)output_type(common);
  }

  Picture read(const std::string& path) const {
    denoiser::DecodedPicture decoded = denoiser::read_picture(path);
    if (!decoded.notice.empty() && !common.quiet) print_notice(fmt::format("{}: {}", path, decoded.notice));
    return std::move(decoded.picture);
  }

  // What the result is scored against: the reference, or the input where noise was added to it.
  std::optional<Picture> clean_picture(const Picture& source) const {
    if (reference.empty()) return added ? std::optional(source) : std::nullopt;
    Picture clean = read(reference);
    if (clean.width != source.width || clean.height != source.height || clean.colours() != source.colours()) {
      const auto text = [](const Picture& p) {
        return fmt::format("{} x {} pixels in {}", p.width, p.height, p.colours() == 3 ? "colour" : "grey");
      };
      throw Error(ErrorCode::input,
                  fmt::format("{}: is {}, but {} is {}", reference, text(clean), input, text(source)));
    }
    return clean;
  }

  denoiser::Denoiser load_model() const {
    const denoiser::ModelFiles files =
        config.empty() ? denoiser::find_model_files() : denoiser::ModelFiles{config, weights};
    const Model model = Model::load(files.config, files.weights, {.allow_unused = common.allow_unused});
    const auto tell = [quiet = common.quiet](const std::string& notice) {
      if (!quiet) print_notice(notice);
    };
    return denoiser::Denoiser(make_engine(model, common), tell);
  }

  double noise_level(const Picture& noisy) const {
    const double level = sigma ? *sigma : added ? *added : denoiser::estimate_noise(noisy);
    if (!common.quiet && (level < kTrainedLow || level > kTrainedHigh)) {
      print_notice(fmt::format("noise level {:.1f} is outside {} to {}, for which the model was trained",
                               level, kTrainedLow, kTrainedHigh));
    }
    return level;
  }

  void report(const Picture& noisy, const Picture& denoised, const std::optional<Picture>& clean,
              double level, double seconds) const {
    fmt::print("picture   {} x {}, {}\n", noisy.width, noisy.height,
               noisy.colours() == 3 ? "colour" : "grey");
    fmt::print("noise     sigma {:.1f}, {}\n", level, sigma ? "given" : added ? "added" : "estimated");
    if (clean) {
      fmt::print("noisy     {}\n", decibels(denoiser::psnr(noisy, *clean)));
      fmt::print("denoised  {}\n", decibels(denoiser::psnr(denoised, *clean)));
    }
    fmt::print("time      {:.2f} s\n", seconds);
  }
};

}  // namespace

Command add_denoise(CLI::App& app) {
  CLI::App* command = app.add_subcommand("denoise", "Removes the noise of a photograph");
  auto o = std::make_shared<DenoiseCommand>();
  command->add_option("IN", o->input, "PNG or JPEG picture")->required();
  command->add_option("OUT.png", o->output, "the picture without its noise")->required();
  command->add_option("--sigma", o->sigma, "standard deviation of the noise, 0 to 255 (estimated)")
      ->check(finite_number());
  command->add_option("--reference", o->reference, "the clean picture, to score against");
  command->add_option("--add-noise", o->added, "first add Gaussian noise of this standard deviation to IN")
      ->check(finite_number());
  command->add_option("--seed", o->seed, "of the added noise (0)")
      ->check(whole_number(std::numeric_limits<std::uint64_t>::max()));
  command->add_option("--side-by-side", o->side_by_side,
                      "also write noisy, denoised and, where known, clean side by side");
  command->add_option("--config", o->config, "another model file (YAML)");
  command->add_option("--weights", o->weights, "its weight file (safetensors)");
  add_common_options(*command, o->common);
  return {command, [o] { return (*o)(); }};
}

}  // namespace warpweave::cli
