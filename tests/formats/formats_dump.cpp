// What the readers and writers make of files, for safetensors_verdicts.py and to seed the fuzzers.
//
//   formats_dump write FOLDER     every malformed file of the tests: FOLDER/KIND.safetensors, FOLDER/KIND.npy
//   formats_dump read FILE...     one JSON line for each safetensors file: {"error": "..."} or
//                                 {"metadata": {...}, "tensors": {NAME: [DTYPE, SHAPE, HEX]}}
//   formats_dump copy FROM TO     reads a .npy or .safetensors file and writes it again (of a safetensors
//   file the
//                                 tensors that the engine can hold)
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/malformed_npy.h"
#include "formats/malformed_safetensors.h"
#include "warpweave/error.h"
#include "warpweave/io.h"
#include "weights/safetensors.h"

namespace {

using warpweave::weights::SafetensorsFile;

std::string hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

nlohmann::json read(const char* path) {
  try {
    const SafetensorsFile file(path);
    nlohmann::json result{{"metadata", file.metadata()}, {"tensors", nlohmann::json::object()}};
    for (const auto& entry : file.entries()) {
      std::string content = hex(file.bytes(entry));
      if (warpweave::weights::engine_type(entry.dtype)) {  // then by way of a tensor of the engine
        const warpweave::Tensor tensor = file.read(entry);
        content = hex({static_cast<const std::byte*>(tensor.data()), tensor.bytes()});
      }
      result["tensors"][entry.name] = nlohmann::json::array({entry.dtype, entry.shape, content});
    }
    return result;
  } catch (const warpweave::Error& error) {
    return {{"error", error.what()}};
  }
}

void write(const std::string& folder) {
  const auto save = [&](const auto& files, const char* ending) {
    for (const auto& file : files) {
      std::ofstream(folder + "/" + file.kind + ending, std::ios::binary) << file.bytes;
      std::cout << file.kind << ending << '\n';
    }
  };
  save(warpweave::testing::malformed_safetensors(), ".safetensors");
  save(warpweave::testing::malformed_npy(), ".npy");
}

void copy(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (from.extension() == ".npy") return warpweave::save_tensor(to, warpweave::load_tensor(from));
  const SafetensorsFile file(from);
  std::map<std::string, warpweave::Tensor> tensors;
  for (const auto& entry : file.entries())
    if (warpweave::weights::engine_type(entry.dtype)) tensors[entry.name] = file.read(entry);
  warpweave::save_safetensors(to, tensors, file.metadata());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 2 ? argv[1] : "";
  try {
    if (command == "write" && argc == 3) return write(argv[2]), 0;
    if (command == "copy" && argc == 4) return copy(argv[2], argv[3]), 0;
    if (command == "read") {
      for (int i = 2; i < argc; ++i) std::cout << read(argv[i]).dump() << '\n';
      return 0;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  std::cerr << "usage: formats_dump write FOLDER | read FILE... | copy FROM TO\n";
  return 2;
}
