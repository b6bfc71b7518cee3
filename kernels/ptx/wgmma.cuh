// Warpgroup matrix product (compute capability 9.0a): D [64, N] += A [64, 16] * B [N, 16]^T, 16-bit operands, float32
// accumulators. Warp w of the group holds rows 16 w .. 16 w + 15 of A and D in the fragments of mma.cuh, N / 8 tiles of
// D side by side. B, and A where it is not in registers, are core matrices in shared memory: 8 x 8 elements, 128
// contiguous bytes, both halves of k in 256 bytes, the next eight rows after them (layout/fragments.h).
// D is set, not added to, where Add is false.
// The shapes listed are the pieces that wider products are made of; the operand lists are mechanical.
#pragma once

#include "ptx/types.cuh"

namespace warpweave {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Core matrices as above from a shared address: the low half of their descriptor (PTX ISA, "matrix descriptor", no
// swizzle; 128 bytes to the other half of k). Bytes / 16 may be added to it.
__device__ __forceinline__ u32 core_matrices(u32 address) { return address >> 4 | 128u >> 4 << 16; }
// The high half: 256 bytes to the next eight rows.
__device__ __forceinline__ u64 descriptor(u32 low) { return static_cast<u64>(256 >> 4) << 32 | low; }

// Rows as the copy engine leaves them with a swizzle as wide as the row: 32, 64 or 128 bytes each, eight rows
// (aligned to their size) after eight rows. Wider matrices are panels of such rows, `panel` bytes apart (only the
// turned form steps over them by itself). Bytes / 16 may be added to the descriptor; steps along a row stay inside it.
template <int RowBytes>
__device__ __forceinline__ u64 swizzled_rows(u32 address, u32 panel = 16) {
  static_assert(RowBytes == 32 || RowBytes == 64 || RowBytes == 128);
  constexpr u32 layout = RowBytes == 128 ? 1 : RowBytes == 64 ? 2 : 3;
  constexpr u32 high = layout << 30 | 8 * RowBytes >> 4;
  return static_cast<u64>(high) << 32 | (address >> 4 | panel >> 4 << 16);
}

// The warpgroup's registers of a thread, a multiple of 8, lowered or raised; raising waits until others gave theirs
// back. Only where the launch bounds fix the number at the launch.
template <int Registers>
__device__ __forceinline__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// Orders register and earlier shared-memory accesses before the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `Pending` groups are under way; only then may accumulators be read.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving uses of accumulators to the other side of a wait.
template <int N>
__device__ __forceinline__ void wgmma_settle(float (&d)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

template <class T, int N>
struct Wgmma;

// Turned: B is stored with k as the outer index (rows of N elements), which 16-bit operands allow.
#define WW_DEFINE_WGMMA(T, NAME, N, LIST, A0, A1, A2, A3, B, ADD, TURNED, ...)                                  \
  template <>                                                                                                   \
  struct Wgmma<T, N> {                                                                                          \
    template <bool Add, bool Turned = false>                                                                    \
    static __device__ __forceinline__ void shared(float (*d)[4], u64 a, u64 b) {                                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST "}, " A0 ", " A1   \
                   ", " A2 ", 1, 1, 0, " A3 ";"                                                                 \
                   : __VA_ARGS__                                                                                \
                   : "l"(a), "l"(b), "n"(Add), "n"(Turned));                                                    \
    }                                                                                                           \
    template <bool Add, bool Turned = false>                                                                    \
    static __device__ __forceinline__ void registers(float (*d)[4], const u32 (&a)[4], u64 b) {                 \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST "}, {" A0 "," A1   \
                   "," A2 "," A3 "}, " B ", " ADD ", 1, 1, " TURNED ";"                                         \
                   : __VA_ARGS__                                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Add), "n"(Turned));                \
    }                                                                                                           \
  };

#define WW_D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7"
#define WW_ALL WW_D(0), WW_D(1)
WW_DEFINE_WGMMA(bf16, "bf16", 16, WW_LIST, "%8", "%9", "%10", "%11", "%12", "%13", "%14", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 16, WW_LIST, "%8", "%9", "%10", "%11", "%12", "%13", "%14", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3)
WW_DEFINE_WGMMA(bf16, "bf16", 32, WW_LIST, "%16", "%17", "%18", "%19", "%20", "%21", "%22", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 32, WW_LIST, "%16", "%17", "%18", "%19", "%20", "%21", "%22", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5)
WW_DEFINE_WGMMA(bf16, "bf16", 48, WW_LIST, "%24", "%25", "%26", "%27", "%28", "%29", "%30", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 48, WW_LIST, "%24", "%25", "%26", "%27", "%28", "%29", "%30", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7)
WW_DEFINE_WGMMA(bf16, "bf16", 64, WW_LIST, "%32", "%33", "%34", "%35", "%36", "%37", "%38", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 64, WW_LIST, "%32", "%33", "%34", "%35", "%36", "%37", "%38", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7), \
  WW_D(8), WW_D(9)
