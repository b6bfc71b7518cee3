#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/malformed_safetensors.h"
#include "formats/support.h"
#include "warpweave/io.h"

namespace warpweave::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using weights::SafetensorsFile;

const std::filesystem::path kFixtures =
    std::filesystem::path(WARPWEAVE_SOURCE_DIR) / "tests/formats/fixtures";

std::string hex(const void* data, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(Safetensors, RefusesEveryMalformedKindWithItsReason) {
  const TemporaryFolder folder;
  const auto files = malformed_safetensors();
  std::set<std::string> kinds;
  for (const MalformedFile& file : files) {
    SCOPED_TRACE(file.kind);
    EXPECT_TRUE(kinds.insert(file.kind).second) << "two files of this kind";
    const std::filesystem::path path = folder / (file.kind + ".safetensors");
    write_bytes(path, file.bytes);
    const std::string message = error_of([&] { SafetensorsFile{path}; });
    EXPECT_THAT(message, StartsWith(path.string() + ": "));
    EXPECT_THAT(message.substr(path.string().size()), HasSubstr(file.phrase));
    EXPECT_LT(message.size(), path.string().size() + 500);
    EXPECT_EQ(error_of([&] { load_tensor(path); }), message);
  }
  EXPECT_GE(kinds.size(), 100u);
}

// What the official package says of the same files (safetensors_verdicts.py): it refuses all of them but
// those for which the list says why.
TEST(Safetensors, IsAsStrictAsTheOfficialReader) {
  const auto document = nlohmann::json::parse(read_bytes(kFixtures / "official_verdicts.json"));
  const auto& verdicts = document.at("verdicts");
  const auto files = malformed_safetensors();
  EXPECT_EQ(verdicts.size(), files.size());
  for (const MalformedFile& file : files) {
    SCOPED_TRACE(file.kind);
    ASSERT_TRUE(verdicts.contains(file.kind)) << "run safetensors_verdicts.py";
    EXPECT_EQ(verdicts.at(file.kind) == "accepts", !file.stricter.empty()) << verdicts.at(file.kind);
  }
}

// A valid file cut at every byte, and with every bit of its header flipped: refused, or read within its
// bounds.
TEST(Safetensors, NoCutAndNoFlippedBitOfAHeaderDoesHarm) {
  const std::string whole = read_bytes(kFixtures / "official.safetensors");
  const auto parse = [](const std::string& bytes) {
    return weights::parse_safetensors(std::as_bytes(std::span(bytes)), "f");
  };
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  ASSERT_LT(8 + length, whole.size());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(error_of([&] { parse(whole.substr(0, size)); }), StartsWith("f: "));
  int accepted = 0;
  for (std::size_t bit = 0; bit < 8 * (8 + length); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    try {
      const auto header = parse(bytes);
      for (const auto& entry : header.entries) EXPECT_LE(header.data_begin + entry.end, bytes.size());
      ++accepted;  // a letter of a name, or a dtype of the same size
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith("f: "));
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Safetensors, ReadsAFileOfTheOfficialWriterBitForBit) {
  const SafetensorsFile file(kFixtures / "official.safetensors");
  const auto expected = nlohmann::json::parse(read_bytes(kFixtures / "official.json"));
  EXPECT_EQ(nlohmann::json(file.metadata()), expected.at("metadata"));
  ASSERT_EQ(file.entries().size(), expected.at("tensors").size());
  for (const auto& [name, content] : expected.at("tensors").items()) {
    SCOPED_TRACE(name);
    const weights::SafetensorsEntry* const entry = file.find(name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->dtype, content[0].get<std::string>());
    EXPECT_EQ(nlohmann::json(entry->shape), content[1]);
    const auto bytes = file.bytes(*entry);
    EXPECT_EQ(hex(bytes.data(), bytes.size()), content[2].get<std::string>());
    if (const auto type = weights::engine_type(entry->dtype)) {
      const Tensor tensor = file.read(*entry);
      EXPECT_EQ(tensor.dtype(), *type);
      EXPECT_EQ(tensor.shape(), entry->shape);
      EXPECT_EQ(hex(tensor.data(), tensor.bytes()), content[2].get<std::string>());
    } else {
      EXPECT_THAT(error_of([&] { file.read(*entry); }),
                  HasSubstr("'" + name + "': dtype " + entry->dtype + " cannot"));
    }
  }
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.safetensors";
  const auto entries = [&](const std::string& header, const std::string& data) {
    write_bytes(path, safetensors_bytes(header, data));
    return SafetensorsFile(path).entries().size();
  };
  EXPECT_EQ(entries("{}", ""), 0u);
  EXPECT_EQ(entries("{ }   \n\t ", ""), 0u);  // padding
  EXPECT_EQ(entries(R"({"__metadata__":{"a":"b","":""}})", ""), 0u);
  EXPECT_EQ(entries(R"({"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", "x"), 1u);  // a nameless scalar
  // Fields, names and ranges in any order; empty tensors at every border.
  EXPECT_EQ(entries(R"({"z":{"data_offsets":[2,3],"shape":[1],"dtype":"U8"},"e":{"dtype":"F64","shape":[0,5],
      "data_offsets":[2,2]},"a":{"shape":[2],"data_offsets":[0,2],"dtype":"I8"},"f":{"dtype":"F4","shape":[0],
      "data_offsets":[3,3]},"g":{"dtype":"C64","shape":[0],"data_offsets":[0,0]}})",
                    "xyz"),
            5u);
  // Unaligned data: the header's length need not be a multiple of anything.
  const float value = 1.5f;
  std::string data(4, '\0');
  std::memcpy(data.data(), &value, 4);
  EXPECT_EQ(entries(R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"F32","shape":[1],)"
                    R"("data_offsets":[1,5]}})",
                    "_" + data),
            2u);
  EXPECT_EQ(load_tensor(path).values<float>()[0], value);
}

