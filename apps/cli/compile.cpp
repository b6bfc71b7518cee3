// warpweave compile: fills the kernel cache ahead of time.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <system_error>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "cuda/compile_for.h"
#include "graph/layer.h"

namespace warpweave::cli {
namespace {

// What the assembler reports of a kernel's resources, on one line: "Used 40 registers, ...".
std::string resources(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (const std::size_t at = line.find("Used "); at != line.npos) return line.substr(at);
  }
  return "no report";
}

// Filling the cache is all that this command does, so it must be possible.
void check_cache() {
  const std::filesystem::path folder = cuda::KernelCache::default_folder();
  if (folder.empty())
    throw Error(ErrorCode::input,
                "there is no home for the kernel cache; set WARPWEAVE_CACHE_DIR to a folder");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(ErrorCode::input,
                fmt::format("{}: cannot make the folder: {}; set WARPWEAVE_CACHE_DIR to another",
                            folder.string(), error.message()));
  check_output(folder / "probe");
}

struct CompileCommand {
  CommonOptions common;
  std::string config, shape, arch;

  int operator()() const {
    const EngineOptions options = engine_options(common);
    (void)output_type(common);
    if (options.precision == Precision::fp64)
      throw Error(ErrorCode::device, "--precision: fp64 exists on the CPU only, there is nothing to compile");
    if (options.device.kind == Device::Kind::cpu)
      throw Error(ErrorCode::input, "--device: kernels are compiled for a GPU, the CPU needs none");
    const Shape wanted = parse_shape(shape);
    (void)cuda::parse_architecture(arch);
    const graph::Graph graph = graph::load_graph(config);
    (void)graph.shapes({wanted.rows, wanted.columns, graph.input_channels});
    check_cache();
    const std::vector<cuda::Compiled> compiled = cuda::compile_for(graph, wanted, arch, options);
    for (const cuda::Compiled& c : compiled) {
      fmt::print("{}\n    {} bytes for {}; {}\n", c.spec.expression, c.kernel.machine_code.size(), arch,
                 resources(c.kernel.log));
    }
    fmt::print("{} kernels in {}\n", compiled.size(), cuda::KernelCache::default_folder().string());
    return 0;
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
