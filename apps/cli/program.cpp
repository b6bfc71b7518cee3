#include "cli/program.h"

#include <cstdio>
#include <exception>
#include <new>
#include <vector>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/numbers.h"
#include "cli/usage.h"
#include "warpweave/warpweave.h"

namespace warpweave::cli {
namespace {

int run_chosen(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const int status = command.action();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw Error(ErrorCode::input, "standard output: cannot be written; is its disk full?");
    }
    return status;
  }
  return static_cast<int>(ErrorCode::internal);
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Axial-attention transformers on 4-D grids", "warpweave");
  app.set_version_flag("--version", std::string("warpweave ") + version());
  app.require_subcommand(1);
  app.footer("'warpweave COMMAND --help' tells the options of a command.");
  const std::vector<Command> commands = {add_run(app),   add_inspect(app), add_compare(app),
                                         add_bench(app), add_compile(app), add_denoise(app)};
  for (const Command& command : commands) refuse_empty_values(*command.app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help or --version
    const int status = app.exit(success);
    return std::fflush(stdout) == 0 ? status : static_cast<int>(ErrorCode::input);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::input, usage_message(app, error));
  }
  return run_chosen(commands);
}

}  // namespace

int run_program(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const Error& error) {
    print_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
    return static_cast<int>(ErrorCode::device);
  } catch (const std::exception& error) {
    print_error(error.what());
  } catch (...) {
    print_error("unknown failure");
  }
  return static_cast<int>(ErrorCode::internal);
}

}  // namespace warpweave::cli
