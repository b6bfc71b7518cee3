// Part of resident_harness: random problems of every case against float64, outputs poisoned.
//
// What is compared with: the same layer in float64 (`exact`), and in float64 rounded to 16 bits wherever
// PyTorch stores a tensor (`torch`). Errors are relative to the update, ||y - y64|| / ||y64 - x||.
//
// An error that was made of n independent roundings of equal size has a standard deviation of 1 / sqrt(2 n)
// of itself, so the quotient of ours and PyTorch's scatters by about 1 / sqrt(n). Tokens are what is
// independent, and where a few of them carry most of the error (short sequences; large scores, where two keys
// that almost tie decide) n is smaller than their number: (sum of e^2)^2 / sum of e^4 over tokens, of ours or
// PyTorch's, whichever is smaller. So:
// - One problem: error <= 1.1 PyTorch's * (1 + 3 / sqrt(n)), or the contract's 8e-3 (bf16), 1e-3 (fp16) if
//   that is larger.
// - A case, all its problems pooled, each counting alike: error <= PyTorch's * (1 + 3 / sqrt(n)). No
//   allowance but for chance, since these kernels round less often than PyTorch.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <thread>

#include "harness.h"
#include "reference.h"

namespace warpweave::cuda::resident {
namespace {

// Squared errors of tokens, summed.
struct Errors {
  double sum = 0, squares = 0;
  void add(double token) { sum += token, squares += token * token; }
  void add(const Errors& other) { sum += other.sum, squares += other.squares; }
  double independent() const { return squares > 0 ? sum * sum / squares : 1; }
};

struct Comparison {
  Errors ours, torch;
  double size = 0;
  bool finite = true;

  double error() const { return std::sqrt(ours.sum / std::max(size, 1e-30)); }
  double torch_error() const { return std::sqrt(torch.sum / std::max(size, 1e-30)); }
  double chance() const {
    return 1 + 3 / std::sqrt(std::max(1.0, std::min(ours.independent(), torch.independent())));
  }
};

struct Run {
  const Case* c = nullptr;
  int B = 0, H = 0, W = 0, length = 0;
  bool row = false, in_place = false, same = true;  // same: bits do not depend on the batch
  LayerWeights weights;
  ResidentArguments args{};
  std::vector<std::uint16_t> x, y;
  std::vector<unsigned char> mask;
  std::vector<char> poisoned;  // cells that hold NaN or Inf, masked
  Comparison result;
};

class Dice {
 public:
  int pick(int lo, int hi) { return lo + static_cast<int>(r() % static_cast<unsigned>(hi - lo + 1)); }
  std::mt19937 r{20261129};
};

Run make_run(const Case& c, int index, Dice& dice) {
  const Problem& p = c.problem;
  std::mt19937& r = dice.r;
  Run run;
  run.c = &c;
  run.row = r() & 1, run.in_place = r() & 1;
  run.length = index == 0   ? c.variant.slot
               : index == 1 ? 1
                            : dice.pick(std::max(1, c.variant.slot / 2), c.variant.slot);
  const int other = dice.pick(1, 9);
  run.B = dice.pick(1, 3), run.H = run.row ? other : run.length, run.W = run.row ? run.length : other;
  run.weights = random_weights(p, r);
  const std::size_t cells = static_cast<std::size_t>(run.B) * run.H * run.W;
  std::normal_distribution<float> n;
  const float mean = index % 4 == 3 ? 8.0f : 0.0f;
  run.x.resize(cells * p.dim), run.y.assign(cells * p.dim, 0xffff);
  for (auto& v : run.x) v = narrow(p.element, n(r) + mean);
  run.mask.assign(cells, 1), run.poisoned.assign(cells, 0);
  run.args = arguments(p, run.B, run.H, run.W, run.row);
  if (!p.mask) return run;
  const int kind = dice.pick(0, 3);
  for (std::size_t k = 0; k < cells; ++k) run.mask[k] = kind == 0 ? 1 : r() % 4 != 0;
  if (kind == 1)
    std::fill(run.mask.begin(), run.mask.begin() + static_cast<long>(std::min<std::size_t>(cells, run.W)), 0);
  if (kind >= 2)  // NaN and Inf where masked must not be seen elsewhere
    for (std::size_t k = 0; k < cells; ++k)
      if (!run.mask[k] && r() % 2) {
        run.poisoned[k] = 1;
        for (int d = 0; d < p.dim; ++d)
          run.x[k * p.dim + d] =
              p.element == Element::bf16 ? (r() % 2 ? 0x7fc0 : 0x7f80) : (r() % 2 ? 0x7e00 : 0x7c00);
      }
  return run;
}

void run_on_device(Run& run, cudaKernel_t kernel, int multiprocessors) {
  const Problem& p = run.c->problem;
  ResidentArguments a = run.args;
  auto* dx = upload(run.x);
  auto* dy = run.in_place ? dx : upload(run.y);
  auto* dm = p.mask ? upload(run.mask) : nullptr;
  auto* dw = upload(pack(p, run.weights.tensors()));
  float* dr = p.rope_dims ? upload(rotation(p, run.length)) : nullptr;
  a.x = dx, a.y = dy, a.mask = dm, a.weights = dw, a.rotation = dr;
  launch(kernel, run.c->variant, a, nullptr, multiprocessors, false);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(run.y.data(), dy, run.y.size() * 2, cudaMemcpyDeviceToHost));
  // Batch invariance and repeatability: the last sequence alone gives the same bits.
  if (!run.in_place && a.sequences > 1) {
    const std::size_t last = (a.sequences - 1) / a.per_sample * a.sample_cells +
                             (a.sequences - 1) % a.per_sample * a.sequence_cells;
    a.x = dx + last * p.dim, a.y = dy + last * p.dim, a.mask = dm ? dm + last : nullptr;
    a.sequences = a.per_sample = 1;
    std::vector<std::uint16_t> again(run.y.size());
    launch(kernel, run.c->variant, a, nullptr, multiprocessors, false);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(again.data(), dy, run.y.size() * 2, cudaMemcpyDeviceToHost));
    run.same = again == run.y;
  }
  if (dy != dx) cudaFree(dy);
  cudaFree(dx), cudaFree(dm), cudaFree(dw), cudaFree(dr);
}

