// The run-time compiler and its cache; every kernel family for every architecture. Needs no GPU; what needs
// NVRTC is skipped, saying so, where it is absent.
#include "cuda/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <system_error>

#include "cuda/compile_for.h"
#include "model_data.h"
#include "properties/problem.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

namespace fs = std::filesystem;

class CacheFolder {
 public:
  CacheFolder() {
    char name[] = "/tmp/warpweave-cache-XXXXXX";
    path_ = mkdtemp(name);
    setenv("WARPWEAVE_CACHE_DIR", path_.c_str(), 1);
  }
  ~CacheFolder() {
    unsetenv("WARPWEAVE_CACHE_DIR");
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;
  const fs::path& path() const { return path_; }
  std::vector<fs::path> files() const {
    std::vector<fs::path> list;
    for (const auto& entry : fs::directory_iterator(path_)) list.push_back(entry.path());
    return list;
  }

 private:
  fs::path path_;
};

CompiledKernel sample() { return {"_Z4name", "13.0", "log", {'c', 'o', 'd', 'e', '\0', '\x7f'}}; }

TEST(KernelCache, GivesBackWhatWasStored) {
  const CacheFolder folder;
  const KernelCache cache(folder.path() / "not" / "there yet");
  EXPECT_TRUE(cache.empty());
  EXPECT_FALSE(cache.find("key"));
  cache.store("key", sample());
  const auto found = cache.find("key");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, sample().name);
  EXPECT_EQ(found->compiler, sample().compiler);
  EXPECT_EQ(found->log, sample().log);
  EXPECT_EQ(found->machine_code, sample().machine_code);
  EXPECT_FALSE(cache.empty());
}

