#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "io/text.h"

namespace warpweave {
namespace {

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a file";
}

}  // namespace

Error file_error(const std::filesystem::path& path, std::string_view message) {
  return Error(ErrorCode::input, fmt::format("{}: {}", printable(path.native()), message));
}

Error file_error(const std::filesystem::path& path, std::string_view message, int error_number) {
  return file_error(path, fmt::format("{}: {}", message, std::generic_category().message(error_number)));
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.empty()) throw Error(ErrorCode::input, "an empty file name, expected the path of a file");
  if (path_.native().find('\0') != std::string::npos) throw file_error(path_, "a file name with a NUL byte");
  // O_NONBLOCK: opening a FIFO without a writer must not wait for one.
  descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (descriptor_.get() < 0) throw file_error(path_, "cannot open", errno);
  struct stat status = {};
  if (::fstat(descriptor_.get(), &status) != 0) throw file_error(path_, "cannot examine", errno);
  if (!S_ISREG(status.st_mode))
    throw file_error(path_, fmt::format("is {}, expected a regular file", kind_of(status.st_mode)));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  constexpr std::size_t kAtOnce = std::size_t{1} << 30;  // Linux reads at most 2 GiB in one call
  while (!out.empty()) {
    const ssize_t count =
        ::pread(descriptor_.get(), out.data(), std::min(out.size(), kAtOnce), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw file_error(path_, "cannot read", errno);
    if (count == 0) throw file_error(path_, fmt::format("ends at byte {} while it is being read", offset));
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const InputFile file(path);
  size_ = static_cast<std::size_t>(file.size());
  if (size_ == 0) return;  // the kernel maps no empty file
  void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) throw file_error(path, "cannot map into memory", errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace warpweave
