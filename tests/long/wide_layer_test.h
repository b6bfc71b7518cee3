// What the tests of wide layers run, for those who compile ahead.
#pragma once

#include <functional>

#include "warpweave/warpweave.h"

namespace warpweave::long_test {

void for_wide_layers(const std::function<void(const Model&, const Shape&, Precision)>& body);

}  // namespace warpweave::long_test
