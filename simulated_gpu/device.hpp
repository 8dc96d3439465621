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
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
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
    int parameters, cluster;
};
struct Posted { unsigned char bytes[64]; };

void *dynamic_shared();
void barrier(int line);
bool barrier_or(bool value, int line);
void fence();
void cluster_barrier(int line);
void add_atomically(const void *at, int line);
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
template <class... T> constexpr int count(void (*)(T...)) { return sizeof...(T); }
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
static inline void __threadfence() { cudasim::fence(); }
template <class T> static inline T atomicAdd(T *at, T value, CUDASIM_HERE) {
    cudasim::add_atomically(at, line);
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
static inline int __syncthreads_or(int value, CUDASIM_HERE) { return cudasim::barrier_or(value, line); }
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
static inline unsigned negated(unsigned v) { return 0u - v; }
template <class A, class B> static inline int dot_of_bytes(int a, int b, int total) {
    for (int i = 0; i < 4; i++) total += (int)(A)(a >> 8 * i) * (int)(B)(b >> 8 * i);
    return total;
}
static inline int dot4(int a, int b, int total) { return dot_of_bytes<unsigned char, signed char>(a, b, total); }
static inline int sdot4(int a, int b, int total) { return dot_of_bytes<signed char, signed char>(a, b, total); }
static inline int udot4(int a, int b, int total) { return dot_of_bytes<unsigned char, unsigned char>(a, b, total); }

// cp.async: the copy is done when it is waited for, what was there before is gone at once
template <int BYTES> static inline void cp_async(void *shared, const void *global, bool real = true, CUDASIM_HERE) {
    cudasim::copy_later(shared, global, BYTES, real ? BYTES : 0, line);
}
static inline void cp_async_commit() { cudasim::copies_commit(); }
template <int BUT_LAST> static inline void cp_async_wait() { cudasim::copies_wait(BUT_LAST); }

static inline void cluster_barrier(CUDASIM_HERE) { cudasim::cluster_barrier(line); }

// mma.sync: fragments as the PTX ISA gives them, "Matrix multiply-accumulate operation using mma instruction".  With
// g = lane / 4 and t = lane % 4, a lane holds results (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) of 16 x 8
namespace cudasim {
struct Fragments { unsigned a[4], b[2]; };

inline float tf32_of(unsigned bits_) { return bits<float>(bits_ & 0xffffe000u); }  // what the units look at
inline float f16_of(unsigned pair, int k) { return half_to_float((unsigned short)(pair >> 16 * (k & 1))); }
inline float bf16_of(unsigned pair, int k) { return bits<float>(k & 1 ? pair & 0xffff0000u : pair << 16); }

// `per` neighbours along k in a register, which starts over after 4 lanes; sums of exact products, rounded once
template <int K, int PER, class Element>
void multiply(float (&d)[4], const unsigned *a, const unsigned *b, Element element, const char *what, int line) {
    Fragments own = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const Posted **posted = exchange(0xffffffffu, &own, sizeof own, what, line);
    for (int i = 0; i < 32; i++)
        if (!posted[i]) fail(719, line, "%s of a warp that is not whole", what);
    for (int i = 0; i < 4; i++) {
        int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
        double total = d[i];
        for (int k = 0; k < K; k++) {
            int inner = k % (4 * PER) / PER, outer = k / (4 * PER);
            const Fragments *left = (const Fragments *)posted[row % 8 * 4 + inner], *right = (const Fragments *)posted[column * 4 + inner];
            total += (double)element(left->a[row / 8 + 2 * outer], k) * (double)element(right->b[outer], k);
        }
        d[i] = (float)total;
    }
}

template <int COUNT> void load_matrices(unsigned (&r)[COUNT], const void *row, bool transposed, int line) {
    if ((size_t)row % 16) fail(716, line, "ldmatrix of a row at %p", row);
    const Posted **posted = exchange(0xffffffffu, &row, sizeof row, "ldmatrix", line);
    for (int matrix = 0; matrix < COUNT; matrix++) {
        unsigned short pair[2];
        for (int i = 0; i < 2; i++) {
            int down = lane() / 4, along = lane() % 4 * 2 + i;
            const Posted *from = posted[matrix * 8 + (transposed ? along : down)];
            if (!from) fail(719, line, "ldmatrix of a warp that is not whole");
            pair[i] = (*(const unsigned short *const *)from->bytes)[transposed ? down : along];
        }
        r[matrix] = pair[0] | (unsigned)pair[1] << 16;
    }
}
}  // namespace cudasim

static inline unsigned to_tf32(float v) {  // cvt.rna: to nearest, ties away from zero
    unsigned bits = __float_as_uint(v);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}
static inline void mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], CUDASIM_HERE) {
    cudasim::multiply<8, 1>(d, a, b, [](unsigned v, int) { return cudasim::tf32_of(v); }, "mma_tf32", line);
}
static inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], CUDASIM_HERE) {
    cudasim::multiply<16, 2>(d, a, b, cudasim::f16_of, "mma_f16", line);
}
static inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], CUDASIM_HERE) {
    cudasim::multiply<16, 2>(d, a, b, cudasim::bf16_of, "mma_bf16", line);
}

// wgmma: a product is computed, of what is in shared memory then, when it is waited for; until then its sums are NaN
namespace cudasim {
struct Product {
    float *sums;
    const char *a, *b;
    int columns, apart, group;  // apart: bytes from 64 columns to the next where rows are of columns, else 0
    float (*element)(unsigned pair, int k);
};
void multiply_later(const Product &given, int line);
void products_commit();
void products_wait(int but_last, int line);
void fence_shared();

template <int N> void multiply_group(float (&d)[N / 2], const void *a, const void *b, int apart, float (*element)(unsigned, int), int line) {
    multiply_later({d, (const char *)a, (const char *)b, N, apart, 0, element}, line);
}
}  // namespace cudasim

static inline void wgmma_shared() { cudasim::fence_shared(); }
static inline void wgmma_sums(CUDASIM_HERE) { cudasim::exchange(0xffffffffu, nullptr, 0, "wgmma.fence", line); }
static inline void wgmma_commit() { cudasim::products_commit(); }
template <int BUT_LAST> static inline void wgmma_wait(CUDASIM_HERE) { cudasim::products_wait(BUT_LAST, line); }
#define CUDASIM_WGMMA(name) \
    template <int N> static inline void wgmma_##name(float (&d)[N / 2], const void *a, const void *b, int, CUDASIM_HERE) { \
        cudasim::multiply_group<N>(d, a, b, 0, cudasim::name##_of, line); \
    } \
    template <int N> static inline void wgmma_##name##_lines(float (&d)[N / 2], const void *a, const void *b, int apart, CUDASIM_HERE) { \
        cudasim::multiply_group<N>(d, a, b, apart, cudasim::name##_of, line); \
    }
CUDASIM_WGMMA(f16)
CUDASIM_WGMMA(bf16)

static inline void ldmatrix_x2(unsigned (&r)[2], const void *row, CUDASIM_HERE) { cudasim::load_matrices(r, row, false, line); }
static inline void ldmatrix_x4(unsigned (&r)[4], const void *row, CUDASIM_HERE) { cudasim::load_matrices(r, row, false, line); }
static inline void ldmatrix_x2_trans(unsigned (&r)[2], const void *row, CUDASIM_HERE) { cudasim::load_matrices(r, row, true, line); }
static inline void ldmatrix_x4_trans(unsigned (&r)[4], const void *row, CUDASIM_HERE) { cudasim::load_matrices(r, row, true, line); }
