// Inputs that are not what a file should be, for every option that takes one: the real binary refuses each in
// one line that names it, at once.
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <system_error>
#include <thread>

#include "cli/models.h"
#include "cli/picture_samples.h"
#include "reliability/broken_world.h"

namespace warpweave::test {
namespace {

struct Bad {
  const char* what;
  std::function<void(const std::string& path)> make;
  std::vector<const char*> words;  // one of them is in the message
};

const std::vector<Bad>& bad_files() {
  static const std::vector<Bad> list = {
      {"absent", [](const std::string&) {}, {"no such file", "No such file"}},
      {"a directory", [](const std::string& p) { std::filesystem::create_directory(p); }, {"a directory"}},
      {"a FIFO",
       [](const std::string& p) { ASSERT_EQ(::mkfifo(p.c_str(), 0600), 0); },
       {"a FIFO", "not a regular file"}},
      {"a device",
       [](const std::string& p) { std::filesystem::create_symlink("/dev/zero", p); },
       {"a device", "not a regular file"}},
      {"a dangling link",
       [](const std::string& p) { std::filesystem::create_symlink("nowhere", p); },
       {"no such file", "No such file"}},
      {"a circle of links",
       [](const std::string& p) { std::filesystem::create_symlink(p, p); },
       {"Too many levels of symbolic links"}},
      {"unreadable",
       [](const std::string& p) {
         write_file(p, "x");
         ASSERT_EQ(::chmod(p.c_str(), 0), 0);
       },
       {"Permission denied"}},
      {"empty", [](const std::string& p) { write_file(p, ""); }, {"empty", "no content"}},
      {"a terabyte of nothing",
       [](const std::string& p) {
         write_file(p, "");
         std::filesystem::resize_file(p, std::uintmax_t{1} << 40);  // sparse
       },
       {"larger than", "header length is 0", "does not start as a .npy file"}},
  };
  return list;
}

class BadFiles : public ::testing::Test {
 protected:
  BadFiles() {
    write_mirror_denoiser(mirror, mirror_weights);
    save_tensor(mask, Tensor(DType::u8, {2, 3, 5}));
    const Bytes png = denoiser::encode_png(gradient(4, 4, 3));
    write_file(picture, std::string(png.begin(), png.end()));
  }

  // The command with each of its files at place `index` replaced.
  struct Role {
    const char* what;
    std::vector<std::string> command;
    std::size_t index;
    const char* ending;
  };
  std::vector<Role> roles() const {
    std::vector<std::string> run = f.arguments("run"), compare = f.arguments("compare");
    run.insert(run.end(), {"--output", f.output, "--mask", mask});
    compare.insert(compare.end(), {"--expect", f.input});
    const std::vector<std::string> denoise = {
        "denoise",      picture,    out,   "--config",    mirror, "--weights",
        mirror_weights, "--device", "cpu", "--reference", picture};
    return {{"config", run, 2, ".yaml"},
            {"weights", run, 4, ".safetensors"},
            {"input", run, 6, ".npy"},
            {"mask", run, 12, ".npy"},
            {"expectation", compare, 10, ".npy"},
            {"picture", denoise, 1, ".png"},
            {"reference", denoise, 10, ".jpg"}};
  }

