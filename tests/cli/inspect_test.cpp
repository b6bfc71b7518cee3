// warpweave inspect: tensors found and missing, the plan and its reasons.
#include <gmock/gmock.h>

#include "cli/models.h"
#include "cli/process.h"

namespace warpweave::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Inspect, ListsLayersAndTensors) {
  const BlockFiles f;
  const Outcome o = warpweave({"inspect", "--config", f.config});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("model block"));
  EXPECT_THAT(o.out, HasSubstr("2 layers, 560 parameters"));  // 2 x (8 + 8 + 24 x 8 + 8 x 8 + 8)
  EXPECT_THAT(o.out, HasSubstr("layers[1]: axial_attention column"));
  EXPECT_THAT(o.out, HasSubstr("row_qkv.weight"));
  EXPECT_THAT(o.out, HasSubstr("[24, 8]"));
  EXPECT_THAT(o.out, Not(HasSubstr("GFLOP")));
}

TEST(Inspect, PlansAShape) {
  const BlockFiles f;
  const Outcome o = warpweave(
      {"inspect", "--config", f.config, "--weights", f.weights, "--shape", "2,3,5", "--device", "cpu"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("found, F32"));
  EXPECT_THAT(o.out, Not(HasSubstr("MISSING")));
  for (const char* word : {"[2, 3, 5, 8]", "GFLOP", "MB", "workspace"}) EXPECT_THAT(o.out, HasSubstr(word));
  const Outcome reference = warpweave(
      {"inspect", "--config", f.config, "--shape", "2,3,5", "--device", "cpu", "--plan", "reference"});
  EXPECT_THAT(reference.out, HasSubstr("reference"));
}

TEST(Inspect, ShowsWhatDoesNotFitAndFails) {
  const BlockFiles f;
  std::map<std::string, Tensor> tensors;
  tensors["row_norm.weight"] = filled({7}, 1);
  tensors["row_norm.bias"] = filled({8}, 0);
  tensors["stranger"] = filled({3}, 1);
  save_safetensors(f.weights, tensors);
  const Outcome o = warpweave({"inspect", "--config", f.config, "--weights", f.weights});
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.out, HasSubstr("WRONG SHAPE [7]"));
  EXPECT_THAT(o.out, HasSubstr("found, F32"));
  EXPECT_THAT(o.out, HasSubstr("MISSING"));
  EXPECT_THAT(o.out, HasSubstr("not taken by any layer: stranger  [3]"));
  EXPECT_THAT(o.err, HasSubstr("warpweave: error: "));
}

TEST(Inspect, FindsQueriesKeysAndValuesInParts) {
  const BlockFiles f;
  write_file(f.config,
             "name: b\ninput: {dim: 8}\nlayers:\n  - axial_attention: {axis: row, heads: 2, norm: none, "
             "tensors: \"a.{name}\"}\n");
  std::map<std::string, Tensor> tensors;
  for (const char* part : {"a.q.weight", "a.k.weight", "a.v.weight", "a.out.weight"})
    tensors[part] = spread({8, 8}, 0.3);
  tensors["a.out.bias"] = filled({8}, 0);
  save_safetensors(f.weights, tensors);
  const Outcome o = warpweave({"inspect", "--config", f.config, "--weights", f.weights});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("a.k.weight"));
  EXPECT_THAT(o.out, Not(HasSubstr("a.qkv.weight")));
}

}  // namespace
}  // namespace warpweave::test
