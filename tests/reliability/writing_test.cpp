// Writing in a broken world: killed, out of disk, nowhere to write. The old file or the new one is there,
// whole.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "cli/models.h"
#include "reliability/broken_world.h"

namespace warpweave::test {
namespace {

bool is_hidden(const std::string& name) { return name.find(".warpweave-tmp") != std::string::npos; }

// A model that makes 2 MiB of 8 KiB, so that a run is little but writing; and one that keeps the size.
class Writing : public ::testing::Test {
 protected:
  Writing() {
    write_file(config, "name: w\ninput: {dim: 4}\nlayers:\n  - linear: {out: 1024, tensors: \"{name}\"}\n");
    std::map<std::string, Tensor> tensors;
    tensors["weight"] = spread({1024, 4}, 1, 1);
    tensors["bias"] = spread({1024}, 1, 2);
    save_safetensors(weights, tensors);
    save_tensor(input, spread({1, 16, 32, 4}, 1, 3));
  }
  std::vector<std::string> command(const std::string& to) const {
    return {"run", "--config", config, "--weights", weights, "--input",
            input, "--device", "cpu",  "--output",  to};
  }
  std::size_t hidden() const {
    const auto names = folder.files();
    return static_cast<std::size_t>(std::count_if(names.begin(), names.end(), is_hidden));
  }
  // Waits until the program has begun to write or has ended.
  bool began_to_write(pid_t child, std::size_t hidden_before) const {
    for (;;) {
      if (hidden() > hidden_before) return true;
      siginfo_t info = {};
      if (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != 0)
        return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  Folder folder;
  const std::string config = folder / "w.yaml", weights = folder / "w.safetensors", input = folder / "x.npy",
                    output = folder / "y.npy";
};

// A hundred times: killed at a random moment after the first byte is written.
TEST_F(Writing, KilledAtAHundredRandomMoments) {
  ASSERT_EQ(warpweave(command(output)).status, 0);
  const std::string whole = read_file(output), x = read_file(input);
  ASSERT_EQ(whole.size(), 128u + 16 * 32 * 1024 * 4);
  const std::string old = "what was there before";
  std::mt19937 random(7);
  int interrupted = 0, finished = 0;
  for (int i = 0; i < 100; ++i) {
    write_file(output, old);
    const std::size_t before = hidden();
    const Outcome o =
        warpweave(command(output), {.in_child = alarm_in_child, .meanwhile = [&](pid_t child) {
                                      if (!began_to_write(child, before)) return;
                                      const int wait = std::uniform_int_distribution<>(0, 3000)(random);
                                      std::this_thread::sleep_for(std::chrono::microseconds(wait));
                                      ::kill(child, SIGKILL);
                                    }});
    ASSERT_TRUE(o.status == 0 || o.status == 128 + SIGKILL) << o.status << o.err;
    const std::string now = read_file(output);
    ASSERT_TRUE(now == old || now == whole) << now.size() << " bytes";
    ASSERT_EQ(read_file(input), x);
    interrupted += now == old;
    finished += now == whole;
  }
  EXPECT_EQ(interrupted + finished, 100);
  EXPECT_GT(interrupted, 10) << "killed too late: the test proves nothing";
  ASSERT_EQ(warpweave(command(output)).status, 0);  // the next run removes what the dead left
  EXPECT_EQ(hidden(), 0u);
}

// A limit on the size of files stands for a full disk, at every length.
TEST_F(Writing, CutOffAtAnyLength) {
  const std::string x = read_file(input);
  for (const std::string& to : {output, input, folder / "y.safetensors"}) {
    const std::string old = to == input ? x : "";
    for (const rlim_t limit : {0, 1, 100, 127, 128, 129, 4096, 65536, 1 << 20, 16 * 32 * 4096 - 1}) {
      const Outcome o = warpweave(command(to), {.in_child = [limit] {
                                    alarm_in_child();
                                    const rlimit r = {limit, limit};
                                    (void)::setrlimit(RLIMIT_FSIZE, &r);
                                  }});
      expect_error(o, 2, {to + ": cannot write: File too large"});
      EXPECT_EQ(std::filesystem::exists(to), to == input);
      EXPECT_EQ(hidden(), 0u);
      EXPECT_EQ(read_file(input), x);
    }
  }
}

TEST_F(Writing, NowhereToWrite) {
  const std::string locked = folder / "locked";
  std::filesystem::create_directory(locked);
  write_file(locked + "/old.npy", "old");
  write_file(folder / "read-only.npy", "old");
  ASSERT_EQ(::mkfifo((folder / "fifo.npy").c_str(), 0600), 0);
  ASSERT_EQ(::chmod((folder / "read-only.npy").c_str(), 0444), 0);
  ASSERT_EQ(::chmod(locked.c_str(), 0555), 0);
  const struct {
    std::string to, words;
  } cases[] = {{folder / "no/such/y.npy", "cannot create a file beside it"},
               {folder / "x.npy/y.npy", "Not a directory"},
               {locked + "/y.npy", "Permission denied"},
               {locked + "/old.npy", "Permission denied"},
               {folder / "read-only.npy", "Permission denied"},
               {folder / "fifo.npy", "FIFO"},
               {"/proc/y.npy", "cannot create a file beside it"},
               {folder / (std::string(300, 'n') + ".npy"), "File name too long"}};
  for (const auto& [to, words] : cases) {
    SCOPED_TRACE(to);
    expect_error(warpweave(command(to), {.in_child = without_rights_of_root}), 2, {to + ": ", words});
  }
  EXPECT_EQ(read_file(locked + "/old.npy"), "old");
  EXPECT_EQ(read_file(folder / "read-only.npy"), "old");
  EXPECT_EQ(hidden(), 0u);
  ASSERT_EQ(::chmod(locked.c_str(), 0755), 0);
}

// Every input may be the output too: it is read before, and replaced whole.
TEST_F(Writing, OverTheInput) {
  ASSERT_EQ(warpweave(command(output)).status, 0);
  ASSERT_EQ(warpweave(command(input)).status, 0);
  EXPECT_EQ(read_file(input), read_file(output));
  // The weights are mapped while the model is loaded; they may be replaced all the same.
  save_tensor(input, spread({1, 16, 32, 4}, 1, 3));
  ASSERT_EQ(warpweave(command(weights)).status, 0);
  EXPECT_EQ(load_tensor(weights).shape(), (std::vector<std::int64_t>{1, 16, 32, 1024}));
  EXPECT_EQ(hidden(), 0u);
}

TEST_F(Writing, ToAStandardOutputThatIsFull) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  const auto full_stdout = [] {
    alarm_in_child();
    if (!std::freopen("/dev/full", "w", stdout)) ::_exit(126);
  };
  expect_error(warpweave({"inspect", "--config", config}, {.in_child = full_stdout}), 2, {"standard output"});
}

}  // namespace
}  // namespace warpweave::test
