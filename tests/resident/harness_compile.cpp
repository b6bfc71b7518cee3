// Part of resident_harness: compiles cases by NVRTC into a folder, on all cores.
#include <dlfcn.h>
#include <nvrtc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "harness.h"

namespace warpweave::cuda::resident {
namespace {

class Library {
 public:
  Library() {
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.13",
                             "/usr/local/cuda/lib/libnvrtc.so.13"})
      if (!handle_) handle_ = dlopen(name, RTLD_NOW);
    if (!handle_) throw std::runtime_error("libnvrtc was not found");
  }
  template <class F>
  F* find(const char* name) const {
    return reinterpret_cast<F*>(dlsym(handle_, name));
  }

 private:
  void* handle_ = nullptr;
};
#define NVRTC(call) library.find<decltype(call)>(#call)

struct Compiled {
  bool good = false;
  std::string log, name;
  std::vector<char> cubin;
};

Compiled compile(const Library& library, const Case& c, const std::string& arch) {
  const std::string text = "#include \"" + kernel_file(c.variant) + "\"\n",
                    expression = kernel_expression(c.problem, c.variant);
  nvrtcProgram program;
  NVRTC(nvrtcCreateProgram)
  (&program, text.c_str(), (key(c.problem, c.variant) + ".cu").c_str(), 0, nullptr, nullptr);
  NVRTC(nvrtcAddNameExpression)(program, expression.c_str());
  const char* folder = std::getenv("KERNELS");  // another copy of the sources, to compare with
  const std::string a = "--gpu-architecture=" + arch,
                    include = std::string("-I") + (folder ? folder : WARPWEAVE_KERNELS);
  const char* options[] = {a.c_str(), include.c_str(), "--std=c++20", "--ptxas-options=-v", "-lineinfo"};
  Compiled result;
  result.good = NVRTC(nvrtcCompileProgram)(program, 5, options) == NVRTC_SUCCESS;
  std::size_t size = 0;
  NVRTC(nvrtcGetProgramLogSize)(program, &size);
  result.log.resize(size);
  NVRTC(nvrtcGetProgramLog)(program, result.log.data());
  if (result.good) {
    NVRTC(nvrtcGetCUBINSize)(program, &size);
    result.cubin.resize(size);
    NVRTC(nvrtcGetCUBIN)(program, result.cubin.data());
    const char* lowered = nullptr;
    NVRTC(nvrtcGetLoweredName)(program, expression.c_str(), &lowered);
    result.name = lowered;
  }
  NVRTC(nvrtcDestroyProgram)(&program);
  return result;
}

std::string number_before(const std::string& log, const char* what) {
  const auto at = log.find(what);
  if (at == std::string::npos) return "?";
  const auto from = log.find_last_of(" \n", at - 2);
  return log.substr(from + 1, at - from - 2);
}

}  // namespace

int compile_cases(const std::vector<Case>& cases, const std::string& dir, const std::string& arch,
                  const std::string& filter) {
  const Library library;
  std::vector<Case> list;
  std::set<std::string> seen;
  for (const Case& c : cases)
    if (c.name.find(filter) != std::string::npos && seen.insert(key(c.problem, c.variant)).second)
      list.push_back(c);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  int failed = 0, spilled = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < list.size(); i = next++) {
      const Case& c = list[i];
      const Compiled k = compile(library, c, arch);
      const std::lock_guard lock(mutex);
      if (!k.good) {
        std::printf("FAILED %s\n%s\n", c.name.c_str(), k.log.substr(0, 3000).c_str());
        ++failed;
        continue;
      }
      const std::string file = dir + "/" + key(c.problem, c.variant) + "." + arch;
      std::ofstream(file + ".cubin", std::ios::binary)
          .write(k.cubin.data(), static_cast<std::streamsize>(k.cubin.size()));
      std::ofstream(file + ".name") << k.name;
      const std::string spill = number_before(k.log, "bytes spill stores");
      spilled += spill != "0";
      std::printf("%-28s regs %4s  spill %4s/%4s  smem %6d%s\n", c.name.c_str(),
                  number_before(k.log, "registers").c_str(), spill.c_str(),
                  number_before(k.log, "bytes spill loads").c_str(), c.variant.shared_bytes,
                  k.log.find("C75") != std::string::npos ? "  WARNING C75xx" : "");
      std::fflush(stdout);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
      threads.emplace_back(work);
  }
  std::printf("compiled %zu, failed %d, with spills %d\n", list.size(), failed, spilled);
  return failed != 0;
}

}  // namespace warpweave::cuda::resident
