#include "weights/load.h"

#include <fmt/format.h>

#include <cstring>
#include <set>

#include "graph/text.h"
#include "io/file.h"
#include "io/text.h"
#include "numeric/shape_text.h"
#include "weights/finite.h"
#include "weights/safetensors.h"

namespace warpweave::weights {
namespace {

// Findings about a weight file, told together.
class Findings {
 public:
  void add(std::string_view text) {
    if (++count_ > kShown) return;
    if (count_ > 1) text_ += "; ";
    text_ += text;
  }
  bool room() const noexcept { return count_ < kShown; }
  bool empty() const noexcept { return count_ == 0; }
  std::string text() const {
    return count_ <= kShown ? text_ : fmt::format("{}; ... and {} more", text_, count_ - kShown);
  }

 private:
  static constexpr int kShown = 20;
  int count_ = 0;
  std::string text_;
};

// Where the parts of one tensor of a layer are in the file; one part unless it is packed from several.
struct Source {
  std::size_t node = 0;
  graph::TensorSpec spec;
  std::vector<const SafetensorsEntry*> parts;
};

// The name that the weight file should have for a canonical one; empty when a map does not name it.
std::string actual_name(const graph::Node& node, const std::string& canonical) {
  for (const auto& [from, to] : node.name_map)
    if (from == canonical) return to;
  if (!node.name_map.empty()) return {};
  constexpr std::string_view kPlace = "{name}";
  std::string name = node.name_template;
  const std::size_t at = name.find(kPlace);
  return at == std::string::npos ? name : name.replace(at, kPlace.size(), canonical);
}

class Resolver {
 public:
  Resolver(const SafetensorsFile& file, const graph::Graph& graph) : file_(file), graph_(graph) {}

  // Finds every tensor of every layer; what is missing, wrongly shaped or unused goes to findings().
  std::vector<Source> resolve(bool allow_unused) {
    std::vector<Source> sources;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (graph::TensorSpec& spec : graph_.nodes[i].layer->tensors()) {
        Source source{i, std::move(spec), {}};
        for (const graph::TensorSpec& part : choose(graph_.nodes[i], source.spec))
          if (const SafetensorsEntry* entry = take(graph_.nodes[i], source.spec, part))
            source.parts.push_back(entry);
        sources.push_back(std::move(source));
      }
    }
    report_missing();
    if (!allow_unused) report_unused();
    return sources;
  }

  const Findings& findings() const noexcept { return findings_; }

 private:
  struct Missing {
    const graph::Node* node;
    std::string name, alternatives;
    std::vector<std::int64_t> shape;
  };

  const SafetensorsEntry* entry_for(const graph::Node& node, const graph::TensorSpec& spec) const {
    return file_.find(actual_name(node, spec.name));
  }

  // The tensor itself, or its parts: as the map says; under a template as the file has them, the whole first.
  std::vector<graph::TensorSpec> choose(const graph::Node& node, const graph::TensorSpec& spec) const {
    const bool mapped = !node.name_map.empty();
    if (mapped ? !actual_name(node, spec.name).empty() : entry_for(node, spec) != nullptr) return {spec};
    for (const graph::TensorSpec& part : spec.parts)
      if (mapped ? !actual_name(node, part.name).empty() : entry_for(node, part) != nullptr)
        return spec.parts;
    return {spec};
  }

  const SafetensorsEntry* take(const graph::Node& node, const graph::TensorSpec& whole,
                               const graph::TensorSpec& spec) {
    const std::string name = actual_name(node, spec.name);
    const SafetensorsEntry* const entry = file_.find(name);
    if (entry == nullptr) {
      std::string alternatives;  // under a template, the parts would do as well
      if (node.name_map.empty() && spec.name == whole.name)
        for (const graph::TensorSpec& part : whole.parts)
          alternatives += (alternatives.empty() ? " or " : ", ") + in_quotes(actual_name(node, part.name));
      missing_.push_back({&node, name.empty() ? spec.name : name, std::move(alternatives), spec.shape});
      return nullptr;
    }
    used_.insert(entry);
    if (entry->shape != spec.shape)
      findings_.add(fmt::format("{} has shape {}, {} expects {}", in_quotes(name), shape_text(entry->shape),
                                node.path, shape_text(spec.shape)));
    const std::optional<DType> type = engine_type(entry->dtype);
    if (!type || *type == DType::u8 || *type == DType::boolean)
      findings_.add(
          fmt::format("{} has dtype {}, expected F64, F32, F16 or BF16", in_quotes(name), entry->dtype));
    return entry;
  }

  void report_missing() {
    constexpr std::size_t kCandidates = 4096;  // enough for any real model, bounded for a hostile file
    std::vector<std::string_view> unused;
    if (!missing_.empty())
      for (const SafetensorsEntry& entry : file_.entries())
        if (entry.name.size() <= 128 && used_.count(&entry) == 0 && unused.size() < kCandidates)
          unused.push_back(entry.name);
    for (const Missing& m : missing_) {
      if (!findings_.room()) {
        findings_.add({});  // only counted
        continue;
      }
      findings_.add(fmt::format("missing {} {}{}, which {} takes{}", in_quotes(m.name), shape_text(m.shape),
                                m.alternatives, m.node->path, printable(graph::hint(m.name, unused))));
    }
  }

  void report_unused() {
    bool any = false;
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (used_.count(&entry) != 0) continue;
      findings_.add(fmt::format("unused {} {}{}", in_quotes(entry.name), shape_text(entry.shape),
                                any ? "" : " (no layer takes it; --allow-unused lets it pass)"));
      any = true;
    }
  }

  const SafetensorsFile& file_;
  const graph::Graph& graph_;
  std::set<const SafetensorsEntry*> used_;
  std::vector<Missing> missing_;
  Findings findings_;
};

// One tensor in float32, its parts one after the other along the first dimension.
Tensor convert(const SafetensorsFile& file, const Source& source, Findings& faults) {
  Tensor result(DType::f32, source.spec.shape);
  std::span<float> rest = result.values<float>();
  for (const SafetensorsEntry* const entry : source.parts) {
    const Tensor stored = file.read(*entry);
    const Tensor converted = stored.to(DType::f32);
    if (std::string fault = non_finite(stored, converted); !fault.empty())
      faults.add(fmt::format("{} {}", in_quotes(entry->name), fault));
    const std::span<const float> values = converted.values<float>();
    if (!values.empty()) std::memcpy(rest.data(), values.data(), values.size_bytes());
    rest = rest.subspan(values.size());
  }
  return result;
}

std::vector<LayerWeights> load_all(const graph::Graph& graph, const std::string& file, bool allow_unused) {
  const SafetensorsFile weights(file);
  Resolver resolver(weights, graph);
  const std::vector<Source> sources = resolver.resolve(allow_unused);
  if (!resolver.findings().empty())
    throw file_error(file,
                     fmt::format("does not fit {}: {}", printable(graph.file), resolver.findings().text()));

  std::vector<LayerWeights> all(graph.nodes.size());
  Findings faults;
  for (const Source& source : sources)
    all[source.node].set(source.spec.name, convert(weights, source, faults));
  if (!faults.empty()) throw file_error(file, fmt::format("weights must be finite: {}", faults.text()));
  return all;
}

}  // namespace

std::vector<LayerWeights> load_weights(const graph::Graph& graph, const std::string& file,
                                       bool allow_unused) {
  return with_memory_errors(file, [&] { return load_all(graph, file, allow_unused); });
}

}  // namespace warpweave::weights