TEST(Safetensors, ALongNameIsCutInMessages) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.safetensors";
  write_bytes(path, safetensors_bytes("{\"" + std::string(1 << 20, 'x') + "\\n\":1}"));
  const std::string message = error_of([&] { SafetensorsFile{path}; });
  EXPECT_LT(message.size(), 500u);
  EXPECT_THAT(message, HasSubstr("xxx..."));
}

TEST(SaveSafetensors, RoundTripsEveryType) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.safetensors";
  std::map<std::string, Tensor> tensors;
  const Tensor values = Tensor::from({2, 3}, std::vector<float>{0.0f, -1.5f, 2.25f, 1e-3f, -70000.0f, 3.0f});
  for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16})
    tensors[std::string(to_string(type))] = values.to(type);
  for (const DType type : {DType::u8, DType::boolean}) {
    Tensor mask(type, {3});
    std::memcpy(mask.data(), "\1\0\1", 3);
    tensors[std::string(to_string(type))] = mask;
  }
  tensors["scalar \"é\"\n"] = Tensor::from({}, std::vector<float>{7.0f});
  tensors["empty"] = Tensor(DType::f16, {0, 4});
  save_safetensors(path, tensors, {{"format", "pt"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    const auto* const entry = file.find(name);
    ASSERT_NE(entry, nullptr);
    const Tensor read = file.read(*entry);
    EXPECT_EQ(read.dtype(), tensor.dtype());
    EXPECT_EQ(read.shape(), tensor.shape());
    EXPECT_EQ(hex(read.data(), read.bytes()), hex(tensor.data(), tensor.bytes()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.bytes(*entry).data()) % itemsize(tensor.dtype()), 0u);
  }
}

TEST(SaveSafetensors, RefusesWhatTheFormatCannotSay) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.safetensors";
  const Tensor tensor = Tensor::from({1}, std::vector<float>{1});
  EXPECT_THAT(error_of([&] { save_tensor(path, tensor, "__metadata__"); }),
              HasSubstr("f.safetensors: no tensor can be"));
  EXPECT_THAT(error_of([&] { save_tensor(path, tensor, "\xFF"); }), HasSubstr("not UTF-8"));
  EXPECT_THAT(error_of([&] { save_tensor(path, Tensor()); }), HasSubstr("without a shape"));
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(LoadTensor, TakesTheNamedTensorOrTheOnlyOne) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.safetensors";
  const auto value = [](float v) { return Tensor::from({1}, std::vector<float>{v}); };
  save_safetensors(path, {{"a", value(1)}, {"x", value(2)}});
  EXPECT_EQ(load_tensor(path).values<float>()[0], 2);
  EXPECT_EQ(load_tensor(path, "a").values<float>()[0], 1);
  EXPECT_THAT(error_of([&] { load_tensor(path, "b"); }),
              HasSubstr("f.safetensors: has 2 tensors and none is named 'b'"));
  save_safetensors(path, {{"other", value(3)}});
  EXPECT_EQ(load_tensor(path).values<float>()[0], 3);
  save_safetensors(path, {});
  EXPECT_THAT(error_of([&] { load_tensor(path); }), HasSubstr("has 0 tensors"));
}

}  // namespace
}  // namespace warpweave::testing
