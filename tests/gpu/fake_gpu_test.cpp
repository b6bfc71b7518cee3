// GPUs that cannot be used, through the public interface. Needs none: the linker sends the two questions that
// the engine asks first (--wrap, CMakeLists.txt) here.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "properties/problem.h"
#include "warpweave/warpweave.h"

namespace {

int fake_gpus = -1;  // -1: ask the runtime
int fake_capability = 0;

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
extern "C" cudaError_t __real_cudaGetDeviceCount(int* count);
extern "C" cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  if (fake_gpus < 0) return __real_cudaGetDeviceCount(count);
  *count = fake_gpus;
  return cudaSuccess;
}

extern "C" cudaError_t __real_cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device);
extern "C" cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (fake_gpus < 0) return __real_cudaDeviceGetAttribute(value, which, device);
  *value = which == cudaDevAttrComputeCapabilityMajor   ? fake_capability / 10
           : which == cudaDevAttrComputeCapabilityMinor ? fake_capability % 10
                                                        : 0;
  return cudaSuccess;
}
// NOLINTEND(bugprone-reserved-identifier)

namespace warpweave::gpu_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FakeGpus : public testing::Test {
 protected:
  FakeGpus() { fake_gpus = 2; }
  ~FakeGpus() override { fake_gpus = -1; }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;

  std::string error(int index) const {
    try {
      (void)Engine(model_, {.device = Device::cuda(index)});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device);
      return error.what();
    }
    return "no error";
  }
  const Model model_ = properties::make_block(16, 2);
};

TEST_F(FakeGpus, BeforeAmpereAreRefused) {
  fake_capability = 75;
  EXPECT_EQ(error(1), "cuda:1: the GPU has compute capability 7.5; 8.0 or newer (Ampere, 2020) is needed");
  const Engine automatic(model_, {});
  EXPECT_EQ(automatic.device(), Device::cpu());
  EXPECT_THAT(automatic.notice(),
              AllOf(HasSubstr("running on the CPU: "), HasSubstr("compute capability 7.5; 8.0 or newer")));
}

TEST_F(FakeGpus, ThatAreNotThereAreNamed) {
  fake_capability = 90;
  EXPECT_EQ(error(2), "cuda:2: there is no cuda:2; this machine has 2 GPUs, from cuda:0 on");
  fake_gpus = 1;
  EXPECT_EQ(error(7), "cuda:7: there is no cuda:7; this machine has 1 GPU, cuda:0");
  fake_gpus = 0;
  EXPECT_EQ(error(0), "cuda:0: no NVIDIA GPU is present, or CUDA_VISIBLE_DEVICES hides it");
}

}  // namespace
}  // namespace warpweave::gpu_test
