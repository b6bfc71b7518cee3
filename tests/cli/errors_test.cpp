// Every class of error: its exit status, one line on standard error that names the file and the reason, and
// no output.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <system_error>

#include "cli/models.h"
#include "cli/process.h"

namespace warpweave::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

void expect_error(const std::vector<std::string>& arguments, int status,
                  const std::vector<std::string>& words) {
  SCOPED_TRACE(::testing::PrintToString(arguments));
  const Outcome o = warpweave(arguments);
  EXPECT_EQ(o.status, status);
  EXPECT_THAT(o.err, StartsWith("warpweave: error: "));
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  for (const std::string& w : words) EXPECT_THAT(o.err, HasSubstr(w));
}

class Errors : public ::testing::Test {
 protected:
  // The block's run command with one option's value replaced or added.
  std::vector<std::string> run(const std::string& option = "", const std::string& value = "") const {
    std::vector<std::string> all = f.arguments("run");
    all.insert(all.end(), {"--output", f.output});
    if (option.empty()) return all;
    const auto at = std::find(all.begin(), all.end(), option);
    if (at == all.end())
      all.insert(all.end(), {option, value});
    else
      *(at + 1) = value;
    return all;
  }
  std::string put(const std::string& name, const std::string& content) const {
    write_file(f.folder / name, content);
    return f.folder / name;
  }
  std::string put(const std::string& name, const Tensor& tensor) const {
    save_tensor(f.folder / name, tensor);
    return f.folder / name;
  }
  void TearDown() override { EXPECT_FALSE(std::filesystem::exists(f.output)) << "an error left an output"; }

  BlockFiles f;
};

TEST_F(Errors, MissingFiles) {
  expect_error(run("--config", f.folder / "no.yaml"), 2, {"no.yaml: "});
  expect_error(run("--weights", f.folder / "no.safetensors"), 2, {"no.safetensors: "});
  expect_error(run("--input", f.folder / "no.npy"), 2, {"no.npy: "});
  expect_error(run("--mask", f.folder / "no.npy"), 2, {"no.npy: "});
}

TEST_F(Errors, NotFiles) {
  const std::string folder = f.folder.path().string(), fifo = f.folder / "fifo.npy";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const char* option : {"--config", "--weights", "--input", "--mask"}) {
    expect_error(run(option, folder), 2, {folder + ": "});
    expect_error(run(option, fifo), 2, {"fifo.npy: "});
  }
}

TEST_F(Errors, Configs) {
  const std::string bad =
      put("bad.yaml", "name: b\ninput: {dim: 8}\nlayers:\n  - axial_attention: {axis: row, headz: 2}\n");
  expect_error(run("--config", bad), 2, {"bad.yaml:4: ", "headz", "heads"});
  expect_error(run("--config", put("syntax.yaml", "a: [1\n")), 2, {"syntax.yaml:"});
  expect_error({"inspect", "--config", bad}, 2, {"bad.yaml:4: "});
  expect_error({"bench", "--config", bad, "--shape", "1,2,3"}, 2, {"bad.yaml:4: "});
  expect_error({"compile", "--config", bad, "--shape", "1,2,3", "--arch", "sm_90a"}, 2, {"bad.yaml:4: "});
}

TEST_F(Errors, Weights) {
  expect_error(run("--weights", put("junk.safetensors", "junk")), 2, {"junk.safetensors: "});
  std::map<std::string, Tensor> tensors;
  tensors["row_norm.weight"] = filled({7}, 1);
  tensors["stranger"] = filled({1}, 1);
  save_safetensors(f.folder / "few.safetensors", tensors);
  expect_error(run("--weights", f.folder / "few.safetensors"), 2,
               {"few.safetensors: ", "row_norm.weight", "[7]", "[8]", "stranger", "col_out.bias"});
}

TEST_F(Errors, Inputs) {
  expect_error(run("--input", put("junk.npy", "\x93NUMPY junk")), 2, {"junk.npy: "});
  expect_error(run("--input", put("x.txt", "1 2 3")), 2, {"x.txt: ", ".npy"});
  expect_error(run("--input", put("rank.npy", spread({3, 5, 8}))), 2,
               {"rank.npy: ", "[3, 5, 8]", "[B, H, W, D]"});
  expect_error(run("--input", put("channels.npy", spread({1, 3, 5, 9}))), 2,
               {"channels.npy: ", "9 channels", "block.yaml takes 8"});
  expect_error(run("--input", put("empty.npy", Tensor(DType::f32, {0, 3, 5, 8}))), 2,
               {"empty.npy: ", "at least 1"});
  expect_error(run("--input", put("bytes.npy", Tensor(DType::u8, {1, 1, 1, 8}))), 2,
               {"bytes.npy: ", "float32", "uint8"});
}

