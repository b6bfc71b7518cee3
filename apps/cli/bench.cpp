// warpweave bench: how fast a model runs, or a suite of axial blocks.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "bench/measure.h"
#include "bench/report.h"
#include "bench/suites.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/output_file.h"

namespace warpweave::cli {
namespace {

struct BenchCommand {
  CommonOptions common;
  std::string config, weights, shape, suite, only, json;
  bench::Protocol protocol;

  int operator()() {
    check_usage();
    // A suite belongs to its device unless another is asked for by name.
    if (!suite.empty() && common.device == "auto") common.device = suite == "gpu" ? "cuda" : "cpu";
    if (!json.empty()) check_output(json);
    std::vector<bench::Measurement> all;
    const bool done = suite.empty() ? bench_config(all) : bench_suite(all);
    if (!json.empty()) write_json(all);
    return done ? 0 : 1;
  }

 private:
  void check_usage() const {
    const auto refuse = [](const char* what) { throw Error(ErrorCode::input, what); };
    if (suite.empty() == config.empty())
      refuse("bench: give --config C.yaml --shape B,H,W, or --suite cpu or gpu");
    if (!config.empty() && shape.empty()) refuse("--shape: B,H,W is needed with --config");
    if (config.empty() && !(shape.empty() && weights.empty()))
      refuse("--shape and --weights belong to --config");
    if (!only.empty() && suite.empty()) refuse("--only belongs to --suite");
    if (protocol.repeats < 1) refuse("--repeat: at least 1 run is needed");
    if (!(protocol.seconds >= 0 && protocol.seconds <= 3600))
      refuse("--seconds: is not a time from 0 to 3600");
    (void)engine_options(common);
    (void)output_type(common);
  }

  // Both return false when a result was wrong.
  bool bench_config(std::vector<bench::Measurement>& all) {
    const Shape wanted = parse_shape(shape);
    const Model model = weights.empty() ? Model::random(config)
                                        : Model::load(config, weights, {.allow_unused = common.allow_unused});
    (void)model.output_shape(wanted);
    const std::string name = std::filesystem::path(config).stem().string();
    start(model, name.size());
    return bench_one(name, model, wanted, name.size(), all);
  }

  bool bench_suite(std::vector<bench::Measurement>& all) {
    std::vector<bench::BlockCase> cases = bench::suite(suite);
    if (!only.empty()) std::erase_if(cases, [&](const bench::BlockCase& c) { return c.name != only; });
    if (cases.empty()) throw Error(ErrorCode::input, fmt::format("--only: the suite has no case '{}'", only));
    std::size_t width = 4;
    for (const bench::BlockCase& c : cases) width = std::max(width, c.name.size());
    bool right = true;
    for (const bench::BlockCase& c : cases) {
      const Model model = bench::block_model(c);
      if (plans_.empty()) start(model, width);
      right = bench_one(c.name, model, {c.batch, c.rows, c.columns}, width, all) && right;
    }
    return right;
  }

  // Finds the device and its plans, and prints the heading.
  void start(const Model& model, std::size_t width) {
    const Engine engine = make_engine(model, common);
    device_ = engine.device();
    plans_ = common.plan == "all" ? engine.plans() : std::vector<std::string>{common.plan};
    fmt::print(
        "{} in {}, {} threads{}\n", to_string(device_), to_string(engine.precision()), threads(),
        device_.kind == Device::Kind::cuda ? "; times include the copies between host and device" : "");
    fmt::print("{}", bench::table_heading(std::max<std::size_t>(width, 4)));
  }

  bool bench_one(const std::string& name, const Model& model, const Shape& wanted, std::size_t width,
                 std::vector<bench::Measurement>& all) {
    bool right = true;
    EngineOptions options = engine_options(common);
    options.device = device_;
    for (bench::Measurement& m :
         bench::measure(name, model, wanted, options, output_type(common), plans_, protocol)) {
      fmt::print("{}", bench::table_line(m, std::max<std::size_t>(width, 4)));
      right = right && !m.wrong();
      all.push_back(std::move(m));
    }
    std::fflush(stdout);
    return right;
  }

  int threads() const {
    return common.threads > 0 ? common.threads
                              : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }

  void write_json(const std::vector<bench::Measurement>& all) const {
    const std::string text = bench::json_text(
        {to_string(device_), std::string(to_string(engine_options(common).precision)), threads()}, all);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    write_whole(json, {bytes, text.size()});
  }

  Device device_;
  std::vector<std::string> plans_;
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
  command->add_option("--only", o->only, "one case of the suite");
  command->add_option("--json", o->json, "write the results here too");
  command->add_option("--repeat", o->protocol.repeats, "least number of timed runs (7)")
      ->check(whole_number(1000000));
  command->add_option("--seconds", o->protocol.seconds, "least time spent on each plan (1)")
      ->check(finite_number());
  command->footer("--plan all measures every implementation, in turns.");
  add_common_options(*command, o->common);
  return {command, [o] { return (*o)(); }};
}

}  // namespace warpweave::cli
