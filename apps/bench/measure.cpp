#include "bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "bench/ceilings.h"
#include "bench/correctness.h"
#include "bench/timer.h"

namespace warpweave::bench {
namespace {

constexpr std::size_t kMostRounds = 1000;
constexpr double kHopeless = 10;     // times as slow as another plan: timed once
constexpr double kGpuWarmUp = 0.03;  // seconds: an idle GPU's clock needs some work to rise

// "cpu_fused", or "cpu_fused x6, reference x2".
std::string summary(const std::vector<PlannedLayer>& layers) {
  std::map<std::string, int> counts;
  for (const PlannedLayer& layer : layers) ++counts[layer.implementation];
  if (counts.size() == 1) return counts.begin()->first;
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : sorted)
    text += fmt::format("{}{} x{}", text.empty() ? "" : ", ", name, count);
  return text;
}

// Why the plan that was asked for by name runs nothing; empty when it runs a layer.
std::string declined(const std::string& plan, const std::vector<PlannedLayer>& layers) {
  const auto runs = [&](const PlannedLayer& layer) { return layer.implementation == plan; };
  if (plan == "auto" || std::any_of(layers.begin(), layers.end(), runs)) return {};
  const auto& reasons = layers.front().declined;
  const auto own =
      std::find_if(reasons.begin(), reasons.end(), [&](const auto& d) { return d.first == plan; });
  return own == reasons.end() ? "declines every layer" : "declines: " + own->second;
}

// Seconds that the ceilings of the device allow.
double least(const BlockCase& block, Device device, Precision precision, double flops) {
  if (device.kind != Device::Kind::cuda) return 0;
  const double tokens = static_cast<double>(block.batch * block.rows * block.columns);
  const double bytes =
      tokens * static_cast<double>(block.dim) * static_cast<double>(itemsize(storage_type(precision)));
  const double scores = tokens * static_cast<double>(block.heads * (block.rows + block.columns));
  return least_seconds(gpu_name(device.index), precision, {flops, 2 * 2 * bytes, scores});
}

// One plan of the comparison, ready to run. The session stays where it is: the timer refers to it.
struct Contestant {
  Measurement result;
  std::unique_ptr<Session> session;
  std::unique_ptr<Timer> timer;
  double spent = 0;  // seconds

  void run(bool counted) {
    const double time = timer->run();
    if (!counted) return;
    result.times.push_back(time);
    spent += time * timer->chain();
  }
  bool done(const Protocol& protocol) const {
    const bool enough = result.times.size() >= static_cast<std::size_t>(protocol.repeats) &&
                        (spent >= protocol.seconds || result.times.size() >= kMostRounds);
    return enough || spent >= protocol.most_seconds;
  }
};

Tensor input(const Case& what, DType type) {
  Tensor x =
      random_grid({what.shape.batch, what.shape.rows, what.shape.columns, what.model.input_channels()}, 0);
  if (type != DType::f32) x = x.to(type);
  return x;
}

}  // namespace

double Measurement::median() const {
  const std::size_t n = times.size();
  return n % 2 == 1 ? times[n / 2] : (times[n / 2 - 1] + times[n / 2]) / 2;
}

std::vector<Measurement> measure(const Case& what, const EngineOptions& options, DType type,
                                 const std::vector<std::string>& plans, const Protocol& protocol) {
  const Tensor x = input(what, type);
  const ExactResults exact = what.block ? ExactResults::of_block(what.model, what.shape)
                                        : ExactResults::of_model(what.model, what.shape);
  std::vector<Measurement> results;
  std::vector<Contestant> contestants;
  double fastest = std::numeric_limits<double>::infinity();  // seconds a pass of those that are warm
  for (const std::string& plan : plans) {
    EngineOptions chosen = options;
    chosen.plan = plan;
    const Engine engine(what.model, chosen);
    Contestant c;
    c.session = std::make_unique<Session>(engine.prepare(what.shape));
    Measurement& m = c.result;
    m.name = what.name;
    m.plan = plan;
    m.implementations = summary(c.session->plan());
    m.input = c.session->input_shape();
    m.workspace = c.session->workspace_bytes();
    for (const PlannedLayer& layer : c.session->plan()) {
      m.flops += layer.flops;
      m.bytes += layer.bytes;
    }
    if (what.block) m.heads = what.block->heads;
    if (what.block) m.least = least(*what.block, engine.device(), engine.precision(), m.flops);
    m.failure = declined(plan, c.session->plan());
    if (m.failure.empty()) {
      m.error = exact.error(engine, *c.session);
      m.error_limit = error_limit(engine.precision(), c.session->plan().size());
      if (m.wrong()) m.failure = fmt::format("WRONG: error {:.1e} is past {:.1e}", m.error, m.error_limit);
    }
    if (!m.failure.empty()) {
      results.push_back(std::move(m));
      continue;
    }
    const bool gpu = engine.device().kind == Device::Kind::cuda;
    c.timer = gpu ? graph_timer(*c.session, engine.device(), x, m.flops) : host_timer(*c.session, x);
    m.chain = c.timer->chain();
    double warm = 0, pass = 0;
    do warm += (pass = c.timer->run()) * m.chain;
    while (gpu && warm < kGpuWarmUp);
    if (warm > protocol.most_seconds || pass > kHopeless * fastest) {  // too slow to be run again
      m.times.push_back(pass);
      c.spent = protocol.most_seconds;
    }
    fastest = std::min(fastest, pass);
    contestants.push_back(std::move(c));
  }

  for (bool going = true; going;) {
    going = false;
    for (Contestant& c : contestants) {
      if (c.done(protocol)) continue;
      c.run(true);
      going = true;
    }
  }
  for (Contestant& c : contestants) {
    if (!c.timer->finite()) {
      c.result.failure = "WRONG: the output holds numbers that are not finite";
      c.result.error = std::numeric_limits<double>::quiet_NaN();
      c.result.times.clear();
    }
    std::sort(c.result.times.begin(), c.result.times.end());
    results.push_back(std::move(c.result));
  }
  return results;
}

AutoCheck check_auto(const std::vector<Measurement>& results) {
  const Measurement *own = nullptr, *best = nullptr;
  for (const Measurement& m : results) {
    if (m.times.empty()) continue;
    if (m.plan == "auto") {
      own = &m;
    } else if (!best || m.median() < best->median()) {
      best = &m;
    }
  }
  return own && best ? AutoCheck{best->plan, own->median() / best->median()} : AutoCheck{};
}

void run_once(const Case& what, const EngineOptions& options, DType type) {
  const Engine engine(what.model, options);
  Session session = engine.prepare(what.shape);
  const Tensor x = input(what, type);
  if (engine.device().kind == Device::Kind::cuda) {
    run_on_device(session, engine.device(), x);
  } else {
    (void)host_timer(session, x)->run();
  }
}

}  // namespace warpweave::bench
