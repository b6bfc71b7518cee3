// The GPU in a build that has none.
#include "cuda/backend.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

std::string unusable(int) { return "this build has no CUDA support"; }

std::unique_ptr<plan::Backend> make_backend(std::shared_ptr<const detail::ModelData>, const EngineOptions&) {
  throw Error(ErrorCode::device, unusable(0));
}

}  // namespace warpweave::cuda
