#include "io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "formats/support.h"
#include "warpweave/io.h"

namespace warpweave::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void write_whole(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

TEST(AtomicFile, ReplacesTheOldContentAtCommit) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  write_bytes(path, "old");
  {
    AtomicFile file(path);
    file.write("ne", 2);
    EXPECT_EQ(read_bytes(path), "old");
    file.write("w", 1);
    file.commit();
    EXPECT_EQ(read_bytes(path), "new");
  }
  EXPECT_EQ(read_bytes(path), "new");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, AnExceptionLeavesTheOldContentAndNothingElse) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  for (const bool exists : {false, true}) {
    if (exists) write_bytes(path, "old");
    EXPECT_THROW(
        {
          AtomicFile file(path);
          file.write("new", 3);
          throw std::runtime_error("in the middle");
        },
        std::runtime_error);
    EXPECT_EQ(folder.entries(), exists ? 1u : 0u);
  }
  EXPECT_EQ(read_bytes(path), "old");
}

// A child writes a file of 4 MiB in a loop and is killed at a random moment, a hundred times.
TEST(AtomicFile, AWriterKilledAtAnyMomentLeavesTheOldOrTheNewContent) {
  const TemporaryFolder folder;
  const auto path = folder / "f.npy";
  constexpr std::int64_t kElements = 1 << 20;
  const auto filled = [](float value) {
    Tensor tensor(DType::f32, {kElements});
    for (float& v : tensor.values<float>()) v = value;
    return tensor;
  };
  save_tensor(path, filled(0));
  const Tensor even = filled(2), odd = filled(3);
  std::mt19937 random(1);
  int replaced = 0, unfinished = 0;
  int longest_us = 12000;  // grows until a write finishes, for slow machines and sanitizers
  for (int kill_number = 0; kill_number < 100; ++kill_number) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (;;) {
          save_tensor(path, even);
          save_tensor(path, odd);
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<>(0, longest_us)(random)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed on its own";
    const Tensor found = load_tensor(path);  // throws when the file is not whole
    const auto values = found.values<float>();
    ASSERT_EQ(values.size(), static_cast<std::size_t>(kElements));
    const float first = values[0];
    ASSERT_TRUE(first == 0 || first == 2 || first == 3);
    for (const float v : values) ASSERT_EQ(v, first);
    if (first != 0) ++replaced;
    if (replaced == 0) longest_us = std::min(longest_us * 5 / 4, 1'000'000);
    if (folder.entries() > 1) ++unfinished;
  }
  EXPECT_GT(replaced, 0) << "no write ever finished: the test proves nothing";
  EXPECT_GT(unfinished, 0) << "no write was ever interrupted: the test proves nothing";
  save_tensor(path, even);  // the next writer cleans up after the dead ones
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, ALiveWriterKeepsItsHiddenFile) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  AtomicFile slow(path);
  slow.write("slow", 4);
  write_whole(path, "quick");
  EXPECT_EQ(read_bytes(path), "quick");
  EXPECT_EQ(folder.entries(), 2u);
  slow.commit();
  EXPECT_EQ(read_bytes(path), "slow");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, OnlyItsOwnLeftoversAreRemoved) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  write_bytes(folder / ".f.123.warpweave-tmp", "of a dead writer");
  for (const char* name :
       {".f.12x.warpweave-tmp", ".g.123.warpweave-tmp", ".f.123.tmp", "f.123.warpweave-tmp"})
    write_bytes(folder / name, "of somebody else");
  write_whole(path, "new");
  EXPECT_FALSE(std::filesystem::exists(folder / ".f.123.warpweave-tmp"));
  EXPECT_EQ(folder.entries(), 5u);
}

TEST(AtomicFile, ManyThreadsToOneDestinationLeaveOneWholeFile) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  std::vector<std::thread> threads;
  for (char c = 'a'; c < 'i'; ++c) {
    threads.emplace_back([&path, c] {
      for (int i = 0; i < 20; ++i) write_whole(path, std::string(10000, c));
    });
  }
  for (std::thread& t : threads) t.join();
  const std::string content = read_bytes(path);
  ASSERT_EQ(content.size(), 10000u);
  EXPECT_EQ(content, std::string(10000, content[0]));
  EXPECT_EQ(folder.entries(), 1u);
}

