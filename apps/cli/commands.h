// The subcommands. Each add_* declares its options on a new subcommand of `app` and returns what to do when
// the user chose it. An action returns the exit status and reports trouble by throwing.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace warpweave::cli {

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> action;
};

Command add_run(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_compare(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_compile(CLI::App& app);
Command add_denoise(CLI::App& app);

}  // namespace warpweave::cli
