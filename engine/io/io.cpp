#include "warpweave/io.h"

#include <fmt/format.h>

#include "io/npy.h"
#include "io/text.h"
#include "weights/safetensors.h"
#include "weights/safetensors_writer.h"

namespace warpweave {
namespace {

enum class Format { npy, safetensors };

Format format_of(const std::filesystem::path& path) {
  const std::filesystem::path ending = path.extension();
  if (ending == ".npy") return Format::npy;
  if (ending == ".safetensors") return Format::safetensors;
  throw file_error(path, "unknown file type, expected a name that ends in .npy or .safetensors");
}

Tensor load_from_safetensors(const std::filesystem::path& path, const std::string& name) {
  const weights::SafetensorsFile file(path);
  if (const weights::SafetensorsEntry* const entry = file.find(name)) return file.read(*entry);
  if (file.entries().size() == 1) return file.read(file.entries().front());
  throw file_error(path,
                   fmt::format("has {} tensors and none is named {}, expected that one or a single tensor",
                               file.entries().size(), in_quotes(name)));
}

}  // namespace

Tensor load_tensor(const std::filesystem::path& path, const std::string& name) {
  return with_memory_errors(path, [&] {
    return format_of(path) == Format::npy ? load_npy(path) : load_from_safetensors(path, name);
  });
}

void save_tensor(const std::filesystem::path& path, const Tensor& tensor, const std::string& name) {
  with_memory_errors(path, [&] {
    if (format_of(path) == Format::npy) return save_npy(path, tensor);
    weights::write_safetensors(path, {{name, &tensor}}, {});
  });
}

void save_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  with_memory_errors(path, [&] {
    std::vector<std::pair<std::string, const Tensor*>> list;
    for (const auto& [name, tensor] : tensors) list.emplace_back(name, &tensor);
    weights::write_safetensors(path, std::move(list), metadata);
  });
}

}  // namespace warpweave
