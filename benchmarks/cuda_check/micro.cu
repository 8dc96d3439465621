// Kernels that each show one figure of a GPU.  `cycles` gets what every block took; `out` keeps results from being
// thrown away.  The helpers of emitted kernels (codegen/cuda/spell.py) stand before this text.
#ifdef __CUDACC_RTC__
__device__ __forceinline__ long long now() {
    long long found;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(found)::"memory");
    return found;
}
__device__ __forceinline__ long long nanoseconds() {
    long long found;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(found)::"memory");
    return found;
}
#else  // a clock that goes on whenever it is read
static long long now() { static long long ticks; return ++ticks; }
static long long nanoseconds() { static long long ticks; return ++ticks; }
#endif
#if defined(__CUDACC_RTC__) && defined(CLUSTER)  // architectures that have clusters have programmatic launches
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ __forceinline__ void let_next_begin() {}
__device__ __forceinline__ void wait_for_last() {}
#endif

#define TIMED(...) \
    __syncthreads(); \
    long long start = now(); \
    __VA_ARGS__ \
    __syncthreads(); \
    if (threadIdx.x == 0) cycles[blockIdx.x] = now() - start;
#define REPEATED \
    _Pragma("unroll 1") for (long long round = 0; round < rounds; ++round)

// --- launches ------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256)
empty()
{
}

extern "C" __global__ void __launch_bounds__(256)
spin(long long *cycles, long long *times, long long least)
{
    long long start = now(), begun = nanoseconds();
    while (now() - start < least) {
    }
    if (threadIdx.x == 0) {
        cycles[blockIdx.x] = now() - start;
        times[blockIdx.x] = nanoseconds() - begun;
    }
}

extern "C" __global__ void __launch_bounds__(256)
spin_after(long long least)
{
    let_next_begin();
    wait_for_last();
    long long start = now();
    while (now() - start < least) {
    }
}

// --- shared memory -------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(1024)
shared_vectors(long long *cycles, unsigned *out, long long rounds, long long lanes_an_address, long long stride)
{
    __shared__ uint4 data[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) data[i] = make_uint4(i, 3 * i, 5 * i, 7 * i);
    int place = threadIdx.x % 32 / (int)lanes_an_address * (int)stride;
    unsigned kept = 0;
    TIMED(REPEATED {
        const uint4 *from = data + place + (round & 1) * 512;
#pragma unroll
        for (int u = 0; u < 16; ++u) {
            uint4 found = from[u * 32];
            kept ^= found.x ^ found.y ^ found.z ^ found.w;
        }
    })
    out[blockIdx.x * blockDim.x + threadIdx.x] = kept;
}

extern "C" __global__ void __launch_bounds__(1024)
shared_words(long long *cycles, unsigned *out, long long rounds, long long lanes_an_address, long long stride)
{
    __shared__ unsigned data[8192];
    for (int i = threadIdx.x; i < 8192; i += blockDim.x) data[i] = 3 * i;
    int place = threadIdx.x % 32 / (int)lanes_an_address * (int)stride;
    unsigned kept = 0;
    TIMED(REPEATED {
        const unsigned *from = data + place + (round & 1) * 4096;
#pragma unroll
        for (int u = 0; u < 16; ++u) kept = kept * 3 + from[u * 32];
    })
    out[blockIdx.x * blockDim.x + threadIdx.x] = kept;
}

#ifdef MMA
extern "C" __global__ void __launch_bounds__(1024)
shared_matrices(long long *cycles, unsigned *out, long long rounds)
{
    __shared__ uint4 data[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) data[i] = make_uint4(i, 3 * i, 5 * i, 7 * i);
    unsigned kept = 0;
    TIMED(REPEATED {
        const uint4 *from = data + threadIdx.x % 32 + (round & 1) * 512;
#pragma unroll
        for (int u = 0; u < 16; ++u) {
            unsigned found[4];
            ldmatrix_x4(found, from + u * 32);
            kept ^= found[0] ^ found[1] ^ found[2] ^ found[3];
        }
    })
    out[blockIdx.x * blockDim.x + threadIdx.x] = kept;
}
#endif  // MMA

