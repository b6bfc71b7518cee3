// The real binary with little memory and few threads: it works, or says in one line what it could not have.
#include <sys/resource.h>
#include <unistd.h>

#include <functional>

#include "cli/models.h"
#include "formats/support.h"
#include "reliability/broken_world.h"

namespace warpweave::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers reserve terabytes of addresses
#else
constexpr bool kSanitized = false;
#endif

Outcome with_memory(const std::vector<std::string>& command, rlim_t bytes) {
  return warpweave(command, {.in_child = [bytes] {
                     alarm_in_child();
                     const rlimit limit = {bytes, bytes};
                     (void)::setrlimit(RLIMIT_AS, &limit);
                   }});
}

TEST(Limits, AnyAmountOfMemoryIsEnoughOrAnError) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reserves more addresses than the limits of this test leave";
  const BlockFiles f;
  save_tensor(f.input, spread({1, 128, 128, 8}, 1));
  std::vector<std::string> run = f.arguments("run");
  run.insert(run.end(), {"--output", f.output, "--threads", "3"});
  ASSERT_EQ(warpweave(run).status, 0);
  const std::string whole = read_file(f.output);
  int done = 0, refused = 0;
  for (rlim_t kibibytes = 8 << 10; kibibytes <= 256 << 10 && done < 3; kibibytes += 512) {
    std::filesystem::remove(f.output);
    const Outcome o = with_memory(run, kibibytes << 10);
    if (o.status == 0) {
      ++done;
      EXPECT_EQ(read_file(f.output), whole);
      continue;
    }
    EXPECT_EQ(f.folder.files().size(), 3u) << "something is left";
    if (o.status == 127 || o.err.find("warpweave: ") != 0) continue;  // too little to start a program at all
    SCOPED_TRACE(std::to_string(kibibytes) + " KiB");
    ++refused;
    expect_error(o, o.err.find("cannot map") != std::string::npos ? 2 : 3, {});
  }
  EXPECT_EQ(done, 3);
  EXPECT_GT(refused, 0);
}

TEST(Limits, MoreThreadsThanThereCanBe) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reserves more addresses than the limits of this test leave";
  const BlockFiles f;
  std::vector<std::string> run = f.arguments("run");
  run.insert(run.end(), {"--output", f.output, "--threads", "500"});
  expect_error(with_memory(run, rlim_t{512} << 20), 3, {"cannot start thread", "of 500"});
  run.back() = "1000000000";
  expect_error(warpweave(run, {.in_child = alarm_in_child}), 2, {"threads", "4096"});
  EXPECT_FALSE(std::filesystem::exists(f.output));
}

// No file descriptor is left: reading and writing say so, and lose nothing.
TEST(Limits, NoOpenFiles) {
  const BlockFiles f;
  const Tensor x = load_tensor(f.input);
  const int next = ::dup(0);
  ASSERT_GE(next, 0);
  ::close(next);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const std::function<void()> calls[] = {
      [&] { Model::load(f.config, f.weights); }, [&] { load_tensor(f.input); },
      [&] { load_tensor(f.weights, "row_norm.weight"); }, [&] { save_tensor(f.input, x); }};
  for (const auto& call : calls) {
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(next);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    const std::string message = testing::error_of(call);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_THAT(message, ::testing::HasSubstr("Too many open files"));
    EXPECT_NO_THROW(call());
  }
  EXPECT_EQ(f.folder.files().size(), 3u);
}

}  // namespace
}  // namespace warpweave::test
