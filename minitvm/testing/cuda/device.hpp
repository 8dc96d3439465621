// What emitted CUDA C finds on the host: its words, its builtins, and the device functions that are inline PTX there.
// runtime.cpp runs the threads.  A line number that a call is given by default is its caller's.
#pragma once
#include <string.h>

// <math.h> takes longer to compile than most kernels
#define CUDASIM_UNARY(name) double name(double) noexcept; float name##f(float) noexcept;
#define CUDASIM_BINARY(name) double name(double, double) noexcept; float name##f(float, float) noexcept;
extern "C" {
CUDASIM_UNARY(floor) CUDASIM_UNARY(ceil) CUDASIM_UNARY(trunc) CUDASIM_UNARY(rint) CUDASIM_UNARY(fabs)
CUDASIM_UNARY(sqrt) CUDASIM_UNARY(exp) CUDASIM_UNARY(exp2) CUDASIM_UNARY(expm1) CUDASIM_UNARY(log) CUDASIM_UNARY(log2)
CUDASIM_UNARY(log1p) CUDASIM_UNARY(erf) CUDASIM_UNARY(sin) CUDASIM_UNARY(cos) CUDASIM_UNARY(tan) CUDASIM_UNARY(asin)
CUDASIM_UNARY(acos) CUDASIM_UNARY(atan) CUDASIM_UNARY(sinh) CUDASIM_UNARY(cosh) CUDASIM_UNARY(tanh) CUDASIM_UNARY(asinh)
CUDASIM_UNARY(acosh) CUDASIM_UNARY(atanh) CUDASIM_BINARY(fmod) CUDASIM_BINARY(pow) CUDASIM_BINARY(fmin)
CUDASIM_BINARY(fmax) CUDASIM_BINARY(atan2)
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
}

#define __global__ static
#define __device__ static
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section(CUDASIM_SHARED)))
#define CUDASIM_HERE int line = __builtin_LINE()

struct Index { int x, y, z; };

// --- runtime.cpp ---------------------------------------------------------------------------------------------------

extern Index threadIdx, blockIdx, blockDim, gridDim;

namespace cudasim {
struct Kernel {
    const char *name;
    void (*call)(void **parameters);
    char *shared, *shared_end;
    unsigned most_threads;
};
struct Posted { unsigned char bytes[64]; };

void *dynamic_shared();
void barrier(int line);
// Waits for the lanes of `mask`; what each of them gave, one element per lane, or null where a lane is none of them.
const Posted **exchange(unsigned mask, const void *given, int bytes, const char *what, int line);
int lane();
void copy_later(void *shared, const void *global, int bytes, int real, int line);
void copies_commit();
void copies_wait(int but_last);
[[noreturn]] void fail(int code, int line, const char *format, ...);

template <int...> struct Numbers {};
template <int N, int... M> struct Count : Count<N - 1, N - 1, M...> {};
template <int... M> struct Count<0, M...> { using type = Numbers<M...>; };
template <class... T, int... N> void call(void (*kernel)(T...), void **parameters, Numbers<N...>) {
    kernel(*(T *)parameters[N]...);
}
template <class... T> void call(void (*kernel)(T...), void **parameters) {
    call(kernel, parameters, typename Count<sizeof...(T)>::type());
}

template <class To, class From> To bits(From value) {
    To to;
    static_assert(sizeof to == sizeof value, "bits of another width");
    memcpy(&to, &value, sizeof to);
    return to;
}

template <class T> T shuffle(unsigned mask, T value, int source, const char *what, int line) {
    const Posted *from = exchange(mask, &value, sizeof value, what, line)[source & 31];
    T found;
    memset(&found, 0xff, sizeof found);  // of a lane that takes no part
    if (from) memcpy(&found, from, sizeof found);
    return found;
}
}  // namespace cudasim

// --- builtins ------------------------------------------------------------------------------------------------------

static const int warpSize = 32;
static inline float __int_as_float(int v) { return cudasim::bits<float>(v); }
static inline int __float_as_int(float v) { return cudasim::bits<int>(v); }
static inline float __uint_as_float(unsigned v) { return cudasim::bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return cudasim::bits<unsigned>(v); }
static inline double __longlong_as_double(long long v) { return cudasim::bits<double>(v); }
static inline long long __double_as_longlong(double v) { return cudasim::bits<long long>(v); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T atomicAdd(T *at, T value) {
    T old = *at;
    *at = old + value;
    return old;
}

#define CUDASIM_VECTOR(T, name, align) \
    struct __attribute__((aligned(2 * align))) name##2 { T x, y; }; \
    struct __attribute__((aligned(4 * align > 16 ? 16 : 4 * align))) name##4 { T x, y, z, w; }; \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDASIM_VECTOR(char, char, 1)
CUDASIM_VECTOR(unsigned char, uchar, 1)
CUDASIM_VECTOR(short, short, 2)
CUDASIM_VECTOR(unsigned short, ushort, 2)
CUDASIM_VECTOR(int, int, 4)
CUDASIM_VECTOR(unsigned int, uint, 4)
CUDASIM_VECTOR(float, float, 4)
CUDASIM_VECTOR(double, double, 8)
CUDASIM_VECTOR(long long, longlong, 8)
CUDASIM_VECTOR(unsigned long long, ulonglong, 8)

static inline void __syncthreads(CUDASIM_HERE) { cudasim::barrier(line); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDASIM_HERE) {
    cudasim::exchange(mask, nullptr, 0, "__syncwarp", line);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32, CUDASIM_HERE) {
    int lane = cudasim::lane(), from = lane ^ other;
    return cudasim::shuffle(mask, value, from / width > lane / width ? lane : from, "__shfl_xor_sync", line);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, int by, int width = 32, CUDASIM_HERE) {
    int lane = cudasim::lane(), from = lane + by;
    return cudasim::shuffle(mask, value, from / width > lane / width ? lane : from, "__shfl_down_sync", line);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, int by, int width = 32, CUDASIM_HERE) {
    int lane = cudasim::lane(), from = lane - by;
    return cudasim::shuffle(mask, value, from < lane / width * width ? lane : from, "__shfl_up_sync", line);
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32, CUDASIM_HERE) {
    int base = cudasim::lane() / width * width;
    return cudasim::shuffle(mask, value, base + (from & (width - 1)), "__shfl_sync", line);
}

// --- what is inline PTX on a GPU -----------------------------------------------------------------------------------

static inline float half_to_float(unsigned short v) { return (float)cudasim::bits<_Float16>(v); }
static inline unsigned short float_to_half(float v) { return cudasim::bits<unsigned short>((_Float16)v); }
static inline int dot4(int a, int b, int total) {
    for (int i = 0; i < 4; i++) total += (int)(unsigned char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return total;
}

// cp.async: the copy is done when it is waited for, what was there before is gone at once
template <int BYTES> static inline void cp_async(void *shared, const void *global, CUDASIM_HERE) {
    cudasim::copy_later(shared, global, BYTES, BYTES, line);
}
template <int BYTES> static inline void cp_async_zfill(void *shared, const void *global, bool real, CUDASIM_HERE) {
    cudasim::copy_later(shared, global, BYTES, real ? BYTES : 0, line);
}
static inline void cp_async_commit() { cudasim::copies_commit(); }
template <int BUT_LAST> static inline void cp_async_wait() { cudasim::copies_wait(BUT_LAST); }
