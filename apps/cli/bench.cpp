// warpweave bench: how fast a model runs, or a suite of axial blocks.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "bench/measure.h"
#include "bench/report.h"
#include "bench/suites.h"
#include "bench/timer.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/output_file.h"

namespace warpweave::cli {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::input, what); }

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

struct BenchCommand {
  CommonOptions common;
  std::string config, weights, shape, suite, only, json, check_auto;
  std::optional<double> seconds;
  bool once = false, list = false;
  bench::Protocol protocol;

  int operator()() {
    check_usage();
    if (list) {
      for (const bench::BlockCase& c : bench::suite(suite))
        fmt::print("{} {} {} {} {} {}\n", c.name, c.batch, c.rows, c.columns, c.dim, c.heads);
      return 0;
    }
    // A suite belongs to its device unless another is asked for by name.
    if (!suite.empty() && common.device == "auto") common.device = suite == "gpu" ? "cuda" : "cpu";
    if (!json.empty()) check_output(json);
    if (suite.empty()) {
      bench_config();
    } else {
      bench_suite();
    }
    if (!json.empty()) write_json();
    return right_ ? 0 : 1;
  }

 private:
  void check_usage() {
    if (suite.empty() == config.empty())
      refuse("bench: give --config C.yaml --shape B,H,W, or --suite cpu or gpu");
    if (!config.empty() && shape.empty()) refuse("--shape: B,H,W is needed with --config");
    if (config.empty() && !(shape.empty() && weights.empty()))
      refuse("--shape and --weights belong to --config");
    if ((!only.empty() || list) && suite.empty()) refuse("--only and --list belong to --suite");
    if (protocol.repeats < 1) refuse("--repeat: at least 1 run is needed");
    if (seconds && !(*seconds >= 0 && *seconds <= 3600)) refuse("--seconds: is not a time from 0 to 3600");
    if (once && !(json.empty() && check_auto.empty()))
      refuse("--once times nothing: no --json, no --check-auto");
    if (!check_auto.empty()) {
      allowed_ = parse_percent(check_auto);
      if (common.plan == "auto") common.plan = "all";
    }
    (void)engine_options(common);
    (void)output_type(common);
  }

  static double parse_percent(const std::string& text) {
    std::istringstream stream(text);
    double value = -1;
    char sign = 0;
    if (!(stream >> value >> sign) || sign != '%' || !(value >= 0 && value <= 1000) || stream.peek() != EOF)
      refuse("--check-auto: '" + text + "' is not a percentage like 5%");
    return value / 100;
  }

  void bench_config() {
    const Shape wanted = parse_shape(shape);
    const Model model = weights.empty() ? Model::random(config)
                                        : Model::load(config, weights, {.allow_unused = common.allow_unused});
    (void)model.output_shape(wanted);
    const std::string name = std::filesystem::path(config).stem().string();
    width_ = std::max(width_, name.size());
    start(model);
    bench_one({name, model, wanted});
  }

  void bench_suite() {
    std::vector<bench::BlockCase> cases = bench::suite(suite);
    const std::vector<std::string> names = split(only);
    for (const std::string& name : names) {
      if (std::none_of(cases.begin(), cases.end(), [&](const auto& c) { return c.name == name; }))
        refuse(fmt::format("--only: the suite has no case '{}'", name));
    }
    if (!names.empty())
      std::erase_if(
          cases, [&](const auto& c) { return std::find(names.begin(), names.end(), c.name) == names.end(); });
    for (const bench::BlockCase& c : cases) width_ = std::max(width_, c.name.size());
    for (const bench::BlockCase& c : cases) {
      const Model model = bench::block_model(c);
      if (plans_.empty()) start(model);
      bench_one({c.name, model, {c.batch, c.rows, c.columns}, &c});
    }
  }

