#include "cli/program.h"

int main(int argc, char** argv) { return warpweave::cli::run_program(argc, argv); }