// RLIMIT_FSIZE stands for a full disk: write() fails in the middle of the file.
TEST(AtomicFile, AFullDiskIsAClearErrorAndLosesNothing) {
  const TemporaryFolder folder;
  const auto path = folder / "f.npy", weights = folder / "f.safetensors";
  write_bytes(path, "old");
  write_bytes(weights, "old");
  const Tensor tensor(DType::u8, {1 << 20});
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1 << 16;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string npy_error = error_of([&] { save_tensor(path, tensor); });
  const std::string safetensors_error = error_of([&] { save_tensor(weights, tensor); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(npy_error, AllOf(StartsWith(path.string() + ": cannot write: "), HasSubstr("File too large")));
  EXPECT_THAT(safetensors_error, StartsWith(weights.string() + ": cannot write: "));
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(read_bytes(weights), "old");
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(AtomicFile, RefusesWhatIsNoPlaceForAFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "d");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0666), 0);
  write_bytes(folder / "file", "old");
  EXPECT_THAT(error_of([&] { AtomicFile{folder / "d"}; }), HasSubstr("/d: is a directory"));
  EXPECT_THAT(error_of([&] { AtomicFile{folder / "d/"}; }), HasSubstr("is not a file name"));
  EXPECT_THAT(error_of([&] { AtomicFile{folder / "fifo"}; }), HasSubstr("/fifo: is a device or FIFO"));
  EXPECT_THAT(error_of([&] { AtomicFile{"/dev/null"}; }), HasSubstr("/dev/null: is a device"));
  EXPECT_THAT(error_of([&] { AtomicFile{"/dev/full"}; }), HasSubstr("/dev/full: is a device"));
  EXPECT_THAT(error_of([&] { AtomicFile{folder / "absent/f"}; }),
              HasSubstr("absent/f: cannot create a file beside it: "));
  EXPECT_THAT(error_of([&] { AtomicFile{folder / "file/f"}; }),
              HasSubstr("file/f: cannot write: Not a directory"));
  EXPECT_THAT(error_of([&] { AtomicFile{""}; }), HasSubstr("is not a file name"));
  EXPECT_THAT(error_of([&] { AtomicFile{folder / std::string(300, 'x')}; }),
              HasSubstr("cannot write: File name too long"));
  EXPECT_EQ(folder.entries(), 3u);
}

TEST(AtomicFile, RespectsAReadOnlyFileAndFolder) {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "old");
  ASSERT_EQ(::chmod((folder / "file").c_str(), 0444), 0);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  {
    const Unprivileged user;
    EXPECT_THAT(error_of([&] { AtomicFile{folder / "file"}; }),
                HasSubstr("/file: cannot write: Permission denied"));
    EXPECT_THAT(error_of([&] { AtomicFile{folder / "new"}; }),
                HasSubstr("/new: cannot create a file beside it: Permission denied"));
  }
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  EXPECT_EQ(read_bytes(folder / "file"), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, KeepsPermissionsLinksAndLongNames) {
  const TemporaryFolder folder;
  const auto path = folder / "f", link = folder / "link", long_name = folder / std::string(255, 'x');
  write_bytes(path, "old");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  std::filesystem::create_symlink("f", link);
  write_whole(link, "new");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_bytes(path), "new");
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  write_whole(long_name, "long");
  EXPECT_EQ(read_bytes(long_name), "long");
  EXPECT_EQ(folder.entries(), 3u);
}

TEST(AtomicFile, ALinkToAFileThatIsNotThereYetIsWrittenThrough) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("second", folder / "first");
  std::filesystem::create_symlink("target", folder / "second");
  write_whole(folder / "first", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "first"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "second"));
  EXPECT_EQ(read_bytes(folder / "target"), "new");
  std::filesystem::create_symlink("missing/target", folder / "astray");
  EXPECT_THROW(write_whole(folder / "astray", "new"), Error);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "astray"));
  std::filesystem::create_symlink("round", folder / "round");
  EXPECT_THROW(write_whole(folder / "round", "new"), Error);
}

TEST(AtomicFile, ANameWithoutAFolderIsInTheWorkingFolder) {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_whole("f", "here");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_bytes(folder / "f"), "here");
}

TEST(AtomicFile, TheOutputMayBeTheInput) {
  const TemporaryFolder folder;
  for (const char* name : {"x.npy", "x.safetensors"}) {
    const auto path = folder / name;
    save_tensor(path, Tensor::from({2}, std::vector<float>{1, 2}));
    Tensor tensor = load_tensor(path);
    for (float& v : tensor.values<float>()) v *= 2;
    save_tensor(path, tensor);
    EXPECT_EQ(load_tensor(path).values<float>()[1], 4);
  }
}

}  // namespace
}  // namespace warpweave::testing
