// Inputs that are not what a file should be: none may hang, crash or be believed.
#include "io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "formats/support.h"
#include "io/text.h"
#include "warpweave/io.h"
#include "weights/safetensors.h"

namespace warpweave::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Each case for every reader: the error must name the file and say `phrase`.
void expect_refused(const std::filesystem::path& path, const std::string& phrase) {
  SCOPED_TRACE(path.string());
  const std::string message = error_of([&] { load_tensor(path); });
  EXPECT_THAT(message, StartsWith(path.string() + ": "));
  EXPECT_THAT(message.substr(path.string().size()), HasSubstr(phrase));
}

class BadInputFile : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path path(const std::string& name) const { return folder_ / (name + GetParam()); }
  TemporaryFolder folder_;
};

TEST_P(BadInputFile, Absent) { expect_refused(path("absent"), "cannot open: No such file or directory"); }

TEST_P(BadInputFile, InAFolderThatIsAFile) {
  write_bytes(folder_ / "file", "");
  expect_refused(path("file/x"), "cannot open: Not a directory");
}

TEST_P(BadInputFile, Directory) {
  std::filesystem::create_directory(path("d"));
  expect_refused(path("d"), "is a directory, expected a regular file");
}

TEST_P(BadInputFile, FifoWithoutAWriter) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0666), 0);
  expect_refused(path("fifo"), "is a FIFO, expected a regular file");
}

TEST_P(BadInputFile, Device) {
  for (const char* device : {"/dev/zero", "/dev/full", "/dev/null"}) {
    const auto link = path(std::filesystem::path(device).filename().string());
    std::filesystem::create_symlink(device, link);
    expect_refused(link, "is a device, expected a regular file");
  }
}

TEST_P(BadInputFile, Socket) {
  const auto name = path("s");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(name.native().size(), sizeof address.sun_path);
  name.native().copy(address.sun_path, sizeof address.sun_path - 1);
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_refused(name, "cannot open: No such device or address");
}

TEST_P(BadInputFile, DanglingAndCircularLinks) {
  std::filesystem::create_symlink("nowhere", path("dangling"));
  expect_refused(path("dangling"), "cannot open: No such file or directory");
  std::filesystem::create_symlink(path("b"), path("a"));
  std::filesystem::create_symlink(path("a"), path("b"));
  expect_refused(path("a"), "cannot open: Too many levels of symbolic links");
}

TEST_P(BadInputFile, Empty) {
  write_bytes(path("empty"), "");
  expect_refused(path("empty"), "the file is empty");
}

TEST_P(BadInputFile, Unreadable) {
  write_bytes(path("secret"), "x");
  ASSERT_EQ(::chmod(path("secret").c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  const Unprivileged user;
  expect_refused(path("secret"), "cannot open: Permission denied");
}

TEST_P(BadInputFile, LongName) {
  expect_refused(path(std::string(300, 'x')), "cannot open: File name too long");
}

TEST_P(BadInputFile, NameWithLineBreakIsShownOnOneLine) {
  const std::string message = error_of([&] { load_tensor(path("a\nb")); });
  EXPECT_THAT(message, HasSubstr("a\\x0ab"));
}

TEST_P(BadInputFile, NameWithNul) {
  const std::string name(path(std::string("a\0b", 3)).native());
  EXPECT_THAT(error_of([&] { load_tensor(name); }), HasSubstr("NUL byte"));
}

// A terabyte of zeros: nobody tries to hold it.
TEST_P(BadInputFile, SparseFileOfATerabyte) {
  write_bytes(path("sparse"), "");
  if (::truncate(path("sparse").c_str(), off_t{1} << 40) != 0) GTEST_SKIP() << "no sparse files here";
  const bool npy = std::string(GetParam()) == ".npy";
  expect_refused(path("sparse"), npy ? "does not start as a .npy file" : "header length is 0");
}

INSTANTIATE_TEST_SUITE_P(Formats, BadInputFile, ::testing::Values(".npy", ".safetensors"),
                         [](const auto& test) { return std::string(test.param).substr(1); });

TEST(InputFile, BecomesShorterWhileItIsRead) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "0123456789");
  const InputFile file(folder / "f");
  ASSERT_EQ(::truncate((folder / "f").c_str(), 4), 0);
  std::vector<std::byte> bytes(10);
  EXPECT_THAT(error_of([&] { file.read(0, bytes); }), HasSubstr("/f: ends at byte 4 while it is being read"));
}

TEST(InputFile, MayVanishWhileItIsOpen) {
  const TemporaryFolder folder;
  const auto path = folder / "f.safetensors";
  save_tensor(path, Tensor::from({2}, std::vector<float>{1, 2}));
  const weights::SafetensorsFile file(path);
  std::filesystem::remove(path);
  EXPECT_EQ(file.read(file.entries()[0]).values<float>()[1], 2);
}

// Files appear and vanish under their readers: every read gives a whole tensor or an error that names the
// file.
TEST(InputFile, ReplacedAndRemovedAllTheTime) {
  const TemporaryFolder folder;
  const auto path = folder / "f.npy";
  const Tensor tensor = Tensor::from({3}, std::vector<float>{1, 2, 3});
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) {
      save_tensor(path, tensor);
      std::filesystem::remove(path);
    }
  });
  int read = 0, failed = 0;
  for (int i = 0; i < 2000 || (read == 0 && i < 2000000); ++i) {
    try {
      EXPECT_EQ(load_tensor(path).values<float>()[2], 3);
      ++read;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("f.npy: cannot open: No such file"));
      ++failed;
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(read, 0);
  EXPECT_GT(failed, 0);
}

TEST(Text, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(in_quotes("plain é 重 😀"), "'plain é 重 😀'");
  EXPECT_EQ(in_quotes(std::string_view("\0\n\x1b[2J\x7f", 7)), "'\\x00\\x0a\\x1b[2J\\x7f'");
  EXPECT_EQ(in_quotes("\xFF\xC3"), "'\\xff\\xc3'");
  EXPECT_EQ(in_quotes("\xC0\xAF\xED\xA0\x80"), "'\\xc0\\xaf\\xed\\xa0\\x80'");
  EXPECT_EQ(in_quotes("\xF4\x90\x80\x80"), "'\\xf4\\x90\\x80\\x80'");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
}

}  // namespace
}  // namespace warpweave::testing
