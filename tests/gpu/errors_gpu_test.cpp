// What a user meets on a GPU machine where something is missing or used up: a line that helps, and what can
// go on goes on.
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "calls.h"
#include "support.h"

namespace warpweave::gpu_test {
namespace {

using properties::make_block;
using testing::AllOf;
using testing::HasSubstr;

template <class Body>
std::string device_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device) << error.what();
    return error.what();
  }
  return "no error";
}

// An empty kernel cache while it lives.
class EmptyCache {
 public:
  EmptyCache() {
    if (const char* now = std::getenv("WARPWEAVE_CACHE_DIR")) before_ = now;
    char name[] = "/tmp/warpweave-gpu-errors-XXXXXX";
    path_ = mkdtemp(name);
    setenv("WARPWEAVE_CACHE_DIR", path_.c_str(), 1);
  }
  ~EmptyCache() {
    before_.empty() ? unsetenv("WARPWEAVE_CACHE_DIR") : setenv("WARPWEAVE_CACHE_DIR", before_.c_str(), 1);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  EmptyCache(const EmptyCache&) = delete;
  EmptyCache& operator=(const EmptyCache&) = delete;

 private:
  std::string path_, before_;
};

bool right(const Engine& e) {
  const Tensor x = properties::random_grid({1, 6, 10}, e.model().input_channels(), 4);
  const Tensor y = e.run(x), exact = properties::cpu_engine(e.model(), "reference", Precision::fp64).run(x);
  const auto a = y.values<float>(), b = exact.values<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) < 1e-4f)) return false;
  }
  return true;
}

TEST(GpuErrors, WithoutNvrtc) {
  const Model model = make_block(16, 2);
  const EmptyCache cache;
  {
    const HiddenLibrary hidden("libnvrtc");
    EXPECT_THAT(device_error([&] { Engine(model, {.device = Device::cuda(0)}); }),
                AllOf(HasSubstr("cuda:0: "), HasSubstr("libnvrtc.so.13"), HasSubstr("./dev setup"),
                      HasSubstr("is empty")));
    const Engine fallen(model, {});
    EXPECT_EQ(fallen.device(), Device::cpu());
    EXPECT_THAT(fallen.notice(), AllOf(HasSubstr("running on the CPU"), HasSubstr("libnvrtc")));
  }
  (void)engine(model, "auto", Precision::fp32).prepare({1, 6, 10});  // fills the cache
  const HiddenLibrary hidden("libnvrtc");
  EXPECT_TRUE(right(engine(model, "auto", Precision::fp32)));
  // What the cache does not hold is named.
  EXPECT_THAT(device_error([&] {
                (void)engine(model, "auto", Precision::fp16).prepare({1, 6, 10});
              }),
              AllOf(HasSubstr("libnvrtc"), HasSubstr("is not in the kernel cache")));
}

TEST(GpuErrors, WithoutCublasLt) {
  const Model model = make_block(16, 2);
  const HiddenLibrary hidden("libcublasLt");
  const Engine e = engine(model, "auto", Precision::fp32);
  EXPECT_THAT(e.notice(), AllOf(HasSubstr("composed"), HasSubstr("libcublasLt"), HasSubstr("./dev setup")));
  EXPECT_TRUE(right(e));
  EngineOptions strict{.device = Device::cuda(0), .plan = "composed", .strict = true};
  EXPECT_THAT(device_error([&] {
                (void)Engine(model, strict).prepare({1, 6, 10});
              }),
              AllOf(HasSubstr("composed: "), HasSubstr("libcublasLt")));
}

// Its file is there, and nobody knows yet that it cannot be opened: the first plan that needs it finds out.
TEST(GpuErrors, WithABrokenCublasLt) {
  const Model model = properties::make_model(16, {"linear: {out: 24}", "linear: {out: 16}"});
  const HiddenLibrary hidden("libcublasLt", HiddenLibrary::As::broken);
  const Engine e = engine(model, "auto", Precision::fp32);
  EXPECT_EQ(e.notice(), "");
  EXPECT_TRUE(right(e));
  const Session session = e.prepare({1, 6, 10});
  EXPECT_THAT(session.notice(), AllOf(HasSubstr("composed"), HasSubstr("cannot be opened")));
  EXPECT_THAT(session.explain(),
              AllOf(HasSubstr("cuda_reference"), HasSubstr("libcublasLt"), HasSubstr("cannot be opened")));
  const Engine another = engine(model, "auto", Precision::fp32);
  EXPECT_EQ(another.plan({1, 6, 10}).at(0).implementation, "cuda_reference");
  EngineOptions strict{.device = Device::cuda(0), .plan = "composed", .strict = true};
  EXPECT_THAT(device_error([&] {
                (void)Engine(model, strict).prepare({1, 6, 10});
              }),
              AllOf(HasSubstr("composed: "), HasSubstr("libcublasLt")));
}