// --- arithmetic ----------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(1024)
multiply_adds(long long *cycles, float *out, long long rounds)
{
    float kept[16], by = 0.5f + threadIdx.x * 1e-4f, more = 1.0f - by;
    for (int i = 0; i < 16; ++i) kept[i] = i + by;
    TIMED(REPEATED {
#pragma unroll
        for (int u = 0; u < 64; ++u) kept[u % 16] = __fmaf_rn(kept[u % 16], by, more);
    })
    float total = 0.0f;
    for (int i = 0; i < 16; ++i) total += kept[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

#define MULTIPLIES(multiply) \
    unsigned a[4], b[2]; \
    for (int i = 0; i < 4; ++i) a[i] = 0x3c003c00u ^ (threadIdx.x * 40503u + i * 0x01230000u) % 0x03ff03ffu; \
    for (int i = 0; i < 2; ++i) b[i] = 0x2c002c00u ^ (threadIdx.x * 30011u + i * 0x02310000u) % 0x83ff83ffu; \
    float kept[8][4] = {}; \
    TIMED(REPEATED { \
        _Pragma("unroll") for (int u = 0; u < 16; ++u) multiply(kept[u % 8], a, b); \
    }) \
    float total = 0.0f; \
    for (int i = 0; i < 32; ++i) total += kept[i / 4][i % 4]; \
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;

#ifdef MMA
extern "C" __global__ void __launch_bounds__(512)
multiply_f16(long long *cycles, float *out, long long rounds)
{
    MULTIPLIES(mma_f16)
}

extern "C" __global__ void __launch_bounds__(512)
multiply_tf32(long long *cycles, float *out, long long rounds)
{
    MULTIPLIES(mma_tf32)
}
#endif  // MMA

#ifdef WGMMA
extern "C" __global__ void __launch_bounds__(256)
multiply_by_groups(long long *cycles, float *out, long long rounds)
{
    __shared__ __align__(1024) unsigned left[2][64][32], right[256][32];  // swizzled rows of 64 elements
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) (&left[0][0][0])[i] = 0x3c003c00u ^ i * 40503u % 0x03ff03ffu;
    for (int i = threadIdx.x; i < 8192; i += blockDim.x) (&right[0][0])[i] = 0x2c002c00u ^ i * 30011u % 0x83ff83ffu;
    float kept[128] = {};
    wgmma_shared();
    TIMED(REPEATED {
        wgmma_sums();
#pragma unroll
        for (int u = 0; u < 4; ++u) wgmma_f16<256>(kept, &left[threadIdx.x / 128][0][u * 8], &right[0][u * 8], 16);
        wgmma_commit();
        wgmma_wait<0>();
    })
    float total = 0.0f;
    for (int i = 0; i < 128; ++i) total += kept[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
#endif  // WGMMA

#ifdef MMA
extern "C" __global__ void __launch_bounds__(1024)
roundings(long long *cycles, unsigned *out, long long rounds)
{
    unsigned kept[8];
    for (int i = 0; i < 8; ++i) kept[i] = 0x3f800001u + threadIdx.x * 77u + i;
    TIMED(REPEATED {
#pragma unroll
        for (int u = 0; u < 32; ++u) kept[u % 8] = to_tf32(__uint_as_float(kept[u % 8] + u));
    })
    for (int i = 1; i < 8; ++i) kept[0] ^= kept[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = kept[0];
}
#endif  // MMA

// --- global memory -------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(512)
read_all(unsigned *out, const uint4 *__restrict__ from, long long count, long long rounds)
{
    unsigned kept = 0;
    long long step = (long long)gridDim.x * blockDim.x;
    REPEATED {  // every time another SM's part, or the first-level cache would have it
        long long i = (blockIdx.x + 37 * round) % gridDim.x * blockDim.x + threadIdx.x;
        for (; i + 7 * step < count; i += 8 * step) {
            uint4 found[8];
#pragma unroll
            for (int u = 0; u < 8; ++u) found[u] = from[i + u * step];
#pragma unroll
            for (int u = 0; u < 8; ++u) kept ^= found[u].x ^ found[u].y ^ found[u].z ^ found[u].w ^ (unsigned)round;
        }
        for (; i < count; i += step) kept ^= from[i].x ^ from[i].w;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = kept;
}

extern "C" __global__ void __launch_bounds__(512)
copy_all(uint4 *__restrict__ to, const uint4 *__restrict__ from, long long count)
{
    long long step = (long long)gridDim.x * blockDim.x, i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        uint4 found[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) found[u] = from[i + u * step];
#pragma unroll
        for (int u = 0; u < 4; ++u) to[i + u * step] = found[u];
    }
    for (; i < count; i += step) to[i] = from[i];
}

// --- latency -------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256)
link(unsigned *to, long long count, long long stride)
{
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = (unsigned)((i + stride) % count);
}

extern "C" __global__ void __launch_bounds__(32)
chase(long long *cycles, unsigned *out, const unsigned *from, long long rounds)
{
    unsigned at = 0;
    TIMED(REPEATED at = from[at];)
    out[threadIdx.x] = at;
}

extern "C" __global__ void __launch_bounds__(32)
chase_shared(long long *cycles, unsigned *out, long long rounds)
{
    __shared__ unsigned data[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) data[i] = (i + 37) % 1024;
    unsigned at = 0;
    TIMED(REPEATED at = data[at];)
    out[threadIdx.x] = at;
}

// --- barriers ------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(1024)
barriers(long long *cycles, long long rounds)
{
    TIMED(REPEATED { __syncthreads(); })
}

#ifdef CLUSTER
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256)
cluster_of_2(long long *cycles, long long rounds)
{
    TIMED(REPEATED { cluster_barrier(); })
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256)
cluster_of_4(long long *cycles, long long rounds)
{
    TIMED(REPEATED { cluster_barrier(); })
}

extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(256)
cluster_of_8(long long *cycles, long long rounds)
{
    TIMED(REPEATED { cluster_barrier(); })
}
#endif  // CLUSTER
