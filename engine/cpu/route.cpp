#include "cpu/route.h"

#include <algorithm>

namespace warpweave::cpu {

// Backwards from the end: the last step writes y if it can; a step that works in place reads where it writes,
// so that chains of them need no buffer at all; any other step reads one of our own buffers.
Route make_route(const std::vector<RouteStep>& steps, std::int64_t input_elements, bool convert_input,
                 bool convert_output, bool aliased) {
  const auto own_other_than = [](Place place) { return place == Place::a ? Place::b : Place::a; };
  Route route;
  const std::size_t n = steps.size();
  route.targets.resize(n);
  route.convert_output = convert_output;
  if (n == 0) {  // nothing but conversion
    route.start = Place::x;
    route.convert_output = true;
    return route;
  }

  Place reads = convert_output ? Place::a : Place::y;
  for (std::size_t i = n; i-- > 0;) {
    route.targets[i] = reads;
    if (!steps[i].in_place) reads = own_other_than(reads);
  }
  if (convert_input) {
    // A converted input may go to y only where y does not take part in reading it.
    route.start = reads;
  } else {
    route.start = Place::x;
    if (aliased && !steps[0].in_place && route.targets[0] == Place::y) {
      // y is x and must stay whole while step 0 reads it.
      route.targets[0] = Place::a;
      if (n == 1) route.convert_output = true;
    }
  }

  const auto need = [&](Place place, std::int64_t elements) {
    if (place == Place::a) route.a_elements = std::max(route.a_elements, elements);
    if (place == Place::b) route.b_elements = std::max(route.b_elements, elements);
  };
  need(route.start, input_elements);
  for (std::size_t i = 0; i < n; ++i) need(route.targets[i], steps[i].output_elements);
  return route;
}

}  // namespace warpweave::cpu
