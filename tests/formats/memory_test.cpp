// Memory refused at the n-th allocation, for every n: a clean error each time, nothing leaked, no file lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "formats/support.h"
#include "warpweave/io.h"
#include "weights/load.h"

namespace {

long live = 0;           // blocks allocated and not freed
long until_failure = 0;  // allocations that still succeed, when armed
bool armed = false;

void* take(std::size_t size, std::size_t alignment) {
  if (armed && until_failure-- <= 0) {
    armed = false;  // once: the message of the error needs memory too
    throw std::bad_alloc();
  }
  void* const p = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  ++live;
  return p;
}

void give_back(void* p) noexcept {
  if (p != nullptr) --live;
  std::free(p);
}

}  // namespace

// The other forms call these, but with AddressSanitizer the nothrow ones do not.
void* operator new(std::size_t size) { return take(size > 0 ? size : 1, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take(size > 0 ? size : 1, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return operator new(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* p) noexcept { give_back(p); }
void operator delete(void* p, std::size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }

namespace warpweave::testing {
namespace {

using ::testing::HasSubstr;

// Runs `action` with the n-th allocation refused, n = 0, 1, ... until it succeeds; `check` after each
// failure. Returns how many n failed.
int refuse_every_allocation(const std::function<void()>& action, const std::function<void()>& check) {
  action();  // what is allocated once in a process is there
  for (int n = 0; n < 100000; ++n) {
    const long before = live;
    std::string message;
    until_failure = n;
    armed = true;
    try {
      action();
    } catch (const Error& error) {
      armed = false;
      EXPECT_EQ(error.code(), ErrorCode::device) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("out of memory"));
      message = "failed";  // short: no memory of its own
    }
    const bool succeeded = armed;  // the refusal was never reached
    armed = false;
    EXPECT_EQ(live, before) << "leaked at allocation " << n;
    if (succeeded) return n;
    check();
  }
  return -1;
}

TEST(MemoryRefused, WhileReading) {
  const TemporaryFolder folder;
  const Tensor tensor = Tensor::from({2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  for (const char* name : {"x.npy", "x.safetensors"}) {
    SCOPED_TRACE(name);
    const auto path = folder / name;
    save_tensor(path, tensor);
    EXPECT_GT(refuse_every_allocation([&] { load_tensor(path); }, [] {}), 3);
  }
}

TEST(MemoryRefused, WhileWriting) {
  const Tensor tensor = Tensor::from({2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  for (const char* name : {"x.npy", "x.safetensors"}) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    const auto path = folder / name;
    const auto check = [&] {
      EXPECT_EQ(load_tensor(path).elements(), 6);  // of the write before
      EXPECT_EQ(folder.entries(), 1u);
    };
    EXPECT_GT(refuse_every_allocation([&] { save_tensor(path, tensor); }, check), 3);
  }
}

TEST(MemoryRefused, WhileLoadingWeights) {
  const TemporaryFolder folder;
  const std::string path = folder / "w.safetensors";
  const auto graph = graph::parse_graph(
      "name: m\ninput: {dim: 4}\nlayers: [{axial_attention: {axis: row, heads: 2, norm: none, tensors: "
      "'{name}'}}]\n",
      "m");
  std::map<std::string, Tensor> tensors;
  const std::vector<float> zeros(16);
  for (const char* name : {"q.weight", "k.weight", "v.weight", "out.weight"})
    tensors[name] = Tensor::from({4, 4}, zeros).to(DType::bf16);
  tensors["out.bias"] = Tensor::from({4}, std::span(zeros).first(4));
  save_safetensors(path, tensors);
  EXPECT_GT(refuse_every_allocation([&] { weights::load_weights(graph, path, false); }, [] {}), 20);
}

}  // namespace
}  // namespace warpweave::testing
