// NCCL's functions as far as dlsys calls them, between processes of one machine by shared memory: each collective waits in
// its stream's queue as on a device, and is an error where the ranks do not ask for the same one.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

extern "C" void emulated_ask(cudaStream_t, const char* (*)(void*), void*);
extern "C" int emulated_captures(cudaStream_t);

namespace {

constexpr size_t MOST_RANKS = 8, MOST_BYTES = 1 << 20;
constexpr double PATIENCE = 30;  // seconds
const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};  // of ncclDataType_t
enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

struct Asked { int64_t kind, dtype, count, operation, root, captured; };  // no padding: compared as bytes
struct Shared {
  std::atomic<long> arrived;
  Asked asked[MOST_RANKS];
  char values[MOST_RANKS][MOST_BYTES];
};
struct Comm { Shared* shared; int rank, size; long barriers; };
struct Job { Comm* comm; Asked asked; const char* send; char* receive; };
std::string last_error;

bool barrier(Comm& comm) {
  const long until = ++comm.barriers * comm.size;
  comm.shared->arrived++;
  const auto begun = std::chrono::steady_clock::now();
  while (comm.shared->arrived < until) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() > PATIENCE) return false;
    sched_yield();
  }
  return true;
}

template <typename T> void combine(char* into, const char* from, size_t count, int operation) {
  T* a = reinterpret_cast<T*>(into);
  const T* b = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < count; i++) a[i] = !operation ? a[i] + b[i] : operation == 2 ? (a[i] < b[i] ? b[i] : a[i]) : (b[i] < a[i] ? b[i] : a[i]);
}

const char* run(void* data) {
  const Job& job = *static_cast<Job*>(data);
  Comm& comm = *job.comm;
  Shared& all = *comm.shared;
  const Asked& own = job.asked;
  const size_t element = SIZES[own.dtype], bytes = own.count * element;
  const size_t sent = own.kind == REDUCE_SCATTER ? bytes * comm.size : bytes;
  if (sent > MOST_BYTES) return "the stand-in for NCCL takes no such large arrays";
  all.asked[comm.rank] = own;
  memcpy(all.values[comm.rank], job.send, sent);
  if (!barrier(comm)) return "a rank did not come to a collective";
  for (int rank = 0; rank < comm.size; rank++)
    if (memcmp(&all.asked[rank], &own, sizeof own)) return "the ranks ask for other collectives";
  if (own.kind == ALL_GATHER) {
    for (int rank = 0; rank < comm.size; rank++) memcpy(job.receive + rank * bytes, all.values[rank], bytes);
  } else if (own.kind == BROADCAST) {
    memcpy(job.receive, all.values[own.root], bytes);
  } else {
    const size_t first = own.kind == REDUCE_SCATTER ? bytes * comm.rank : 0;
    memcpy(job.receive, all.values[0] + first, bytes);
    for (int rank = 1; rank < comm.size; rank++) {
      const char* from = all.values[rank] + first;
      if (own.dtype == 7) combine<float>(job.receive, from, own.count, own.operation);
      else if (own.dtype == 8) combine<double>(job.receive, from, own.count, own.operation);
      else if (own.dtype == 2) combine<int32_t>(job.receive, from, own.count, own.operation);
      else if (own.dtype == 4) combine<int64_t>(job.receive, from, own.count, own.operation);
      else return "the stand-in for NCCL adds no such numbers";
    }
  }
  return barrier(comm) ? nullptr : "a rank did not come to a collective";
}

int ask(Comm* comm, Asked asked, const void* send, void* receive, cudaStream_t stream) {
  asked.captured = emulated_captures(stream);
  emulated_ask(stream, run, new Job{comm, asked, static_cast<const char*>(send), static_cast<char*>(receive)});
  return 0;
}

Asked what(int kind, int dtype, size_t count, int operation = 0, int root = 0) {
  return {kind, dtype, int64_t(count), operation, root, 0};
}

}  // namespace

struct ncclUniqueId { char internal[128]; };

extern "C" {
int ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/dlsys_nccl_%d", int(getpid()));
  return 0;
}
int ncclCommInitRank(void** made, int size, ncclUniqueId id, int rank) {
  if (rank < 0 || rank >= size || size > int(MOST_RANKS)) {
    last_error = "rank " + std::to_string(rank) + " of " + std::to_string(size);
    return 4;
  }
  const int file = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return 2;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  Comm* comm = new Comm{static_cast<Shared*>(memory), rank, size, 0};
  if (!barrier(*comm)) return 6;
  shm_unlink(id.internal);
  *made = comm;
  return 0;
}
int ncclCommDestroy(void*) { return 0; }
const char* ncclGetErrorString(int code) {
  return code == 2 ? "unhandled system error" : code == 4 ? "invalid argument" : code == 6 ? "remote process exited" : "an error";
}
const char* ncclGetLastError(void*) { return last_error.c_str(); }
int ncclAllReduce(const void* send, void* receive, size_t count, int dtype, int op, void* comm, cudaStream_t stream) {
  return ask(static_cast<Comm*>(comm), what(ALL_REDUCE, dtype, count, op), send, receive, stream);
}
int ncclReduceScatter(const void* send, void* receive, size_t count, int dtype, int op, void* comm, cudaStream_t stream) {
  return ask(static_cast<Comm*>(comm), what(REDUCE_SCATTER, dtype, count, op), send, receive, stream);
}
int ncclAllGather(const void* send, void* receive, size_t count, int dtype, void* comm, cudaStream_t stream) {
  return ask(static_cast<Comm*>(comm), what(ALL_GATHER, dtype, count), send, receive, stream);
}
int ncclBroadcast(const void* send, void* receive, size_t count, int dtype, int root, void* comm, cudaStream_t stream) {
  return ask(static_cast<Comm*>(comm), what(BROADCAST, dtype, count, 0, root), send, receive, stream);
}
}
