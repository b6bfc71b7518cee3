// A libnvrtc of CUDA 11.8 that knows no GPU it is asked for.
#include <cstddef>
#include <cstring>

namespace {
constexpr char kLog[] = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
}

extern "C" {
int nvrtcVersion(int* major, int* minor) {
  *major = 11;
  *minor = 8;
  return 0;
}
const char* nvrtcGetErrorString(int) { return "fake"; }
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  static int token;
  *program = &token;
  return 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcAddNameExpression(void*, const char*) { return 0; }
int nvrtcCompileProgram(void*, int, const char* const*) { return 5; }  // invalid option
int nvrtcGetLoweredName(void*, const char*, const char**) { return 1; }
int nvrtcGetProgramLogSize(void*, std::size_t* size) {
  *size = sizeof kLog;
  return 0;
}
int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, kLog, sizeof kLog);
  return 0;
}
int nvrtcGetCUBINSize(void*, std::size_t*) { return 1; }
int nvrtcGetCUBIN(void*, char*) { return 1; }
}
