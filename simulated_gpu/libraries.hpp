// Stand-ins for cuBLAS and cuDNN, as much of them as is called: in the order of a handle's stream, captured with it.
// Arguments are checked as the libraries would (and whether operands are in the GPU's memory); where tensor cores
// are allowed, factors are rounded to TF32, so that a result tells whether they were.
#include <math.h>

namespace {

enum { INVALID = 7, BAD = 2000, UNSUPPORTED = 3000 };  // of cuBLAS, of cuDNN
struct Library { void *stream = nullptr; size_t workspace = 0; };

size_t size_of(int type) { return type == 1 ? 8 : type ? 2 : 4; }  // float64, float16, float32: cuDNN's 0, 1, 2

double load(const void *from, long long at, int type, bool is_tf32) {
    if (type == 1) return ((const double *)from)[at];
    if (type == 2) return ((const _Float16 *)from)[at];
    float value = ((const float *)from)[at];
    if (!is_tf32) return value;
    unsigned bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&value, &bits, 4);
    return value;
}

void store(void *to, long long at, int type, double value) {
    if (type == 1) ((double *)to)[at] = value;
    else if (type == 2) ((_Float16 *)to)[at] = (_Float16)value;
    else ((float *)to)[at] = (float)value;
}

bool is_factor(const void *pointer, int sums, double wanted) {
    return (sums == 1 ? *(const double *)pointer : *(const float *)pointer) == wanted;
}

bool is_there(const void *pointer, long long elements, int type) {
    return is_there((Address)pointer, elements * size_of(type));
}

}  // namespace

// --- cuBLAS: matrices by columns ----------------------------------------------------------------------------------

CALL(cublasGetProperty, int, int *version) { return *version = number("STANDIN_CUBLAS", 13), 0; }
EXPORTED const char *cublasGetStatusString(int status) { return status == INVALID ? "CUBLAS_STATUS_INVALID_VALUE" : "?"; }
CALL(cublasCreate_v2, Library **made) { BEGIN; return *made = new Library, 0; }
CALL(cublasDestroy_v2, Library *blas) { BEGIN; return delete blas, 0; }
CALL(cublasSetStream_v2, Library *blas, void *stream) { BEGIN; return *blas = {stream}, 0; }
CALL(cublasSetWorkspace_v2, Library *blas, void *at, size_t bytes) {
    BEGIN;
    return blas->workspace = bytes, is_there((Address)at, bytes) ? 0 : INVALID;
}
CALL(cublasGemmStridedBatchedEx, Library *blas, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
     int ta_, int lda, long long sa, const void *b, int tb_, int ldb, long long sb, const void *beta, void *c, int tc_,
     int ldc, long long sc, int batch, int compute, int) {
    BEGIN;
    int type = ta_, sums = type == 1;
    bool is_tf32 = compute == 77, fits = is_tf32 ? type == 0 : compute == (type == 1 ? 70 : 68);
    if (!blas->workspace || !fits || tb_ != type || tc_ != type) return INVALID;
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return INVALID;
    if (!is_factor(alpha, sums, 1) || !is_factor(beta, sums, 0)) return INVALID;
    long long last = batch - 1;
    if (!is_there(a, last * sa + m * k, type) || !is_there(b, last * sb + k * n, type)) return INVALID;
    if (!is_there(c, last * sc + m * n, type)) return INVALID;
    return give(blas->stream, [=]() -> Status {
        for (int p = 0; p < batch; p++)
            for (int i = 0; i < m; i++)
                for (int j = 0; j < n; j++) {
                    double sum = 0;
                    for (int r = 0; r < k; r++)
                        sum += load(a, p * sa + (ta ? r + (long long)i * lda : i + (long long)r * lda), type, is_tf32) *
                               load(b, p * sb + (tb ? j + (long long)r * ldb : r + (long long)j * ldb), type, is_tf32);
                    store(c, p * sc + i + (long long)j * ldc, type, sum);
                }
        return 0;
    });
}

// --- cuDNN: cross-correlations of planes and volumes ----------------------------------------------------------------

