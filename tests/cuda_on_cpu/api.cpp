// The part of CUDA's runtime and driver that TVM's CUDA runtime calls, on memory of this process.
//
// What is asynchronous on a device is so here: launches and copies wait in their stream's queue until somebody waits for
// them, so that a result that is read too early is wrong in the tests too. Streams that do not wait for the default one
// have queues of their own, which are worked through as early as events allow, or as late.
#include "device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace emulated {
namespace {

constexpr size_t PAGE = 4096;
using Flag = std::shared_ptr<bool>;

struct Work {
  std::function<std::string()> run;
  bool launch = false;
  Flag until;  // set when it may be done; null for at once
};
struct Stream { std::deque<Work> queue; };
struct Event { Flag done; double time = 0; long capture = 0; int flag = -1; };  // the last two: while captured

// What was asked for while it was captured, in order. A branch is a stream; 0 is the one on which the capture began.
struct Captured { int branch; Work work; int sets = -1, waits = -1; };  // numbers of flags of a launch
struct Graph { std::vector<Captured> asked; std::vector<Stream*> branches; int flags = 0; };

std::recursive_mutex lock;
std::map<uintptr_t, size_t> allocations, pinned;  // bytes, as asked for: on the device, and of the host
std::map<std::pair<std::string, std::string>, size_t> sizes;
char* memory = nullptr;
char* top = nullptr;
size_t used = 0;
long allocation_count = 0, launch_count = 0, graph_count = 0;
Stream default_stream;                  // also of all streams that wait for it
std::vector<Stream*> streams;           // the others
Graph* captured = nullptr;              // the graph that is being recorded
std::map<cudaStream_t, int> capturing;  // the streams whose work that is, and their branches
long capture_count = 0;
std::string failure;                    // of what ran in a queue; the device is lost, as a real one

size_t pages(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

void reserve() {
  if (memory) return;
  memory = static_cast<char*>(mmap(nullptr, MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  top = memory + PAGE;
}

Stream& stream_of(cudaStream_t handle) {
  for (Stream* stream : streams)
    if (reinterpret_cast<Stream*>(handle) == stream) return *stream;
  return default_stream;
}

// Does the first work of a stream, if there is some that may be done.
bool advance(Stream& stream) {
  if (stream.queue.empty() || (stream.queue.front().until && !*stream.queue.front().until)) return false;
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (failure.empty()) {
    failure = work.run();
    if (!failure.empty()) fprintf(stderr, "emulated device: %s\n", failure.c_str());
  }
  return true;
}

bool advance_any() {
  if (advance(default_stream)) return true;
  for (Stream* stream : streams)
    if (advance(*stream)) return true;
  return false;
}

bool is_captured(cudaStream_t handle) { return captured && capturing.count(handle); }

void ask(Stream& stream, Work work) {
  if (work.launch) launch_count++;
  stream.queue.push_back(std::move(work));
  while (settings.early && &stream != &default_stream && advance(stream)) {}
}

void ask(cudaStream_t handle, Work work) {
  if (is_captured(handle))
    captured->asked.push_back({capturing[handle], std::move(work)});
  else
    ask(stream_of(handle), std::move(work));
}

Work setting(Flag flag) {
  return {[=] {
    *flag = true;
    return std::string();
  }};
}
Work waiting(Flag flag) { return {[] { return std::string(); }, false, flag}; }

// Works until a stream has nothing to do, and no more than that needs of the others.
cudaError_t finish(Stream& stream = default_stream) {
  while (!stream.queue.empty())
    if (!advance(stream) && !advance_any()) return cudaErrorLaunchFailure;  // waits for what nobody will do
  return failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t finish_all() {
  while (advance_any()) {}
  return failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

struct Module { void* library; };

}  // namespace

uintptr_t memory_start() { return reinterpret_cast<uintptr_t>(memory); }
uintptr_t memory_end() { return memory_start() + (memory ? MEMORY : 0); }

void open_memory(bool open) {
  if (memory) mprotect(memory, top - memory, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

bool find_allocation(uintptr_t address, uintptr_t& start, size_t& size) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return false;
  std::tie(start, size) = *--after;
  return address < start + size;
}

size_t declared_size(const std::string& kernel, const std::string& parameter) {
  auto found = sizes.find({kernel, parameter});
  return found == sizes.end() ? 0 : found->second;
}

}  // namespace emulated

using namespace emulated;
using Guard = std::lock_guard<std::recursive_mutex>;

extern "C" {

// ---- for the tests
void emulated_settings(int order, int early, int races) {
  Guard guard(lock);
  finish_all();
  settings = {order, bool(early), bool(races)};
}
const char* emulated_failure() { return failure.c_str(); }
void emulated_recover() {
  Guard guard(lock);
  while (advance_any()) {}  // does nothing after a failure
  failure.clear();
}
long emulated_allocations() { return allocation_count; }
long emulated_launches() { return launch_count; }
long emulated_graphs() { return graph_count; }
long emulated_used() { return long(used); }
long emulated_waiting() {
  long count = long(default_stream.queue.size());
  for (Stream* stream : streams) count += long(stream->queue.size());
  return count;
}
void emulated_declare(const char* kernel, const char* parameter, size_t bytes) { sizes[{kernel, parameter}] = bytes; }

// ---- memory
cudaError_t cudaMalloc(void** pointer, size_t size) {
  Guard guard(lock);
  if (captured) return cudaErrorStreamCaptureUnsupported;
  reserve();
  const size_t bytes = size ? size : 1, room = pages(bytes) + PAGE;
  if (top + room > memory + MEMORY) return cudaErrorMemoryAllocation;
  *pointer = top;
  allocations[reinterpret_cast<uintptr_t>(top)] = bytes;
  top += room;
  open_memory(true);
  memset(*pointer, 0xff, bytes);  // NaN, or an index far away
  open_memory(false);
  used += bytes;
  allocation_count++;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  Guard guard(lock);
  if (captured) return cudaErrorStreamCaptureUnsupported;
  finish_all();
  auto found = allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations.end()) return pointer ? cudaErrorInvalidValue : cudaSuccess;
  madvise(pointer, pages(found->second), MADV_DONTNEED);
  forget(found->first, found->second);
  used -= found->second;
  allocations.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t size) {
  Guard guard(lock);
  if (posix_memalign(pointer, PAGE, size ? size : 1)) return cudaErrorMemoryAllocation;
  pinned[reinterpret_cast<uintptr_t>(*pointer)] = size;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  Guard guard(lock);
  finish_all();
  pinned.erase(reinterpret_cast<uintptr_t>(pointer));
  free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* all) {
  *all = MEMORY;
  *left = MEMORY - used;
  return cudaSuccess;
}
static bool on_device(const void* p) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  return address >= memory_start() && address < memory_end();
}
static bool is_pinned(const void* p) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  auto after = pinned.upper_bound(address);
  return after != pinned.begin() && address < std::prev(after)->first + std::prev(after)->second;
}
static cudaError_t copy(void* to, const void* from, size_t size, cudaStream_t stream) {
  Guard guard(lock);
  for (const void* end : {static_cast<const void*>(to), from}) {
    uintptr_t start, whole, at = reinterpret_cast<uintptr_t>(end);
    if (on_device(end) && (!find_allocation(at, start, whole) || at + size > start + whole)) return cudaErrorInvalidValue;
  }
  // Memory of the host that is not pinned is read at once, and written when the call returns.
  const bool at_once = !((on_device(to) || is_pinned(to)) && (on_device(from) || is_pinned(from)));
  if (captured && (at_once || !is_captured(stream))) return cudaErrorStreamCaptureUnsupported;
  ask(stream, {[=] {
    open_memory(true);
    memmove(to, from, size);
    open_memory(false);
    return std::string();
  }});
  return at_once ? finish(stream_of(stream)) : cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t s) { return copy(to, from, size, s); }
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t s) { return copy(to, from, size, s); }

// ---- the device
cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  const char* told = getenv("EMULATED_BUS");  // of each process another, where they are to have devices of their own
  snprintf(name, length, "%s", told ? told : "0000:00:00.0");
  return device ? cudaErrorInvalidDevice : cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* n) { *n = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int n) { return n ? cudaErrorInvalidDevice : cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (device) return cudaErrorInvalidDevice;
  static const std::map<int, int> known = {
      {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrWarpSize, 32}, {cudaDevAttrMaxSharedMemoryPerBlock, STATIC_SHARED},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, MAX_SHARED}, {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrComputeCapabilityMinor, 0}, {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrClockRate, 1980000},
      {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024}, {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxRegistersPerBlock, 65536}, {cudaDevAttrL2CacheSize, 50 << 20}};
  auto found = known.find(which);
  *value = found == known.end() ? 0 : found->second;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "this CPU");
  p->major = 9;
  p->warpSize = 32;
  p->totalGlobalMem = MEMORY;
  p->multiProcessorCount = 132;
  p->sharedMemPerBlock = STATIC_SHARED;
  p->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "emulated device"; }
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  return failure.empty() ? "an error of the emulated device" : failure.c_str();
}

