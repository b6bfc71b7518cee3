// What the tests of the real binary share.
#pragma once

#include <gmock/gmock.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/process.h"

namespace warpweave::test {

// A program that hangs is ended by its alarm, and the test fails with status 128 + SIGALRM.
inline void alarm_in_child() { ::alarm(10); }

// Root reads and writes everything; the program that it starts then does not.
inline void without_rights_of_root() {
  alarm_in_child();
  (void)::prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0);
  (void)::prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH, 0, 0, 0);
}

// One line on standard error that begins as errors do and holds `words`.
inline void expect_error(const Outcome& o, int status, const std::vector<std::string>& words) {
  EXPECT_EQ(o.status, status) << o.err;
  EXPECT_THAT(o.err, ::testing::StartsWith("warpweave: error: "));
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  for (const std::string& w : words) EXPECT_THAT(o.err, ::testing::HasSubstr(w));
}

}  // namespace warpweave::test