TEST_F(Errors, Masks) {
  expect_error(run("--mask", put("shape.npy", Tensor(DType::u8, {2, 5, 3}))), 2,
               {"shape.npy: ", "[2, 5, 3]", "[2, 3, 5]"});
  expect_error(run("--mask", put("rank.npy", Tensor(DType::u8, {2, 3, 5, 8}))), 2,
               {"rank.npy: ", "needs [2, 3, 5]"});
  expect_error(run("--mask", put("type.npy", spread({2, 3, 5}))), 2,
               {"type.npy: ", "uint8 or bool, not float32"});
}

TEST_F(Errors, Outputs) {
  expect_error(run("--output", f.folder / "y.txt"), 2, {"y.txt: ", ".npy or .safetensors"});
  expect_error(run("--output", f.folder / "y"), 2, {"y: ", ".npy or .safetensors"});
  expect_error(run("--output", f.folder / "no/such/y.npy"), 2, {"no/such/y.npy: "});
  std::filesystem::create_directory(f.folder.path() / "dir.npy");
  expect_error(run("--output", f.folder / "dir.npy"), 2, {"dir.npy: ", "directory"});
  expect_error(run("--output-dtype", "bfloat16"), 2, {"y.npy: ", "bfloat16"});
  // Refused before the model is even looked for.
  std::vector<std::string> early = run("--config", "nowhere.yaml");
  *(std::find(early.begin(), early.end(), "--output") + 1) = f.folder / "no/such/y.npy";
  expect_error(early, 2, {"no/such/y.npy: "});
}

TEST_F(Errors, AFullDiskIsAnErrorAndLosesNothing) {
  std::error_code error;
  if (!std::filesystem::exists("/dev/full", error)) GTEST_SKIP() << "no /dev/full here";
  expect_error(run("--output", "/dev/full"), 2, {"/dev/full: "});
}

TEST_F(Errors, ModelsThatCannotTakeTheGrid) {
  const std::string config = put(
      "patch.yaml", "name: p\ninput: {dim: 8}\nlayers:\n  - patch_embed: {patch: 4, channels: 8, dim: 4}\n");
  expect_error({"bench", "--config", config, "--shape", "1,8,6", "--device", "cpu"}, 2,
               {"patch.yaml:4: ", "4"});
  expect_error({"inspect", "--config", config, "--shape", "1,8,6", "--device", "cpu"}, 2,
               {"patch.yaml:4: ", "4"});
}

TEST_F(Errors, DeviceAndPlan) {
  std::vector<std::string> gpu = run();
  gpu[8] = "cuda:99";
  expect_error(gpu, 3, {});
  expect_error(run("--plan", "magic"), 3, {"'magic'", "reference"});
  expect_error(run("--workspace", "1"), 3, {"workspace"});
  std::vector<std::string> strict = run("--plan", "magic");
  strict.push_back("--strict");
  expect_error(strict, 3, {"magic"});
}

TEST_F(Errors, MoreMemoryThanThereIs) {
  expect_error({"bench", "--config", f.config, "--shape", "1000000,100000,100000", "--device", "cpu"}, 3, {});
  expect_error(
      {"bench", "--config", f.config, "--shape", "4000000000,4000000000,4000000000", "--device", "cpu"}, 2,
      {"too many elements"});
}

TEST_F(Errors, Compare) {
  std::vector<std::string> compare = f.arguments("compare");
  compare.insert(compare.end(), {"--expect", put("e.npy", spread({2, 3, 5, 7}))});
  expect_error(compare, 2, {"e.npy: ", "[2, 3, 5, 7]", "[2, 3, 5, 8]"});
}

TEST_F(Errors, Compile) {
  expect_error(
      {"compile", "--config", f.config, "--shape", "1,2,3", "--arch", "sm_90a", "--precision", "fp64"}, 3,
      {"--precision", "CPU only"});
  expect_error({"compile", "--config", f.config, "--shape", "1,2,3", "--arch", "sm_90a", "--device", "cpu"},
               2, {"--device", "compiled for a GPU"});
  expect_error({"compile", "--config", f.config, "--shape", "1,2,3", "--arch", "avx2"}, 2,
               {"avx2", "sm_90a"});
}

TEST_F(Errors, NamesWithLineBreaksStayOnOneLine) {
  expect_error(run("--config", "no\nsuch\033[31m.yaml"), 2, {"no"});
  expect_error({"run\n\n", "x"}, 2, {"run"});
}

}  // namespace
}  // namespace warpweave::test
