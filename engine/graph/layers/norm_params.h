// The keys `norm` (or `kind`) and `eps`, which several layer types share.
#pragma once

#include <string>
#include <string_view>

#include "graph/layer.h"
#include "graph/params.h"

namespace warpweave::graph {

// eps in float32 arithmetic: above 0, so that a constant cell is not 0/0, and not lost to underflow.
Norm read_norm(const Params& params, std::string_view key, bool may_be_none);

// "", ", rms norm", ", no norm", ", eps 1e-06": what differs from the default.
std::string describe_norm(const Norm& norm);

}  // namespace warpweave::graph