WW_DEFINE_WGMMA(bf16, "bf16", 80, WW_LIST, "%40", "%41", "%42", "%43", "%44", "%45", "%46", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 80, WW_LIST, "%40", "%41", "%42", "%43", "%44", "%45", "%46", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7), \
  WW_D(8), WW_D(9), WW_D(10), WW_D(11)
WW_DEFINE_WGMMA(bf16, "bf16", 96, WW_LIST, "%48", "%49", "%50", "%51", "%52", "%53", "%54", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 96, WW_LIST, "%48", "%49", "%50", "%51", "%52", "%53", "%54", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7), \
  WW_D(8), WW_D(9), WW_D(10), WW_D(11), WW_D(12), WW_D(13)
WW_DEFINE_WGMMA(bf16, "bf16", 112, WW_LIST, "%56", "%57", "%58", "%59", "%60", "%61", "%62", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 112, WW_LIST, "%56", "%57", "%58", "%59", "%60", "%61", "%62", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7), \
  WW_D(8), WW_D(9), WW_D(10), WW_D(11), WW_D(12), WW_D(13), WW_D(14), WW_D(15)
WW_DEFINE_WGMMA(bf16, "bf16", 128, WW_LIST, "%64", "%65", "%66", "%67", "%68", "%69", "%70", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 128, WW_LIST, "%64", "%65", "%66", "%67", "%68", "%69", "%70", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7), \
  WW_D(8), WW_D(9), WW_D(10), WW_D(11), WW_D(12), WW_D(13), WW_D(14), WW_D(15), \
  WW_D(16), WW_D(17)
WW_DEFINE_WGMMA(bf16, "bf16", 144, WW_LIST, "%72", "%73", "%74", "%75", "%76", "%77", "%78", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 144, WW_LIST, "%72", "%73", "%74", "%75", "%76", "%77", "%78", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71," \
  "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7), \
  WW_D(8), WW_D(9), WW_D(10), WW_D(11), WW_D(12), WW_D(13), WW_D(14), WW_D(15), \
  WW_D(16), WW_D(17), WW_D(18), WW_D(19), WW_D(20), WW_D(21), WW_D(22), WW_D(23)
WW_DEFINE_WGMMA(bf16, "bf16", 192, WW_LIST, "%96", "%97", "%98", "%99", "%100", "%101", "%102", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 192, WW_LIST, "%96", "%97", "%98", "%99", "%100", "%101", "%102", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#define WW_LIST "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71," \
  "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119," \
  "%120,%121,%122,%123,%124,%125,%126,%127"
#define WW_ALL WW_D(0), WW_D(1), WW_D(2), WW_D(3), WW_D(4), WW_D(5), WW_D(6), WW_D(7), \
  WW_D(8), WW_D(9), WW_D(10), WW_D(11), WW_D(12), WW_D(13), WW_D(14), WW_D(15), \
  WW_D(16), WW_D(17), WW_D(18), WW_D(19), WW_D(20), WW_D(21), WW_D(22), WW_D(23), \
  WW_D(24), WW_D(25), WW_D(26), WW_D(27), WW_D(28), WW_D(29), WW_D(30), WW_D(31)
WW_DEFINE_WGMMA(bf16, "bf16", 256, WW_LIST, "%128", "%129", "%130", "%131", "%132", "%133", "%134", WW_ALL)
WW_DEFINE_WGMMA(f16, "f16", 256, WW_LIST, "%128", "%129", "%130", "%131", "%132", "%133", "%134", WW_ALL)
#undef WW_LIST
#undef WW_ALL

#undef WW_D
#undef WW_DEFINE_WGMMA

constexpr __device__ int wgmma_piece(int n) {
  return n >= 256 ? 256 : n >= 192 ? 192 : n >= 128 ? 128 : n >= 96 ? 96 : n >= 64 ? 64 : n >= 48 ? 48 : n >= 32 ? 32 : 16;
}

// N any multiple of 16.
template <class T, int N, bool Add>
__device__ __forceinline__ void wgmma_shared(float (*d)[4], u32 a, u32 b) {
  constexpr int piece = wgmma_piece(N);
  Wgmma<T, piece>::template shared<Add>(d, descriptor(a), descriptor(b));
  if constexpr (N > piece) wgmma_shared<T, N - piece, Add>(d + piece / 8, a, b + piece * 32 / 16);
}

template <class T, int N, bool Add>
__device__ __forceinline__ void wgmma_registers(float (*d)[4], const u32 (&a)[4], u32 b) {
  constexpr int piece = wgmma_piece(N);
  Wgmma<T, piece>::template registers<Add>(d, a, descriptor(b));
  if constexpr (N > piece) wgmma_registers<T, N - piece, Add>(d + piece / 8, a, b + piece * 32 / 16);
}

#endif

}  // namespace warpweave
