// A debug build tells when two threads use one session. (This program compiles engine.cpp with its checks,
// also where the library is built without.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "formats/support.h"
#include "properties/problem.h"

#ifdef NDEBUG
#error "this test is about debug builds"
#endif

namespace warpweave::reliability {
namespace {

using ::testing::HasSubstr;
using namespace properties;  // NOLINT: random models and grids

TEST(DebugBuild, TwoThreadsInOneSessionAreAnInternalError) {
  const Engine engine = cpu_engine(make_block(), "auto");
  const Shape shape{1, 4, 5};
  const Tensor x = random_grid(shape, 16, 1);
  const Tensor expected = run(engine, x);
  Session session = engine.prepare(shape);
  Tensor y = x, other = x;
  std::string message;
  // The first thread is inside its run when the second comes.
  session.run(view(x), view(y), {.progress = [&](int, int) {
                std::thread([&] {
                  message =
                      testing::error_of([&] { session.run(view(x), view(other)); }, ErrorCode::internal);
                }).join();
              }});
  EXPECT_THAT(message, HasSubstr("two threads use one session"));
  EXPECT_TRUE(same_bits(y, expected)) << "the run of the first is not disturbed";
  EXPECT_TRUE(same_bits(other, x)) << "the second writes nothing";
  session.run(view(x), view(other));  // one after the other is right, from any thread
  EXPECT_TRUE(same_bits(other, expected));
}

TEST(DebugBuild, ARunThatFailedLeavesTheSessionFree) {
  const Engine engine = cpu_engine(make_block(), "auto");
  Session session = engine.prepare({1, 4, 5});
  const Tensor x = random_grid({1, 4, 5}, 16, 1), wrong = random_grid({1, 5, 4}, 16, 1);
  Tensor y = x;
  testing::error_of([&] { session.run(view(wrong), view(y)); });
  EXPECT_THROW(
      session.run(view(x), view(y), {.progress = [](int, int) { throw std::runtime_error("enough"); }}),
      std::runtime_error);
  session.run(view(x), view(y));
  EXPECT_TRUE(same_bits(y, run(engine, x)));
}

}  // namespace
}  // namespace warpweave::reliability
