// Text that is no YAML, or YAML meant to harm: refused in bounded time and memory, with file and line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "formats/support.h"
#include "graph/helpers.h"
#include "graph/yaml.h"

namespace warpweave::graph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string repeated(const std::string& text, int count) {
  std::string s;
  for (int n = 0; n < count; ++n) s += text;
  return s;
}

::testing::Matcher<std::string> error_at(int line, const std::string& words) {
  return AllOf(StartsWith("model.yaml:" + std::to_string(line) + ": "), HasSubstr(words));
}

TEST(HostileYaml, EmptyFiles) {
  EXPECT_THAT(parse_error(""), error_at(1, "no content"));
  EXPECT_THAT(parse_error("\n# only a comment\n"), error_at(1, "no content"));
  EXPECT_THAT(parse_error("~"), error_at(1, "no content"));
  EXPECT_THAT(parse_error("---\n...\n"), error_at(1, "no content"));
}

TEST(HostileYaml, Syntax) {
  EXPECT_THAT(parse_error("input: {dim: 64\nlayers:\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(parse_error("input: {dim: 64}\nlayers:\n  - norm: \"open\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(parse_error("input: {dim: 64}\n\tlayers: []\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(parse_error("input: *nowhere\n"), error_at(1, "not valid YAML"));
  EXPECT_THAT(parse_error("a: b: c\n"), error_at(1, "not valid YAML"));
  EXPECT_THAT(parse_error("%YAML 9.9\n---\ninput:\n"), StartsWith("model.yaml:"));
}

TEST(HostileYaml, CutShort) {  // at every byte: an error, or still a whole model
  const std::string whole = model("  - axial_attention: {axis: row, heads: 4, tensors: \"row_{name}\"}\n");
  EXPECT_EQ(parse(whole).nodes.size(), 1u);
  for (std::size_t end = 0; end + 1 < whole.size(); ++end) {  // without the last newline it is whole
    EXPECT_THAT(parse_error(whole.substr(0, end)), StartsWith("model.yaml:")) << end;
  }
  const std::string quotes = model("  - axial_attention:\n      heads: 4\n      axis: \"row");
  EXPECT_THAT(parse_error(quotes), HasSubstr("not valid YAML"));
  EXPECT_THAT(parse_error(model("  - axial_attention:\n      heads: 4\n      axis: 'row")),
              HasSubstr("not valid"));
}

TEST(HostileYaml, Bytes) {
  EXPECT_THAT(parse_error(model("  - norm: {tensors: '\xC3\x28{name}'}\n")),
              error_at(3, "byte 0xc3 is not UTF-8"));
  EXPECT_THAT(parse_error("name: \xED\xA0\x80\n"), error_at(1, "not UTF-8"));      // a surrogate
  EXPECT_THAT(parse_error("name: \xC0\xAF\n"), error_at(1, "not UTF-8"));          // overlong
  EXPECT_THAT(parse_error("name: \xF4\x90\x80\x80\n"), error_at(1, "not UTF-8"));  // past U+10FFFF
  EXPECT_THAT(parse_error("name: \xE2\x82"), error_at(1, "not UTF-8"));            // cut short
  EXPECT_THAT(parse_error("\xFF\xFEi\0n\0"), error_at(1, "not UTF-8"));            // UTF-16
  EXPECT_THAT(parse_error(std::string("name: a\nx: \0", 12)), error_at(2, "control character 0x00"));
  EXPECT_THAT(parse_error("name: \x1B[31m\n"), error_at(1, "control character 0x1b"));
}

TEST(HostileYaml, ValuesAreSingleLines) {
  for (const char* text : {"\"ki\\nnd\": 4", "kind: \"a\\e[31m\"", "kind: \"a\\x9b\"", "kind: \"a\\0b\""}) {
    EXPECT_EQ(
        parse_error(model("  - norm: {" + std::string(text) + "}\n")),
        "model.yaml:3: a line break or another control character in a name or value; each is a single line");
  }
  EXPECT_THAT(parse_error("name: |\n  a\n  b\n" + model("  - norm:\n")), error_at(1, "line break"));
}

TEST(HostileYaml, KeyTwice) {
  EXPECT_THAT(parse_error(model("  - axial_attention:\n      axis: row\n      heads: 4\n      heads: 8\n")),
              error_at(6, "key 'heads' occurs twice in one map, first on line 5"));
  EXPECT_THAT(parse_error(model("  - norm:\n") + "input: {dim: 32}\n"),
              error_at(4, "key 'input' occurs twice"));
  EXPECT_THAT(parse_error(model("  - norm: {\"kind\": rms, kind: layer}\n")),
              error_at(3, "key 'kind' occurs twice"));
}

TEST(HostileYaml, KeysAreWords) {
  EXPECT_THAT(parse_error("? [a]\n: b\n"), error_at(1, "keys are words"));
  EXPECT_THAT(parse_error("? {a: b}\n: b\n"), error_at(1, "keys are words"));
  EXPECT_THAT(parse_error("~: b\n"), error_at(1, "keys are words"));
  EXPECT_THAT(parse_error("a: &x [1]\n*x : b\n"), error_at(2, "keys are words"));
}

TEST(HostileYaml, Tags) {
  EXPECT_THAT(parse_error("input: !!map {dim: 64}\n"), error_at(1, "remove it"));
  EXPECT_THAT(parse_error("input: {dim: !!int 64}\n"), error_at(1, "tag"));
  EXPECT_THAT(parse_error(model("  - !!python/object:os.system [id]\n")), error_at(3, "python/object"));
  EXPECT_THAT(parse_error(model("  - norm: {tensors: !include \"/etc/passwd\"}\n")), error_at(3, "tag"));
}

TEST(HostileYaml, SeveralDocuments) {
  const std::string good = model("  - norm:\n");
  EXPECT_EQ(parse("---\n" + good + "...\n").nodes.size(), 1u);
  EXPECT_THAT(parse_error(good + "---\nname: second\n"), error_at(5, "a second YAML document"));
  EXPECT_THAT(parse_error(good + "---\n" + good), error_at(5, "a second YAML document"));
}

TEST(HostileYaml, MergeKeys) {
  EXPECT_THAT(parse_error("input: &a {dim: 64}\nlayers:\n  - norm: {<<: *a}\n"),
              error_at(3, "merge keys (<<)"));
}

TEST(HostileYaml, AliasesAreLegal) {
  const Graph graph = parse(
      "input: {dim: 64}\nlayers:\n  - axial_attention: &a {axis: row, heads: &h 4, rope: &r {dims: 8}}\n"
      "  - axial_attention: *a\n  - axial_attention: {axis: column, heads: *h, rope: *r}\n");
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[1].layer->describe(), graph.nodes[0].layer->describe());
  EXPECT_EQ(graph.nodes[2].layer->describe(), "axial_attention column, 4 heads of 16, rope half of 8");
}

TEST(HostileYaml, AliasBomb) {  // 9 levels of 9 aliases: 9^9 nodes
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int n = 1; n < 9; ++n) {
    text += "a" + std::to_string(n) + ": &a" + std::to_string(n) + " [" + "*a" + std::to_string(n - 1);
    for (int m = 1; m < 9; ++m) text += ", *a" + std::to_string(n - 1);
    text += "]\n";
  }
  EXPECT_THAT(parse_error(text), error_at(7, "more than 1000000 nodes"));
}

