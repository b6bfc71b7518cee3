// What the parts of resident_harness share: cases, 16-bit numbers, random layers, launching a cubin.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/resident/choose.h"
#include "cuda/resident/problem.h"
#include "resident/arguments.h"

namespace warpweave::cuda::resident {

inline void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(e));
}
#define CHECK(call) ::warpweave::cuda::resident::check(call, #call)

struct Case {
  std::string name;
  Problem problem;
  Variant variant;
};

struct Shape {
  std::string name;
  int B, H, W;
  std::vector<std::string> cases;
};

// cases.cpp
std::vector<Case> all_cases();
std::vector<Shape> shapes();  // of the table of docs/resident.md
// Every kernel shape that choose() gives, in the widest layer that gets it, with and without all options.
std::vector<Case> widest_cases(int compute_capability);

// harness_compile.cpp, harness_check.cpp
int compile_cases(const std::vector<Case>& cases, const std::string& dir, const std::string& arch,
                  const std::string& filter);
int check_cases(const std::string& dir, int problems, const std::string& filter);

// harness_device.cpp
float widen(Element e, std::uint16_t v);
double round_to(Element e, double v);  // to nearest even
std::uint16_t narrow(Element e, double v);

struct LayerWeights {
  std::vector<float> nw, nb, qw, qb, ow, ob;
  Tensors tensors() const;
};
LayerWeights random_weights(const Problem& p, std::mt19937& r);

std::string key(const Problem& p, const Variant& v);  // a file name for a specialisation
cudaKernel_t load(const std::string& dir, const Case& c);
ResidentArguments arguments(const Problem& p, int B, int H, int W, bool row);
void launch(cudaKernel_t kernel, const Variant& v, ResidentArguments a, cudaStream_t stream, int sms,
            bool chained);

template <class T>
T* upload(const std::vector<T>& v) {
  void* p;
  CHECK(cudaMalloc(&p, std::max<std::size_t>(v.size() * sizeof(T), 16)));
  CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  CHECK(cudaDeviceSynchronize());  // a copy from pageable memory may return before it is done
  return static_cast<T*>(p);
}

}  // namespace warpweave::cuda::resident
