// What the tests of the model file share.
#pragma once

#include <string>

#include "graph/layer.h"
#include "warpweave/error.h"

namespace warpweave::graph {

inline constexpr char test_file[] = "model.yaml";

inline Graph parse(const std::string& text) { return parse_graph(text, test_file); }

// A model of `layers` (lines of two spaces, a dash, ...) on grids with `dim` channels. The layers start on
// line 3.
inline std::string model(const std::string& layers, int dim = 64) {
  return "input: {dim: " + std::to_string(dim) + "}\nlayers:\n" + layers;
}

// The message of the Error(input) that `call` throws; what else happens, in words, when it does not.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.code() == ErrorCode::input ? e.what() : std::string("an error of another code: ") + e.what();
  }
  return "no error";
}

inline std::string parse_error(const std::string& text) {
  return error_of([&] { parse(text); });
}

}  // namespace warpweave::graph
