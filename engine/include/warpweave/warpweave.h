// Warpweave: axial-attention transformers on 4-D grids. This header is the whole interface.
#pragma once

#include "warpweave/engine.h"
#include "warpweave/error.h"
#include "warpweave/io.h"
#include "warpweave/model.h"
#include "warpweave/tensor.h"
#include "warpweave/types.h"

namespace warpweave {
const char* version() noexcept;  // "0.1.0"
}
