// The part of CUDA's runtime and driver that TVM's CUDA runtime calls, on memory of this process.
//
// What is asynchronous on a device is so here: launches and copies wait in a queue until somebody waits for the device,
// so that a result that is read too early is wrong in the tests too.
#include "device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace emulated {
namespace {

constexpr size_t PAGE = 4096;
using Work = std::function<std::string()>;

std::recursive_mutex lock;
std::map<uintptr_t, size_t> allocations;  // bytes, as asked for
std::map<std::pair<std::string, std::string>, size_t> sizes;
char* memory = nullptr;
char* top = nullptr;
size_t used = 0;
long allocation_count = 0, launch_count = 0;
std::vector<Work> queue;
std::vector<Work>* captured = nullptr;  // the graph that is being recorded
std::string failure;                    // of what ran in the queue; the device is lost, as a real one

size_t pages(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

void reserve() {
  if (memory) return;
  memory = static_cast<char*>(mmap(nullptr, MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  top = memory + PAGE;
}

void ask(Work work) { (captured ? *captured : queue).push_back(std::move(work)); }

cudaError_t finish() {
  std::vector<Work> now;
  now.swap(queue);
  for (const Work& work : now) {
    if (!failure.empty()) break;
    failure = work();
    if (!failure.empty()) fprintf(stderr, "emulated device: %s\n", failure.c_str());
  }
  return failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

struct Module { void* library; };
struct Graph { std::vector<Work> work; };

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
  finish();
  settings = {order, bool(early), bool(races)};
}
const char* emulated_failure() { return failure.c_str(); }
void emulated_recover() { Guard guard(lock); queue.clear(); failure.clear(); }
long emulated_allocations() { return allocation_count; }
long emulated_launches() { return launch_count; }
long emulated_used() { return long(used); }
long emulated_waiting() { return long(queue.size()); }
void emulated_declare(const char* kernel, const char* parameter, size_t bytes) { sizes[{kernel, parameter}] = bytes; }

// ---- memory
cudaError_t cudaMalloc(void** pointer, size_t size) {
  Guard guard(lock);
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
  finish();
  auto found = allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations.end()) return pointer ? cudaErrorInvalidValue : cudaSuccess;
  madvise(pointer, pages(found->second), MADV_DONTNEED);
  forget(found->first, found->second);
  used -= found->second;
  allocations.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return posix_memalign(pointer, PAGE, size ? size : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  Guard guard(lock);
  finish();
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
static cudaError_t copy(void* to, const void* from, size_t size) {
  Guard guard(lock);
  for (const void* end : {static_cast<const void*>(to), from}) {
    uintptr_t start, whole, at = reinterpret_cast<uintptr_t>(end);
    if (on_device(end) && (!find_allocation(at, start, whole) || at + size > start + whole)) return cudaErrorInvalidValue;
  }
  ask([=] {
    open_memory(true);
    memmove(to, from, size);
    open_memory(false);
    return std::string();
  });
  // Memory of the host that is not pinned is read at once, and written when the call returns.
  return on_device(to) && on_device(from) ? cudaSuccess : captured ? cudaErrorStreamCaptureUnsupported : finish();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) { return copy(to, from, size); }
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) { return copy(to, from, size); }

// ---- the device
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

// ---- streams: one queue serves all
cudaError_t cudaStreamCreate(cudaStream_t* stream) { *stream = static_cast<cudaStream_t>(malloc(8)); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { Guard guard(lock); finish(); free(stream); return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { Guard guard(lock); return captured ? cudaErrorStreamCaptureUnsupported : finish(); }
cudaError_t cudaDeviceSynchronize() { return cudaStreamSynchronize(nullptr); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

// ---- graphs: what was asked for while a stream was captured, asked for again
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Guard guard(lock);
  if (!stream || captured) return cudaErrorStreamCaptureUnsupported;  // the default stream cannot be captured
  captured = new std::vector<Work>;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  Guard guard(lock);
  if (!captured) return cudaErrorIllegalState;
  *graph = reinterpret_cast<cudaGraph_t>(new Graph{std::move(*captured)});
  delete captured;
  captured = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete reinterpret_cast<Graph*>(graph); return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { delete reinterpret_cast<Graph*>(graph); return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  Guard guard(lock);
  for (const Work& work : reinterpret_cast<Graph*>(graph)->work) ask(work);
  return cudaSuccess;
}

// ---- events
static double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { *event = static_cast<cudaEvent_t>(calloc(1, sizeof(double))); return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  Guard guard(lock);
  finish();
  *reinterpret_cast<double*>(event) = now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaStreamSynchronize(nullptr); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = *reinterpret_cast<double*>(to) - *reinterpret_cast<double*>(from);
  return cudaSuccess;
}

// ---- the driver
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
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
  launch_count++;
  ask([launch] { return execute(*launch); });
  return CUDA_SUCCESS;
}
}
