#include "cli/options.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>

#include "cli/messages.h"
#include "cli/numbers.h"

namespace warpweave::cli {
namespace {

constexpr std::uint64_t kMostThreads = 4096;

[[noreturn]] void bad_value(const char* option, const std::string& text, const std::string& what) {
  throw Error(ErrorCode::input, fmt::format("{}: '{}' {}", option, text, what));
}

// The library's parsers do not know which option they read.
template <class Parse>
auto parse_named(const char* option, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", option, error.what()));
  }
}

}  // namespace

void add_common_options(CLI::App& command, CommonOptions& o) {
  const char* group = "Common options";
  command.add_option("--device", o.device, "auto, cpu, cuda or cuda:N (auto)")->group(group);
  command.add_option("--precision", o.precision, "fp32, tf32, bf16, fp16; fp64 on the CPU (fp32)")
      ->group(group);
  command.add_option("--plan", o.plan, "preferred implementation, or auto (auto)")->group(group);
  command.add_flag("--strict", o.strict, "a layer that the named plan declines is an error")->group(group);
  command.add_option("--threads", o.threads, "CPU threads, 0 for all cores (0)")
      ->check(whole_number(kMostThreads))
      ->group(group);
  command
      .add_option("--workspace", o.workspace,
                  "most bytes beside weights, input and output, like 512M or 2GiB")
      ->group(group);
  command
      .add_option(
          "--output-dtype", o.output_dtype,
          "type of the output grid: float32, float16, bfloat16; float64 with --precision fp64 (float32)")
      ->group(group);
  command.add_flag("--allow-unused", o.allow_unused, "weights that no layer takes are no error")
      ->group(group);
  command.add_flag("--quiet", o.quiet, "no notices and no progress on standard error")->group(group);
  command.set_version_flag("--version", std::string("warpweave ") + version());
}

EngineOptions engine_options(const CommonOptions& o) {
  EngineOptions e;
  e.device = parse_named("--device", o.device, [](const std::string& s) { return parse_device(s); });
  e.precision =
      parse_named("--precision", o.precision, [](const std::string& s) { return parse_precision(s); });
  e.plan = o.plan;
  e.strict = o.strict;
  e.threads = o.threads;
  if (!o.workspace.empty()) e.workspace_limit = parse_size(o.workspace);
  return e;
}

Engine make_engine(const Model& model, const CommonOptions& options) {
  const EngineOptions wanted = engine_options(options);
  Engine engine(model, wanted);
  if (options.quiet) return engine;
  std::string notice = engine.notice();
  // On the CPU the notice says so itself, with the reason.
  if (wanted.device.kind == Device::Kind::automatic && (notice.empty() || engine.device() != Device::cpu()))
    notice = fmt::format("running on {}{}{}", to_string(engine.device()), notice.empty() ? "" : "; ", notice);
  if (!notice.empty()) print_notice(notice);
  return engine;
}

Shape parse_shape(const std::string& text) {
  std::array<std::int64_t, 3> sizes{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto [stop, error] = std::from_chars(at, end, sizes[i]);
    const bool closed = i + 1 < sizes.size() ? stop != end && *stop == ',' : stop == end;
    if (error != std::errc() || sizes[i] < 1 || !closed) {
      bad_value("--shape", text, "is not B,H,W: batch, rows and columns, three whole numbers of at least 1");
    }
    at = stop + 1;
  }
  return {sizes[0], sizes[1], sizes[2]};
}

std::int64_t parse_size(const std::string& text) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string suffix(stop, text.data() + text.size());
  const auto refuse = [&](const char* what) { bad_value("--workspace", text, what); };
  if (error != std::errc() || !std::isfinite(number)) refuse("is not a size like 512M, 2GiB or 100000");

  double unit = 1;
  if (!suffix.empty() && suffix != "B") {
    constexpr std::string_view kPrefixes = "KMGT";
    const std::size_t power =
        kPrefixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[0]))));
    const std::string rest = suffix.substr(1);
    if (power == kPrefixes.npos || (rest != "" && rest != "iB" && rest != "B")) {
      refuse("has an unknown unit; K, M, G, T, KiB, MiB, GiB, TiB, KB, MB, GB and TB are known");
    }
    unit = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * unit;
  if (!(bytes >= 1)) refuse("is not a size of at least one byte");
  if (bytes >= 0x1p62) refuse("is more than any memory holds");
  return static_cast<std::int64_t>(bytes);
}

DType output_type(const CommonOptions& o) {
  if (o.output_dtype.empty()) return DType::f32;
  const DType type =
      parse_named("--output-dtype", o.output_dtype, [](const std::string& s) { return parse_dtype(s); });
  if (type == DType::u8 || type == DType::boolean)
    bad_value("--output-dtype", o.output_dtype, "is not a floating type");
  if (type == DType::f64 && engine_options(o).precision != Precision::fp64)
    bad_value("--output-dtype", o.output_dtype, "needs --precision fp64");
  return type;
}

}  // namespace warpweave::cli
