#include "cuda/kernel_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

namespace warpweave::cuda {
namespace {

// File: this line, the checksum of the rest in hexadecimal and a newline, then four fields, each a 64-bit
// little-endian length and that many bytes.
constexpr std::string_view kMagic = "warpweave kernel 1\n";
constexpr std::size_t kChecksum = 32;

void append_field(std::string& out, std::string_view field) {
  const std::uint64_t size = field.size();
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(size >> (8 * i)));
  out.append(field);
}

bool take_field(std::string_view& in, std::string_view& field) {
  if (in.size() < 8) return false;
  std::uint64_t size = 0;
  for (int i = 0; i < 8; ++i)
    size |= static_cast<std::uint64_t>(static_cast<unsigned char>(in[i])) << (8 * i);
  in.remove_prefix(8);
  if (size > in.size()) return false;
  field = in.substr(0, size);
  in.remove_prefix(size);
  return true;
}

// Writes all of it and flushes to the disk; false on any failure.
bool write_file(const std::filesystem::path& path, std::string_view content) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return false;
  bool good = true;
  while (good && !content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    good = written > 0;
    if (good) content.remove_prefix(static_cast<std::size_t>(written));
  }
  good = fsync(file) == 0 && good;
  return close(file) == 0 && good;
}

}  // namespace

std::string fingerprint(std::string_view text) {
  using u128 = unsigned __int128;
  const u128 prime = (static_cast<u128>(1) << 88) + 0x13b;
  u128 hash = (static_cast<u128>(0x6c62272e07bb0142ull) << 64) + 0x62b821756295c58dull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * prime;
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(hash >> 64),
                static_cast<unsigned long long>(hash));
  return digits;
}

std::filesystem::path KernelCache::default_folder() {
  if (const char* own = std::getenv("WARPWEAVE_CACHE_DIR"); own && *own) return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg)
    return std::filesystem::path(xdg) / "warpweave";
  const char* home = std::getenv("HOME");
  return home && *home ? std::filesystem::path(home) / ".cache" / "warpweave" : std::filesystem::path();
}

std::optional<CompiledKernel> KernelCache::find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream stream(folder_ / (key + ".kernel"), std::ios::binary);
  if (!stream) return std::nullopt;
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  std::string_view rest = content;
  if (rest.size() < kMagic.size() + kChecksum + 1 || rest.substr(0, kMagic.size()) != kMagic)
    return std::nullopt;
  rest.remove_prefix(kMagic.size());
  const std::string_view checksum = rest.substr(0, kChecksum);
  rest.remove_prefix(kChecksum + 1);
  if (fingerprint(rest) != checksum) return std::nullopt;
  std::string_view name, compiler, log, code;
  if (!take_field(rest, name) || !take_field(rest, compiler) || !take_field(rest, log) ||
      !take_field(rest, code)) {
    return std::nullopt;
  }
  return CompiledKernel{
      std::string(name), std::string(compiler), std::string(log), {code.begin(), code.end()}};
}

void KernelCache::store(const std::string& key, const CompiledKernel& kernel) const {
  std::string body;
  append_field(body, kernel.name);
  append_field(body, kernel.compiler);
  append_field(body, kernel.log);
  append_field(body, {kernel.machine_code.data(), kernel.machine_code.size()});
  std::string content(kMagic);
  content += fingerprint(body) + "\n" + body;

  static std::atomic<unsigned> serial{0};  // names the files that this process has under way
  std::error_code error;
  bool good = !folder_.empty();
  if (good) {
    std::filesystem::create_directories(folder_, error);
    const auto aside =
        folder_ / (key + "." + std::to_string(getpid()) + "." + std::to_string(serial++) + ".part");
    good = write_file(aside, content);
    if (good) {
      std::filesystem::rename(aside, folder_ / (key + ".kernel"), error);
      good = !error;
    }
    if (!good) std::filesystem::remove(aside, error);
  }
  if (!good && !told_.exchange(true)) {
    const std::string where =
        folder_.empty() ? "no home folder is known" : folder_.string() + " cannot be written";
    std::fprintf(
        stderr,
        "warpweave: note: compiled kernels are not kept: %s; set WARPWEAVE_CACHE_DIR to a folder that can\n",
        where.c_str());
  }
}

bool KernelCache::empty() const {
  if (folder_.empty()) return true;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    if (entry.path().extension() == ".kernel") return false;
  }
  return true;
}

}  // namespace warpweave::cuda
