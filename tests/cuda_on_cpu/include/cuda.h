// CUDA C++ as g++ takes it: what the kernels that TVM generates use. A kernel's thread is a fiber, see threads.cpp.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct emulated_dim { unsigned x, y, z; };
struct emulated_range { const char* name; uintptr_t start; size_t size; };
extern "C" {
emulated_dim emulated_thread_index();
emulated_dim emulated_block_index();
emulated_dim emulated_block_size();
emulated_dim emulated_grid_size();
unsigned emulated_lane();
char* emulated_shared(size_t offset);
void emulated_barrier(int line);
uint32_t emulated_exchange(uint64_t value, uint64_t* lanes);
void emulated_copy(void* to, const void* from, unsigned bytes);
void emulated_commit();
void emulated_wait(unsigned left);
void emulated_atomic(const void* address, unsigned bytes);
}
#define __syncthreads() emulated_barrier(__LINE__)

// What is below is no access of the kernel's own, or says so itself.
#define UNWATCHED __attribute__((no_sanitize("thread"), always_inline)) static inline

UNWATCHED uint32_t emulated_lanes(uint64_t value, uint64_t* lanes) { return emulated_exchange(value, lanes); }
UNWATCHED void __syncwarp(unsigned = ~0u) {
  uint64_t lanes[32];
  emulated_exchange(0, lanes);
}
UNWATCHED unsigned __activemask() {
  uint64_t lanes[32];
  return emulated_exchange(0, lanes);
}

template <class T>
__attribute__((no_sanitize("thread"))) T emulated_shuffle(T value, int from, int width) {
  uint64_t bits = 0, lanes[32];
  memcpy(&bits, &value, sizeof value);
  const int lane = emulated_lane(), first = lane / width * width;
  const uint32_t present = emulated_exchange(bits, lanes);
  if (from < first || from >= first + width) return value;  // as the hardware: a lane out of range keeps its own
  T result;
  if (present >> from & 1) memcpy(&result, &lanes[from], sizeof result);
  else memset(&result, 0xff, sizeof result);  // undefined there
  return result;
}
template <class T> T __shfl_down_sync(unsigned, T v, int d, int w = 32) { return emulated_shuffle(v, (int)emulated_lane() + d, w); }
template <class T> T __shfl_up_sync(unsigned, T v, int d, int w = 32) { return emulated_shuffle(v, (int)emulated_lane() - d, w); }
template <class T> T __shfl_xor_sync(unsigned, T v, int d, int w = 32) { return emulated_shuffle(v, (int)emulated_lane() ^ d, w); }
template <class T> T __shfl_sync(unsigned, T v, int s, int w = 32) { return emulated_shuffle(v, (int)emulated_lane() / w * w + s % w, w); }

template <class T>
__attribute__((no_sanitize("thread"))) T atomicAdd(T* place, T value) {
  emulated_atomic(place, sizeof(T));
  const T before = *place;
  *place = before + value;
  return before;
}
template <class T> T __ldg(const T* place) { return *place; }

// Vectors are copied as one, so that an address that is no multiple of their size shows.
#define VECTOR2(T, NAME)                                                         \
  struct alignas(2 * sizeof(T)) NAME {                                           \
    typedef T whole __attribute__((vector_size(2 * sizeof(T))));                 \
    union { whole all; struct { T x, y; }; };                                    \
    NAME() = default;                                                            \
    NAME(const NAME& other) : all(other.all) {}                                  \
    NAME& operator=(const NAME& other) { all = other.all; return *this; }        \
  };                                                                             \
  UNWATCHED NAME make_##NAME(T x, T y) { NAME v; v.x = x; v.y = y; return v; }
#define VECTOR4(T, NAME)                                                         \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) NAME {                 \
    typedef T whole __attribute__((vector_size(4 * sizeof(T)), aligned(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16))); \
    union { whole all; struct { T x, y, z, w; }; };                              \
    NAME() = default;                                                            \
    NAME(const NAME& other) : all(other.all) {}                                  \
    NAME& operator=(const NAME& other) { all = other.all; return *this; }        \
  };                                                                             \
  UNWATCHED NAME make_##NAME(T x, T y, T z, T w) { NAME v; v.x = x; v.y = y; v.z = z; v.w = w; return v; }
