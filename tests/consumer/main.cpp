// Uses the installed library through its public headers alone. Argument: a model file.
#include <warpweave/warpweave.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const warpweave::Model model = warpweave::Model::random(argv[1]);
    const warpweave::Engine engine(model, {.device = warpweave::Device::cpu(), .threads = 2});
    const std::vector<float> values(2 * 3 * 5 * model.input_channels(), 0.5f);
    const warpweave::Tensor x = warpweave::Tensor::from({2, 3, 5, model.input_channels()}, values);
    const warpweave::Tensor y = engine.run(x);
    for (const float v : y.values<float>())
      if (!std::isfinite(v)) return 1;
    std::printf("warpweave %s: %s ran on %s\n", warpweave::version(), model.name().c_str(),
                warpweave::to_string(engine.device()).c_str());
  } catch (const warpweave::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
