// The graph timer of a build without CUDA, where no engine runs on a GPU.
#include "bench/timer.h"

namespace warpweave::bench {
namespace {

[[noreturn]] void refuse() { throw Error(ErrorCode::device, "this build has no CUDA support"); }

}  // namespace

std::unique_ptr<Timer> graph_timer(Session&, Device, const Tensor&, double) { refuse(); }
void run_on_device(Session&, Device, const Tensor&) { refuse(); }
std::string gpu_name(int) { refuse(); }

}  // namespace warpweave::bench
