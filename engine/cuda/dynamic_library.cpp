#include "cuda/dynamic_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "cuda/verbose.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;

void append_variable(std::vector<std::filesystem::path>& list, const char* variable) {
  const char* value = std::getenv(variable);
  if (value && *value) list.emplace_back(value);
}

// The folder `./dev setup` fills: beside the kernel cache's home, so that one rule finds both.
std::filesystem::path private_folder() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data && *data) {
    return std::filesystem::path(data) / "warpweave" / "cuda";
  }
  const char* home = std::getenv("HOME");
  return home && *home ? std::filesystem::path(home) / ".local/share/warpweave/cuda"
                       : std::filesystem::path();
}

void* open_library(const std::filesystem::path& path) {
  const Phase phase("");
  void* handle = dlopen(path.c_str(), kFlags);
  if (handle && verbose())
    std::fprintf(stderr, "warpweave: opened %s in %.1f ms\n", path.c_str(), phase.milliseconds());
  return handle;
}

}  // namespace

std::vector<std::filesystem::path> toolkit_folders() {
  std::vector<std::filesystem::path> roots;
  append_variable(roots, "WARPWEAVE_CUDA_DIR");
  if (auto folder = private_folder(); !folder.empty()) roots.push_back(std::move(folder));
  append_variable(roots, "CUDA_HOME");
  append_variable(roots, "CUDA_PATH");
  roots.emplace_back("/usr/local/cuda");

  std::vector<std::filesystem::path> folders;
  for (const auto& root : roots) {
    for (const char* below :
         {"lib64", "lib", "", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cublas/lib"}) {
      std::error_code ignored;
      const auto folder = root / below;
      if (std::filesystem::is_directory(folder, ignored)) folders.push_back(folder);
    }
  }
  return folders;
}

std::unique_ptr<DynamicLibrary> DynamicLibrary::open(std::span<const char* const> names,
                                                     std::string& problem) {
  std::string broken;  // the first file that is there and cannot be opened
  for (const auto& folder : toolkit_folders()) {
    for (const char* name : names) {
      const auto path = folder / name;
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) continue;
      if (void* handle = open_library(path)) {
        return std::unique_ptr<DynamicLibrary>(new DynamicLibrary(handle, path));
      }
      const char* reason = dlerror();
      if (broken.empty())
        broken = path.string() + " cannot be opened" + (reason ? std::string(": ") + reason : "");
    }
  }
  for (const char* name : names) {
    if (void* handle = open_library(name)) {
      return std::unique_ptr<DynamicLibrary>(new DynamicLibrary(handle, name));
    }
  }
  problem =
      (broken.empty() ? std::string(names.front()) + " was not found" : broken) +
      "; install the CUDA toolkit or run ./dev setup, or set WARPWEAVE_CUDA_DIR to a folder that holds it";
  return nullptr;
}

std::filesystem::path DynamicLibrary::find(std::span<const char* const> names) {
  for (const auto& folder : toolkit_folders()) {
    for (const char* name : names) {
      auto path = folder / name;
      if (access(path.c_str(), R_OK) == 0) return path;
    }
  }
  return {};
}

void DynamicLibrary::open_beside(const std::string& name) const {
  const auto beside = std::filesystem::path(path_).parent_path() / name;
  std::error_code ignored;
  if (beside.is_absolute() && std::filesystem::exists(beside, ignored)) (void)dlopen(beside.c_str(), kFlags);
}

void* DynamicLibrary::symbol(const char* name) const {
  void* address = dlsym(handle_, name);
  if (!address)
    throw Error(ErrorCode::device, path_ + " has no function " + name + "; a newer one is needed");
  return address;
}

}  // namespace warpweave::cuda
