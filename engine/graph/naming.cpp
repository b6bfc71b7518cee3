#include "graph/naming.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "graph/params.h"
#include "io/text.h"

namespace warpweave::graph {
namespace {

// `text` with the index of every enclosing repeat filled in. "{name}" stays where `is_template`, and must
// then occur; it is unknown otherwise.
std::string substitute(const std::string& text, bool is_template, std::span<const RepeatIndex> indices,
                       const Place& place) {
  std::string result;
  bool has_name = false;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '}') place.fail(fmt::format("{} has a '}}' without a '{{'", in_quotes(text)));
    if (text[at] != '{') {
      result += text[at++];
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (end == std::string::npos) place.fail(fmt::format("{} has a '{{' without a '}}'", in_quotes(text)));
    const std::string word = text.substr(at + 1, end - at - 1);
    at = end + 1;
    const auto index =
        std::find_if(indices.begin(), indices.end(), [&](const RepeatIndex& i) { return i.name == word; });
    if (is_template && word == "name") {
      if (has_name) place.fail(fmt::format("the template {} holds {{name}} twice", in_quotes(text)));
      result += "{name}";
      has_name = true;
    } else if (index != indices.end()) {
      result += std::to_string(index->value);
    } else {
      std::vector<std::string_view> known;
      if (is_template) known.push_back("{name}");
      std::vector<std::string> names;
      for (const RepeatIndex& i : indices) names.push_back("{" + i.name + "}");
      known.insert(known.end(), names.begin(), names.end());
      place.fail(fmt::format("unknown placeholder {} in {}; {}", in_quotes("{" + word + "}"), in_quotes(text),
                             known.empty() ? "none is known here, outside a repeat"
                                           : fmt::format("known here: {}", join(known))));
    }
  }
  if (is_template && !has_name) {
    place.fail(
        fmt::format("the template {} lacks {{name}}, which stands for each tensor's name", in_quotes(text)));
  }
  return result;
}

using NameMap = std::vector<std::pair<std::string, std::string>>;

bool has(const NameMap& map, std::string_view name) {
  return std::any_of(map.begin(), map.end(), [&](const auto& pair) { return pair.first == name; });
}

// Every tensor must be named, whole or in parts, and never both; all split tensors of a layer together.
void check_complete(const NameMap& map, const std::vector<TensorSpec>& specs, const Place& place) {
  std::string whole, part;  // the first named of each kind
  for (const TensorSpec& spec : specs) {
    if (spec.parts.empty()) continue;
    if (whole.empty() && has(map, spec.name)) whole = spec.name;
    for (const TensorSpec& p : spec.parts) {
      if (part.empty() && has(map, p.name)) part = p.name;
    }
  }
  if (!whole.empty() && !part.empty()) {
    place.fail(fmt::format("names both '{}' and '{}'; name either the packed tensors or all of their parts",
                           whole, part));
  }
  std::vector<std::string_view> missing;
  for (const TensorSpec& spec : specs) {
    if (part.empty() || spec.parts.empty()) {
      if (!has(map, spec.name)) missing.push_back(spec.name);
      continue;
    }
    for (const TensorSpec& p : spec.parts) {
      if (!has(map, p.name)) missing.push_back(p.name);
    }
  }
  if (!missing.empty()) place.fail(fmt::format("the map lacks {}", join(missing)));
}

NameMap read_map(const Layer& layer, const yaml::Value& tensors, const Place& place,
                 std::span<const RepeatIndex> indices) {
  const std::vector<TensorSpec> specs = layer.tensors();
  std::vector<std::string_view> legal;
  for (const TensorSpec& spec : specs) legal.push_back(spec.name);
  for (const TensorSpec& spec : specs) {
    for (const TensorSpec& p : spec.parts) legal.push_back(p.name);
  }
  NameMap map;
  for (const yaml::Entry& entry : tensors.entries) {
    if (std::find(legal.begin(), legal.end(), entry.key) == legal.end()) {
      Place{place.file, entry.line, place.key}.fail(
          fmt::format("this layer has no tensor {}{} (with these parameters it has: {})",
                      in_quotes(entry.key), hint(entry.key, legal), join(legal)));
    }
    const Place at{place.file, entry.line, place.key + "." + entry.key};
    if (entry.value->kind != yaml::Kind::scalar || entry.value->text.empty()) {
      at.fail(fmt::format("expected the name of a tensor, got {}", in_words(*entry.value)));
    }
    map.emplace_back(entry.key, substitute(entry.value->text, false, indices, at));
  }
  check_complete(map, specs, place);
  return map;
}

}  // namespace

void name_tensors(Node& node, std::size_t number, const yaml::Value* tensors, const Place& place,
                  std::span<const RepeatIndex> indices) {
  if (tensors == nullptr) {
    node.name_template = fmt::format("layers.{}.{{name}}", number);
  } else if (tensors->kind == yaml::Kind::scalar) {
    node.name_template = substitute(tensors->text, true, indices, place);
  } else if (tensors->kind == yaml::Kind::map) {
    node.name_map = read_map(*node.layer, *tensors, place, indices);
  } else {
    place.fail(fmt::format("expected a template like \"block_{{name}}\" or a map of tensor names, got {}",
                           in_words(*tensors)));
  }
}

}  // namespace warpweave::graph
