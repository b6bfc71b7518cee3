// A progress bar on standard error for work of over a second; never where that is not a terminal.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace warpweave::cli {

class Progress {
 public:
  Progress(std::string label, bool quiet);
  ~Progress();  // wipes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // For RunOptions::progress; empty when nothing is to be shown. Not to be used after this object's end.
  std::function<void(int, int)> callback();

 private:
  void show(int done, int all);

  std::string label_;
  bool active_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace warpweave::cli
