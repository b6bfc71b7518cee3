// session.run only launches: no call of the CUDA runtime that allocates, frees, waits or sets up, and no host
// allocation.
#include "calls.h"

#include "support.h"

namespace warpweave::gpu_test {
namespace {

TEST(GpuCalls, AreCounted) {
  void* memory = nullptr;
  const CountedCalls calls;
  REQUIRE_CUDA(cudaMalloc(&memory, 256));
  REQUIRE_CUDA(cudaDeviceSynchronize());
  REQUIRE_CUDA(cudaFree(memory));
  ::operator delete(::operator new(7));
  EXPECT_THAT(calls.made(),
              testing::ElementsAre("cudaMalloc", "cudaDeviceSynchronize", "cudaFree", "operator new"));
}

TEST(GpuCalls, ARunOnlyLaunches) {
  const Shape shape{2, 20, 36};
  const Model models[] = {
      properties::make_block(64, 4),
      properties::make_model(128,
                             {"axial_attention: {axis: column, heads: 4, causal: true, rope: {}, norm: rms}",
                              "feed_forward: {hidden: 200}", "axial_attention: {axis: row, heads: 2}"}),
      properties::make_model(24, {"linear: {out: 30}", "norm: {}", "axial_attention: {axis: row, heads: 5}",
                                  "linear: {out: 24}"}),
  };
  const Tensor mask = properties::random_mask(shape, 3);
  for (const Model& model : models) {
    const Tensor x = properties::random_grid(shape, model.input_channels(), 2);
    const DeviceMemory in(x), out(x.bytes()), valid(mask);
    for (const std::string plan : {"auto", "composed", "cuda_reference"}) {
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        const Engine e = engine(model, plan, precision);
        Session session = e.prepare(shape);
        const Stream stream;
        const auto run = [&](DType type,
                             bool masked) {  // float32 is converted, the stored type is used as it is
          RunOptions options{.stream = stream};
          if (masked) options.mask = {reinterpret_cast<const std::uint8_t*>(valid.data()), 2, 20, 36};
          session.run({in.data(), type, session.input_shape()}, {out.data(), type, session.output_shape()},
                      options);
        };
        const CountedCalls calls;
        for (const bool masked : {false, true}) {
          run(DType::f32, masked);
          run(storage_type(precision), masked);
        }
        EXPECT_THAT(calls.made(), testing::IsEmpty()) << session.explain();
        stream.wait();
      }
    }
  }
}

}  // namespace
}  // namespace warpweave::gpu_test
