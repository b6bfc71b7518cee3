// Output files: refused early, and there whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace warpweave::cli {

// Throws Error(input) unless a file could be written here now (the folder exists and takes files, a file that
// is there is regular and writable) and the name ends in one of `endings`, if any. Leaves nothing behind.
// Called before work whose result would be lost.
void check_output(const std::filesystem::path& path, const std::vector<std::string_view>& endings = {});

// Writes beside the destination, then renames.
void write_whole(const std::filesystem::path& path, std::span<const std::uint8_t> bytes);

}  // namespace warpweave::cli
