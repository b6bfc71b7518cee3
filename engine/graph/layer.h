// The typed layers of a model: what each computes on (shapes, tensors, operation counts), not how.
//
// A layer type is one file in graph/layers/ (its struct is declared in its header so that implementations can
// read its fields) and one line in graph/registry.cpp. Shapes leave the batch out: no layer depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave::graph {

struct CellShape {  // one sample of a grid
  std::int64_t rows = 0, columns = 0, channels = 0;
  std::int64_t cells() const noexcept { return rows * columns; }
  friend bool operator==(const CellShape&, const CellShape&) = default;
};

// A tensor that a layer takes, by its canonical name ("qkv.weight"). `parts`, where not empty, name tensors
// that may stand for it, concatenated along the first dimension ("q.weight", "k.weight", "v.weight").
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<TensorSpec> parts = {};
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string_view type() const noexcept = 0;   // "axial_attention"
  virtual std::string describe() const = 0;             // "axial_attention row, 4 heads of 16"
  virtual std::vector<TensorSpec> tensors() const = 0;  // in canonical order
  virtual std::int64_t input_channels() const noexcept = 0;
  virtual std::int64_t output_channels() const noexcept { return input_channels(); }
  // Throws Error(input), in words without file or line, when the layer cannot take this grid.
  virtual CellShape output(const CellShape& input) const = 0;
  // Matrix products only, of one sample; multiply-add = 2. Causal attention counts as full attention.
  virtual double flops(const CellShape& input) const = 0;
};

enum class NormKind { none, layer, rms };

struct Norm {  // with affine weight (and bias, LayerNorm only) over the channels
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
};

// norm.weight [channels] and norm.bias [channels], as the kind has them.
void append_norm_tensors(std::vector<TensorSpec>& list, const Norm& norm, std::int64_t channels,
                         std::string_view prefix = "norm.");

// A layer in its place in the model.
struct Node {
  std::shared_ptr<const Layer> layer;
  std::string path;  // "layers[1].repeat[0].layers[2]"
  int line = 0;      // in the model file, 1-based
  // How the layer's canonical names map to tensors of the weight file, repeat indices filled in already:
  // either a template holding "{name}", or pairs (canonical, actual).
  std::string name_template;
  std::vector<std::pair<std::string, std::string>> name_map;
};

struct Graph {
  std::string name;
  std::string file;  // as the user gave it, for messages
  std::int64_t input_channels = 0;
  std::vector<Node> nodes;

  // Shape after every layer, in order; the input grid must have `input_channels`. Throws Error(input) naming
  // file and line of the layer that cannot take its grid.
  std::vector<CellShape> shapes(const CellShape& input) const;
};

// Parses a model file. Throws Error(input): "FILE:LINE: ...", naming the key.
Graph load_graph(const std::string& file);
// The same from text; `file` is for messages.
Graph parse_graph(const std::string& text, const std::string& file);

}  // namespace warpweave::graph