TEST(KernelCache, TakesADamagedEntryForAbsent) {
  const CacheFolder folder;
  const KernelCache cache(folder.path());
  cache.store("key", sample());
  const fs::path file = folder.files().at(0);
  std::string content;
  {
    std::ifstream in(file, std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (std::size_t i = 0; i < content.size(); ++i) {  // one bit
    std::string damaged = content;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    std::ofstream(file, std::ios::binary) << damaged;
    // The newline after the checksum is the one byte that says nothing.
    if (i != std::string("warpweave kernel 1\n").size() + 32) {
      EXPECT_FALSE(cache.find("key")) << "byte " << i;
    }
  }
  for (const std::size_t length : {std::size_t{0}, std::size_t{10}, content.size() - 1}) {
    std::ofstream(file, std::ios::binary) << content.substr(0, length);
    EXPECT_FALSE(cache.find("key")) << length << " bytes";
  }
  cache.store("key", sample());
  EXPECT_TRUE(cache.find("key"));
}

TEST(KernelCache, SurvivesProcessesAtTheSameWork) {
  const CacheFolder folder;
  const KernelCache cache(folder.path());
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    const pid_t child = fork();
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < 100; ++i) {
        cache.store("key", sample());
        const auto found = cache.find("key");
        good = good && found && found->machine_code == sample().machine_code;
      }
      _exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(folder.files().size(), 1u);  // nothing is left beside it
}

TEST(KernelCache, SaysOnceThatItCannotWriteAndGoesOn) {
  const CacheFolder folder;
  std::ofstream(folder.path() / "file") << "not a folder";
  const KernelCache cache(folder.path() / "file" / "below");
  testing::internal::CaptureStderr();
  cache.store("a", sample());
  cache.store("b", sample());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("compiled kernels are not kept"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_FALSE(cache.find("a"));
}

TEST(Architecture, Names) {
  EXPECT_EQ(architecture_name(90), "sm_90a");
  EXPECT_EQ(architecture_name(120), "sm_120");
  EXPECT_EQ(parse_architecture("sm_90a"), 90);
  EXPECT_EQ(parse_architecture("sm_100"), 100);
  for (const char* bad : {"", "sm_", "sm_75", "sm_9x", "90", "sm_1000"}) {
    EXPECT_THROW(parse_architecture(bad), Error) << bad;
  }
}

// ---- what needs NVRTC

const KernelSpec kSmall{"common/convert.cuh", "warpweave::kernels::convert"};

class Nvrtc : public testing::Test {
 protected:
  void SetUp() override {
    if (!Compiler().missing().empty()) GTEST_SKIP() << Compiler().missing();
  }
  const CacheFolder folder_;
};

// A kernel that no launch of a session takes is not compiled while the session is prepared.
TEST(PlanKernels, OfASessionAreThoseThatItLaunches) {
  const Model model = properties::make_block(64, 4);
  const graph::Graph& graph = model.data()->graph;
  const auto problems = plan::problems(graph, {32, 32, 64});
  const auto implementations = make_implementations("");
  std::vector<const plan::Implementation*> list;
  for (const auto& implementation : implementations) list.push_back(implementation.get());
  const plan::Conditions conditions = conditions_for(90, Precision::fp32);
  const auto planned = plan::make_plan(problems, list, conditions, "split", true);
  const auto named = [&](const std::vector<KernelSpec>& specs, const char* part) {
    return std::count_if(specs.begin(), specs.end(),
                         [&](const KernelSpec& s) { return s.expression.find(part) != std::string::npos; });
  };
  const auto any = plan_kernels(problems, planned, conditions, std::nullopt);
  EXPECT_EQ(named(any, "few_sequences"), 2);  // with and without a mask
  EXPECT_EQ(named(any, "many_sequences"), 2);
  for (const bool few : {true, false}) {
    const auto of_session = plan_kernels(problems, planned, conditions, SessionSize{few ? 4 : 256, 132});
    EXPECT_EQ(named(of_session, "few_sequences"), few ? 2 : 0);
    EXPECT_EQ(named(of_session, "many_sequences"), few ? 0 : 2);
    EXPECT_TRUE(std::includes(any.begin(), any.end(), of_session.begin(), of_session.end()));
  }
}

TEST_F(Nvrtc, CompilesOnceAndRepairsTheCache) {
  const CompiledKernel first = Compiler().compile(kSmall, 80);
  EXPECT_FALSE(first.machine_code.empty());
  ASSERT_EQ(folder_.files().size(), 1u);
  const fs::path file = folder_.files()[0];
  const auto written = fs::last_write_time(file);
  EXPECT_EQ(Compiler().compile(kSmall, 80).machine_code, first.machine_code);
  EXPECT_EQ(fs::last_write_time(file), written);
  std::ofstream(file, std::ios::binary) << "damaged";
  EXPECT_EQ(Compiler().compile(kSmall, 80).machine_code, first.machine_code);
  EXPECT_GT(fs::file_size(file), 1000u);
  (void)Compiler().compile(kSmall, 90);  // another architecture is another kernel
  EXPECT_EQ(folder_.files().size(), 2u);
}

TEST_F(Nvrtc, IsNotOpenedForWhatTheCacheHolds) {
  const CompiledKernel first = Compiler().compile(kSmall, 90);
  // One that would say it is 11.8, beside a second library that says it is of the version that compiled it.
  const fs::path toolkit = folder_.path() / "toolkit";
  const std::string second = (toolkit / "libnvrtc-builtins.so.").string();
  fs::create_directory(toolkit);
  fs::create_symlink(WARPWEAVE_FAKES "/old_nvrtc/libnvrtc.so.13",
                     toolkit / ("libnvrtc.so." + first.compiler.substr(0, first.compiler.find('.'))));
  std::ofstream(second + first.compiler) << "";
  setenv("WARPWEAVE_CUDA_DIR", toolkit.c_str(), 1);
  EXPECT_EQ(Compiler().compile(kSmall, 90).machine_code, first.machine_code);
  EXPECT_THROW((void)Compiler().compile(kSmall, 80), Error);
  // Another version: it is opened, and compiles again.
  fs::rename(second + first.compiler, second + first.compiler.substr(0, first.compiler.find('.')) + ".19");
  EXPECT_THROW((void)Compiler().compile(kSmall, 90), Error);
  unsetenv("WARPWEAVE_CUDA_DIR");
}

TEST_F(Nvrtc, SaysWhatDoesNotCompile) {
  try {
    (void)Compiler().compile({"common/convert.cuh", "warpweave::kernels::nonesuch<float>"}, 80);
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_THAT(error.what(), testing::HasSubstr("nonesuch"));
  }
}

graph::Graph graph_of(const std::string& layers, int dim) {
  return graph::parse_graph("name: test\ninput: {dim: " + std::to_string(dim) + "}\nlayers:\n" + layers,
                            "test.yaml");
}

std::set<std::string> expressions(const std::vector<Compiled>& list) {
  std::set<std::string> set;
  for (const auto& c : list) set.insert(c.spec.expression);
  return set;
}

TEST_F(Nvrtc, TwentySizesOfAModelNeedAtMostEightKernels) {
  const graph::Graph graph = graph_of(
      "  - axial_attention: {axis: row, heads: 4, tensors: \"r_{name}\"}\n"
      "  - axial_attention: {axis: column, heads: 4, tensors: \"c_{name}\"}\n",
      64);
  EngineOptions options;
  options.precision = Precision::bf16;
  options.plan = "composed";
  std::set<std::string> all;
  properties::Dice dice(1);
  for (int i = 0; i < 20; ++i) {
    all.merge(
        expressions(compile_for(graph, {1, 1 + dice.below(700), 1 + dice.below(700)}, "sm_90a", options)));
  }
  EXPECT_LE(all.size(), 8u) << testing::PrintToString(all);
}

// No specialisation spills registers, and none asks for more shared memory than the chip has (composed
// declines).
struct Build {
  std::string architecture;
  Precision precision;
};
void PrintTo(const Build& b, std::ostream* out) { *out << b.architecture << " " << to_string(b.precision); }

class Families : public Nvrtc, public testing::WithParamInterface<Build> {};

TEST_P(Families, CompileWithoutSpills) {
  const auto& [architecture, precision] = GetParam();
  const std::string whole =
      "  - axial_attention: {axis: row, heads: 2, head_dim: 32, causal: true, rope: {}, tensors: "
      "\"a_{name}\"}\n"
      "  - axial_attention: {axis: column, heads: 2, head_dim: 64, norm: rms, tensors: \"b_{name}\"}\n"
      "  - axial_attention: {axis: column, heads: 1, head_dim: 128, norm: none, tensors: \"c_{name}\"}\n"
      "  - axial_attention: {axis: row, heads: 1, head_dim: 256, tensors: \"d_{name}\"}\n"
      "  - feed_forward: {hidden: 200, activation: silu, tensors: \"e_{name}\"}\n"
      "  - norm: {tensors: \"f_{name}\"}\n"
      "  - position_embedding: {rows: 500, columns: 500, tensors: \"g_{name}\"}\n"
      "  - patch_unembed: {patch: 2, channels: 3, tensors: \"h_{name}\"}\n"
      "  - patch_embed: {patch: 2, channels: 3, dim: 64, tensors: \"i_{name}\"}\n";
  const graph::Graph graph = graph_of(whole, 64);
  EngineOptions options;
  options.precision = precision;
  std::vector<const char*> plans = {"composed", "cuda_reference"};
  if (precision == Precision::fp32 || precision == Precision::tf32) plans.push_back("split");
  for (const char* plan : plans) {
    options.plan = plan;
    for (const Compiled& c : compile_for(graph, {1, 20, 300}, architecture, options)) {
      std::smatch found;
      ASSERT_TRUE(std::regex_search(c.kernel.log, found, std::regex("Used (\\d+) registers")))
          << c.kernel.log;
      const std::regex spill("([1-9]\\d*) bytes spill");
      EXPECT_FALSE(std::regex_search(c.kernel.log, found, spill)) << c.spec.expression << "\n"
                                                                  << c.kernel.log;
      if (std::regex_search(c.kernel.log, found, std::regex("(\\d+) bytes smem"))) {
        EXPECT_LE(std::stol(found[1]), 48 * 1024) << c.spec.expression;
      }
    }
  }
}

// Neither spills, nor products of warpgroups one after another for want of registers, which is a note of the
// compiler.
void expect_registers_suffice(const Compiled& c) {
  EXPECT_FALSE(std::regex_search(c.kernel.log, std::regex("[1-9]\\d* bytes spill|C75\\d\\d")))
      << c.spec.expression << "\n"
      << c.kernel.log;
}

// The long family's widest specialisations, with every option that takes registers; products of warpgroups
// must not be serialised either, which the compiler warns of.
TEST_F(Nvrtc, LongCompilesWithoutSpills) {
  for (const int dim : {64, 120, 128, 248, 256}) {
    const std::string head = std::to_string(dim < 128 ? 16 : 32);
    const graph::Graph graph = graph_of("  - axial_attention: {axis: row, heads: 8, head_dim: " + head +
                                            ", qkv_bias: true, rope: {}, tensors: \"a_{name}\"}\n"
                                            "  - axial_attention: {axis: column, heads: 4, head_dim: 32, "
                                            "norm: none, residual: false, tensors: "
                                            "\"b_{name}\"}\n",
                                        dim);
    EngineOptions options;
    options.plan = "long", options.strict = true;
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      options.precision = precision;
      for (const Compiled& c : compile_for(graph, {1, 300, 300}, "sm_90a", options)) {
        expect_registers_suffice(c);
      }
    }
  }
}

// A layer in one kernel, for both numbers of tiles.
TEST_F(Nvrtc, WholeLayersCompileWithoutSpills) {
  const graph::Graph graph = graph_of(
      "  - axial_attention: {axis: row, heads: 4, tensors: \"a_{name}\"}\n"
      "  - axial_attention: {axis: column, heads: 4, tensors: \"b_{name}\"}\n"
      "  - axial_attention: {axis: row, heads: 4, norm: rms, tensors: \"c_{name}\"}\n"
      "  - axial_attention: {axis: column, heads: 4, norm: rms, qkv_bias: true, tensors: \"d_{name}\"}\n",
      128);
  EngineOptions options;
  options.plan = "long", options.strict = true;
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    options.precision = precision;
    int whole = 0;
    for (const Compiled& c : compile_for(graph, {1, 200, 300}, "sm_90a", options)) {
      whole += c.spec.expression.find("whole_layer<") != std::string::npos;
      expect_registers_suffice(c);
    }
    EXPECT_EQ(whole, 4);
  }
}

