// Numbers on the command line are read as the model file reads them: plain digits, nothing converted
// silently.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace warpweave::cli {

// Accepts decimal digits alone (no sign, no leading zero, no 0x), from 0 to `most`.
CLI::Validator whole_number(std::uint64_t most);

// Accepts a finite decimal number, like 25, 0.5 or 1e-5.
CLI::Validator finite_number();

// Refuses an empty value for every option of a command that takes one.
void refuse_empty_values(CLI::App& command);

}  // namespace warpweave::cli
