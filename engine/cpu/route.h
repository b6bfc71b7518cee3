// Where the grid lies between the steps of a plan: in the caller's x and y, or in at most two buffers of our
// own.
#pragma once

#include <cstdint>
#include <vector>

namespace warpweave::cpu {

enum class Place : std::uint8_t { x, y, a, b };

struct RouteStep {
  bool in_place = false;  // whether the step may write where it reads
  std::int64_t output_elements = 0;
};

struct Route {
  Place start = Place::x;       // where step 0 reads; not x: the input is converted to there first
  std::vector<Place> targets;   // where each step writes; step i + 1 reads there
  bool convert_output = false;  // the last target is not y: converted (or copied) to y at the end
  std::int64_t a_elements = 0, b_elements = 0;  // needed sizes of our own buffers
};

// `convert_input`, `convert_output`: x or y has another element type than the stored grid (or x has to be
// rounded). `aliased`: y is x. The route never writes a buffer that a step still reads, unless in place.
Route make_route(const std::vector<RouteStep>& steps, std::int64_t input_elements, bool convert_input,
                 bool convert_output, bool aliased);

}  // namespace warpweave::cpu
