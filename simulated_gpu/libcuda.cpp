// A stand-in for NVIDIA's driver: as much of it as minitvm's runtime calls, over memory of the host.
//
// Modules are shared objects (host.py).  What a stream is given waits until somebody waits for it, so that a result
// which nobody waited for is not there; memory is poisoned when it is given and again when it is taken back.
// STANDIN_* in the environment change what it says of itself; STANDIN_FAIL="cuGraphLaunch:2:700" lets the second call
// of a function from now on fail with a status; with STANDIN_IDLE modules are empty, and kernels do nothing.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))
typedef int Status;
typedef unsigned long long Address;
typedef std::function<Status()> Work;

namespace {

std::recursive_mutex all;  // one call at a time
std::map<std::string, int> calls;
int counted;  // of the function that is to fail
std::map<Address, size_t> blocks;
std::map<Address, size_t> pinned;  // memory of the host
size_t used, most_used;
Status broken;  // what a kernel failed with; nothing works afterwards, until the context is made anew
thread_local std::vector<void *> contexts;
int primary;

struct Module { void *library; int (*launch)(const char *, const unsigned *, const unsigned *, unsigned, void **); };
struct Function { Module *module; std::string name; int parameters; };
struct Graph { std::vector<Work> nodes; };
struct Stream {
    std::deque<Work> queue;
    std::shared_ptr<Graph> captured;
    bool is_invalid = false;
    const void *by = nullptr;  // the thread that captures
};
typedef std::chrono::steady_clock Clock;
struct Event { Stream *stream = nullptr; size_t place = 0; std::shared_ptr<Clock::time_point> time; };
std::map<Stream *, size_t> done;  // how much of a stream's work has happened, in all
Stream legacy;
std::set<Stream *> streams{&legacy};

thread_local char me;

// What CUDA does to captures: the driver API's pages of cuCtxSynchronize, cuMemFreeAsync and cuStreamBeginCapture.
bool breaks_captures(bool of_this_thread) {
    bool found = false;
    for (Stream *s : streams)
        if (s->captured && (!of_this_thread || s->by == &me)) s->is_invalid = found = true;
    return found;
}

int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

// What a call fails with, if anything.
Status begin(const char *name, bool needs_context) {
    ++calls[name];
    if (const char *fail = getenv("STANDIN_FAIL")) {
        static std::string last;
        char wanted[64];
        int which = 0, status = 0;
        if (sscanf(fail, "%63[^:]:%d:%d", wanted, &which, &status) == 3 && !strcmp(wanted, name)) {
            if (last != fail) counted = 0;
            last = fail;
            if (++counted == which) {
                if (status >= 700 && status < 1000) broken = status;  // not those of cuDNN
                return status;
            }
        }
    }
    if (needs_context && contexts.empty()) return 201;
    return needs_context ? broken : 0;
}

Stream *at(void *stream) { return (size_t)stream <= 2 ? &legacy : (Stream *)stream; }

Status run(Stream *stream, size_t until) {
    while (!broken && !stream->queue.empty() && done[stream] < until) {
        Work work = stream->queue.front();
        stream->queue.pop_front();
        done[stream]++;
        if (Status status = work()) broken = status;
    }
    return broken;
}

Status give(void *handle, Work work) {
    Stream *stream = at(handle);
    if (!streams.count(stream)) return 400;
    if (stream->captured && stream->is_invalid) return 901;
    if (stream->captured) stream->captured->nodes.push_back(work);
    else stream->queue.push_back(work);
    return 0;
}

Status finish(void *handle) {
    Stream *stream = at(handle);
    return streams.count(stream) ? run(stream, (size_t)-1) : 400;
}

const char *poison(void *memory, size_t bytes) { return (const char *)memset(memory, 0xff, bytes); }

Status allocate(Address *address, size_t bytes) {
    size_t page = 4096, room = (bytes + page - 1) / page * page;
    if (used + bytes > (size_t)number("STANDIN_MEGABYTES", 1 << 14) << 20) return 2;
    char *start = (char *)mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start + page, room, PROT_READ | PROT_WRITE)) return 2;
    *address = (Address)poison(start + page, room) + (room - bytes) / 256 * 256;
    blocks[*address] = bytes;
    used += bytes;
    if (used > most_used) most_used = used;
    return 0;
}

Status release(Address address) {
    auto found = blocks.find(address);
    if (found == blocks.end()) return 1;
    used -= found->second;
    size_t page = 4096, room = (found->second + page - 1) / page * page;
    munmap((char *)(address / page * page) - page, room + 2 * page);
    blocks.erase(found);
    return 0;
}

