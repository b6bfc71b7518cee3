#include "weights/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/atomic_file.h"
#include "numeric/shape_text.h"
#include "weights/safetensors.h"

namespace warpweave::weights {
namespace {

using List = std::vector<std::pair<std::string, const Tensor*>>;

// In quotes, with escapes. Only strings are left to the JSON library: where memory is refused, its objects
// and arrays stop the program.
std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

std::string header_text(const List& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  std::string_view comma;
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      text += fmt::format("{}{}:{}", comma, json_string(key), json_string(value));
      comma = ",";
    }
    text += '}';
  }
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::uint64_t end = offset + tensor->bytes();
    text +=
        fmt::format(R"({}{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", comma, json_string(name),
                    safetensors_dtype(tensor->dtype()), shape_text(tensor->shape()), offset, end);
    comma = ",";
    offset = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');  // the data section starts aligned
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, List tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tuple(-static_cast<int>(itemsize(a.second->dtype())), std::string_view(a.first)) <
           std::tuple(-static_cast<int>(itemsize(b.second->dtype())), std::string_view(b.first));
  });
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__")
      throw file_error(path, "no tensor can be named __metadata__ in a safetensors file");
    if (tensor->data() == nullptr) throw file_error(path, "a tensor without a shape cannot be written");
  }
  std::string header;
  try {
    header = header_text(tensors, metadata);
  } catch (const nlohmann::json::type_error&) {  // the only one that dump() has
    throw file_error(path, "a tensor name or metadata is not UTF-8, as a safetensors file needs");
  }
  constexpr std::size_t kMaxHeader = 100'000'000;
  if (header.size() > kMaxHeader)
    throw file_error(path, fmt::format("the header would have {} bytes, over the format's limit of {}",
                                       header.size(), kMaxHeader));

  const std::uint64_t length = header.size();
  AtomicFile file(path);
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) file.write(tensor->data(), tensor->bytes());
  file.commit();
}

}  // namespace warpweave::weights
