// warpweave compile: fills the kernel cache ahead of time.
#include <fmt/format.h>

#include <memory>
#include <sstream>

#include "cli/commands.h"
#include "cli/options.h"
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

struct CompileCommand {
  CommonOptions common;
  std::string config, shape, arch;

  int operator()() const {
    const EngineOptions options = engine_options(common);
    (void)output_type(common);
    const Shape wanted = parse_shape(shape);
    (void)cuda::parse_architecture(arch);
    const graph::Graph graph = graph::load_graph(config);
    (void)graph.shapes({wanted.rows, wanted.columns, graph.input_channels});
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
