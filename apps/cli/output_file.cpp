#include "cli/output_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "io/atomic_file.h"

namespace warpweave::cli {

void check_output(const std::filesystem::path& path, const std::vector<std::string_view>& endings) {
  const std::string ending = path.extension().string();
  if (!endings.empty() && std::find(endings.begin(), endings.end(), ending) == endings.end()) {
    throw file_error(path, fmt::format("unknown kind of output '{}'; the name must end in {}", ending,
                                       fmt::join(endings, " or ")));
  }
  const AtomicFile probe(path);  // never committed
}

void write_whole(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace warpweave::cli