namespace {

struct Tensor { int type = -1; std::vector<int> shape; };
struct Window { std::vector<int> padding, strides, dilation; int groups = 1, math = 0, sums = -1; };
struct Measured { int algorithm, status; float time; size_t bytes; int is_deterministic, math, reserved[3]; };

long long elements(const Tensor *tensor) {
    long long size = 1;
    for (int extent : tensor->shape) size *= extent;
    return size;
}

Status check(const Tensor *x, const Tensor *w, const Window *c, const Tensor *y) {
    size_t rank = x->shape.size();
    if (w->type != x->type || y->type != x->type || c->sums != (x->type == 1)) return BAD;
    if (w->shape.size() != rank || y->shape.size() != rank || c->strides.size() + 2 != rank) return BAD;
    if (y->shape[0] != x->shape[0] || y->shape[1] != w->shape[0]) return BAD;
    if (w->shape[1] * c->groups != x->shape[1] || w->shape[0] % c->groups) return BAD;
    for (size_t d = 0; d + 2 < rank; d++) {
        int span = (w->shape[d + 2] - 1) * c->dilation[d] + 1, room = x->shape[d + 2] + 2 * c->padding[d] - span;
        if (room < 0 || y->shape[d + 2] != room / c->strides[d] + 1) return BAD;
    }
    return 0;
}

// Planes and volumes as volumes.
std::vector<int> volume(const std::vector<int> &numbers, size_t before, int otherwise) {
    std::vector<int> found = numbers;
    if (numbers.size() == before + 2) found.insert(found.begin() + before, otherwise);
    return found;
}

void convolve(Tensor x, const void *image, Tensor w, const void *filters, Window c, Tensor y, void *result) {
    auto in = volume(x.shape, 2, 1), taps = volume(w.shape, 2, 1), out = volume(y.shape, 2, 1);
    auto pad = volume(c.padding, 0, 0), step = volume(c.strides, 0, 1), gap = volume(c.dilation, 0, 1);
    bool is_tf32 = c.math != 3;
    long long at = 0;
    int own = out[1] / c.groups, plane = taps[2] * taps[3] * taps[4];
    for (int n = 0; n < out[0]; n++)
        for (int o = 0; o < out[1]; o++)
            for (int d = 0; d < out[2]; d++)
                for (int h = 0; h < out[3]; h++)
                    for (int v = 0; v < out[4]; v++) {
                        double sum = 0;
                        for (int i = 0; i < taps[1]; i++)
                            for (int t = 0; t < plane; t++) {
                                int z = d * step[0] + t / taps[4] / taps[3] * gap[0] - pad[0];
                                int r = h * step[1] + t / taps[4] % taps[3] * gap[1] - pad[1];
                                int s = v * step[2] + t % taps[4] * gap[2] - pad[2];
                                if (z < 0 || z >= in[2] || r < 0 || r >= in[3] || s < 0 || s >= in[4]) continue;
                                long long channel = (long long)n * in[1] + o / own * taps[1] + i;
                                sum += load(image, ((channel * in[2] + z) * in[3] + r) * in[4] + s, x.type, is_tf32) *
                                       load(filters, ((long long)o * taps[1] + i) * plane + t, x.type, is_tf32);
                            }
                        store(result, at++, x.type, sum);
                    }
}

// Algorithm 1 needs memory, algorithm 6 is for other windows, the others need none.
size_t workspace_of(const Tensor *y, int algorithm) { return algorithm == 1 ? 64 + elements(y) : 0; }

}  // namespace

