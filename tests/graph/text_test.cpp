#include "graph/text.h"

#include <gtest/gtest.h>

#include "graph/helpers.h"

namespace warpweave::graph {
namespace {

constexpr std::string_view keys[] = {"axis", "heads", "head_dim", "qkv_bias", "residual"};

TEST(Nearest, FindsSlipsOfTheFinger) {
  EXPECT_EQ(nearest("haeds", keys), "heads");  // swapped
  EXPECT_EQ(nearest("head", keys), "heads");   // left out
  EXPECT_EQ(nearest("axiss", keys), "axis");   // doubled
  EXPECT_EQ(nearest("resudial", keys), "residual");
}

TEST(Nearest, LooksPastCaseAndSeparators) {
  EXPECT_EQ(nearest("Head-Dim", keys), "head_dim");
  EXPECT_EQ(nearest("qkvBias", keys), "qkv_bias");
}

TEST(Nearest, FindsAPartOfTheName) { EXPECT_EQ(nearest("qkv", keys), "qkv_bias"); }

TEST(Nearest, OffersNothingFarFetched) {
  EXPECT_EQ(nearest("temperature", keys), std::nullopt);
  EXPECT_EQ(nearest("", keys), std::nullopt);
  EXPECT_EQ(nearest(std::string(100'000, 'h'), keys), std::nullopt);
  EXPECT_EQ(hint("temperature", keys), "");
  EXPECT_EQ(hint("haeds", keys), ", did you mean 'heads'?");
}

TEST(Place, NamesWhatItKnows) {
  EXPECT_EQ(error_of([] { Place{"f", 3, "k"}.fail("m"); }), "f:3: k: m");
  EXPECT_EQ(error_of([] { Place{"f", 0, {}}.fail("m"); }), "f: m");
}

}  // namespace
}  // namespace warpweave::graph
