#include "cli/evaluate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "cli/messages.h"
#include "cli/progress.h"

namespace warpweave::cli {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::input, fmt::format("{}: {}", path, what));
}

std::string shape_text(const Tensor& t) { return fmt::format("[{}]", fmt::join(t.shape(), ", ")); }

Tensor load_mask(const std::string& path, const GridShape& grid) {
  Tensor mask = load_tensor(path);
  if (mask.dtype() != DType::u8 && mask.dtype() != DType::boolean) {
    refuse(path, fmt::format("a mask is uint8 or bool, not {}", to_string(mask.dtype())));
  }
  if (mask.shape() != std::vector<std::int64_t>{grid.batch, grid.rows, grid.columns}) {
    refuse(path, fmt::format("the mask is {}, but the input grid {} needs [{}, {}, {}]", shape_text(mask),
                             to_string(grid), grid.batch, grid.rows, grid.columns));
  }
  return mask;
}

}  // namespace

void add_evaluation_options(CLI::App& command, EvaluationFiles& files) {
  command.add_option("--config", files.config, "model file (YAML)")->required();
  command.add_option("--weights", files.weights, "weight file (safetensors)")->required();
  command.add_option("--input", files.input, "grid [B, H, W, D], .npy or .safetensors (tensor x)")
      ->required();
  command.add_option("--mask", files.mask, "valid cells [B, H, W], non-zero = valid, .npy or .safetensors");
}

Tensor load_grid(const std::string& path) {
  Tensor x = load_tensor(path);
  if (x.dtype() == DType::u8 || x.dtype() == DType::boolean) {
    refuse(path,
           fmt::format("a grid is float32, float16, bfloat16 or float64, not {}", to_string(x.dtype())));
  }
  if (x.shape().size() != 4)
    refuse(path, fmt::format("the shape is {}, a grid is [B, H, W, D]", shape_text(x)));
  check(x.grid(), path + ": the grid");
  return x;
}

Tensor evaluate(const EvaluationFiles& files, const CommonOptions& options, DType output) {
  (void)engine_options(options);  // bad usage comes first
  const Model model = Model::load(files.config, files.weights, {.allow_unused = options.allow_unused});
  const Tensor x = load_grid(files.input);
  const GridShape grid = x.grid();
  if (grid.channels != model.input_channels()) {
    refuse(files.input, fmt::format("the grid {} has {} channels, but {} takes {}", to_string(grid),
                                    grid.channels, files.config, model.input_channels()));
  }
  const Shape shape = {grid.batch, grid.rows, grid.columns};
  (void)model.output_shape(shape);
  std::optional<Tensor> mask;
  if (!files.mask.empty()) mask = load_mask(files.mask, grid);

  const Engine engine = make_engine(model, options);
  Session session = engine.prepare(shape);
  if (const std::string notice = session.notice(); !notice.empty() && !options.quiet) print_notice(notice);
  const GridShape out = session.output_shape();
  Tensor y(output, {out.batch, out.rows, out.columns, out.channels});
  Progress progress("running", options.quiet);
  RunOptions run;
  run.progress = progress.callback();
  if (mask) run.mask = mask_view(*mask);
  session.run_host(view(x), view(y), run);
  return y;
}

}  // namespace warpweave::cli
