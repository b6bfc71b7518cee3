// For safetensors_verdicts.py: writes the malformed files of the tests, and tells what the reader makes of
// files.
//
//   safetensors_dump write FOLDER     every malformed file as FOLDER/KIND.safetensors
//   safetensors_dump read FILE...     one JSON line for each: {"error": "..."} or
//                                     {"metadata": {...}, "tensors": {NAME: [DTYPE, SHAPE, HEX]}}
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/malformed_safetensors.h"
#include "warpweave/error.h"
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

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 2 ? argv[1] : "";
  if (command == "write") {
    for (const auto& file : warpweave::testing::malformed_safetensors()) {
      std::ofstream out(std::string(argv[2]) + "/" + file.kind + ".safetensors", std::ios::binary);
      out << file.bytes;
      std::cout << file.kind << '\n';
    }
    return 0;
  }
  if (command == "read") {
    for (int i = 2; i < argc; ++i) std::cout << read(argv[i]).dump() << '\n';
    return 0;
  }
  std::cerr << "usage: safetensors_dump write FOLDER | read FILE...\n";
  return 2;
}
