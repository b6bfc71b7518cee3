// Runs the warpweave binary as a user does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace warpweave::test {

struct Outcome {
  int status = -1;  // exit status, or 128 + the signal that ended it
  std::string out, err;
};

struct RunSettings {
  std::vector<std::pair<std::string, std::string>> environment = {};  // set beside what the test has
  bool terminal = false;                                              // standard error is a terminal
  int kill_after_us = -1;                                             // SIGKILL after this many microseconds
  std::function<void()> in_child = {};        // limits, rights, ...: called before the program starts
  std::function<void(pid_t)> meanwhile = {};  // called with the program's id once it runs
};

Outcome warpweave(const std::vector<std::string>& arguments, const RunSettings& settings = {});

// An empty folder, removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> files() const;  // names, sorted

 private:
  std::filesystem::path path_;
};

void write_file(const std::string& path, const std::string& content);
std::string read_file(const std::string& path);

}  // namespace warpweave::test