// Hopper's attention by itself and with the output projection; a scale above 1 is not folded into q in fp16.
// Where not causal, lengths whose first tile of keys is whole (300) and half (280, 80) need kernels of their
// own.
TEST_F(Nvrtc, HoppersAttentionCompilesWithoutSpills) {
  for (const char* layer :
       {"heads: 8, head_dim: 48", "heads: 4, head_dim: 48, causal: true, scale: 2.0",
        "heads: 8, head_dim: 48, causal: true, scale: 2.0", "heads: 3, head_dim: 48",
        "heads: 3, head_dim: 48, causal: true, scale: 2.0", "heads: 4, head_dim: 32, causal: true",
        "heads: 8, head_dim: 32, causal: true, scale: 2.0", "heads: 8, head_dim: 32",
        "heads: 3, head_dim: 32, causal: true, scale: 2.0", "heads: 6, head_dim: 64, causal: true",
        "heads: 6, head_dim: 64"}) {
    const bool causal = std::string(layer).find("causal") != std::string::npos;
    const graph::Graph graph = graph_of(
        "  - axial_attention: {axis: row, " + std::string(layer) + ", tensors: \"a_{name}\"}\n", 384);
    EngineOptions options;
    options.plan = "composed", options.strict = true;
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      options.precision = precision;
      std::set<std::string> kernels;
      for (const std::int64_t length :
           causal ? std::vector<std::int64_t>{300} : std::vector<std::int64_t>{300, 280, 80}) {
        int seen = 0;
        for (const Compiled& c : compile_for(graph, {1, 2, length}, "sm_90a", options)) {
          if (c.spec.file != "long/attention.cuh") continue;
          ++seen;
          kernels.insert(c.spec.expression);
          expect_registers_suffice(c);
        }
        EXPECT_EQ(seen, 1) << layer;
      }
      EXPECT_GE(kernels.size(), causal ? 1u : 2u) << layer;
    }
  }
}