bool is_there(Address address, size_t bytes) {
    auto found = blocks.upper_bound(address);
    return found != blocks.begin() && (--found, address + bytes <= found->first + found->second);
}

bool is_pinned(Address address) {
    auto found = pinned.upper_bound(address);
    return found != pinned.begin() && (--found, address < found->first + found->second);
}

Status copy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

}  // namespace

#define CALL(name, ...) EXPORTED Status name(__VA_ARGS__)
#define BEGIN_AS(needs_context) \
    std::lock_guard<std::recursive_mutex> guard(all); \
    if (Status status = begin(__func__, needs_context)) return status
#define BEGIN BEGIN_AS(true)
#define BEGIN_ANYWHERE BEGIN_AS(false)

CALL(cuInit, unsigned) { BEGIN_ANYWHERE; return number("STANDIN_GPUS", 1) ? 0 : 100; }
CALL(cuDriverGetVersion, int *version) { BEGIN_ANYWHERE; *version = number("STANDIN_DRIVER", 13000); return 0; }
CALL(cuGetExportTable, const void **, const void *) { return 500; }  // NVRTC asks, and goes on without
CALL(cuDeviceGetCount, int *count) { BEGIN_ANYWHERE; *count = number("STANDIN_GPUS", 1); return 0; }
CALL(cuDeviceGet, int *device, int index) {
    BEGIN_ANYWHERE;
    *device = index;
    return index < number("STANDIN_GPUS", 1) ? 0 : 101;
}
CALL(cuDeviceGetName, char *name, int room, int) { BEGIN_ANYWHERE; snprintf(name, room, "Stand-in"); return 0; }
CALL(cuDeviceGetAttribute, int *value, int which, int) {
    BEGIN_ANYWHERE;
    int arch = number("STANDIN_ARCH", 90);
    static const std::map<int, std::pair<const char *, int>> said = {
        {16, {"STANDIN_SMS", 132}}, {36, {"STANDIN_MEMORY_KHZ", 2619000}}, {37, {"STANDIN_BUS", 5120}},  // an H100's
        {115, {"STANDIN_POOLS", 1}}};
    auto found = said.find(which);
    *value = which == 75 ? arch / 10 : which == 76 ? arch % 10 : 1;
    if (found != said.end()) *value = number(found->second.first, found->second.second);
    return 0;
}
CALL(cuDevicePrimaryCtxRetain, void **context, int) { BEGIN_ANYWHERE; *context = &primary; return 0; }
CALL(cuDevicePrimaryCtxRelease, int) { BEGIN_ANYWHERE; return 0; }
CALL(cuDevicePrimaryCtxReset, int) {
    BEGIN_ANYWHERE;
    broken = 0;
    while (!blocks.empty()) release(blocks.begin()->first);
    streams = {&legacy};
    legacy.queue.clear();
    return 0;
}
CALL(cuCtxPushCurrent, void *context) { BEGIN_ANYWHERE; contexts.push_back(context); return 0; }
CALL(cuCtxPopCurrent, void **context) {
    BEGIN_ANYWHERE;
    if (contexts.empty()) return 201;
    if (context) *context = contexts.back();
    contexts.pop_back();
    return 0;
}
CALL(cuCtxGetCurrent, void **context) {
    BEGIN_ANYWHERE;
    *context = contexts.empty() ? nullptr : contexts.back();
    return 0;
}
CALL(cuCtxSynchronize) {
    BEGIN;
    if (breaks_captures(false)) return 900;
    for (Stream *stream : std::set<Stream *>(streams)) run(stream, (size_t)-1);
    return broken;
}