// Sequences of the run against both references; some of the long ones where there are many.
Comparison compare(const Run& run) {
  const Problem& p = run.c->problem;
  const ResidentArguments& a = run.args;
  const int L = run.length;
  Comparison result;
  std::vector<double> x(static_cast<std::size_t>(L) * p.dim), exact(x.size()), torch(x.size());
  std::vector<unsigned char> mask(L);
  for (unsigned s = 0; s < a.sequences; ++s) {
    if (a.sequences > 6 && s % 4 != 0 && L * p.dim > 4000) continue;
    const long long first = s / a.per_sample * a.sample_cells + s % a.per_sample * a.sequence_cells;
    const auto cell = [&](int t) { return static_cast<std::size_t>(first + t * a.token_cells); };
    for (int t = 0; t < L; ++t) {
      mask[t] = run.mask[cell(t)];
      for (int d = 0; d < p.dim; ++d)
        x[static_cast<std::size_t>(t) * p.dim + d] = widen(p.element, run.x[cell(t) * p.dim + d]);
    }
    const unsigned char* keys = p.mask ? mask.data() : nullptr;
    const Tensors tensors = run.weights.tensors();
    attention_reference(p, tensors, L, x.data(), keys, exact.data(), [](double v) { return v; });
    attention_reference(p, tensors, L, x.data(), keys, torch.data(),
                        [&](double v) { return round_to(p.element, v); });
    for (int t = 0; t < L; ++t) {
      if (run.poisoned[cell(t)]) continue;
      double error = 0, torch_error = 0;
      for (int d = 0; d < p.dim; ++d) {
        const std::size_t k = static_cast<std::size_t>(t) * p.dim + d;
        const double got = widen(p.element, run.y[cell(t) * p.dim + d]),
                     delta = exact[k] - (p.residual ? x[k] : 0);
        if (!std::isfinite(got)) result.finite = false;
        error += (got - exact[k]) * (got - exact[k]);
        torch_error += (torch[k] - exact[k]) * (torch[k] - exact[k]);
        result.size += delta * delta;
      }
      result.ours.add(error), result.torch.add(torch_error);
    }
  }
  return result;
}

