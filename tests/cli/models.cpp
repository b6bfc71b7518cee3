#include "cli/models.h"

#include <algorithm>

namespace warpweave::test {

Tensor spread(std::vector<std::int64_t> shape, double scale, unsigned seed) {
  Tensor t(DType::f32, std::move(shape));
  std::uint32_t state = seed * 2654435761u + 1;
  for (float& v : t.values<float>()) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(scale * (static_cast<double>(state >> 8) / (1 << 23) - 1));
  }
  return t;
}

Tensor filled(std::vector<std::int64_t> shape, float value) {
  Tensor t(DType::f32, std::move(shape));
  const auto values = t.values<float>();
  std::fill(values.begin(), values.end(), value);
  return t;
}

BlockFiles::BlockFiles()
    : config(folder / "block.yaml"),
      weights(folder / "block.safetensors"),
      input(folder / "x.npy"),
      output(folder / "y.npy") {
  write_file(config,
             "name: block\n"
             "input: {dim: 8}\n"
             "layers:\n"
             "  - axial_attention: {axis: row, heads: 2, tensors: \"row_{name}\"}\n"
             "  - axial_attention: {axis: column, heads: 2, tensors: \"col_{name}\"}\n");
  std::map<std::string, Tensor> tensors;
  unsigned seed = 1;
  for (const std::string axis : {"row_", "col_"}) {
    tensors[axis + "norm.weight"] = filled({8}, 1);
    tensors[axis + "norm.bias"] = spread({8}, 0.1, ++seed);
    tensors[axis + "qkv.weight"] = spread({24, 8}, 0.5, ++seed);
    tensors[axis + "out.weight"] = spread({8, 8}, 0.5, ++seed);
    tensors[axis + "out.bias"] = spread({8}, 0.1, ++seed);
  }
  save_safetensors(weights, tensors);
  save_tensor(input, spread({2, 3, 5, 8}, 2, 99));
}

std::vector<std::string> BlockFiles::arguments(const std::string& command) const {
  return {command, "--config", config, "--weights", weights, "--input", input, "--device", "cpu"};
}

void write_mirror_denoiser(const std::string& config, const std::string& weights) {
  write_file(config,
             "name: mirror\n"
             "input: {dim: 4}\n"
             "layers:\n"
             "  - patch_embed: {patch: 2, channels: 4, dim: 16, bias: false, tensors: \"embed.{name}\"}\n"
             "  - patch_unembed: {patch: 2, channels: 3, bias: false, tensors: \"unembed.{name}\"}\n");
  Tensor embed = filled({16, 16}, 0), unembed = filled({12, 16}, 0);
  for (int i = 0; i < 16; ++i) embed.values<float>()[static_cast<std::size_t>(17 * i)] = 1;
  for (int pixel = 0; pixel < 4; ++pixel)
    for (int c = 0; c < 3; ++c)
      unembed.values<float>()[static_cast<std::size_t>((pixel * 3 + c) * 16 + pixel * 4 + c)] = 1;
  std::map<std::string, Tensor> tensors;
  tensors["embed.weight"] = std::move(embed);
  tensors["unembed.weight"] = std::move(unembed);
  save_safetensors(weights, tensors);
}

}  // namespace warpweave::test