  BlockFiles f;
  const std::string mask = f.folder / "mask.npy", picture = f.folder / "p.png", out = f.folder / "out.png",
                    mirror = f.folder / "mirror.yaml", mirror_weights = f.folder / "mirror.safetensors";
};

TEST_F(BadFiles, EveryKindInEveryRole) {
  int number = 0;
  for (const Role& role : roles()) {
    for (const Bad& bad : bad_files()) {
      SCOPED_TRACE(std::string(role.what) + " is " + bad.what);
      const std::string path = f.folder / ("bad" + std::to_string(++number) + role.ending);
      bad.make(path);
      std::vector<std::string> command = role.command;
      command[role.index] = path;
      const Outcome o = warpweave(command, {.in_child = without_rights_of_root});
      expect_error(o, 2, {path + ":"});
      bool told = false;
      for (const char* words : bad.words) told |= o.err.find(words) != std::string::npos;
      EXPECT_TRUE(told) << o.err;
      EXPECT_FALSE(std::filesystem::exists(f.output) || std::filesystem::exists(out));
      std::filesystem::remove(path);
    }
  }
  EXPECT_EQ(number, 63);
}

// A file that is there, gone, a FIFO or half a file, in turn, while programs read it.
TEST_F(BadFiles, ThatChangeAllTheTime) {
  for (const Role& role : roles()) {
    if (std::string(role.what) == "mask") continue;
    SCOPED_TRACE(role.what);
    const std::string path = f.folder / (std::string("changing") + role.ending), next = path + ".next";
    const std::string content = read_file(role.command[role.index]);
    std::atomic<bool> stop = false;
    std::thread world([&] {
      for (int turn = 0; !stop; ++turn) {
        if (turn % 4 == 0) (void)::mkfifo(next.c_str(), 0600);
        if (turn % 4 == 1) write_file(next, content.substr(0, content.size() / 2));
        if (turn % 4 >= 2) write_file(next, content);
        std::filesystem::rename(next, path);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (turn % 8 == 7) std::filesystem::remove(path);
      }
    });
    std::vector<std::string> command = role.command;
    command[role.index] = path;
    for (int i = 0; i < 12; ++i) {
      const Outcome o = warpweave(command, {.in_child = alarm_in_child});
      if (o.status == 0 || (o.status == 1 && std::string(role.what) == "expectation")) continue;
      expect_error(o, 2, {path});
    }
    stop = true;
    world.join();
  }
}

// A model file and a FIFO change places while models are loaded: whoever examines one and opens the other
// waits for ever, and the alarm ends this program.
TEST_F(BadFiles, AFifoInThePlaceOfAModelFile) {
  const std::string fifo = f.folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::atomic<bool> stop = false;
  std::thread world([&] {
    while (!stop) (void)::renameat2(AT_FDCWD, fifo.c_str(), AT_FDCWD, f.config.c_str(), RENAME_EXCHANGE);
  });
  ::alarm(30);
  int loaded = 0, refused = 0;
  for (int i = 0; i < 2000 || ((loaded == 0 || refused == 0) && i < 200000); ++i) {
    try {
      Model::random(f.config);
      ++loaded;
    } catch (const Error& e) {
      ++refused;
      EXPECT_THAT(e.what(), ::testing::HasSubstr("not a regular file"));
    }
  }
  ::alarm(0);
  stop = true;
  world.join();
  EXPECT_GT(loaded, 0);
  EXPECT_GT(refused, 0);
}

// 10^12 elements and more in the header: refused by the file's size, or by the memory of the machine.
TEST_F(BadFiles, GridsOfATrillionClaimedElements) {
  const auto header = [](const std::string& shape) {
    std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
    text.resize(117, ' ');
    return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + text + "\n";
  };
  const std::string path = f.folder / "huge.npy";
  std::vector<std::string> run = f.arguments("run");
  run[6] = path;
  run.insert(run.end(), {"--output", f.output});
  for (const char* shape : {"1, 1000000, 125000, 8", "1000000000000, 1, 1, 8", "1, 1, 1, 1000000000000",
                            "1000000, 1000000, 1000000, 8", "9223372036854775807, 1, 1, 1",
                            "4294967296, 4294967296, 4294967296, 4294967296"}) {
    SCOPED_TRACE(shape);
    write_file(path, header(shape));
    expect_error(warpweave(run, {.in_child = alarm_in_child}), 2, {path + ": "});
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // A file that is as long as it says, with a hole for its elements.
  write_file(path, header("1, 1000000, 125000, 8"));
  std::error_code error;
  std::filesystem::resize_file(path, 128 + std::uintmax_t{4'000'000'000'000}, error);
  if (error) GTEST_SKIP() << "no file of 4 TB here: " << error.message();
  const auto few_gigabytes = [] {
    alarm_in_child();
    const rlimit limit = {rlim_t{8} << 30, rlim_t{8} << 30};
    (void)::setrlimit(RLIMIT_AS, &limit);
  };
  expect_error(warpweave(run, {.in_child = few_gigabytes}), 3, {"out of memory", "4000000000000"});
#endif
  EXPECT_FALSE(std::filesystem::exists(f.output));
}

}  // namespace
}  // namespace warpweave::test