CALL(cuMemGetInfo, size_t *free_bytes, size_t *total) {
    BEGIN;
    *total = (size_t)number("STANDIN_MEGABYTES", 1 << 14) << 20;
    *free_bytes = *total - used;
    return 0;
}
CALL(cuMemAlloc, Address *address, size_t bytes) { BEGIN; return allocate(address, bytes); }
CALL(cuMemFree, Address address) { BEGIN; return breaks_captures(true) ? 900 : release(address); }
CALL(cuMemPoolCreate, void **pool, const void *) { BEGIN; *pool = &primary; return 0; }
CALL(cuMemPoolSetAttribute, void *, int, void *) { BEGIN; return 0; }
CALL(cuMemAllocFromPoolAsync, Address *address, size_t bytes, void *, void *) { BEGIN; return allocate(address, bytes); }
CALL(cuMemFreeAsync, Address address, void *stream) {
    BEGIN;
    if (at(stream)->captured) return at(stream)->is_invalid = true, 1;  // of a graph are only its own allocations
    return give(stream, [=] { return release(address); });
}
CALL(cuMemHostAlloc, void **memory, size_t bytes, unsigned) {
    BEGIN;
    pinned[(Address)(*memory = malloc(bytes))] = bytes;
    return 0;
}
CALL(cuMemFreeHost, void *memory) {
    BEGIN;
    free(memory);
    return pinned.erase((Address)memory) ? 0 : 1;
}
CALL(cuPointerGetAttribute, unsigned *value, int attribute, Address address) {
    BEGIN;
    *value = is_pinned(address) ? 1 : is_there(address, 1) ? 2 : 0;
    return attribute != 2 || !*value ? 1 : 0;
}
CALL(cuMemcpyHtoDAsync, Address to, const void *from, size_t bytes, void *stream) {
    BEGIN;
    if (!is_there(to, bytes)) return 1;
    if (is_pinned((Address)from)) return give(stream, [=] { return copy((void *)to, from, bytes); });
    std::string staged((const char *)from, bytes);
    return give(stream, [=] { return copy((void *)to, staged.data(), bytes); });
}
CALL(cuMemcpyDtoDAsync, Address to, Address from, size_t bytes, void *stream) {
    BEGIN;
    if (!is_there(to, bytes) || !is_there(from, bytes)) return 1;
    return give(stream, [=] { return copy((void *)to, (void *)from, bytes); });
}
CALL(cuMemcpyDtoHAsync, void *to, Address from, size_t bytes, void *stream) {
    BEGIN;
    if (!is_there(from, bytes)) return 1;
    if (Status status = give(stream, [=] { return copy(to, (void *)from, bytes); })) return status;
    return finish(stream);  // memory that is not pinned
}

CALL(cuStreamCreate, void **stream, unsigned) {
    BEGIN;
    streams.insert((Stream *)(*stream = new Stream));
    return 0;
}
CALL(cuStreamDestroy, void *stream) {
    BEGIN;
    finish(stream);
    streams.erase((Stream *)stream);
    return 0;
}
CALL(cuStreamSynchronize, void *stream) {
    BEGIN;
    if (at(stream)->captured) return at(stream)->is_invalid = true, 900;
    return finish(stream);
}
CALL(cuStreamIsCapturing, void *stream, int *status) {
    BEGIN;
    if (!streams.count(at(stream))) return 400;
    *status = !at(stream)->captured ? 0 : at(stream)->is_invalid ? 2 : 1;
    return 0;
}
CALL(cuStreamWaitEvent, void *stream, Event *event, unsigned) {
    BEGIN;
    Stream *other = event->stream;
    size_t place = event->place;
    return other ? give(stream, [=] { return streams.count(other) ? run(other, place) : 0; }) : 0;
}
CALL(cuEventCreate, Event **event, unsigned) { BEGIN; *event = new Event; return 0; }
CALL(cuEventSynchronize, Event *event) {
    BEGIN;
    Stream *stream = event->stream;
    return stream && streams.count(stream) ? run(stream, event->place) : 0;
}
CALL(cuEventDestroy, Event *event) { BEGIN_ANYWHERE; delete event; return 0; }
CALL(cuEventRecord, Event *event, void *stream) {
    BEGIN;
    auto time = std::make_shared<Clock::time_point>();
    *event = {at(stream), done[at(stream)] + at(stream)->queue.size() + 1, time};
    return give(stream, [=] { return *time = Clock::now(), 0; });
}
CALL(cuEventElapsedTime, float *milliseconds, Event *start, Event *end) {
    BEGIN;
    *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *start->time).count();
    return 0;
}

