// What the tests of the layer in one kernel run, for those who compile ahead.
#pragma once

#include <functional>

#include "warpweave/warpweave.h"

namespace warpweave::long_test {

void for_whole_layers(const std::function<void(const Model&, const Shape&, Precision)>& body);

}  // namespace warpweave::long_test
