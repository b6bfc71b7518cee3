#include "io/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "formats/malformed_npy.h"
#include "formats/support.h"
#include "warpweave/io.h"

namespace warpweave::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Npy, RefusesEveryMalformedKindWithItsReason) {
  const TemporaryFolder folder;
  std::set<std::string> kinds;
  for (const MalformedFile& file : malformed_npy()) {
    SCOPED_TRACE(file.kind);
    EXPECT_TRUE(kinds.insert(file.kind).second) << "two files of this kind";
    const std::filesystem::path path = folder / (file.kind + ".npy");
    write_bytes(path, file.bytes);
    const std::string message = error_of([&] { load_tensor(path); });
    EXPECT_THAT(message, StartsWith(path.string() + ": "));
    EXPECT_THAT(message.substr(path.string().size()), HasSubstr(file.phrase));
    EXPECT_LT(message.size(), path.string().size() + 400);
  }
  EXPECT_GE(kinds.size(), 60u);
}

TEST(Npy, ReadsAllVersionsAndSpellings) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.npy";
  const float values[] = {1.0f, -2.5f, 3e-9f};
  const std::string data(reinterpret_cast<const char*>(values), sizeof values);
  const auto check = [&](const std::string& header, int version, const std::vector<std::int64_t>& shape) {
    SCOPED_TRACE(header);
    write_bytes(path, npy_bytes(header, data, version));
    const Tensor tensor = load_tensor(path);
    EXPECT_EQ(tensor.dtype(), DType::f32);
    EXPECT_EQ(tensor.shape(), shape);
    EXPECT_EQ(std::memcmp(tensor.data(), values, sizeof values), 0);
  };
  for (const int version : {1, 2, 3})
    check("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }   \n", version, {3});
  check("{\"shape\":(1,3,1),'fortran_order' : False,\t'descr':\"<f4\"}", 1, {1, 3, 1});
  check("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 1,)}\n", 1, {3, 1});
  check(" {'descr': '<f4', 'fortran_order': False, 'shape': ( 3 , ) , } \n\n", 1, {3});
}

TEST(Npy, RoundTripsTypesScalarsAndEmptyArrays) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.npy";
  std::vector<Tensor> tensors;
  const Tensor values = Tensor::from({2, 1, 2}, std::vector<float>{0.1f, -2, 65504, 1e-8f});
  for (const DType type : {DType::f64, DType::f32, DType::f16}) tensors.push_back(values.to(type));
  for (const DType type : {DType::u8, DType::boolean}) {
    Tensor mask(type, {3});
    std::memcpy(mask.data(), "\1\0\1", 3);
    tensors.push_back(mask);
  }
  tensors.push_back(Tensor::from({}, std::vector<float>{4}));
  tensors.push_back(Tensor(DType::f64, {3, 0, 2}));
  for (const Tensor& tensor : tensors) {
    SCOPED_TRACE(std::string(to_string(tensor.dtype())));
    save_tensor(path, tensor);
    const Tensor read = load_tensor(path);
    EXPECT_EQ(read.dtype(), tensor.dtype());
    EXPECT_EQ(read.shape(), tensor.shape());
    ASSERT_EQ(read.bytes(), tensor.bytes());
    EXPECT_EQ(std::memcmp(read.data(), tensor.data(), tensor.bytes()), 0);
    EXPECT_EQ((read_bytes(path).size() - tensor.bytes()) % 64, 0u);  // the data is aligned
  }
}

// Byte for byte what numpy.save(f, numpy.array([[1, 2]], numpy.float32)) writes (NumPy 2.4).
TEST(Npy, WritesTheHeaderOfNumPy) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "f.npy";
  save_tensor(path, Tensor::from({1, 2}, std::vector<float>{1, 2}));
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
  header.resize(128 - 10 - 1, ' ');
  const float values[] = {1, 2};
  EXPECT_EQ(read_bytes(path),
            npy_bytes(header + "\n", std::string(reinterpret_cast<const char*>(values), 8)));
}

TEST(Npy, CannotHoldBfloat16) {
  const TemporaryFolder folder;
  const Tensor tensor(DType::bf16, {2});
  EXPECT_THAT(error_of([&] { save_tensor(folder / "f.npy", tensor); }),
              HasSubstr("f.npy: NumPy has no type bfloat16"));
  EXPECT_THAT(error_of([&] { save_tensor(folder / "f.npy", Tensor()); }), HasSubstr("without a shape"));
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Io, UnknownEndingsAreRefused) {
  for (const char* name : {"x.txt", "x", "x.NPY", "x.npy.gz", ""}) {
    SCOPED_TRACE(name);
    EXPECT_THAT(error_of([&] { load_tensor(name); }),
                HasSubstr("expected a name that ends in .npy or .safetensors"));
    EXPECT_THAT(error_of([&] { save_tensor(name, Tensor(DType::f32, {1})); }),
                HasSubstr("expected a name that ends"));
  }
}

}  // namespace
}  // namespace warpweave::testing