// ---- streams
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  Guard guard(lock);
  Stream* made = new Stream;
  if (flags & cudaStreamNonBlocking) streams.push_back(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { Guard guard(lock); return finish_all(); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Guard guard(lock);
  return captured ? cudaErrorStreamCaptureUnsupported : finish(stream_of(stream));
}
cudaError_t cudaDeviceSynchronize() {
  Guard guard(lock);
  return captured ? cudaErrorStreamCaptureUnsupported : finish_all();
}

// ---- graphs: what was asked of a stream while it was captured, asked for again
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Guard guard(lock);
  if (&stream_of(stream) == &default_stream || captured) return cudaErrorStreamCaptureUnsupported;
  captured = new Graph;
  capturing = {{stream, 0}};
  capture_count++;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Guard guard(lock);
  if (!is_captured(stream) || capturing[stream]) return cudaErrorIllegalState;
  std::unique_ptr<Graph> made(captured);
  captured = nullptr;
  *graph = nullptr;
  std::vector<int> last(capturing.size(), -1);  // the flag that each branch sets at its end
  for (const Captured& one : made->asked) last[one.branch] = one.sets;
  for (size_t branch = 1; branch < last.size(); branch++) {
    bool joined = false;
    for (const Captured& one : made->asked) joined |= !one.branch && one.waits >= 0 && one.waits == last[branch];
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    streams.push_back(new Stream);
    made->branches.push_back(streams.back());
  }
  *graph = reinterpret_cast<cudaGraph_t>(made.release());
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete reinterpret_cast<Graph*>(graph); return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { delete reinterpret_cast<Graph*>(graph); return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  Guard guard(lock);
  if (!failure.empty()) return cudaErrorLaunchFailure;
  graph_count++;
  const Graph& graph = *reinterpret_cast<Graph*>(handle);
  std::vector<Flag> flags(graph.flags);
  for (Flag& flag : flags) flag = std::make_shared<bool>(false);
  for (const Captured& one : graph.asked) {
    Stream& to = one.branch ? *graph.branches[one.branch - 1] : stream_of(stream);
    ask(to, one.sets >= 0 ? setting(flags[one.sets]) : one.waits >= 0 ? waiting(flags[one.waits]) : one.work);
  }
  return cudaSuccess;
}

// ---- events
static double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Guard guard(lock);
  finish_all();
  delete event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Guard guard(lock);
  Event* own = event_of(event);
  own->capture = 0;
  if (is_captured(stream)) {
    own->capture = capture_count;
    own->flag = captured->flags++;
    captured->asked.push_back({capturing[stream], {}, own->flag});
    return cudaSuccess;
  }
  Flag done = own->done = std::make_shared<bool>(false);
  ask(stream, {[=] {
    *done = true;
    own->time = now();
    return std::string();
  }});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Guard guard(lock);
  Event* own = event_of(event);
  if (own->capture) {  // what waits for captured work is captured, from then on
    if (!captured || own->capture != capture_count) return cudaErrorCapturedEvent;
    const int branch = capturing.emplace(stream, int(capturing.size())).first->second;
    captured->asked.push_back({branch, {}, -1, own->flag});
    return cudaSuccess;
  }
  if (is_captured(stream)) return cudaErrorStreamCaptureIsolation;
  if (Flag done = own->done) ask(stream, waiting(done));
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Guard guard(lock);
  if (captured) return cudaErrorStreamCaptureUnsupported;
  for (Flag done = event_of(event)->done; done && !*done;)
    if (!advance_any()) return cudaErrorLaunchFailure;
  return failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = event_of(to)->time - event_of(from)->time;
  return cudaSuccess;
}

