#include "bench/suites.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace warpweave::bench {
namespace {

const std::vector<BlockCase>& cpu_suite() {
  static const std::vector<BlockCase> cases = {
      {"seed", 4, 32, 32, 64, 4},  {"image", 1, 64, 64, 128, 4},  {"pair", 1, 192, 192, 128, 4},
      {"msa", 1, 64, 256, 256, 8}, {"audio", 1, 400, 60, 256, 8}, {"one-row", 1, 1, 2048, 64, 4},
  };
  return cases;
}

const std::vector<BlockCase>& gpu_suite() {
  static const std::vector<BlockCase> cases = {
      {"seed", 4, 32, 32, 64, 4},       {"seed_b256", 256, 32, 32, 64, 4},
      {"image64", 8, 64, 64, 256, 8},   {"pair256", 1, 256, 256, 128, 4},
      {"pair512", 1, 512, 512, 128, 4}, {"pair1024", 1, 1024, 1024, 128, 4},
      {"msa", 1, 256, 384, 256, 8},     {"msa768", 1, 128, 512, 768, 12},
      {"audio", 1, 800, 60, 384, 8},    {"video", 2, 16, 1568, 768, 12},
  };
  return cases;
}

// A file of this text for as long as the object lives: models are loaded from files.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() / "warpweave-bench-XXXXXX").string()) {
    const int descriptor = ::mkstemp(path_.data());
    const auto size = static_cast<ssize_t>(text.size());
    const bool written = descriptor >= 0 && ::write(descriptor, text.data(), text.size()) == size;
    const int error = errno;
    if (descriptor >= 0) ::close(descriptor);
    if (written) return;
    if (descriptor >= 0) ::unlink(path_.c_str());
    throw Error(ErrorCode::input, fmt::format("{}: cannot be written: {}", path_, std::strerror(error)));
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace

const std::vector<BlockCase>& suite(const std::string& name) {
  if (name == "cpu") return cpu_suite();
  if (name == "gpu") return gpu_suite();
  throw Error(ErrorCode::input, fmt::format("--suite: '{}' is not cpu or gpu", name));
}

Model block_model(const BlockCase& block) {
  const TemporaryFile config(
      fmt::format("name: {}\n"
                  "input: {{dim: {}}}\n"
                  "layers:\n"
                  "  - axial_attention: {{axis: row, heads: {}}}\n"
                  "  - axial_attention: {{axis: column, heads: {}}}\n",
                  block.name, block.dim, block.heads, block.heads));
  return Model::random(config.path());
}

}  // namespace warpweave::bench
