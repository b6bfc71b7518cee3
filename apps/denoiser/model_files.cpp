#include "denoiser/model_files.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "warpweave/error.h"

namespace warpweave::denoiser {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> data_folders() {
  std::vector<fs::path> folders;
  if (const char* named = std::getenv("WARPWEAVE_DATA_DIR"); named && *named) folders.emplace_back(named);
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(executable.parent_path().parent_path() / "share" / "warpweave");
  folders.emplace_back(WARPWEAVE_SOURCE_DATA_DIR);
  return folders;
}

}  // namespace

ModelFiles find_model_files() {
  std::string looked;
  for (const fs::path& folder : data_folders()) {
    const ModelFiles files = {folder / "configs" / "denoiser.yaml",
                              folder / "weights" / "denoiser.safetensors"};
    std::error_code error;
    if (fs::exists(files.config, error) && fs::exists(files.weights, error)) return files;
    looked += fmt::format("{}{}", looked.empty() ? "" : ", ", folder.string());
  }
  throw Error(ErrorCode::input,
              fmt::format("configs/denoiser.yaml and weights/denoiser.safetensors: in none of {}; "
                          "set WARPWEAVE_DATA_DIR, or give --config and --weights",
                          looked));
}

}  // namespace warpweave::denoiser