#define VECTORS(T, NAME)                                                         \
  VECTOR2(T, NAME##2)                                                            \
  VECTOR4(T, NAME##4)                                                            \
  struct NAME##3 { T x, y, z; };
VECTORS(float, float) VECTORS(double, double) VECTORS(int, int) VECTORS(unsigned, uint) VECTORS(signed char, char)
VECTORS(unsigned char, uchar) VECTORS(short, short) VECTORS(unsigned short, ushort) VECTORS(long long, longlong)
VECTORS(unsigned long long, ulonglong)

template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T min(T a, T b) { return a < b ? a : b; }
UNWATCHED float max(float a, float b) { return fmaxf(a, b); }
UNWATCHED float min(float a, float b) { return fminf(a, b); }
UNWATCHED double max(double a, double b) { return fmax(a, b); }
UNWATCHED double min(double a, double b) { return fmin(a, b); }
UNWATCHED long long max(long long a, int b) { return a > b ? a : b; }
UNWATCHED float __fdividef(float a, float b) { return a / b; }
UNWATCHED float rsqrtf(float x) { return 1 / sqrtf(x); }
UNWATCHED double rsqrt(double x) { return 1 / sqrt(x); }
template <class To, class From> UNWATCHED To emulated_bits(From value) {
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}
#define __float_as_int(x) emulated_bits<int, float>(x)
#define __float_as_uint(x) emulated_bits<unsigned, float>(x)
#define __int_as_float(x) emulated_bits<float, int>(x)
#define __uint_as_float(x) emulated_bits<float, unsigned>(x)
#define __double_as_longlong(x) emulated_bits<long long, double>(x)
#define __longlong_as_double(x) emulated_bits<double, long long>(x)
UNWATCHED unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
UNWATCHED int __popc(unsigned x) { return __builtin_popcount(x); }
UNWATCHED int __clz(int x) { return x ? __builtin_clz(x) : 32; }
#define __expf expf
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __log2f log2f
#define __log10f log10f
#define __exp10f(x) powf(10.0f, x)

// The helpers of `dlsys.schedule.cuda.nvrtc`.
UNWATCHED void dlsys_copy(float* to, const float* from, int inside) { emulated_copy(to, inside ? from : nullptr, 16); }
#define dlsys_commit() emulated_commit()
#define dlsys_wait() emulated_wait(0)

// Tensor cores, as `dlsys.schedule.cuda.tensor_cores` calls them: the lanes of a warp show each other what they hold.
UNWATCHED float dlsys_tf32(float x) {
  unsigned bits = emulated_bits<unsigned, float>(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;  // to nearest, ties away from zero
  return emulated_bits<float, unsigned>(bits);
}
UNWATCHED unsigned emulated_bf16(float x) {
  unsigned bits = emulated_bits<unsigned, float>(x);
  if (x != x) return 0x7fff;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
}
UNWATCHED unsigned emulated_f16(float x) { return emulated_bits<unsigned short, _Float16>((_Float16)x); }
UNWATCHED float dlsys_bf16(float first, float second) {
  return emulated_bits<float, unsigned>(emulated_bf16(first) | emulated_bf16(second) << 16);
}
UNWATCHED float dlsys_f16(float first, float second) {
  return emulated_bits<float, unsigned>(emulated_f16(first) | emulated_f16(second) << 16);
}

// What all lanes hold of A and B, as 6 words each; then the products of those of a row and a column.
template <class Product>
__attribute__((no_sanitize("thread"))) void emulated_mma(float* c, const float* a, const float* b, Product product) {
  uint64_t seen[3][32];
  const float held[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  for (int i = 0; i < 3; i++) {
    uint64_t pair;
    memcpy(&pair, held + 2 * i, sizeof pair);
    emulated_exchange(pair, seen[i]);
  }
  auto of = [&](int number, int lane) { return (unsigned)(seen[number / 2][lane] >> 32 * (number % 2)); };
  const int group = emulated_lane() / 4, place = emulated_lane() % 4;
  for (int half = 0; half < 2; half++)
    for (int one = 0; one < 2; one++)
      for (int k = 0; k < 8; k++)
        c[2 * half + one] += product(of(half + (k < 4 ? 0 : 2), group * 4 + k % 4),
                                     of(k < 4 ? 4 : 5, (2 * place + one) * 4 + k % 4));
}
UNWATCHED void dlsys_mma_tf32(float* c, const float* a, const float* b) {
  emulated_mma(c, a, b, [](unsigned x, unsigned y) {
    if ((x | y) & 0x1fffu) return NAN;  // not rounded to TF32
    return emulated_bits<float, unsigned>(x) * emulated_bits<float, unsigned>(y);
  });
}
UNWATCHED void dlsys_mma_bf16(float* c, const float* a, const float* b) {
  emulated_mma(c, a, b, [](unsigned x, unsigned y) {
    const float low = emulated_bits<float, unsigned>(x << 16) * emulated_bits<float, unsigned>(y << 16);
    return low + emulated_bits<float, unsigned>(x & 0xffff0000u) * emulated_bits<float, unsigned>(y & 0xffff0000u);
  });
}
UNWATCHED float emulated_half(unsigned bits) { return emulated_bits<_Float16, unsigned short>(bits); }
UNWATCHED void dlsys_mma_f16(float* c, const float* a, const float* b) {
  emulated_mma(c, a, b, [](unsigned x, unsigned y) {
    return emulated_half(x) * emulated_half(y) + emulated_half(x >> 16) * emulated_half(y >> 16);
  });
}

// The indices are asked for once a kernel, as a device reads a register; see `__init__.py`.
#define EMULATED_INDICES                                                                                  \
  const emulated_dim threadIdx = emulated_thread_index(), blockIdx = emulated_block_index();               \
  const emulated_dim blockDim = emulated_block_size(), gridDim = emulated_grid_size();                     \
  (void)threadIdx, (void)blockIdx, (void)blockDim, (void)gridDim;
