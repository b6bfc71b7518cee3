// The whole command line behind main().
#pragma once

namespace warpweave::cli {

// Parses, runs the subcommand, and returns the exit status: 0 done; 1 compare past its tolerance, or an
// internal failure; 2 bad usage, file or input; 3 the device or the named plan cannot do it. Every exception
// ends here as one line on standard error.
int run_program(int argc, char** argv);

}  // namespace warpweave::cli
