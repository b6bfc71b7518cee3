#include "cpu/route.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace warpweave::cpu {
namespace {

// Follows a route on symbolic memory: a place holds the number of the step whose output it is (0: the input,
// -1: nothing of use).
void follow(const std::vector<RouteStep>& steps, std::int64_t input, bool in, bool out, bool aliased) {
  const Route route = make_route(steps, input, in, out, aliased);
  std::map<Place, int> holds{{Place::x, 0}, {Place::y, -1}, {Place::a, -1}, {Place::b, -1}};
  const auto write = [&](Place place, int value) {
    ASSERT_NE(place, Place::x) << "the caller's input is written";
    holds[place] = value;
    if (place == Place::y && aliased) holds[Place::x] = value;
  };
  const auto capacity = [&](Place place) {
    return place == Place::a   ? route.a_elements
           : place == Place::b ? route.b_elements
                               : steps.back().output_elements;
  };
  if (aliased) holds[Place::y] = 0;
  Place at = Place::x;
  if (in) {
    ASSERT_NE(route.start, Place::x);
    ASSERT_GE(capacity(route.start), input);
    ASSERT_FALSE(route.start == Place::y && out) << "y has another element type";
    write(route.start, 0);
    at = route.start;
  } else {
    ASSERT_EQ(route.start, Place::x);
  }
  ASSERT_EQ(route.targets.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Place to = route.targets[i];
    ASSERT_EQ(holds[at], static_cast<int>(i)) << "step " << i << " reads something else";
    const bool same = to == at || (aliased && at == Place::x && to == Place::y);
    ASSERT_TRUE(!same || steps[i].in_place) << "step " << i << " overwrites what it reads";
    ASSERT_FALSE(to == Place::y && out);
    ASSERT_GE(capacity(to), steps[i].output_elements);
    write(to, static_cast<int>(i) + 1);
    at = to;
  }
  ASSERT_EQ(holds[at], static_cast<int>(steps.size()));
  ASSERT_EQ(route.convert_output, at != Place::y);
  ASSERT_FALSE(out && at == Place::y);
}

TEST(Route, RandomModelsNeverOverwriteWhatIsStillRead) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    std::vector<RouteStep> steps(1 + random() % 6);
    const std::int64_t input = 10;
    std::int64_t elements = input;
    for (RouteStep& step : steps) {
      step.in_place = random() % 2;
      if (!step.in_place) elements = 1 + random() % 20;
      step.output_elements = elements;
    }
    const bool in = random() % 2, out = random() % 2;
    const bool aliased = steps.back().output_elements == input && random() % 2;
    follow(steps, input, in, out, aliased);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST(Route, AChainInPlaceNeedsNoBuffer) {
  for (const bool aliased : {false, true}) {
    const Route route = make_route({{true, 8}, {true, 8}, {true, 8}}, 8, false, false, aliased);
    EXPECT_EQ(route.a_elements + route.b_elements, 0);
    EXPECT_EQ(route.targets, std::vector<Place>(3, Place::y));
    EXPECT_FALSE(route.convert_output);
  }
}

}  // namespace
}  // namespace warpweave::cpu
