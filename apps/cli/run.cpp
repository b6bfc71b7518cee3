// warpweave run: a grid through a model.
#include <memory>

#include "cli/commands.h"
#include "cli/evaluate.h"
#include "cli/output_file.h"

namespace warpweave::cli {
namespace {

struct RunCommand {
  CommonOptions common;
  EvaluationFiles files;
  std::string output;

  int operator()() const {
    const DType type = output_type(common);
    check_output(output, {".npy", ".safetensors"});
    if (type == DType::bf16 && output.ends_with(".npy")) {
      throw Error(ErrorCode::input,
                  output + ": .npy has no bfloat16; write .safetensors, or another --output-dtype");
    }
    save_tensor(output, evaluate(files, common, type));
    return 0;
  }
};

}  // namespace

Command add_run(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "Runs a model on a grid and writes the result");
  auto options = std::make_shared<RunCommand>();
  add_evaluation_options(*command, options->files);
  command
      ->add_option("--output", options->output, "result, .npy or .safetensors (tensor x); may be the input")
      ->required();
  add_common_options(*command, options->common);
  return {command, [options] { return (*options)(); }};
}

}  // namespace warpweave::cli