CALL(cuModuleLoadData, void **module, const char *image) {
    BEGIN;
    if (getenv("STANDIN_IDLE")) return *module = new Module{nullptr, nullptr}, 0;
    if (memcmp(image, ELFMAG, SELFMAG)) return 200;
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
    if (head->e_machine == 190) return 209;  // a GPU's
    char path[] = "/tmp/standin-XXXXXX";
    int file = mkstemp(path);
    size_t bytes = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    bool is_written = write(file, image, bytes) == (ssize_t)bytes;
    close(file);
    void *library = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path);
    if (!library) return 200;
    auto *found = new Module{library, nullptr};
    *(void **)&found->launch = dlsym(library, "cudasim_launch");
    *module = found;
    return 0;
}
CALL(cuModuleUnload, Module *module) {
    BEGIN;
    if (breaks_captures(true)) return 900;
    for (Stream *stream : std::set<Stream *>(streams)) run(stream, (size_t)-1);
    if (module->library) dlclose(module->library);
    delete module;
    return 0;
}
CALL(cuModuleGetFunction, void **function, Module *module, const char *name) {
    BEGIN;
    auto *count = module->library ? (int (*)(const char *))dlsym(module->library, "cudasim_parameters") : nullptr;
    int parameters = count ? count(name) : 0;
    if (parameters < 0) return 500;
    *function = new Function{module, name, parameters};
    return 0;
}
CALL(cuProfilerStart) { BEGIN; return 0; }
CALL(cuProfilerStop) { BEGIN; return 0; }
CALL(cuFuncSetAttribute, void *, int, int) { BEGIN; return 0; }
CALL(cuLaunchKernel, Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
     unsigned shared, void *stream, void **parameters, void **) {
    BEGIN;
    if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024) return 1;
    std::vector<Address> values(function->parameters);
    for (int i = 0; i < function->parameters; i++) values[i] = *(Address *)parameters[i];
    return give(stream, [=] {
        if (!function->module->library) return 0;
        std::vector<Address> own = values;
        std::vector<void *> addresses;
        for (Address &value : own) addresses.push_back(&value);
        unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
        Status status = function->module->launch(function->name.c_str(), grid, block, shared, addresses.data());
        if (status) {
            auto *message = (const char *(*)())dlsym(function->module->library, "cudasim_message");
            fprintf(stderr, "stand-in: %s: %s\n", function->name.c_str(), message());
        }
        return status;
    });
}

CALL(cuStreamBeginCapture, void *stream, int) {
    BEGIN;
    at(stream)->captured = std::make_shared<Graph>();
    at(stream)->is_invalid = false, at(stream)->by = &me;
    return 0;
}
CALL(cuStreamEndCapture, void *stream, void **graph) {
    BEGIN;
    if (!at(stream)->captured) return 901;
    bool is_invalid = at(stream)->is_invalid;
    *graph = is_invalid ? nullptr : new Graph(*at(stream)->captured);
    at(stream)->captured.reset();
    return is_invalid ? 901 : 0;
}
CALL(cuGraphInstantiateWithFlags, void **exec, Graph *graph, unsigned long long) {
    BEGIN;
    *exec = new std::shared_ptr<Graph>(new Graph(*graph));
    return 0;
}
CALL(cuGraphDestroy, Graph *graph) { BEGIN; delete graph; return 0; }
CALL(cuGraphExecDestroy, std::shared_ptr<Graph> *exec) { BEGIN; delete exec; return 0; }
CALL(cuGraphLaunch, std::shared_ptr<Graph> *exec, void *stream) {
    BEGIN;
    std::shared_ptr<Graph> graph = *exec;
    return give(stream, [=] {
        for (const Work &node : graph->nodes)
            if (Status status = node()) return status;
        return 0;
    });
}

CALL(cuGetErrorName, int status, const char **text) {
    static std::map<int, std::string> names;
    *text = (names[status] = "CUDA_ERROR_" + std::to_string(status)).c_str();
    return 0;
}
CALL(cuGetErrorString, int status, const char **text) {
    *text = status == 700 ? "an illegal memory access was encountered" : status == 2 ? "out of memory" : "an error";
    return 0;
}

#include "libraries.hpp"

// How often a function was called.
EXPORTED int standin_calls(const char *name) { return calls[name]; }
EXPORTED size_t standin_used(int most) { return most ? most_used : used; }

CALL(cuGetProcAddress_v2, const char *symbol, void **function, int, unsigned long long, int *found) {
    std::string name = symbol;
    if (name == "cuGetProcAddress") name = "cuGetProcAddress_v2";
    if (name == "cuGraphInstantiate") name = "cuGraphInstantiateWithFlags";
    const char *missing = getenv("STANDIN_LACKS");
    static void *self = [] { Dl_info info; dladdr((void *)&cuInit, &info); return dlopen(info.dli_fname, RTLD_NOW); }();
    *function = missing && name == missing ? nullptr : dlsym(self, name.c_str());
    if (found) *found = *function ? 0 : 1;
    return *function ? 0 : 500;
}
CALL(cuGetProcAddress, const char *symbol, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