bool judge(const Run& run) {
  const double least = run.c->problem.element == Element::bf16 ? 8e-3 : 1e-3;
  const Comparison& e = run.result;
  return e.finite && run.same && e.error() <= std::max(least, 1.1 * e.torch_error() * e.chance());
}

void count_options(const Run& run, std::map<std::string, int>& options) {
  const Problem& p = run.c->problem;
  for (const auto& [name, on] :
       std::initializer_list<std::pair<const char*, bool>>{{"row", run.row},
                                                           {"column", !run.row},
                                                           {"in place", run.in_place},
                                                           {"mask", p.mask},
                                                           {"causal", p.causal},
                                                           {"rope", p.rope_dims > 0},
                                                           {"layer norm", p.norm == Norm::layer},
                                                           {"rms norm", p.norm == Norm::rms},
                                                           {"no norm", p.norm == Norm::none},
                                                           {"qkv bias", p.qkv_bias},
                                                           {"no out bias", !p.out_bias},
                                                           {"no residual", !p.residual},
                                                           {"bf16", p.element == Element::bf16},
                                                           {"f16", p.element == Element::f16},
                                                           {"L % 16", run.length % 16 != 0}})
    options[name] += on;
}

}  // namespace

int check_cases(const std::string& dir, int problems, const std::string& filter) {
  int multiprocessors = 0, passed = 0, failed = 0;
  CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  Dice dice;
  const std::vector<Case> cases = all_cases();
  std::vector<std::vector<Run>> runs(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].name.find(filter) == std::string::npos) continue;
    try {
      const cudaKernel_t kernel = load(dir, cases[i]);
      for (int k = 0; k < problems; ++k) {
        runs[i].push_back(make_run(cases[i], k, dice));
        run_on_device(runs[i].back(), kernel, multiprocessors);
      }
    } catch (const std::exception& e) {
      std::printf("%s: %s\n", cases[i].name.c_str(), e.what());
      ++failed;
    }
  }
  std::vector<Run*> list;
  for (auto& of_case : runs)
    for (Run& run : of_case) list.push_back(&run);
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
      threads.emplace_back([&] {
        for (std::size_t i = next++; i < list.size(); i = next++) list[i]->result = compare(*list[i]);
      });
  }
  std::map<std::string, int> options;
  for (const auto& of_case : runs) {
    if (of_case.empty()) continue;
    Comparison pooled;
    pooled.size = 1;
    double worst = 0;
    int wrong = 0;
    for (const Run& run : of_case) {
      // Problems count alike, whatever their size and errors.
      const double unit = std::max(run.result.ours.sum + run.result.torch.sum, 1e-30);
      pooled.ours.add({run.result.ours.sum / unit, run.result.ours.squares / (unit * unit)});
      pooled.torch.add({run.result.torch.sum / unit, run.result.torch.squares / (unit * unit)});
      worst = std::max(worst, run.result.error());
      if (judge(run)) {
        count_options(run, options);
        continue;
      }
      if (++wrong <= 3)
        std::printf("  WRONG %s: B %d H %d W %d %s%s: error %.2e (PyTorch %.2e, by chance %.2f)%s%s\n",
                    run.c->name.c_str(), run.B, run.H, run.W, run.row ? "row" : "column",
                    run.in_place ? " in place" : "", run.result.error(), run.result.torch_error(),
                    run.result.chance(), run.result.finite ? "" : ", not finite",
                    run.same ? "" : ", depends on the batch");
    }
    const bool good = pooled.error() <= pooled.torch_error() * pooled.chance();
    passed += static_cast<int>(of_case.size()) - wrong, failed += wrong + !good;
    std::printf("%-28s %3zu ran, %d wrong, largest error %.2e, all %.2f of PyTorch's (by chance %.2f)%s\n",
                of_case[0].c->name.c_str(), of_case.size(), wrong, worst,
                pooled.error() / pooled.torch_error(), pooled.chance(), good ? "" : "  TOO LARGE");
  }
  std::printf("right:");
  for (const auto& [name, count] : options) std::printf(" %s %d,", name.c_str(), count);
  std::printf("\n%d passed, %d failed\n", passed, failed);
  return failed != 0;
}

}  // namespace warpweave::cuda::resident
