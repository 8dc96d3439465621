// A GPU of one processor that runs one block after the other, its threads as fibers: one runs until it waits for others.
// Blocks of a cluster take turns at its barriers, where what they have in shared memory is forgotten.
//
// Within a block, warps come in order, and the lanes of a warp; the order is forward, reverse or random, so that code
// that counts on one shows.  Shared memory is full of 0xff (which is NaN) when a block starts.  A fault ends the launch.
//
// What a block leaves for others is theirs by a chain, each of whose links is asked for at an atomic operation on global
// memory: a barrier behind the block's stores, a fence of the thread that adds, after it another one, then a barrier.
#include "device.hpp"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

Index threadIdx, blockIdx, blockDim, gridDim;

namespace cudasim {
extern const Kernel kernels[];
extern const char source[];

const int MOST_THREADS = 1024, MOST_BLOCKS = 8, STACK = 256 << 10, ILLEGAL_ADDRESS = 700, MISALIGNED = 716, FAILED = 719;
enum State { READY, AT_BARRIER, AT_WARP, AT_CLUSTER, ENDED };
struct Copy { char *to; const char *from; int bytes, real, group; };
const int MOST_PRODUCTS = 64, MOST_SUMS = 128, MOST_ISSUED = 64;
struct Sums { float *where, was[MOST_SUMS]; int count; };
struct Products {  // of a thread: those that nobody has waited for, and the sums that they add to
    Product begun[MOST_PRODUCTS];
    Sums sums[8];
    int count, kept, group, issued;
    struct { char *from, *to; } *unfenced;  // what it copied to shared memory, which products do not see yet
    int written, room;
};

struct Fiber {
    State state;
    Index thread;
    int number, line;  // where it waits
    unsigned mask;
    const char *what;
    void *stack, *top;
    unsigned exchanges;
    Copy *copies;
    int count, room, group;
    bool fenced, added;  // since the block's last barrier; an atomic operation, and no fence since
    int vote;
    Products *products;
};

static Fiber all_fibers[MOST_BLOCKS * MOST_THREADS], *fibers = all_fibers, *current;  // of a cluster; of the block that runs
static Posted posts[2][MOST_THREADS];
static const Posted *posted[MOST_THREADS][32];
static int threads;
static void *idle_stacks[MOST_BLOCKS * MOST_THREADS];
static int idle;
static char *dynamic, message[2048];
static size_t dynamic_room;
static const Kernel *running;
static void **arguments;
static sigjmp_buf out;
static int order;
static unsigned seed;
static int voted;  // at the last barrier
static int arrived;  // the line where a thread of this block added for others since the last barrier
static unsigned long long left;  // a sum of memory then
struct Memory { const unsigned char *start; size_t bytes; };
static Memory memory[64];
static int memories;
const size_t SMALL = 256 << 10;  // of memory that is looked at whenever a block arrives

// --- faults ---------------------------------------------------------------------------------------------------------

static int text_of(int line, char *to, size_t room) {  // a line of the source
    const char *at = source;
    for (; line > 1 && *at; at++) line -= *at == '\n';
    while (*at == ' ') at++;
    return snprintf(to, room, "%.*s", (int)strcspn(at, "\n"), at);
}

[[noreturn]] static void leave(int code, int line) {
    size_t end = strlen(message);
    if (line > 0) {
        end += snprintf(message + end, sizeof message - end, "\nline %d: ", line);
        text_of(line, message + end, sizeof message - end);
    }
    siglongjmp(out, code);
}

static int say_where(char *to, size_t room) {
    return snprintf(to, room, "%s: block (%d, %d, %d), thread (%d, %d, %d): ", running->name, blockIdx.x, blockIdx.y,
                    blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

[[noreturn]] void fail(int code, int line, const char *format, ...) {
    int end = say_where(message, sizeof message);
    va_list rest;
    va_start(rest, format);
    vsnprintf(message + end, sizeof message - end, format, rest);
    va_end(rest);
    leave(code, line);
}

static void on_signal(int number, siginfo_t *info, void *) {
    if (number == SIGFPE) fail(FAILED, 0, "integer division by zero");
    if (number == SIGBUS || info->si_code == SI_KERNEL) fail(MISALIGNED, 0, "misaligned address %p", info->si_addr);
    fail(ILLEGAL_ADDRESS, 0, "illegal address %p", info->si_addr);
}

// -fsanitize=bounds,alignment: what the compiler calls, with what it tells about the place
struct Place { const char *file; unsigned line, column; };
struct Type { unsigned short kind, info; char name[1]; };
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds(void *data, unsigned long index) {
    struct Data { Place at; const Type *array, *index; } *found = (Data *)data;
    fail(ILLEGAL_ADDRESS, found->at.line, "index %ld outside of %s", (long)index, found->array->name);
}
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(void *data, unsigned long at) {
    struct Data { Place at; const Type *type; unsigned char log_align, kind; } *found = (Data *)data;
    fail(MISALIGNED, found->at.line, "misaligned address %p of %s", (void *)at, found->type->name);
}

// --- fibers ---------------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void cudasim_switch(void **from, void *to);
asm(R"(
    .text
    .hidden cudasim_switch
    .globl cudasim_switch
    .type cudasim_switch, @function
cudasim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
static void *scheduler;
static void prepare(Fiber &f, void (*entry)()) {
    void **top = (void **)((char *)f.stack + STACK - 64);  // as if called: not on a boundary of 16 after the return
    *--top = nullptr;
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f.top = top;
}
static void enter(Fiber &f) { cudasim_switch(&scheduler, f.top); }
static void pause(Fiber &f) { cudasim_switch(&f.top, scheduler); }
#else
#include <ucontext.h>
static ucontext_t scheduler, contexts[MOST_BLOCKS * MOST_THREADS];
static void prepare(Fiber &f, void (*entry)()) {
    ucontext_t &own = contexts[&f - all_fibers];
    getcontext(&own);
    own.uc_stack.ss_sp = f.stack;
    own.uc_stack.ss_size = STACK;
    own.uc_link = nullptr;
    makecontext(&own, entry, 0);
}
static void enter(Fiber &f) { swapcontext(&scheduler, &contexts[&f - all_fibers]); }
static void pause(Fiber &f) { swapcontext(&contexts[&f - all_fibers], &scheduler); }
#endif

static void run_thread() {
    running->call(arguments);
    current->state = ENDED;
    pause(*current);
    abort();
}

static void resume(Fiber &f) {
    if (!f.stack) {
        f.stack = idle ? idle_stacks[--idle] : mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        prepare(f, run_thread);
    }
    current = &f;
    threadIdx = f.thread;
    enter(f);
    if (f.state == ENDED) {
        idle_stacks[idle++] = f.stack;
        f.stack = nullptr;
    }
}

static void wait_as(State state, const char *what, unsigned mask, int line) {
    Fiber &f = *current;
    f.state = state, f.what = what, f.mask = mask, f.line = line;
    pause(f);
}

// --- what threads call ----------------------------------------------------------------------------------------------

void *dynamic_shared() { return dynamic; }
int lane() { return current->number & 31; }
void barrier(int line) { wait_as(AT_BARRIER, "__syncthreads", 0, line); }

bool barrier_or(bool value, int line) {
    current->vote = value;
    wait_as(AT_BARRIER, "__syncthreads_or", 0, line);
    return voted;
}

void cluster_barrier(int line) { wait_as(AT_CLUSTER, "cluster_barrier", 0, line); }

void fence() { current->fenced = true, current->added = false; }

static unsigned long long sum_of_memory(const void *but) {
    unsigned long long sum = 1;
    for (int i = 0; i < memories; i++)
        if (but < memory[i].start || but >= memory[i].start + memory[i].bytes)
            for (size_t n = 0; n < memory[i].bytes; n++) sum = sum * 31 + memory[i].start[n];
    return sum;
}
static const void *counter;

void add_atomically(const void *at, int line) {
    if (!current->fenced) fail(FAILED, line, "an atomic operation of a thread that has met no __threadfence since the last __syncthreads");
    current->added = true;
    if (!arrived && memories) left = sum_of_memory(counter = at);
    arrived = line;
}

static void meet() {  // of all threads of a block
    voted = 0;
    for (int i = 0; i < threads; i++) {
        Fiber &f = fibers[i];
        if (f.added) {
            threadIdx = f.thread;
            fail(FAILED, arrived, "an atomic operation, and no __threadfence behind it before %s", f.state == ENDED ? "the end" : f.what);
        }
        voted |= f.vote, f.vote = 0, f.fenced = false;
    }
    if (arrived && memories && left != sum_of_memory(counter))
        fail(FAILED, arrived, "threads of the block store after one of them has said that all have");
    arrived = 0;
}

const Posted **exchange(unsigned mask, const void *given, int bytes, const char *what, int line) {
    int own = current->number, first = own & ~31, parity = current->exchanges++ & 1;
    if (!(mask >> (own & 31) & 1)) fail(FAILED, line, "lane %d is not in the mask %#x of %s", own & 31, mask, what);
    memcpy(posts[parity][own].bytes, given ? given : "", given ? bytes : 0);
    wait_as(AT_WARP, what, mask, line);
    for (int i = 0; i < 32; i++)
        posted[own][i] = first + i < threads && mask >> i & 1 ? &posts[parity][first + i] : nullptr;
    return posted[own];
}

void copy_later(void *shared, const void *global, int bytes, int real, int line) {
    Fiber &f = *current;
    if ((size_t)shared % bytes || (size_t)global % bytes)
        fail(MISALIGNED, line, "an asynchronous copy of %d bytes from %p to %p", bytes, global, shared);
    if (f.count == f.room) f.copies = (Copy *)realloc(f.copies, (f.room = 2 * f.room + 16) * sizeof(Copy));
    f.copies[f.count++] = {(char *)shared, (const char *)global, bytes, real, f.group};
    memset(shared, 0xff, bytes);
}

void copies_commit() { current->group++; }

static Products &products_of(Fiber &f) {
    if (!f.products) f.products = (Products *)calloc(1, sizeof(Products));
    return *f.products;
}

static void written(Fiber &f, char *to, int bytes) {
    Products &p = products_of(f);
    if (p.written && p.unfenced[p.written - 1].to == to) {
        p.unfenced[p.written - 1].to += bytes;
        return;
    }
    if (p.written == p.room) p.unfenced = (decltype(p.unfenced))realloc(p.unfenced, (p.room = 2 * p.room + 16) * sizeof *p.unfenced);
    p.unfenced[p.written++] = {to, to + bytes};
}

void copies_wait(int but_last) {
    Fiber &f = *current;
    int kept = 0;
    for (int i = 0; i < f.count; i++) {
        Copy c = f.copies[i];
        if (c.group >= f.group - but_last) {
            f.copies[kept++] = c;
        } else {
            memcpy(c.to, c.from, c.real);
            memset(c.to + c.real, 0, c.bytes - c.real);
            written(f, c.to, c.bytes);
        }
    }
    f.count = kept;
}

// --- products of warpgroups -----------------------------------------------------------------------------------------

static struct { int number, columns; const char *a, *b; } issued[MOST_THREADS / 128][MOST_ISSUED];  // by a group's first warp

void fence_shared() { products_of(*current).written = 0; }
void products_commit() { products_of(*current).group++; }

static void require_fenced(const char *from, size_t bytes, int line) {
    for (int i = 0; i < threads; i++) {
        Products *p = fibers[i].products;
        for (int j = 0; p && j < p->written; j++)
            if (p->unfenced[j].from < from + bytes && from < p->unfenced[j].to)
                fail(FAILED, line, "a warpgroup multiplies what thread %d wrote to shared memory, without fence.proxy.async since", i);
    }
}

void multiply_later(const Product &given, int line) {
    Fiber &f = *current;
    Products &p = products_of(f);
    const Posted **posted = exchange(0xffffffffu, &given, sizeof given, "wgmma", line);
    for (int i = 0; i < 32; i++) {
        const Product *other = (const Product *)posted[i];
        if (!other || other->a != given.a || other->b != given.b) fail(FAILED, line, "wgmma whose factors differ in a warp, or that is not whole");
    }
    if (threads < (f.number / 128 + 1) * 128) fail(FAILED, line, "wgmma of a warpgroup that is not whole");
    auto &mine = issued[f.number / 128][p.issued % MOST_ISSUED];
    if (mine.number == p.issued + 1 && (mine.a != given.a || mine.b != given.b || mine.columns != given.columns))
        fail(FAILED, line, "wgmma whose factors differ in a warpgroup");
    mine = {++p.issued, given.columns, given.a, given.b};
    if ((size_t)dynamic % 1024) fail(MISALIGNED, line, "wgmma of shared memory that does not begin at a multiple of 1024");
    require_fenced(given.a, 64 * 128, line);
    require_fenced(given.b, given.apart ? (size_t)given.columns / 64 * given.apart : (size_t)given.columns * 128, line);
    int at = 0;
    while (at < p.kept && p.sums[at].where != given.sums) at++;
    if (at == p.kept) {
        if (p.kept == 8) fail(FAILED, line, "more sums of wgmma at a time than registers are for");
        p.sums[p.kept++].where = given.sums;
        p.sums[at].count = given.columns / 2;
        memcpy(p.sums[at].was, given.sums, given.columns / 2 * sizeof(float));
        memset(given.sums, 0xff, given.columns / 2 * sizeof(float));
    }
    if (p.count == MOST_PRODUCTS) fail(FAILED, line, "more than %d wgmma that nobody waits for", MOST_PRODUCTS);
    p.begun[p.count] = given;
    p.begun[p.count++].group = p.group;
}

static unsigned short swizzled_at(const char *at) {
    return *(const unsigned short *)((size_t)at ^ ((size_t)at >> 7 & 7) << 4);
}

static void multiply_now(const Product &g, float *sums) {
    int thread = current->number % 128;
    for (int i = 0; i < g.columns / 2; i++) {
        int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        double total = sums[i];
        for (int k = 0; k < 16; k++) {
            const char *b = g.apart ? g.b + column / 64 * g.apart + k * 128 + column % 64 * 2 : g.b + column * 128 + k * 2;
            total += (double)g.element(swizzled_at(g.a + row * 128 + k * 2), 0) * (double)g.element(swizzled_at(b), 0);
        }
        sums[i] = (float)total;
    }
}

void products_wait(int but_last, int line) {
    Products &p = products_of(*current);
    int left = 0;
    for (int i = 0; i < p.count; i++) {
        Product &g = p.begun[i];
        int at = 0;
        while (p.sums[at].where != g.sums) at++;
        if (g.group >= p.group - but_last) p.begun[left++] = g;
        else multiply_now(g, p.sums[at].was);
    }
    p.count = left;
    for (int at = 0; at < p.kept; at++) {
        bool pending = false;
        for (int i = 0; i < left; i++) pending |= p.begun[i].sums == p.sums[at].where;
        if (pending) continue;
        memcpy(p.sums[at].where, p.sums[at].was, p.sums[at].count * sizeof(float));
        p.sums[at--] = p.sums[--p.kept];
    }
}

// --- blocks and warps -----------------------------------------------------------------------------------------------

static unsigned next_random() {
    seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
    return seed;
}

static void arrange(int *numbers, int count) {
    for (int i = 0; i < count; i++) numbers[i] = order == 1 ? count - 1 - i : i;
    for (int i = count; order == 2 && i-- > 1;) {
        int other = next_random() % (i + 1), was = numbers[i];
        numbers[i] = numbers[other], numbers[other] = was;
    }
}

[[noreturn]] static void stuck(const Fiber &waits, const Fiber &other) {
    threadIdx = waits.thread;
    int end = say_where(message, sizeof message);
    end += snprintf(message + end, sizeof message - end, "waits at %s (line %d) for thread (%d, %d, %d), which ", waits.what,
                    waits.line, other.thread.x, other.thread.y, other.thread.z);
    if (other.state == ENDED)
        snprintf(message + end, sizeof message - end, "has ended");
    else
        snprintf(message + end, sizeof message - end, "waits at %s (line %d)", other.what, other.line);
    leave(FAILED, waits.line);
}

static Fiber *missing(const Fiber &f, int first, int count) {  // a lane that it waits for
    for (int i = 0; i < count; i++) {
        Fiber &other = fibers[first + i];
        if (f.mask >> i & 1 && (other.state != AT_WARP || other.line != f.line || other.mask != f.mask || other.what != f.what))
            return &other;
    }
    return nullptr;
}

static void run_warp(int first) {  // until its lanes are at a barrier of the block, or at their end
    int count = threads - first < 32 ? threads - first : 32, lanes[32];
    while (true) {
        arrange(lanes, count);
        for (int i = 0; i < count; i++)
            if (fibers[first + lanes[i]].state == READY) resume(fibers[first + lanes[i]]);
        unsigned free = 0, waiting = 0;
        for (int i = 0; i < count; i++)
            if (fibers[first + i].state == AT_WARP) {
                waiting |= 1u << i;
                if (!missing(fibers[first + i], first, count)) free |= 1u << i;
            }
        if (!waiting) return;
        for (int i = 0; i < count; i++) {
            if (free >> i & 1) fibers[first + i].state = READY;
            if (!free && waiting >> i & 1) stuck(fibers[first + i], *missing(fibers[first + i], first, count));
        }
    }
}

static void enter_block(long long number) {  // what it has in shared memory is not there
    blockIdx = {(int)(number % gridDim.x), (int)(number / gridDim.x % gridDim.y), (int)(number / gridDim.x / gridDim.y)};
    fibers = all_fibers + number % running->cluster * MOST_THREADS;
    memset(running->shared, 0xff, running->shared_end - running->shared);
    memset(dynamic, 0xff, dynamic_room);
}

static void begin_block(const Index *where) {
    for (int i = 0; i < threads; i++) {
        Fiber &f = fibers[i];
        f.state = READY, f.thread = where[i], f.number = i, f.exchanges = f.count = f.group = f.vote = 0;
        f.fenced = f.added = false;
        if (f.products) f.products->count = f.products->kept = f.products->group = f.products->issued = f.products->written = 0;
    }
    arrived = 0;
    memset(issued, 0, sizeof issued);
}

static bool run_block() {  // to its end; or to a barrier of the cluster, which is true
    int warps[MOST_THREADS / 32], count = (threads + 31) / 32;
    while (true) {
        arrange(warps, count);
        for (int i = 0; i < count; i++) run_warp(warps[i] * 32);
        const Fiber *waits = nullptr;
        for (int i = 0; i < threads && !waits; i++)
            if (fibers[i].state == AT_BARRIER || fibers[i].state == AT_CLUSTER) waits = &fibers[i];
        for (int i = 0; i < threads && waits; i++)
            if (fibers[i].state != waits->state || fibers[i].line != waits->line) stuck(*waits, fibers[i]);
        meet();
        if (!waits || waits->state == AT_CLUSTER) return waits;
        for (int i = 0; i < threads; i++) fibers[i].state = READY;
    }
}

static void run_cluster(long long first, const Index *where) {
    int blocks[MOST_BLOCKS], count = running->cluster, waiting = 0;
    arrange(blocks, count);
    for (int i = 0; i < count; i++) {
        enter_block(first + blocks[i]);
        begin_block(where);
        waiting += run_block();
    }
    while (waiting) {
        for (int i = 0; i < count; i++) {
            if (all_fibers[i * MOST_THREADS].state != AT_CLUSTER) continue;
            for (int other = 0; waiting < count && other < count; other++)
                if (all_fibers[other * MOST_THREADS].state == ENDED) stuck(all_fibers[i * MOST_THREADS], all_fibers[other * MOST_THREADS]);
            for (int n = 0; n < threads; n++) all_fibers[i * MOST_THREADS + n].state = READY;
        }
        arrange(blocks, count);
        waiting = 0;
        for (int i = 0; i < count; i++) {
            enter_block(first + blocks[i]);
            waiting += run_block();
        }
    }
}

static void run_grid() {
    static Index where[MOST_THREADS];
    for (int i = 0; i < threads; i++)
        where[i] = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    long long blocks = (long long)gridDim.x * gridDim.y * gridDim.z / running->cluster, step = 1, start = order == 1 ? blocks - 1 : 0;
    if (order == 1) step = -1;
    if (order == 2) {  // a step that meets every block
        start = next_random() % blocks;
        for (step = next_random() % blocks;; step++) {
            long long a = step, b = blocks;
            while (b) { long long rest = a % b; a = b, b = rest; }
            if (a == 1) break;
        }
    }
    long long at = start;
    for (long long i = 0; i < blocks; i++, at = (at + step + blocks) % blocks) run_cluster(at * running->cluster, where);
}

static void make_dynamic(size_t bytes) {  // it ends where nothing is
    static char *pages;
    static size_t mapped;
    size_t page = sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    if (pages) munmap(pages, mapped);
    mapped = room + page;
    pages = (char *)mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + room, page, PROT_NONE);
    dynamic_room = (bytes + 15) / 16 * 16;
    dynamic = pages + room - dynamic_room;
}

static int refuse(const unsigned *grid, const unsigned *block, unsigned dynamic_bytes) {
    unsigned long long count = (unsigned long long)block[0] * block[1] * block[2];
    size_t fixed = running->shared_end - running->shared;
    if (!count || count > running->most_threads || block[2] > 64)
        return snprintf(message, sizeof message, "%s: %llu threads a block, at most %u", running->name, count, running->most_threads);
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535)
        return snprintf(message, sizeof message, "%s: a grid of (%u, %u, %u) blocks", running->name, grid[0], grid[1], grid[2]);
    if (running->cluster > MOST_BLOCKS || grid[0] % running->cluster)
        return snprintf(message, sizeof message, "%s: %u blocks in clusters of %d", running->name, grid[0], running->cluster);
    if (fixed > 48 << 10 || fixed + dynamic_bytes > 227 << 10)
        return snprintf(message, sizeof message, "%s: %zu + %u bytes of shared memory", running->name, fixed, dynamic_bytes);
    return 0;
}

static int run(const unsigned *grid, const unsigned *block, unsigned dynamic_bytes, void **parameters) {
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};
    static char handler_stack[64 << 10];
    struct sigaction mine, before[3];
    stack_t own = {}, stack_before;
    if (refuse(grid, block, dynamic_bytes)) return 1;
    arguments = parameters;
    gridDim = {(int)grid[0], (int)grid[1], (int)grid[2]}, blockDim = {(int)block[0], (int)block[1], (int)block[2]};
    threads = block[0] * block[1] * block[2];
    make_dynamic(dynamic_bytes);
    own.ss_sp = handler_stack, own.ss_size = sizeof handler_stack;
    sigaltstack(&own, &stack_before);
    memset(&mine, 0, sizeof mine);
    mine.sa_sigaction = on_signal, mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; i++) sigaction(faults[i], &mine, &before[i]);
    int code = sigsetjmp(out, 1);
    if (!code) run_grid();
    for (int i = 0; i < 3; i++) sigaction(faults[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
    for (int i = 0; code && i < MOST_BLOCKS * MOST_THREADS; i++)
        if (all_fibers[i].stack) idle_stacks[idle++] = all_fibers[i].stack, all_fibers[i].stack = nullptr;
    return code;
}
}  // namespace cudasim

// --- from outside ---------------------------------------------------------------------------------------------------

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED const char *cudasim_message() { return cudasim::message; }

// Memory that the next launches work on; none: it is not looked at when a block arrives somewhere.
EXPORTED void cudasim_memory(int count, const void *const *starts, const size_t *bytes) {
    size_t all = 0;
    for (int i = 0; i < count; i++) all += bytes[i];
    cudasim::memories = count > 64 || all > cudasim::SMALL ? 0 : count;
    for (int i = 0; i < cudasim::memories; i++) cudasim::memory[i] = {(const unsigned char *)starts[i], bytes[i]};
}

EXPORTED void cudasim_order(int order, unsigned seed) {
    cudasim::order = order;
    cudasim::seed = seed * 2654435761u + 1;
}

EXPORTED int cudasim_launch(const char *name, const unsigned *grid, const unsigned *block, unsigned dynamic, void **parameters) {
    for (cudasim::running = cudasim::kernels; cudasim::running->name; cudasim::running++)
        if (!strcmp(cudasim::running->name, name)) return cudasim::run(grid, block, dynamic, parameters);
    snprintf(cudasim::message, sizeof cudasim::message, "no kernel %s", name);
    return 500;
}

// How many parameters a kernel has; -1 where there is none of that name.
EXPORTED int cudasim_parameters(const char *name) {
    for (const cudasim::Kernel *kernel = cudasim::kernels; kernel->name; kernel++)
        if (!strcmp(kernel->name, name)) return kernel->parameters;
    return -1;
}
