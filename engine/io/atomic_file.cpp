#include "io/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <system_error>

namespace warpweave {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".warpweave-tmp";

// ".NAME." with NAME cut so that the whole stays below the 255 bytes of a file name.
std::string temporary_prefix(const fs::path& destination) {
  return fmt::format(".{}.", destination.filename().native().substr(0, 200));
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Removes hidden files of writers that were killed. Best effort: what cannot be locked belongs to a live
// writer (or to a file system without locks) and stays.
// (By readdir: where memory is refused, a std::filesystem::directory_iterator stops the program.)
void remove_stale(const fs::path& folder, const std::string& prefix) {
  struct Close {
    void operator()(DIR* d) const noexcept { ::closedir(d); }
  };
  const std::unique_ptr<DIR, Close> directory(::opendir(folder.c_str()));
  if (!directory) return;
  const int at = ::dirfd(directory.get());
  while (const dirent* const entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name.size() <= prefix.size() + kEnding.size() || !name.starts_with(prefix) ||
        !name.ends_with(kEnding))
      continue;
    if (!is_number(name.substr(prefix.size(), name.size() - prefix.size() - kEnding.size()))) continue;
    const Descriptor file(::openat(at, entry->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(at, entry->d_name, 0);
  }
}

// Locks a file just created. False when remove_stale() of another process got to it before the lock.
bool lock_and_keep(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0)
    if (errno != EINTR) return true;  // no locks here: then nobody removes it either
  struct stat status = {};
  return ::fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& destination) : shown_(destination), destination_(destination) {
  if (destination.empty() || !destination.has_filename())
    throw file_error(shown_, "is not a file name to write to");
  if (destination.native().find('\0') != std::string::npos)
    throw file_error(shown_, "a file name with a NUL byte");
  std::error_code error;
  // The file that a link names is written, whether it is there yet or not; the link stays.
  constexpr int kMostLinks = 40;
  for (int links = 0; fs::is_symlink(destination_, error); ++links) {
    const fs::path target = fs::read_symlink(destination_, error);
    if (error || links == kMostLinks) throw file_error(shown_, "too many symbolic links in a chain");
    destination_ = destination_.parent_path() / target;  // an absolute target replaces the whole
  }

  mode_t mode = 0666;  // less the umask
  struct stat status = {};
  const bool exists = ::stat(destination_.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) throw file_error(shown_, "cannot write", errno);
  if (exists) {
    if (S_ISDIR(status.st_mode)) throw file_error(shown_, "is a directory, expected a file to write");
    if (!S_ISREG(status.st_mode))
      throw file_error(shown_, "is a device or FIFO, expected a regular file to write");
    if (::faccessat(AT_FDCWD, destination_.c_str(), W_OK, AT_EACCESS) != 0)
      throw file_error(shown_, "cannot write", errno);
    mode = status.st_mode & 0777;
  }

  const fs::path folder = destination_.has_parent_path() ? destination_.parent_path() : fs::path(".");
  const std::string prefix = temporary_prefix(destination_);
  remove_stale(folder, prefix);
  // Names are never used twice, so that removing a stale one by name cannot hit a new one.
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint64_t number = std::uint64_t{random()} << 32 | random();
    fs::path name = folder / fmt::format("{}{}{}", prefix, number, kEnding);
    Descriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    if (file.get() < 0) {
      if (errno == EEXIST || errno == EINTR) continue;
      throw file_error(shown_, "cannot create a file beside it", errno);
    }
    if (!lock_and_keep(file.get())) continue;
    temporary_ = std::move(name);
    descriptor_ = std::move(file);
    if (exists) (void)::fchmod(descriptor_.get(), mode);  // as the file that is replaced, whatever the umask
    return;
  }
  throw file_error(shown_, "cannot create a file beside it");
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t size) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 30;  // Linux writes at most 2 GiB in one call
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size > 0) {
    const ssize_t count = ::write(descriptor_.get(), bytes, std::min(size, kAtOnce));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw file_error(shown_, "cannot write", errno);
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

void AtomicFile::commit() {
  // Some file systems have nothing to flush and say EINVAL; an I/O error or a full disk shows up here at
  // last.
  if (::fsync(descriptor_.get()) != 0 && errno != EINVAL) throw file_error(shown_, "cannot write", errno);
  if (::rename(temporary_.c_str(), destination_.c_str()) != 0)
    throw file_error(shown_, "cannot replace", errno);
  temporary_.clear();
  // The rename itself reaches the disk with the folder; the content is safe either way.
  const fs::path folder = destination_.has_parent_path() ? destination_.parent_path() : fs::path(".");
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) (void)::fsync(directory.get());
}

}  // namespace warpweave
