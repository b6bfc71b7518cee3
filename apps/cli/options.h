// Options that several subcommands share, and the values they take.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "warpweave/warpweave.h"

namespace warpweave::cli {

// As typed; engine_options() and the parse functions give them meaning, throwing Error(input) "--option:
// ...".
struct CommonOptions {
  std::string device = "auto";
  std::string precision = "fp32";
  std::string plan = "auto";
  bool strict = false;
  int threads = 0;
  std::string workspace;
  std::string output_dtype;  // empty where none was given
  bool allow_unused = false;
  bool quiet = false;
};

// --device, --precision, --plan, --strict, --threads, --workspace, --output-dtype,
// --allow-unused, --quiet, --version.
void add_common_options(CLI::App& command, CommonOptions& options);

EngineOptions engine_options(const CommonOptions& options);

// The engine for the options. Says on standard error, unless quiet, which device `auto` took and why, and
// whatever else the engine has to tell.
Engine make_engine(const Model& model, const CommonOptions& options);

// "B,H,W", each at least 1.
Shape parse_shape(const std::string& text);

// Bytes: a number with an optional suffix; K, M, G, T and KiB, MiB, ... are powers of 1024, KB, MB, ... of
// 1000.
std::int64_t parse_size(const std::string& text);

// --output-dtype: float32 unless another was given; float16, bfloat16, and float64 for precision fp64.
DType output_type(const CommonOptions& options);

}  // namespace warpweave::cli
