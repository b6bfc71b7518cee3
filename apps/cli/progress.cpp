#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace warpweave::cli {

using Clock = std::chrono::steady_clock;

Progress::Progress(std::string label, bool quiet)
    : label_(std::move(label)), active_(!quiet && ::isatty(STDERR_FILENO) == 1), start_(Clock::now()) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

std::function<void(int, int)> Progress::callback() {
  if (!active_) return {};
  return [this](int done, int all) { show(done, all); };
}

void Progress::show(int done, int all) {
  constexpr int kWidth = 30;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  if (seconds < 1 || all < 1) return;
  const int full = kWidth * done / all;
  fmt::print(stderr, "\r\033[K{} [{:#<{}}{:.<{}}] layer {} of {}, {:.0f} s", label_, "", full, "",
             kWidth - full, done, all, seconds);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace warpweave::cli
