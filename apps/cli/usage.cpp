#include "cli/usage.h"

#include <fmt/format.h>

#include <string_view>

#include "graph/text.h"

namespace warpweave::cli {
namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

std::string hint(const std::string& word, const std::vector<std::string>& names) {
  return graph::hint(word, std::vector<std::string_view>(names.begin(), names.end()));
}

}  // namespace

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::string help =
      fmt::format("see 'warpweave{} --help'", chosen.empty() ? "" : " " + command.get_name());

  const std::vector<std::string> unknown = command.remaining();
  if (!unknown.empty()) {
    const std::string& word = unknown.front();
    if (word.starts_with('-')) {
      const std::string name = word.substr(0, word.find('='));
      return fmt::format("unknown option '{}'{}; {}", name, hint(name, option_names(command)), help);
    }
    if (chosen.empty()) {
      return fmt::format("unknown command '{}'{}; {}", word, hint(word, command_names(app)), help);
    }
    return fmt::format("unexpected argument '{}'; {}", word, help);
  }
  if (chosen.empty())
    return fmt::format("a command is needed: {}; {}", fmt::join(command_names(app), ", "), help);
  // Numbers are the only values that the parser converts.
  const char* number = dynamic_cast<const CLI::ConversionError*>(&error) ? ": a number is needed" : "";
  return fmt::format("{}{}; {}", error.what(), number, help);
}

}  // namespace warpweave::cli