// ---- the driver
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  void* library = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);  // the image is a library's path
  if (!library) {
    fprintf(stderr, "emulated device: %s\n", dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = reinterpret_cast<CUmodule>(new Module{library});
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // what waits in the queue may need it
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  void* library = reinterpret_cast<Module*>(module)->library;
  auto find = [&](const char* what) { return dlsym(library, (std::string(name) + what).c_str()); };
  void* run = find("__run");
  if (!run) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(new Kernel{
      name, reinterpret_cast<void (*)(void**)>(run), static_cast<const char* const*>(find("__parameters")),
      static_cast<const unsigned*>(find("__sizes")), static_cast<const Range*>(find("__shared"))});
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int length, CUdevice) { snprintf(name, length, "this CPU"); return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char** text) { *text = "emulated device"; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = failure.empty() ? "a launch beyond the device's limits" : failure.c_str();
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** given, void**) {
  Guard guard(lock);
  if (!failure.empty()) return CUDA_ERROR_LAUNCH_FAILED;
  const size_t threads = size_t(c->blockDimX) * c->blockDimY * c->blockDimZ;
  if (!threads || threads > 1024 || c->blockDimZ > 64 || !c->gridDimX || !c->gridDimY || !c->gridDimZ || c->gridDimY > 65535 ||
      c->gridDimZ > 65535 || c->sharedMemBytes > MAX_SHARED)
    return CUDA_ERROR_INVALID_VALUE;
  const Kernel* kernel = reinterpret_cast<Kernel*>(function);
  auto launch = std::make_shared<Launch>();
  *launch = {kernel, {c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, {}};
  for (size_t i = 0; kernel->parameters[i]; i++) {
    const char* start = static_cast<const char*>(given[i]);
    launch->arguments.emplace_back(start, start + kernel->sizes[i]);
  }
  ask(c->hStream, {[launch] { return execute(*launch); }, true});
  return CUDA_SUCCESS;
}
}