TEST(HostileYaml, AliasOfItself) {
  EXPECT_THAT(parse_error("layers: &a\n  - *a\n"), error_at(2, "an alias inside its own anchor"));
  EXPECT_THAT(parse_error("&a {b: [*a]}\n"), error_at(1, "an alias inside its own anchor"));
}

TEST(HostileYaml, AliasChain) {  // shallow on paper, 100,000 levels deep when followed
  std::string text = "a0: &a0 [x]\n";
  for (int n = 1; n < 100'000; ++n) {
    text += "a" + std::to_string(n) + ": &a" + std::to_string(n) + " [*a" + std::to_string(n - 1) + "]\n";
  }
  EXPECT_THAT(parse_error(text), error_at(63, "nested deeper than 64 levels"));
}

TEST(HostileYaml, Nesting) {
  constexpr int deep = 100'000;
  for (const char* open : {"[", "{a: ", "[{a: ", "- ", "? ", "[? ", "{? "}) {
    EXPECT_THAT(parse_error(repeated(open, deep)), StartsWith("model.yaml:1: ")) << open;
  }
  std::string indented;
  for (int n = 0; n < 2'000; ++n) indented += std::string(static_cast<std::size_t>(n), ' ') + "a:\n";
  EXPECT_THAT(parse_error(indented), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(parse_error(repeated("]", deep)), StartsWith("model.yaml:1: "));
}

TEST(HostileYaml, NestedRepeats) {
  std::string open, close;
  for (int n = 0; n < 30; ++n) {
    open += "{repeat: {count: 10000, index: i" + std::to_string(n) + ", layers: [";
    close += "]}}";
  }
  EXPECT_THAT(parse_error(model("  - " + open + "norm: " + close + "\n")), HasSubstr("nested deeper"));
  open = close = "";
  for (int n = 0; n < 15; ++n) {
    open += "{repeat: {count: 10000, index: i" + std::to_string(n) + ", layers: [";
    close += "]}}";
  }
  EXPECT_THAT(parse_error(model("  - " + open + "norm: " + close + "\n")),
              error_at(3, "more than 10000 layers"));
}

TEST(HostileYaml, Sizes) {
  yaml::Limits limits;
  EXPECT_THAT(parse_error(model("  - norm: {tensors: '{name}" + std::string(2000, 'x') + "'}\n")),
              error_at(3, "longer than 1024 bytes"));
  EXPECT_THAT(parse_error(model("  - norm: {" + std::string(2000, 'x') + ": 4}\n")),
              StartsWith("model.yaml:3: "));
  EXPECT_THAT(parse_error(std::string(limits.file_bytes + 1, '\n')),
              StartsWith("model.yaml: larger than 16 MiB"));
  EXPECT_THAT(parse_error("layers: [" + repeated("x,", 1'000'001) + "]"),
              error_at(1, "more than 1000000 nodes"));
}

TEST(HostileYaml, TenThousandLayersAreLegal) {
  EXPECT_EQ(parse(model("  - repeat: {count: 10000, layers: [norm: ]}\n")).nodes.size(), 10'000u);
}

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/warpweave_graph_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string load_error(const std::string& file) {
    return error_of([&] { load_graph(file); });
  }
  std::filesystem::path folder_;
};

TEST_F(FileTest, NamesTheFile) {
  std::ofstream(at("bad.yaml")) << "input: {dim: 64}\nlayers: 4\n";
  EXPECT_THAT(load_error(at("bad.yaml")), StartsWith(at("bad.yaml") + ":2: layers: "));
}

TEST_F(FileTest, NameDefaultsToTheStem) {
  std::ofstream(at("some.model.yaml")) << model("  - norm:\n");
  EXPECT_EQ(load_graph(at("some.model.yaml")).name, "some.model");
}

TEST_F(FileTest, WhatIsNoFile) {
  EXPECT_THAT(load_error(at("absent.yaml")),
              AllOf(StartsWith(at("absent.yaml") + ": "), HasSubstr("no such file")));
  EXPECT_THAT(load_error(folder_.string()), HasSubstr("a directory"));
  EXPECT_THAT(load_error(at("absent") + "/x.yaml"), HasSubstr("no such file"));
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_THAT(load_error(at("fifo")), HasSubstr("not a regular file"));
  EXPECT_THAT(load_error(""), HasSubstr("no such file"));
}

TEST_F(FileTest, Unreadable) {
  std::ofstream(at("secret.yaml")) << model("  - norm:\n");
  chmod(at("secret.yaml").c_str(), 0);
  chmod(folder_.c_str(), 0755);
  const warpweave::testing::Unprivileged user;
  EXPECT_THAT(load_error(at("secret.yaml")), HasSubstr("cannot be opened: Permission denied"));
}

TEST_F(FileTest, TooLarge) {
  std::ofstream(at("large.yaml")) << "x";
  std::filesystem::resize_file(at("large.yaml"), std::uintmax_t{1} << 40);  // sparse
  EXPECT_THAT(load_error(at("large.yaml")), StartsWith(at("large.yaml") + ": larger than 16 MiB"));
}

}  // namespace
}  // namespace warpweave::graph
