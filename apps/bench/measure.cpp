#include "bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>

#include "bench/correctness.h"

namespace warpweave::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostRounds = 1000;

// "cpu_fused", or "cpu_fused (6 layers), reference (2)".
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

// One plan of the comparison, ready to run.
struct Contestant {
  Measurement result;
  Session session;
};

// All bits set is a NaN in every floating type.
void poison(Tensor& y) { std::memset(y.data(), 0xff, y.bytes()); }

}  // namespace

double Measurement::median() const {
  const std::size_t n = times.size();
  return n % 2 == 1 ? times[n / 2] : (times[n / 2 - 1] + times[n / 2]) / 2;
}

std::vector<Measurement> measure(const std::string& name, const Model& model, const Shape& shape,
                                 const EngineOptions& options, DType output,
                                 const std::vector<std::string>& plans, const Protocol& protocol) {
  const GridShape in = {shape.batch, shape.rows, shape.columns, model.input_channels()};
  const GridShape out = model.output_shape(shape);
  const Tensor x = random_grid(in, 0);
  Tensor y(output, {out.batch, out.rows, out.columns, out.channels});

  std::vector<Measurement> results;
  std::vector<Contestant> contestants;
  for (const std::string& plan : plans) {
    EngineOptions chosen = options;
    chosen.plan = plan;
    const Engine engine(model, chosen);
    Session session = engine.prepare(shape);
    Measurement m;
    m.name = name;
    m.plan = plan;
    m.implementations = summary(session.plan());
    m.input = in;
    const auto runs_a_layer = [&](const PlannedLayer& layer) { return layer.implementation == plan; };
    if (plan != "auto" && std::none_of(session.plan().begin(), session.plan().end(), runs_a_layer)) {
      const auto& declined = session.plan().front().declined;
      const auto own =
          std::find_if(declined.begin(), declined.end(), [&](const auto& d) { return d.first == plan; });
      m.failure = own == declined.end() ? "declines every layer" : "declines: " + own->second;
      results.push_back(std::move(m));
      continue;
    }
    for (const PlannedLayer& layer : session.plan()) {
      m.flops += layer.flops;
      m.bytes += layer.bytes;
    }
    m.error = reference_error(engine, shape);
    m.error_limit = error_limit(engine.precision(), session.plan().size());
    poison(y);
    session.run_host(view(x), view(y));
    if (m.wrong()) {
      m.failure = fmt::format("WRONG: error {:.1e} is past {:.1e}", m.error, m.error_limit);
    } else if (!all_finite(y.to(DType::f32))) {
      m.failure = "WRONG: the output holds numbers that are not finite";
      m.error = std::numeric_limits<double>::quiet_NaN();
    }
    if (m.failure.empty()) {
      contestants.push_back({std::move(m), std::move(session)});
    } else {
      results.push_back(std::move(m));
    }
  }

  const auto start = Clock::now();
  const auto enough = [&](std::size_t rounds) {
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    return rounds >= static_cast<std::size_t>(protocol.repeats) &&
           (rounds >= kMostRounds || spent >= protocol.seconds * static_cast<double>(contestants.size()));
  };
  for (std::size_t round = 0; !contestants.empty() && !enough(round); ++round) {
    for (Contestant& c : contestants) {
      const auto begin = Clock::now();
      c.session.run_host(view(x), view(y));
      c.result.times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  }
  for (Contestant& c : contestants) {
    std::sort(c.result.times.begin(), c.result.times.end());
    results.push_back(std::move(c.result));
  }
  return results;
}

}  // namespace warpweave::bench