  // Finds the device and its plans, and prints the heading.
  void start(const Model& model) {
    CommonOptions options = common;
    options.plan = "auto";
    const Engine engine = make_engine(model, options);
    setting_.device = engine.device();
    setting_.precision = engine.precision();
    setting_.threads = common.threads > 0
                           ? common.threads
                           : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const bool gpu = setting_.device.kind == Device::Kind::cuda;
    if (gpu) setting_.gpu = bench::gpu_name(setting_.device.index);
    plans_ = common.plan == "all" ? engine.plans() : split(common.plan);
    if (!check_auto.empty() && std::find(plans_.begin(), plans_.end(), "auto") == plans_.end())
      plans_.insert(plans_.begin(), "auto");
    protocol.seconds = seconds.value_or(gpu ? 0.3 : 1.0);
    if (once) return;
    if (gpu) {
      fmt::print("{} ({}) in {}; passes chained in one replayed CUDA graph\n", to_string(setting_.device),
                 setting_.gpu, to_string(setting_.precision));
    } else {
      fmt::print("{} in {}, {} threads\n", to_string(setting_.device), to_string(setting_.precision),
                 setting_.threads);
    }
    fmt::print("{}", bench::table_heading(setting_, width_));
  }

  void bench_one(const bench::Case& what) {
    EngineOptions options = engine_options(common);
    options.device = setting_.device;
    // A GPU's grids have the type that layers store, so that nothing is converted, unless another was asked
    // for.
    const bool stored = setting_.device.kind == Device::Kind::cuda && common.output_dtype.empty();
    const DType type = stored ? storage_type(setting_.precision) : output_type(common);
    if (once) {
      for (const std::string& plan : plans_) {
        options.plan = plan;
        bench::run_once(what, options, type);
      }
      return;
    }
    const auto results = bench::measure(what, options, type, plans_, protocol);
    for (const bench::Measurement& m : results) {
      fmt::print("{}", bench::table_line(setting_, m, width_));
      right_ = right_ && !m.wrong();
    }
    if (!check_auto.empty()) judge(what.name, bench::check_auto(results));
    std::fflush(stdout);
    all_.insert(all_.end(), results.begin(), results.end());
  }

  void judge(const std::string& name, const bench::AutoCheck& check) {
    if (check.best.empty()) return;
    const bool good = check.ratio <= 1 + allowed_;
    fmt::print("{:<{}}  auto takes {:.3f} times the best single plan, {}{}\n", name, width_, check.ratio,
               check.best, good ? "" : fmt::format(": past {:.3f}", 1 + allowed_));
    right_ = right_ && good;
  }

  void write_json() const {
    const std::string text = bench::json_text(setting_, all_);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    write_whole(json, {bytes, text.size()});
  }

  bench::Setting setting_;
  std::vector<std::string> plans_;
  std::size_t width_ = 4;  // of the case names
  double allowed_ = 0;     // how much slower auto may be
  std::vector<bench::Measurement> all_;
  bool right_ = true;
};

}  // namespace

Command add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Checks and times a model, or a suite of axial blocks");
  auto o = std::make_shared<BenchCommand>();
  command->add_option("--config", o->config, "model file (YAML)");
  command->add_option("--weights", o->weights,
                      "weight file (safetensors); random weights where none is given");
  command->add_option("--shape", o->shape, "B,H,W: batch, rows and columns of the input");
  command->add_option("--suite", o->suite, "cpu or gpu: axial blocks of many shapes");
  command->add_option("--only", o->only, "these cases of the suite, separated by commas");
  command->add_flag("--list", o->list, "only list the suite's cases: name, batch, rows, columns, dim, heads");
  command->add_option("--json", o->json, "write the results here too");
  command->add_option("--repeat", o->protocol.repeats, "least number of timed runs (7)")
      ->check(whole_number(1000000));
  command->add_option("--seconds", o->seconds, "least time spent on each plan (1; on a GPU 0.3)")
      ->check(finite_number());
  command->add_option("--check-auto", o->check_auto,
                      "like 5%: exit status 1 where auto is slower than the best single plan by more");
  command->add_flag("--once", o->once, "run each case a single time, unchecked and untimed, for a profiler");
  command->footer(
      "--plan all measures every implementation, in turns; --plan A,B these. Results are compared with the "
      "float64\n"
      "reference before anything is timed. On a GPU a run is a replayed CUDA graph of 20 chained passes (5 "
      "where a\n"
      "pass is over 50 GFLOP) on device memory; on the CPU it is one pass.");
  add_common_options(*command, o->common);
  return {command, [o] { return (*o)(); }};
}

}  // namespace warpweave::cli
