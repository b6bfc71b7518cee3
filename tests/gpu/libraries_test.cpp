// NVRTC and cuBLASLt that are too old, broken or not NVIDIA's: each is said in words. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "cuda/blas.h"
#include "cuda/compiler.h"
#include "cuda/device.h"
#include "cuda/dynamic_library.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// WARPWEAVE_CUDA_DIR, which is looked into first, and an empty kernel cache.
class LookedFor {
 public:
  explicit LookedFor(const std::string& folder) {
    setenv("WARPWEAVE_CUDA_DIR", folder.c_str(), 1);
    setenv("WARPWEAVE_CACHE_DIR", "/nonexistent", 1);
  }
  ~LookedFor() {
    unsetenv("WARPWEAVE_CUDA_DIR");
    unsetenv("WARPWEAVE_CACHE_DIR");
  }
  LookedFor(const LookedFor&) = delete;
  LookedFor& operator=(const LookedFor&) = delete;
};

const std::string kFakes = WARPWEAVE_FAKES;

TEST(Libraries, AnOldNvrtcDoesNotKnowTheGpu) {
  const LookedFor folder(kFakes + "/old_nvrtc");
  const Compiler compiler;
  EXPECT_EQ(compiler.missing(), "");
  try {
    (void)compiler.compile({"common/convert.cuh", "warpweave::kernels::convert"}, 90);
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("NVRTC 11.8 does not know this GPU"), HasSubstr("sm_90a"),
                                    HasSubstr("a newer CUDA toolkit is needed")));
  }
}

TEST(Libraries, AFunctionThatIsNotThereIsNamed) {
  {
    const LookedFor folder(kFakes + "/empty_nvrtc");
    EXPECT_THAT(Compiler().missing(),
                AllOf(HasSubstr("empty_nvrtc/libnvrtc.so.13 has no function nvrtcVersion"),
                      HasSubstr("a newer one is needed")));
  }
  const LookedFor folder(kFakes + "/empty_blas");
  std::string missing;
  EXPECT_EQ(Blas::open(Precision::fp32, missing), nullptr);
  EXPECT_THAT(missing, HasSubstr("empty_blas/libcublasLt.so.13 has no function cublasLtCreate"));
}

TEST(Libraries, AFileThatIsNoLibraryIsPassedOverOrNamed) {
  char path[] = "/tmp/warpweave-libraries-XXXXXX";
  ASSERT_TRUE(mkdtemp(path));
  const std::string file = std::string(path) + "/libwarpweave_nonesuch.so.1";
  std::ofstream(file) << "not a library";
  const LookedFor folder(path);
  std::string problem;
  const char* const names[] = {"libwarpweave_nonesuch.so.1"};
  EXPECT_EQ(DynamicLibrary::open(names, problem), nullptr);
  EXPECT_THAT(problem, AllOf(HasSubstr(file + " cannot be opened"), HasSubstr("./dev setup"),
                             HasSubstr("WARPWEAVE_CUDA_DIR")));
  unlink(file.c_str());
  EXPECT_EQ(DynamicLibrary::open(names, problem), nullptr);
  EXPECT_THAT(problem, HasSubstr("libwarpweave_nonesuch.so.1 was not found"));
  rmdir(path);
}

TEST(Libraries, GpusBeforeAmpereAreRefusedInWords) {
  EXPECT_THAT(capability_problem(75), AllOf(HasSubstr("compute capability 7.5"), HasSubstr("8.0 or newer")));
  EXPECT_EQ(capability_problem(80), "");
  EXPECT_EQ(capability_problem(120), "");
}

}  // namespace
}  // namespace warpweave::cuda