// Norm, q, k, v and attention of wide layers: every slot of sequences, both widths of heads; and without
// attention, where 144 rows of weights at a time leave less to padding than 192, and where they do not.
TEST_F(Nvrtc, WideLayersCompileWithoutSpills) {
  for (const char* heads : {"heads: 7, head_dim: 48", "heads: 6, head_dim: 64"}) {
    const graph::Graph graph = graph_of(
        "  - axial_attention: {axis: row, " + std::string(heads) + ", tensors: \"a_{name}\"}\n", 384);
    EngineOptions options;
    options.plan = "composed", options.strict = true;
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      options.precision = precision;
      std::set<std::string> kernels;
      for (const std::int64_t length : {16, 32, 64, 128}) {
        for (const Compiled& c : compile_for(graph, {1, 64, length}, "sm_90a", options)) {
          if (!c.spec.file.starts_with("long/wide_")) continue;
          kernels.insert(c.spec.expression);
          expect_registers_suffice(c);
        }
      }
      EXPECT_EQ(kernels.size(), 5u) << heads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         testing::Values(Build{"sm_80", Precision::bf16}, Build{"sm_86", Precision::fp32},
                                         Build{"sm_89", Precision::fp16}, Build{"sm_90a", Precision::bf16},
                                         Build{"sm_90a", Precision::tf32}, Build{"sm_100", Precision::bf16},
                                         Build{"sm_120", Precision::fp32}),
                         [](const auto& test) {
                           return test.param.architecture + "_" +
                                  std::string(to_string(test.param.precision));
                         });

}  // namespace
}  // namespace warpweave::cuda
