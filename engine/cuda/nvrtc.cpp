#include "cuda/nvrtc.h"

#include <array>
#include <string_view>
#include <system_error>

#include "cuda/sources.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

namespace {

constexpr std::array kNames = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";  // and the version: NVRTC's second library

}  // namespace

std::string Nvrtc::installed_version() {
  const auto path = DynamicLibrary::find(kNames);
  const std::string name = path.filename().string();
  const std::size_t suffix = name.find(".so.");
  if (suffix == name.npos) return {};
  const std::string major = name.substr(suffix + 4);
  std::string version;
  for (int minor = 0; minor < 20; ++minor) {
    const std::string each = major + "." + std::to_string(minor);
    std::error_code ignored;
    if (!std::filesystem::exists(path.parent_path() / (std::string(kBuiltins) + each), ignored)) continue;
    if (!version.empty()) return {};
    version = each;
  }
  return version;
}

std::unique_ptr<const Nvrtc> Nvrtc::open(std::string& missing) {
  auto library = DynamicLibrary::open(kNames, missing);
  if (!library) return nullptr;
  return std::unique_ptr<const Nvrtc>(new Nvrtc(std::move(library)));
}

Nvrtc::Nvrtc(std::unique_ptr<DynamicLibrary> library) : library_(std::move(library)) {
  library_->resolve(call_.version, "nvrtcVersion");
  library_->resolve(call_.error_string, "nvrtcGetErrorString");
  library_->resolve(call_.create_program, "nvrtcCreateProgram");
  library_->resolve(call_.destroy_program, "nvrtcDestroyProgram");
  library_->resolve(call_.add_name_expression, "nvrtcAddNameExpression");
  library_->resolve(call_.compile_program, "nvrtcCompileProgram");
  library_->resolve(call_.lowered_name, "nvrtcGetLoweredName");
  library_->resolve(call_.log_size, "nvrtcGetProgramLogSize");
  library_->resolve(call_.log, "nvrtcGetProgramLog");
  library_->resolve(call_.cubin_size, "nvrtcGetCUBINSize");
  library_->resolve(call_.cubin, "nvrtcGetCUBIN");
  int major = 0, minor = 0;
  call_.version(&major, &minor);
  version_ = std::to_string(major) + "." + std::to_string(minor);
  // Outside the loader's path NVRTC does not find its own second library.
  library_->open_beside(std::string(kBuiltins) + version_);
}

Nvrtc::Output Nvrtc::compile(const std::string& file, const std::string& expression,
                             const std::vector<std::string>& options) const {
  const std::string source = "#include \"" + file + "\"\n";
  std::vector<const char*> headers, header_names, arguments;
  for (const auto& embedded : kernel_sources()) {
    headers.push_back(embedded.text);
    header_names.push_back(embedded.name);
  }
  for (const auto& option : options) arguments.push_back(option.c_str());

  void* program = nullptr;
  const auto require = [&](int status, const char* what) {
    if (status)
      throw Error(ErrorCode::device, std::string("NVRTC, ") + what + ": " + call_.error_string(status));
  };
  require(call_.create_program(&program, source.c_str(), "instance.cu", static_cast<int>(headers.size()),
                               headers.data(), header_names.data()),
          "creating a program");
  const auto destroy = [this](void* p) { call_.destroy_program(&p); };
  const std::unique_ptr<void, decltype(destroy)> owner(program, destroy);

  require(call_.add_name_expression(program, expression.c_str()), "naming a kernel");
  const int status = call_.compile_program(program, static_cast<int>(arguments.size()), arguments.data());
  Output output;
  std::size_t size = 0;
  if (call_.log_size(program, &size) == 0 && size > 1) {
    output.log.resize(size);
    call_.log(program, output.log.data());
    output.log.resize(size - 1);
  }
  if (status) {
    const bool architecture = output.log.find("gpu-architecture") != std::string::npos;
    throw Error(architecture ? ErrorCode::device : ErrorCode::internal,
                architecture ? "NVRTC " + version_ + " does not know this GPU (" + options.front() +
                                   "); a newer CUDA toolkit is needed"
                             : "kernel " + expression + " does not compile: " + output.log);
  }
  const char* name = nullptr;
  require(call_.lowered_name(program, expression.c_str(), &name), "reading a kernel's name");
  output.name = name;
  require(call_.cubin_size(program, &size), "reading the machine code");
  output.machine_code.resize(size);
  require(call_.cubin(program, output.machine_code.data()), "reading the machine code");
  return output;
}

}  // namespace warpweave::cuda
