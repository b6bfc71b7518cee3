// What must not change the result: the axis that the grid is stored along, the batch, the threads, the order
// of sequences, masked cells at the end. Over random options and sizes, on both plans of the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "properties/problem.h"

namespace warpweave::properties {
namespace {

class Invariance : public testing::TestWithParam<std::tuple<std::string, Precision>> {
 protected:
  Precision precision() const { return std::get<1>(GetParam()); }
  std::uint64_t problems() const { return precision() == Precision::fp32 ? 240 : 60; }
  // How far apart results may be that are sums in another order: in bf16 a rounding may fall the other way.
  double tolerance() const { return precision() == Precision::fp32 ? 1e-6 : 1e-2; }

  // Calls body(problem, model, x, mask or null) for all random problems.
  template <class Body>
  void for_problems(const Body& body) {
    for (std::uint64_t seed = 0; seed < problems(); ++seed) {
      const Problem p = random_problem(seed);
      SCOPED_TRACE(testing::Message() << p);
      const Model model = make_model(p.attention.dim, {p.attention.yaml()}, seed);
      const Tensor x = random_grid(p.shape, p.attention.dim, seed);
      const Tensor mask = random_mask(p.shape, seed);
      ASSERT_NO_FATAL_FAILURE(body(p, model, x, p.masked ? &mask : nullptr));
      if (HasFailure()) return;  // one problem is enough to look at
    }
  }
  Engine engine(const Model& model, int threads = 2) const {
    return cpu_engine(model, std::get<0>(GetParam()), precision(), threads);
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Invariance,
                         testing::Combine(testing::ValuesIn(plans()),
                                          testing::Values(Precision::fp32, Precision::bf16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::string(to_string(std::get<1>(test.param)));
                         });

// The whole result, so that a fault of both sides of the other properties does not hide.
TEST_P(Invariance, AgreesWithTheReferenceInDouble) {
  double worst = 0;
  for_problems([&](const Problem&, const Model& model, const Tensor& x, const Tensor* mask) {
    const Tensor truth = run(cpu_engine(model, "reference", Precision::fp64), x, mask, DType::f64);
    const double error = difference(run(engine(model), x, mask), truth);
    worst = std::max(worst, error);
    EXPECT_LE(error, precision() == Precision::fp32 ? 1e-6 : 1.5e-2);
  });
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(Invariance, AColumnLayerIsARowLayerOnTheTransposedGrid) {
  for_problems([&](const Problem& p, const Model& model, const Tensor& x, const Tensor* mask) {
    Attention other = p.attention;
    other.axis = p.attention.axis == "row" ? "column" : "row";
    const Model turned = make_model(other.dim, {other.yaml()}, p.seed);
    const Tensor turned_mask = mask ? transposed(*mask) : Tensor();
    const Tensor y = run(engine(turned), transposed(x), mask ? &turned_mask : nullptr);
    EXPECT_TRUE(same_bits(transposed(y), run(engine(model), x, mask)));
  });
}

TEST_P(Invariance, ARepeatedRunGivesTheSameBits) {
  for_problems([&](const Problem&, const Model& model, const Tensor& x, const Tensor* mask) {
    const Engine e = engine(model);
    EXPECT_TRUE(same_bits(run(e, x, mask), run(e, x, mask)));
  });
}

TEST_P(Invariance, ASamplesBitsDoNotDependOnItsBatch) {
  for_problems([&](const Problem& p, const Model& model, const Tensor&, const Tensor* mask) {
    const Shape three{3, p.shape.rows, p.shape.columns};
    const Tensor x = random_grid(three, p.attention.dim, p.seed);
    const Tensor masks = random_mask(three, p.seed);
    const Engine e = engine(model);
    const Tensor all = run(e, x, mask ? &masks : nullptr);
    for (std::int64_t batch = 1; batch <= 2; ++batch) {
      for (std::int64_t first = 0; first + batch <= 3; ++first) {
        const Tensor m = samples(masks, first, batch);
        const Tensor y = run(e, samples(x, first, batch), mask ? &m : nullptr);
        EXPECT_TRUE(same_bits(y, samples(all, first, batch))) << batch << " samples from " << first;
      }
    }
  });
}

TEST_P(Invariance, TheNumberOfThreadsDoesNotChangeABit) {
  for_problems([&](const Problem&, const Model& model, const Tensor& x, const Tensor* mask) {
    const Tensor alone = run(engine(model, 1), x, mask);
    for (const int threads : {2, 3, 5}) {
      EXPECT_TRUE(same_bits(run(engine(model, threads), x, mask), alone)) << threads << " threads";
    }
  });
}

// Cells of a sequence beyond `length` that are masked are as if they were not there.
TEST_P(Invariance, AMaskedTailEqualsAShorterSequence) {
  for_problems([&](const Problem& p, const Model& model, const Tensor& x, const Tensor*) {
    const bool row = p.attention.axis == "row";
    const std::int64_t full = row ? p.shape.columns : p.shape.rows;
    const std::int64_t length = (full + 1) / 2;
    const std::int64_t rows = row ? p.shape.rows : length, columns = row ? length : p.shape.columns;
    Tensor mask = random_mask(p.shape, p.seed, p.masked ? 60 : 100);
    const auto valid = mask.values<std::uint8_t>();
    for (std::size_t k = 0; k < valid.size(); ++k) {
      const std::int64_t cell = static_cast<std::int64_t>(k) % (p.shape.rows * p.shape.columns);
      if (cell / p.shape.columns >= rows || cell % p.shape.columns >= columns) valid[k] = 0;
    }
    const Engine e = engine(model);
    const Tensor cut_mask = corner(mask, rows, columns);
    const Tensor whole = corner(run(e, x, &mask), rows, columns);
    const Tensor cut = run(e, corner(x, rows, columns), &cut_mask);
    EXPECT_LE(difference(whole, cut), tolerance());
  });
}

TEST_P(Invariance, PermutingSequencesPermutesTheOutput) {
  for_problems([&](const Problem& p, const Model& model, const Tensor& x, const Tensor* mask) {
    // Reverse the order of the sequences: rows of a row layer, columns of a column layer.
    const auto reversed = [&](const Tensor& t) {
      const bool row = p.attention.axis == "row";
      Tensor out = row ? t : transposed(t);
      const std::int64_t rows = out.shape()[1];
      const std::size_t unit = out.bytes() / static_cast<std::size_t>(out.shape()[0] * rows);
      const Tensor from = out;
      for (std::int64_t b = 0; b < out.shape()[0]; ++b) {
        for (std::int64_t i = 0; i < rows; ++i) {
          std::memcpy(static_cast<std::byte*>(out.data()) + static_cast<std::size_t>(b * rows + i) * unit,
                      static_cast<const std::byte*>(from.data()) +
                          static_cast<std::size_t>(b * rows + rows - 1 - i) * unit,
                      unit);
        }
      }
      return row ? out : transposed(out);
    };
    const Engine e = engine(model);
    const Tensor turned_mask = mask ? reversed(*mask) : Tensor();
    const Tensor y = run(e, reversed(x), mask ? &turned_mask : nullptr);
    EXPECT_TRUE(same_bits(y, reversed(run(e, x, mask))));
  });
}

// Without positions (RoPE, causality), attention does not know the order of its sequence.
TEST_P(Invariance, PermutingASequencePermutesItsOutput) {
  int tested = 0;
  for_problems([&](const Problem& p, const Model& model, const Tensor& x, const Tensor* mask) {
    if (p.attention.causal || !p.attention.rope.empty()) return;
    ++tested;
    const auto reversed = [](const Tensor& t) {  // both axes at once
      Tensor out = t;
      const std::int64_t cells = t.shape()[1] * t.shape()[2];
      const std::size_t unit = t.bytes() / static_cast<std::size_t>(t.shape()[0] * cells);
      for (std::int64_t b = 0; b < t.shape()[0]; ++b) {
        for (std::int64_t c = 0; c < cells; ++c) {
          std::memcpy(static_cast<std::byte*>(out.data()) + static_cast<std::size_t>(b * cells + c) * unit,
                      static_cast<const std::byte*>(t.data()) +
                          static_cast<std::size_t>(b * cells + cells - 1 - c) * unit,
                      unit);
        }
      }
      return out;
    };
    const Engine e = engine(model);
    const Tensor turned_mask = mask ? reversed(*mask) : Tensor();
    const Tensor y = run(e, reversed(x), mask ? &turned_mask : nullptr);
    EXPECT_LE(difference(reversed(y), run(e, x, mask)), tolerance());
  });
  EXPECT_GE(tested, 20);
}

// With one key, softmax is 1: the scores do not matter.
TEST_P(Invariance, ASequenceOfOneIgnoresItsScores) {
  for (const char* axis : {"row", "column"}) {
    Attention a;
    a.axis = axis;
    a.scale = "0.1";
    Attention b = a;
    b.scale = "100.0";
    b.rope = "{dims: 4}";
    const Shape shape = a.axis == "row" ? Shape{2, 5, 1} : Shape{2, 1, 5};
    const Tensor x = random_grid(shape, a.dim, 5);
    const Tensor y = run(engine(make_model(a.dim, {a.yaml()})), x);
    EXPECT_TRUE(same_bits(y, run(engine(make_model(b.dim, {b.yaml()})), x)));
    EXPECT_GT(difference(y, x), 0.1);
  }
}

// The batch and the threads again, for a model with layers of every kind.
TEST_P(Invariance, OfAWholeModel) {
  const Model model = make_model(
      3, {"patch_embed: {patch: 2, channels: 3, dim: 24}", "position_embedding: {rows: 11, columns: 9}",
          "axial_attention: {axis: row, heads: 3, rope: {style: half}}",
          "axial_attention: {axis: column, heads: 2, causal: true, norm: rms}", "feed_forward: {hidden: 50}",
          "linear: {out: 20}", "norm: {}", "patch_unembed: {patch: 2, channels: 3}"});
  const Tensor x = random_grid({3, 22, 18}, 3, 1);
  const Tensor y = run(engine(model, 1), x);
  for (const int threads : {2, 3, 5}) {
    const Engine e = engine(model, threads);
    EXPECT_TRUE(same_bits(run(e, x), y)) << threads << " threads";
    for (std::int64_t b = 0; b < 3; ++b) {
      EXPECT_TRUE(same_bits(run(e, samples(x, b, 1)), samples(y, b, 1))) << "sample " << b << " alone";
    }
  }
}

}  // namespace
}  // namespace warpweave::properties
