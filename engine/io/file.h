// Files as inputs: opened without ever blocking, regular files only, every failure an Error(input) with the
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "warpweave/error.h"

namespace warpweave {

// "FILE: message" as Error(input).
Error file_error(const std::filesystem::path& path, std::string_view message);
// "FILE: message: No such file or directory" for an errno value.
Error file_error(const std::filesystem::path& path, std::string_view message, int error_number);

// action(), with memory refused somewhere inside as Error(device) "FILE: out of memory".
template <class Path, class Action>
auto with_memory_errors(const Path& path, const Action& action) {
  try {
    return action();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::device, std::string(file_error(path, "out of memory").what()));
  }
}

// Owns a POSIX file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const noexcept { return fd_; }
  int release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

// A regular file open for reading. A directory, FIFO, socket or device is refused, at once.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  const std::filesystem::path& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }  // when it was opened
  int descriptor() const noexcept { return descriptor_.get(); }
  // Fills `out` from the byte `offset` on; a file that has become shorter is an error.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
};

// A regular file mapped for reading. Whoever truncates the file while it is mapped takes the pages away (the
// kernel then stops the process with SIGBUS); removing or replacing the file by a rename is harmless.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace warpweave
