// What Engine and Session check before any layer runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "warpweave/warpweave.h"

namespace warpweave {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Model model_of(const std::string& layers, int dim) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("warpweave_session_test." + std::to_string(::getpid()) + ".yaml");
  std::ofstream(path) << "name: model\ninput: {dim: " << dim << "}\nlayers:\n" << layers;
  const Model model = Model::random(path);
  std::filesystem::remove(path);
  return model;
}

template <class Call>
std::string input_error(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
    return error.what();
  }
  return "no error";
}

// 16 samples of 2^58 elements each between layers of one channel: once the size wrapped to nothing, and the
// layer wrote past its end.
TEST(Session, AGridBetweenLayersThatCannotBeAddressedIsAnError) {
  const Model model = model_of(
      "  - patch_unembed: {patch: 1024, channels: 1, bias: false}\n"
      "  - patch_unembed: {patch: 1024, channels: 1, bias: false}\n"
      "  - patch_unembed: {patch: 512, channels: 1, bias: false}\n"
      "  - linear: {out: 1, bias: false}\n"
      "  - patch_embed: {patch: 512, channels: 1, dim: 1, bias: false}\n"
      "  - patch_embed: {patch: 1024, channels: 1, dim: 1, bias: false}\n"
      "  - patch_embed: {patch: 1024, channels: 1, dim: 1, bias: false}\n",
      1);
  for (const char* plan : {"auto", "reference"}) {
    const Engine engine(model, {.device = Device::cpu(), .plan = plan});
    const auto expected = AllOf(HasSubstr("layers[2]"), HasSubstr("too many elements"));
    for (const std::int64_t batch : {1, 8, 16}) {
      const Shape shape{batch, 1, 1};
      EXPECT_THAT(input_error([&] { (void)engine.prepare(shape); }), expected);
      EXPECT_THAT(input_error([&] { (void)engine.plan(shape); }), expected);
      EXPECT_THAT(input_error([&] { (void)engine.workspace_bytes(shape); }), expected);
    }
  }
}

const char* const kBlock =
    "  - axial_attention: {axis: row, heads: 2}\n"
    "  - linear: {out: 12}\n";

TEST(Session, WorkspaceIsToldWithoutTakingIt) {
  const Engine engine(model_of(kBlock, 8), {.device = Device::cpu(), .threads = 2});
  const Shape shape{3, 5, 7};
  EXPECT_EQ(engine.workspace_bytes(shape), engine.prepare(shape).workspace_bytes());
  EXPECT_GT(engine.workspace_bytes({1, 1 << 20, 1 << 20}),
            std::int64_t{1} << 42);  // more than this machine has
}

TEST(Session, AWorkspacePastTheLimitNamesBothSizes) {
  const Engine engine(model_of(kBlock, 8), {.device = Device::cpu(), .workspace_limit = 100});
  try {
    (void)engine.prepare({1, 4, 4});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("needs a workspace of"), HasSubstr("the limit is 100")));
  }
}

TEST(Session, OutputThatOverlapsTheInputInPartIsAnError) {
  const Engine engine(model_of("  - axial_attention: {axis: column, heads: 2}\n", 8),
                      {.device = Device::cpu()});
  Session session = engine.prepare({1, 4, 4});
  const GridShape shape{1, 4, 4, 8};
  std::vector<float> memory(3 * shape.elements(), 0.5f);
  float* const x = memory.data() + shape.elements();
  for (const std::int64_t offset :
       {std::int64_t{1}, std::int64_t{-8}, shape.elements() - 1, 1 - shape.elements()})
    EXPECT_THAT(input_error([&] {
                  session.run({x, DType::f32, shape}, {x + offset, DType::f32, shape});
                }),
                HasSubstr("overlaps"));
  for (const std::int64_t offset : {std::int64_t{0}, shape.elements(), -shape.elements()})
    EXPECT_NO_THROW(session.run({x, DType::f32, shape}, {x + offset, DType::f32, shape}));
}

}  // namespace
}  // namespace warpweave