// A kernel that reads it would end every use of the GPU in this process.
TEST(GpuErrors, MemoryThatTheGpuCannotReach) {
  int reaches = 0;
  REQUIRE_CUDA(cudaDeviceGetAttribute(&reaches, cudaDevAttrPageableMemoryAccess, 0));
  if (reaches) GTEST_SKIP() << "this GPU reaches all memory of the host";
  const Model model = make_block(16, 2);
  const Shape shape{2, 5, 7};
  const Tensor x = properties::random_grid(shape, 16, 1), mask = properties::random_mask(shape, 2);
  Session session = engine(model, "auto", Precision::fp32).prepare(shape);
  const GridShape grid = session.input_shape();
  const DeviceMemory in(x), out(x.bytes()), valid(mask);
  Tensor y(DType::f32, {2, 5, 7, 16});
  const auto error = [&](const void* from, void* to, const void* cells) {
    RunOptions options;
    if (cells) options.mask = {static_cast<const std::uint8_t*>(cells), 2, 5, 7};
    try {
      session.run({from, DType::f32, grid}, {to, DType::f32, grid}, options);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::input);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error(x.data(), out.data(), nullptr), AllOf(HasSubstr("input grid"), HasSubstr("run_host")));
  EXPECT_THAT(error(in.data(), y.data(), nullptr), AllOf(HasSubstr("output grid"), HasSubstr("run_host")));
  EXPECT_THAT(error(in.data(), out.data(), mask.data()), AllOf(HasSubstr("mask"), HasSubstr("run_host")));

  // The session is as it was, and takes page-locked and managed memory.
  void *locked = nullptr, *managed = nullptr;
  REQUIRE_CUDA(cudaMallocHost(&locked, x.bytes()));
  REQUIRE_CUDA(cudaMallocManaged(&managed, x.bytes()));
  std::memcpy(locked, x.data(), x.bytes());
  EXPECT_EQ(error(locked, managed, valid.data()), "");
  REQUIRE_CUDA(cudaDeviceSynchronize());
  RunOptions options;
  options.mask = mask_view(mask);
  session.run_host(view(x), view(y), options);
  EXPECT_EQ(std::memcmp(managed, y.data(), x.bytes()), 0);
  REQUIRE_CUDA(cudaFreeHost(locked));
  REQUIRE_CUDA(cudaFree(managed));
}

TEST(GpuErrors, OutOfMemory) {
  const Model model = make_block(256, 4);
  std::size_t free = 0, total = 0;
  REQUIRE_CUDA(cudaMemGetInfo(&free, &total));
  const Engine before = engine(model, "auto", Precision::fp32);
  {
    const std::size_t left = std::size_t{192} << 20;
    const DeviceMemory hog(free - left);
    EXPECT_THAT(device_error([&] {
                  (void)before.prepare({4, 512, 512});
                }),
                AllOf(HasSubstr("of device memory are needed"), HasSubstr("are free")));
    // The rest goes too, so that even weights find no place.
    std::vector<std::unique_ptr<DeviceMemory>> rest;
    for (std::size_t piece = left; piece >= 4096; piece /= 2) {
      for (;;) {
        try {
          rest.push_back(std::make_unique<DeviceMemory>(piece));
        } catch (const std::runtime_error&) {
          cudaGetLastError();
          break;
        }
      }
    }
    EXPECT_NE(device_error([&] {
                (void)engine(make_block(512, 4), "auto", Precision::fp32).prepare({1, 64, 64});
              }),
              "no error");
  }
  EXPECT_TRUE(right(before));
}

}  // namespace
}  // namespace warpweave::gpu_test
