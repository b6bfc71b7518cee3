// A disk that is full: a tmpfs of 256 KiB, in a name space of mounts that ends with this program.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/models.h"
#include "cli/picture_samples.h"
#include "reliability/broken_world.h"

namespace warpweave::test {
namespace {

constexpr std::size_t kDisk = 256 << 10, kPage = 4096;

// Empty, or why there is no small disk here.
std::string mount_small_disk(const std::string& at) {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(CLONE_NEWNS) != 0) {
    // Who is not root may mount in a name space of users.
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return std::string("unshare: ") + std::strerror(errno);
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
    write_file("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return std::string("private mounts: ") + std::strerror(errno);
  const std::string size = "size=" + std::to_string(kDisk);
  if (::mount("tmpfs", at.c_str(), "tmpfs", 0, size.c_str()) != 0)
    return std::string("mount of a tmpfs: ") + std::strerror(errno);
  return {};
}

class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(disk);
    const std::string reason = mount_small_disk(disk);
    mounted_ = reason.empty();
    if (!mounted_) GTEST_SKIP() << "no small disk can be mounted here (" << reason << ")";
  }
  void TearDown() override {
    if (mounted_) {
      EXPECT_EQ(::umount(disk.c_str()), 0) << std::strerror(errno);
    }
  }
  // Takes all but `bytes` of the disk.
  void leave_free(std::size_t bytes) const {
    std::filesystem::remove(disk + "/ballast");
    const auto space = std::filesystem::space(disk);
    ASSERT_GE(space.available, bytes);
    write_file(disk + "/ballast", std::string(space.available - bytes, 'b'));
    ASSERT_LE(std::filesystem::space(disk).available, bytes);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const auto& entry : std::filesystem::directory_iterator(disk))
      if (entry.path().filename() != "ballast") list.push_back(entry.path().filename());
    std::sort(list.begin(), list.end());
    return list;
  }

  BlockFiles f;
  const std::string disk = f.folder / "disk";

 private:
  bool mounted_ = false;
};

// For every number of free pages: the whole output, or an error and the disk as it was.
TEST_F(FullDisk, OutputIsWholeOrNotThere) {
  const std::string input = disk + "/x.npy", output = disk + "/y.npy";
  save_tensor(input, spread({1, 20, 32, 8}, 1));  // 20 KiB
  std::vector<std::string> run = f.arguments("run");
  run[6] = input;
  run.insert(run.end(), {"--output", output});
  ASSERT_EQ(warpweave(run).status, 0);
  const std::string x = read_file(input), y = read_file(output);
  std::filesystem::remove(output);
  int full = 0, fitted = 0;
  for (std::size_t pages = 0; pages <= 7; ++pages) {
    for (const std::string& to : {output, input}) {  // over the input, too
      SCOPED_TRACE(std::to_string(pages) + " pages free, to " + to);
      run.back() = to;
      leave_free(pages * kPage);
      const Outcome o = warpweave(run, {.in_child = alarm_in_child});
      if (o.status == 0) {
        ++fitted;
        EXPECT_EQ(read_file(to), y);
        if (to == output) {
          EXPECT_EQ(read_file(input), x);
        }
      } else {
        ++full;
        expect_error(o, 2, {to + ": cannot write: No space left on device"});
        EXPECT_EQ(read_file(input), x);
        EXPECT_EQ(names(), std::vector<std::string>{"x.npy"});
      }
      std::filesystem::remove(disk + "/ballast");
      std::filesystem::remove(output);
      write_file(input, x);
    }
  }
  EXPECT_GT(full, 8);
  EXPECT_GT(fitted, 0);
}

TEST_F(FullDisk, NoRoomForAName) {
  const std::string output = disk + "/y.npy";
  leave_free(0);
  std::vector<std::string> run = f.arguments("run");
  run.insert(run.end(), {"--output", output});
  expect_error(warpweave(run, {.in_child = alarm_in_child}), 2, {output + ": ", "No space left on device"});
  EXPECT_TRUE(names().empty());
}

TEST_F(FullDisk, PicturesAndSafetensors) {
  const std::string config = f.folder / "m.yaml", weights = f.folder / "m.safetensors",
                    picture = f.folder / "in.png", out = disk + "/out.png", table = disk + "/b.json";
  write_mirror_denoiser(config, weights);
  const Bytes png = denoiser::encode_png(gradient(64, 64, 3));
  write_file(picture, std::string(png.begin(), png.end()));
  write_file(out, "old");
  leave_free(0);
  expect_error(warpweave({"denoise", picture, out, "--config", config, "--weights", weights, "--device",
                          "cpu", "--sigma", "20", "--quiet"},
                         {.in_child = alarm_in_child}),
               2, {out + ": cannot write: No space left on device"});
  EXPECT_EQ(read_file(out), "old");
  std::vector<std::string> run = f.arguments("run");
  run.insert(run.end(), {"--output", disk + "/y.safetensors"});
  expect_error(warpweave(run, {.in_child = alarm_in_child}), 2,
               {"y.safetensors: ", "No space left on device"});
  EXPECT_EQ(names(), std::vector<std::string>{"out.png"});
}

}  // namespace
}  // namespace warpweave::test
