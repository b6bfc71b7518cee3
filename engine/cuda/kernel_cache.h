// Compiled kernels on disk, in WARPWEAVE_CACHE_DIR (default $XDG_CACHE_HOME/warpweave or ~/.cache/warpweave).
//
// One file per kernel, named by the hash of what it was compiled from. A file is written beside its place,
// flushed and renamed, so that neither a crash nor another process at the same work leaves half of one; it
// carries a checksum, and one that does not match is compiled again. A folder that cannot be written is
// reported once, and the work goes on without.
#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave::cuda {

struct CompiledKernel {
  std::string name;                // of the entry in the machine code (mangled)
  std::string compiler;            // "13.0"
  std::string log;                 // registers, spills, shared memory as ptxas reports them
  std::vector<char> machine_code;  // a cubin
};

// 128-bit FNV-1a (Fowler, Noll, Vo) in hexadecimal.
std::string fingerprint(std::string_view text);

class KernelCache {
 public:
  explicit KernelCache(std::filesystem::path folder) : folder_(std::move(folder)) {}
  static std::filesystem::path default_folder();  // empty when there is no home either

  // The entry, or nothing when it is absent or damaged.
  std::optional<CompiledKernel> find(const std::string& key) const;
  void store(const std::string& key, const CompiledKernel& kernel) const;
  bool empty() const;
  const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path folder_;
  mutable std::atomic<bool> told_{false};  // that the folder cannot be written
};

}  // namespace warpweave::cuda
