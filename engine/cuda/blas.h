// cuBLASLt, opened at run time: y = act(a w^T + bias) or y + a w^T + bias.
//
// The algorithm is chosen once per product for the token count of a sample, and never
// splits the sum over k, so that a token's bits depend neither on how many tokens are multiplied with it nor
// on where it stands among them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "warpweave/types.h"

namespace warpweave::cuda {

struct ProductSpec {
  std::int64_t n = 0, k = 0;  // n and k elements must be multiples of 16 bytes
  Precision precision = Precision::fp32;
  bool float_result = false;  // y and bias in float32 where operands are 16-bit
  bool relu = false;
  bool residual = false;              // c is added (before the activation: not with relu)
  const void* weight = nullptr;       // device, [n, k]
  const void* bias = nullptr;         // device, [n], of y's type; null: none
  std::int64_t sample_tokens = 4096;  // what the algorithm is chosen for
};

// Where tokens lie: from token to token, and from run to run, in tokens.
struct TokenPitch {
  std::int64_t token = 1, run = 0;
};

// `runs` times `tokens` tokens of a and y. All pointers are aligned to 16 bytes.
struct ProductRun {
  const void* a = nullptr;
  void* y = nullptr;
  std::int64_t tokens = 0, runs = 1;
  TokenPitch a_pitch{}, y_pitch{};
};

class Product {
 public:
  virtual ~Product() = default;
  virtual void enqueue(cudaStream_t stream, const ProductRun& run) const = 0;
};

class Blas {
 public:
  // Null, with the reason in words, when the library is not found. What the library does once, at its first
  // product, is done too; `precision` is that of the products to come. The device is current.
  static std::unique_ptr<const Blas> open(Precision precision, std::string& missing);
  // Whether open() will find a file. Where only the loader can tell, false.
  static bool installed();
  virtual ~Blas() = default;
  // The device of the Blas is current. Throws Error(device) when no algorithm fits.
  virtual std::unique_ptr<const Product> product(const ProductSpec& spec) const = 0;
};

}  // namespace warpweave::cuda
