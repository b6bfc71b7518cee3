#include "cuda/compiler.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <string_view>

#include "cuda/nvrtc.h"
#include "cuda/parallel.h"
#include "cuda/sources.h"
#include "cuda/verbose.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

// Every embedded file that `file` reaches by #include "...", itself included.
void reach(const std::string& file, std::set<std::string_view>& seen) {
  const auto sources = kernel_sources();
  const auto it = std::find_if(sources.begin(), sources.end(), [&](const auto& s) { return file == s.name; });
  if (it == sources.end() || !seen.insert(it->name).second) return;
  constexpr std::string_view include = "#include \"";
  const std::string_view text = it->text;
  for (std::size_t at = text.find(include); at != text.npos; at = text.find(include, at + 1)) {
    const std::size_t begin = at + include.size();
    reach(std::string(text.substr(begin, text.find('"', begin) - begin)), seen);
  }
}

std::string source_text(const std::string& file) {
  std::set<std::string_view> names;
  reach(file, names);
  std::string text;
  for (const auto& source : kernel_sources()) {
    if (names.count(source.name)) text.append(source.name).append("\n").append(source.text);
  }
  return text;
}

}  // namespace

std::string architecture_name(int compute_capability) {
  return "sm_" + std::to_string(compute_capability) + (compute_capability == 90 ? "a" : "");
}

int parse_architecture(const std::string& name) {
  std::string digits = name.rfind("sm_", 0) == 0 ? name.substr(3) : "";
  if (!digits.empty() && digits.back() == 'a') digits.pop_back();
  const bool good = digits.size() >= 2 && digits.size() <= 3 &&
                    std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int value = good ? std::stoi(digits) : 0;
  if (value < 80) {
    throw Error(ErrorCode::input, "architecture \"" + name +
                                      "\" is not one of sm_80, sm_86, sm_89, sm_90a, " +
                                      "sm_100, sm_120 or a later one");
  }
  return value;
}

Compiler::Compiler()
    : installed_(Nvrtc::installed_version()), cache_(KernelCache::default_folder()), verbose_(verbose()) {}

Compiler::~Compiler() = default;

const Nvrtc* Compiler::nvrtc() const {
  std::call_once(opened_, [&] {
    try {
      nvrtc_ = Nvrtc::open(missing_);
    } catch (const Error& error) {
      missing_ = error.what();
    }
  });
  return nvrtc_.get();
}

const std::string& Compiler::missing() const {
  (void)nvrtc();
  return missing_;
}

CompiledKernel Compiler::compile(const KernelSpec& spec, int compute_capability) const {
  const std::vector<std::string> options = {"--gpu-architecture=" + architecture_name(compute_capability),
                                            "--std=c++20", "--device-as-default-execution-space",
                                            "--ptxas-options=-v"};
  std::string identity = spec.file + "\n" + spec.expression + "\n";
  for (const auto& option : options) identity += option + "\n";
  const std::string key = fingerprint(identity + source_text(spec.file));

  // The compiler's version is checked in the entry rather than hashed, so that a cache filled elsewhere
  // serves a machine that has no compiler.
  auto cached = cache_.find(key);
  if (cached && cached->compiler == installed_) return std::move(*cached);
  const Nvrtc* const nvrtc = this->nvrtc();
  if (cached && (!nvrtc || cached->compiler == nvrtc->version())) return std::move(*cached);
  if (!nvrtc) {
    throw Error(ErrorCode::device, missing_ + " (" + spec.expression + " for " +
                                       architecture_name(compute_capability) +
                                       " is not in the kernel cache " + cache_.folder().string() + ")");
  }
  const auto start = std::chrono::steady_clock::now();
  auto output = nvrtc->compile(spec.file, spec.expression, options);
  CompiledKernel kernel{std::move(output.name), nvrtc->version(), std::move(output.log),
                        std::move(output.machine_code)};
  cache_.store(key, kernel);
  if (verbose_) {
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "warpweave: compiled %s for %s in %.0f ms\n", spec.expression.c_str(),
                 architecture_name(compute_capability).c_str(), took.count());
  }
  return kernel;
}

std::vector<CompiledKernel> Compiler::compile(std::span<const KernelSpec> specs,
                                              int compute_capability) const {
  std::vector<CompiledKernel> results(specs.size());
  in_parallel(specs.size(), [&](std::size_t i) { results[i] = compile(specs[i], compute_capability); });
  return results;
}

}  // namespace warpweave::cuda
