#include "bench/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace warpweave::bench {
namespace {

bool on_gpu(const Setting& setting) { return setting.device.kind == Device::Kind::cuda; }

}  // namespace

std::string table_heading(const Setting& setting, std::size_t name_width) {
  const bool gpu = on_gpu(setting);
  return fmt::format("{:<{}}  {:<21}  {:>10}  {:>21}  {:>9}  {:>7}  {}{:>7}  {}\n", "case", name_width,
                     "input", gpu ? "median us" : "median ms", "min - max", gpu ? "TFLOP/s" : "GFLOP/s",
                     "GB/s", gpu ? "of limit  " : "", "error", "plan");
}

std::string table_line(const Setting& setting, const Measurement& m, std::size_t name_width) {
  const std::string start = fmt::format("{:<{}}  {:<21}", m.name, name_width, to_string(m.input));
  const std::string plan =
      m.plan == m.implementations ? m.plan : fmt::format("{}: {}", m.plan, m.implementations);
  if (!m.failure.empty()) return fmt::format("{}  {}: {}\n", start, m.plan, m.failure);
  const bool gpu = on_gpu(setting);
  const double t = m.median(), unit = gpu ? 1e6 : 1e3;
  const std::string share = m.least > 0 ? fmt::format("{:.0f} %", 100 * m.least / t) : "-";
  return fmt::format("{}  {:>10.{}f}  {:>21}  {:>9.1f}  {:>7.2f}  {}{:>7.1e}  {}\n", start, t * unit,
                     gpu ? 2 : 3,
                     fmt::format("{:.{}f} - {:.{}f}", m.times.front() * unit, gpu ? 2 : 3,
                                 m.times.back() * unit, gpu ? 2 : 3),
                     m.flops / t / (gpu ? 1e12 : 1e9), m.bytes / t / 1e9,
                     gpu ? fmt::format("{:>8}  ", share) : "", m.error, plan);
}

std::string json_text(const Setting& setting, const std::vector<Measurement>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Measurement& m : results) {
    nlohmann::ordered_json entry = {
        {"name", m.name},
        {"plan", m.plan},
        {"implementations", m.implementations},
        {"shape", {m.input.batch, m.input.rows, m.input.columns, m.input.channels}},
        {"runs", m.times.size()},
        {"chain", m.chain}};
    const bool timed = !m.times.empty();
    const double t = timed ? m.median() : 0;
    const auto add = [&](const char* key, bool known, double value) {
      entry[key] = known ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
    };
    entry["heads"] = m.heads > 0 ? nlohmann::ordered_json(m.heads) : nlohmann::ordered_json(nullptr);
    add("median_ms", timed, t * 1e3);
    add("min_ms", timed, timed ? m.times.front() * 1e3 : 0);
    add("max_ms", timed, timed ? m.times.back() * 1e3 : 0);
    add("gflop", m.flops > 0, m.flops / 1e9);
    add("gflop_per_s", timed, m.flops / t / 1e9);
    add("gb_per_s", timed, m.bytes / t / 1e9);
    add("least_ms", m.least > 0, m.least * 1e3);
    add("share", timed && m.least > 0, m.least / t);
    entry["workspace_bytes"] = m.workspace;
    add("error", m.error_limit > 0, m.error);  // a NaN becomes null
    entry["failure"] =
        m.failure.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(m.failure);
    list.push_back(std::move(entry));
  }
  const nlohmann::ordered_json all = {
      {"version", version()},
      {"device", to_string(setting.device)},
      {"gpu", setting.gpu.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(setting.gpu)},
      {"precision", std::string(to_string(setting.precision))},
      {"threads", setting.threads},
      {"results", std::move(list)}};
  // File and implementation names may hold any bytes.
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace warpweave::bench
