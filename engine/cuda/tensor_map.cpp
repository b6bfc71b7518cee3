#include "cuda/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "cuda/kernel.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

using Encode = decltype(cuTensorMapEncodeTiled)*;

// Through the runtime, so that nothing links to the driver's library.
Encode find_encode() {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  check(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result),
      "looking for cuTensorMapEncodeTiled");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &result),
        "looking for cuTensorMapEncodeTiled");
#endif
  if (result != cudaDriverEntryPointSuccess || !address)
    throw Error(ErrorCode::device, "the driver has no cuTensorMapEncodeTiled; a newer driver is needed");
  return reinterpret_cast<Encode>(address);
}

Encode encode() {
  static const Encode found = find_encode();
  return found;
}

}  // namespace

void prepare_tensor_maps() { (void)encode(); }

void encode_tensor_map(void* map, const TensorMapShape& shape) {
  cuuint64_t extent[4], stride[3];
  std::copy(shape.extent.begin(), shape.extent.end(), extent);
  std::copy(shape.stride.begin(), shape.stride.end(), stride);
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = shape.swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : shape.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : shape.swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                           : CU_TENSOR_MAP_SWIZZLE_NONE;
  // Nothing but bits is moved, so the type only has to have the size; the float types may flush NaN on
  // request.
  const CUresult status = encode()(static_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_UINT16, 4,
                                   const_cast<void*>(shape.address), extent, stride, shape.box.data(), steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorCode::device,
                "cuTensorMapEncodeTiled: status " + std::to_string(static_cast<int>(status)));
  }
}

}  // namespace warpweave::cuda
