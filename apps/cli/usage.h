// One clear line for a command line that cannot be understood.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace warpweave::cli {

// What was wrong, the nearest legal name where a name was unknown, and where help is.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace warpweave::cli
