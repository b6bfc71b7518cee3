// A libcuda.so.1 that says it is of the version in WARPWEAVE_TEST_DRIVER (12020 for CUDA 12.2) and that there
// is no GPU: what a machine with an old driver, or with a driver and no GPU, looks like to the CUDA runtime.
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNoDevice = 100, kNotSupported = 801;

int refuse() { return kNotSupported; }

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  const char* wanted = std::getenv("WARPWEAVE_TEST_DRIVER");
  *version = wanted ? std::atoi(wanted) : 0;
  return 0;
}

int cuInit(unsigned) { return kNoDevice; }

int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotSupported;
}

int cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* status) {
  if (status) *status = 0;
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  *function = reinterpret_cast<void*>(&refuse);
  if (is("cuDriverGetVersion")) *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  if (is("cuInit")) *function = reinterpret_cast<void*>(&cuInit);
  if (is("cuGetExportTable")) *function = reinterpret_cast<void*>(&cuGetExportTable);
  if (is("cuGetProcAddress")) *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  return 0;
}

int cuGetProcAddress(const char* name, void** function, int version, std::uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
}
