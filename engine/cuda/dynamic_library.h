// Shared libraries of the CUDA toolkit, opened at run time.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace warpweave::cuda {

// Where toolkit libraries are looked for, in order: WARPWEAVE_CUDA_DIR, the private folder of `./dev setup`,
// CUDA_HOME, CUDA_PATH, /usr/local/cuda; each with lib64, lib and the layout of NVIDIA's Python wheels
// beneath.
std::vector<std::filesystem::path> toolkit_folders();

class DynamicLibrary {
 public:
  // The first of `names` ("libnvrtc.so.13") that can be opened in the toolkit's folders, else by the loader.
  // Null where there is none, with a line in `problem`: what was not found or would not open, and what helps.
  // Once opened a library stays in the process: they are large, and engines come and go.
  static std::unique_ptr<DynamicLibrary> open(std::span<const char* const> names, std::string& problem);
  // The file that open() tries first, without opening it; empty where only the loader can tell.
  static std::filesystem::path find(std::span<const char* const> names);
  DynamicLibrary(const DynamicLibrary&) = delete;
  DynamicLibrary& operator=(const DynamicLibrary&) = delete;

  // Throws Error(device) when the library has no such symbol.
  template <class Function>
  void resolve(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  // Opens a library of the same folder, if it is there, that this one will look for by its name alone.
  void open_beside(const std::string& name) const;
  const std::string& path() const noexcept { return path_; }

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* symbol(const char* name) const;
  void* handle_;
  std::string path_;
};

}  // namespace warpweave::cuda
