// A file that appears whole or not at all.
//
// The bytes go to a hidden file beside the destination, which is flushed to the disk and renamed over the
// destination by commit(). Without a commit (an exception) the hidden file is removed and the destination is
// as it was. A process that is killed leaves its hidden file behind; the next write to the same destination
// removes it (the writer holds a lock on it while it lives).
#pragma once

#include <cstddef>
#include <filesystem>

#include "io/file.h"

namespace warpweave {

class AtomicFile {
 public:
  // Throws Error(input) when the destination cannot be written: no such folder, a directory, a device,
  // read-only.
  explicit AtomicFile(const std::filesystem::path& destination);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throws Error(input) naming the destination, for instance when the disk is full.
  void write(const void* data, std::size_t size);
  void commit();

 private:
  std::filesystem::path shown_;        // as the caller gave it, for messages
  std::filesystem::path destination_;  // symbolic links followed
  std::filesystem::path temporary_;    // empty when there is nothing to remove
  Descriptor descriptor_;
};

}  // namespace warpweave
