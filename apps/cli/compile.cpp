// warpweave compile: fills the kernel cache ahead of time.
#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "cli/commands.h"
#include "cli/options.h"

namespace warpweave::cli {
namespace {

// "sm_90a" -> 90: the compute capability times ten.
int parse_arch(const std::string& text) {
  constexpr std::string_view kPrefix = "sm_";
  const char* const end = text.data() + text.size();
  int number = 0;
  if (text.starts_with(kPrefix)) {
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, number);
    const bool closed = stop == end || (stop + 1 == end && (*stop == 'a' || *stop == 'f'));
    if (error == std::errc() && closed && number >= 10) return number;
  }
  throw Error(ErrorCode::input,
              fmt::format("--arch: '{}' is not an architecture like sm_80, sm_89, sm_90a or sm_120", text));
}

struct CompileCommand {
  CommonOptions common;
  std::string config, shape, arch;

  int operator()() const {
    (void)engine_options(common);  // bad usage comes first
    const Shape wanted = parse_shape(shape);
    const int capability = parse_arch(arch);
    (void)Model::random(config).output_shape(wanted);
    throw Error(ErrorCode::device,
                fmt::format("--arch sm_{}: this build has no CUDA support; configure it with "
                            "-DWARPWEAVE_CUDA=ON where the CUDA runtime is installed",
                            capability));
  }
};

}  // namespace

Command add_compile(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compile", "Fills the GPU kernel cache ahead of time; needs no GPU");
  auto options = std::make_shared<CompileCommand>();
  command->add_option("--config", options->config, "model file (YAML)")->required();
  command->add_option("--shape", options->shape, "B,H,W: batch, rows and columns of the input")->required();
  command
      ->add_option("--arch", options->arch,
                   "GPU architecture: sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120, ...")
      ->required();
  add_common_options(*command, options->common);
  return {command, [options] { return (*options)(); }};
}

}  // namespace warpweave::cli
