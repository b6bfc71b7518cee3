#include "plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "graph/layers/norm.h"
#include "warpweave/error.h"
#include "weights/load.h"

namespace warpweave::plan {
namespace {

using testing::HasSubstr;

// Claims what the table says: layer index (told by its dim) -> claim.
class Fake final : public Implementation {
 public:
  Fake(std::string name, std::map<int, Claim> claims) : name_(std::move(name)), claims_(std::move(claims)) {}
  std::string_view name() const noexcept override { return name_; }
  Claim claim(std::span<const LayerProblem> rest, const Conditions&) const override {
    const auto it = claims_.find(static_cast<int>(rest[0].layer->input_channels()));
    return it == claims_.end() ? Claim::decline(name_ + " cannot") : it->second;
  }

 private:
  std::string name_;
  std::map<int, Claim> claims_;
};

class Planner : public testing::Test {
 protected:
  Planner() {
    for (int i = 0; i < 3; ++i) {
      layers_[i].dim = i + 1;
      problems_.push_back({&layers_[i], {1, 1, i + 1}, {1, 1, i + 1}});
    }
  }
  std::string plan(std::vector<const Implementation*> list, const std::string& preferred = "auto",
                   bool strict = false) {
    std::string text;
    for (const PlannedStep& step : make_plan(problems_, list, {}, preferred, strict))
      text += std::string(step.implementation->name()) + std::to_string(step.layers) + " ";
    return text;
  }
  std::string error(std::vector<const Implementation*> list, const std::string& preferred, bool strict) {
    try {
      plan(list, preferred, strict);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::device);
      return e.what();
    }
    return "no error";
  }

  graph::NormLayer layers_[3];
  std::vector<LayerProblem> problems_;
  const Fake slow_{"slow", {{1, Claim::accept(10)}, {2, Claim::accept(10)}, {3, Claim::accept(10)}}};
};

TEST_F(Planner, TakesTheCheapest) {
  const Fake fast("fast", {{2, Claim::accept(1)}});
  EXPECT_EQ(plan({&fast, &slow_}), "slow1 fast1 slow1 ");
}

TEST_F(Planner, ARunOfLayersCompetesWithItsParts) {
  const Fake pair("pair", {{1, Claim::accept(12, 2)}, {2, Claim::accept(11, 2)}});
  EXPECT_EQ(plan({&pair, &slow_}), "slow1 pair2 ");
  const Fake dear("dear", {{1, Claim::accept(25, 2)}});
  EXPECT_EQ(plan({&dear, &slow_}), "slow1 slow1 slow1 ");
}

TEST_F(Planner, ThePreferredTakesWhatItCanEvenIfDear) {
  const Fake dear("dear", {{1, Claim::accept(99)}, {3, Claim::accept(99)}});
  EXPECT_EQ(plan({&slow_, &dear}, "dear"), "dear1 slow1 dear1 ");
}

TEST_F(Planner, StrictRefusesADecline) {
  const Fake dear("dear", {{1, Claim::accept(99)}, {3, Claim::accept(99)}});
  EXPECT_THAT(error({&slow_, &dear}, "dear", true),
              testing::AllOf(HasSubstr("layer 1"), HasSubstr("dear cannot")));
  EXPECT_EQ(plan({&slow_, &dear}, "slow", true), "slow1 slow1 slow1 ");
}

TEST_F(Planner, StrictAllowsARunOverALayerThatIsDeclinedOnItsOwn) {
  const Fake pair("pair", {{1, Claim::accept(1, 2)}, {3, Claim::accept(1)}});
  EXPECT_EQ(plan({&slow_, &pair}, "pair", true), "pair2 pair1 ");
}

TEST_F(Planner, UnknownNamesListTheKnown) {
  EXPECT_THAT(error({&slow_}, "fats", false), testing::AllOf(HasSubstr("'fats'"), HasSubstr("slow")));
}

TEST_F(Planner, ALayerThatNothingRunsIsNamed) {
  const Fake some("some", {{1, Claim::accept(1)}});
  EXPECT_THAT(error({&some}, "auto", false), testing::AllOf(HasSubstr("layer 1"), HasSubstr("some cannot")));
}

// Takes a layer whose weights it has seen and found small.
class Careful final : public Implementation {
 public:
  std::string_view name() const noexcept override { return "careful"; }
  Claim claim(std::span<const LayerProblem> rest, const Conditions&) const override {
    if (!rest[0].weights) return Claim::decline("no weights");
    return *rest[0].weights->find("norm.weight") < 10 ? Claim::accept(1) : Claim::decline("large weights");
  }
};

TEST_F(Planner, AClaimMayLookAtTheWeights) {
  graph::Graph graph;
  std::vector<weights::LayerWeights> weights(2);
  for (int i = 0; i < 2; ++i) {
    auto layer = std::make_unique<graph::NormLayer>();
    layer->dim = 1;
    graph.nodes.emplace_back().layer = std::move(layer);
    Tensor gain(DType::f32, {1});
    gain.values<float>()[0] = i == 0 ? 1.0f : 1e9f;
    weights[i].set("norm.weight", std::move(gain));
  }
  graph.input_channels = 1;
  const Careful careful;
  problems_ = problems(graph, {1, 1, 1}, weights);
  EXPECT_EQ(plan({&careful, &slow_}), "careful1 slow1 ");
  EXPECT_THAT(error({&careful, &slow_}, "careful", true), HasSubstr("careful: large weights"));
  problems_ = problems(graph, {1, 1, 1});
  EXPECT_EQ(plan({&careful, &slow_}), "slow1 slow1 ");
}

}  // namespace
}  // namespace warpweave::plan
