#include <csignal>

#include "cli/program.h"

int main(int argc, char** argv) {
  // A limit on the size of files (ulimit -f) is then an error of write(), which names the file, and no
  // signal.
  std::signal(SIGXFSZ, SIG_IGN);
  return warpweave::cli::run_program(argc, argv);
}