CALL(cudnnGetProperty, int, int *version) { return *version = number("STANDIN_CUDNN", 9), 0; }
EXPORTED const char *cudnnGetErrorString(int status) {
    return status == BAD ? "CUDNN_STATUS_BAD_PARAM" : status == UNSUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "?";
}
CALL(cudnnCreate, Library **made) { BEGIN; return *made = new Library, 0; }
CALL(cudnnDestroy, Library *dnn) { BEGIN; return delete dnn, 0; }
CALL(cudnnSetStream, Library *dnn, void *stream) { BEGIN; return dnn->stream = stream, 0; }
CALL(cudnnCreateTensorDescriptor, Tensor **made) { BEGIN; return *made = new Tensor, 0; }
CALL(cudnnCreateFilterDescriptor, Tensor **made) { BEGIN; return *made = new Tensor, 0; }
CALL(cudnnCreateConvolutionDescriptor, Window **made) { BEGIN; return *made = new Window, 0; }
CALL(cudnnDestroyTensorDescriptor, Tensor *tensor) { BEGIN; return delete tensor, 0; }
CALL(cudnnDestroyFilterDescriptor, Tensor *tensor) { BEGIN; return delete tensor, 0; }
CALL(cudnnDestroyConvolutionDescriptor, Window *window) { BEGIN; return delete window, 0; }
CALL(cudnnSetTensorNdDescriptorEx, Tensor *tensor, int format, int type, int rank, const int *shape) {
    BEGIN;
    if (format || type < 0 || type > 2 || rank < 4 || rank > 5) return UNSUPPORTED;
    return *tensor = {type, {shape, shape + rank}}, 0;
}
CALL(cudnnSetFilterNdDescriptor, Tensor *tensor, int type, int format, int rank, const int *shape) {
    return cudnnSetTensorNdDescriptorEx(tensor, format, type, rank, shape);
}
CALL(cudnnSetConvolutionNdDescriptor, Window *window, int rank, const int *padding, const int *strides,
     const int *dilation, int is_cross_correlation, int sums) {
    BEGIN;
    *window = {{padding, padding + rank}, {strides, strides + rank}, {dilation, dilation + rank}};
    return window->sums = sums, is_cross_correlation == 1 ? 0 : UNSUPPORTED;
}
CALL(cudnnSetConvolutionGroupCount, Window *window, int groups) { BEGIN; return window->groups = groups, 0; }
CALL(cudnnSetConvolutionMathType, Window *window, int math) { BEGIN; return window->math = math, 0; }
CALL(cudnnGetConvolutionForwardWorkspaceSize, Library *, Tensor *x, Tensor *w, Window *c, Tensor *y, int algorithm,
     size_t *bytes) {
    BEGIN;
    *bytes = workspace_of(y, algorithm);
    return algorithm == 6 ? (int)UNSUPPORTED : check(x, w, c, y);
}
CALL(cudnnFindConvolutionForwardAlgorithmEx, Library *dnn, Tensor *x, const void *image, Tensor *w,
     const void *filters, Window *c, Tensor *y, void *result, int room, int *count, Measured *found, void *work,
     size_t bytes) {
    BEGIN;
    if (at(dnn->stream)->captured) return BAD;
    if (Status status = check(x, w, c, y)) return status;
    if (!is_there(image, elements(x), x->type) || !is_there(filters, elements(w), x->type)) return BAD;
    if (!is_there(result, elements(y), x->type) || !is_there((Address)work, bytes)) return BAD;
    int fast = bytes < workspace_of(y, 1) ? UNSUPPORTED : 0, only = number("STANDIN_ALGORITHMS", 4);
    Measured all[] = {{6, UNSUPPORTED, -1}, {1, fast, 0.1f, workspace_of(y, 1), 1, c->math},
                      {2, 0, 0.05f, 0, 1, 1}, {0, 0, 0.2f, 0, 1, 3}};
    *count = only < room ? only : room;
    std::copy(all, all + *count, found);
    poison(result, elements(y) * size_of(y->type));
    return finish(dnn->stream);
}
CALL(cudnnConvolutionForward, Library *dnn, const void *alpha, Tensor *x, const void *image, Tensor *w,
     const void *filters, Window *c, int algorithm, void *work, size_t bytes, const void *beta, Tensor *y,
     void *result) {
    BEGIN;
    if (Status status = check(x, w, c, y)) return status;
    if (!is_factor(alpha, c->sums, 1) || !is_factor(beta, c->sums, 0)) return BAD;
    if (bytes < workspace_of(y, algorithm) || !is_there((Address)work, bytes) || algorithm > 2) return BAD;
    if (!is_there(image, elements(x), x->type) || !is_there(filters, elements(w), x->type)) return BAD;
    if (!is_there(result, elements(y), x->type)) return BAD;
    Tensor in = *x, taps = *w, out = *y;
    Window window = *c;
    return give(dnn->stream, [=] { return convolve(in, image, taps, filters, window, out, result), 0; });
}
