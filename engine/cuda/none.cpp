// The GPU room of a build without the CUDA runtime.
#include "cuda/backend.h"
#include "cuda/compile_for.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

std::string unusable(int) { return "this build has no CUDA support"; }

std::unique_ptr<plan::Backend> make_backend(std::shared_ptr<const detail::ModelData>, const EngineOptions&) {
  throw Error(ErrorCode::device, unusable(0));
}

std::vector<Compiled> compile_for(const graph::Graph&, const Shape&, const std::string&,
                                  const EngineOptions&) {
  throw Error(ErrorCode::device, unusable(0));
}

}  // namespace warpweave::cuda
