// Runs a launch: one block after another, a block's threads as fibers that change places at barriers and shuffles.
#include "device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emulated {

Settings settings;
char* shared_memory = static_cast<char*>(
    mmap(nullptr, MAX_SHARED + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

namespace {

constexpr size_t STACK = 256 << 10;
enum class State { ready, in_warp, at_barrier, ended };

struct Copy { void* to; const void* from; unsigned bytes; };

struct Thread {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  State state = State::ready;
  Dim index{};
  int line = 0;                             // of the barrier at which it waits
  uint64_t value = 0, seen[32] = {};        // what it gives to its warp, and what the warp's lanes gave
  uint32_t lanes = 0;                       // which lanes gave something
  std::vector<Copy> open;                   // asynchronous copies that no group has yet
  std::vector<std::vector<Copy>> groups;    // those that are not waited for
};

std::vector<Thread> threads;
Thread* current = nullptr;
void* scheduler = nullptr;  // its stack pointer
size_t count = 0;
const Launch* launch = nullptr;
void** arguments = nullptr;
std::string error;
Dim block_index{};
unsigned random_state = 1;

}  // namespace

// Keeps what a function may not change on its stack and goes on where another stack was left. Made of the calling
// convention of x86-64: swapcontext of the C library makes two system calls each time.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.globl emulated_switch
.type emulated_switch, @function
emulated_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

namespace {

void leave(State state) {
  current->state = state;
  emulated_switch(&current->stack_pointer, scheduler);
}

void body() {
  launch->kernel->run(arguments);
  leave(State::ended);
}

void prepare(Thread& thread, unsigned number) {
  const Dim& size = launch->block;
  if (!thread.stack)
    thread.stack = static_cast<char*>(
        mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  thread.index = {number % size.x, number / size.x % size.y, number / size.x / size.y};
  thread.state = State::ready;
  thread.open.clear();
  thread.groups.clear();
  void** top = reinterpret_cast<void**>(thread.stack + STACK - 64);
  *--top = nullptr;  // where `body` would return to; its stack is then aligned as after a call
  *--top = reinterpret_cast<void*>(body);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  thread.stack_pointer = top;
}

// 0 to n - 1 in the order of the settings.
std::vector<unsigned> in_order(unsigned n) {
  std::vector<unsigned> order(n);
  for (unsigned i = 0; i < n; i++) order[i] = settings.order == 1 ? n - 1 - i : i;
  if (settings.order == 2)
    for (unsigned i = n; i-- > 1;) std::swap(order[i], order[rand_r(&random_state) % (i + 1)]);
  return order;
}

// Lets the lanes of a warp that wait for each other see what each gave. Whether any did.
bool exchange(unsigned warp) {
  uint32_t lanes = 0;
  for (unsigned lane = 0; lane < 32; lane++) {
    size_t number = warp * 32 + lane;
    if (number < count && threads[number].state == State::in_warp) lanes |= 1u << lane;
  }
  for (unsigned to = 0; to < 32; to++) {
    if (!(lanes >> to & 1)) continue;
    Thread& thread = threads[warp * 32 + to];
    thread.lanes = lanes;
    thread.state = State::ready;
    for (unsigned from = 0; from < 32; from++)
      if (lanes >> from & 1) thread.seen[from] = threads[warp * 32 + from].value;
  }
  return lanes != 0;
}

void run_warp(unsigned warp) {
  do {
    for (bool ran = true; ran && error.empty();) {
      ran = false;
      for (unsigned lane : in_order(32)) {
        size_t number = warp * 32 + lane;
        if (number >= count || threads[number].state != State::ready) continue;
        current = &threads[number];
        emulated_switch(&scheduler, current->stack_pointer);
        if (!error.empty()) return;
        ran = true;
      }
    }
  } while (exchange(warp));
}

void run_block() {
  const unsigned warps = (count + 31) / 32;
  begin_block(*launch->kernel, launch->dynamic_shared);
  for (unsigned number = 0; number < count; number++) prepare(threads[number], number);
  while (error.empty()) {
    for (unsigned warp : in_order(warps)) {
      run_warp(warp);
      if (!error.empty()) return;
    }
    size_t waiting = 0;
    int line = 0;
    bool same = true;
    for (size_t number = 0; number < count; number++) {
      if (threads[number].state != State::at_barrier) continue;
      same = same && (!waiting || threads[number].line == line);
      line = threads[number].line;
      waiting++;
    }
    if (!waiting) return;
    if (waiting < count) error = "__syncthreads: some threads of the block have ended, others wait";
    else if (!same) error = "__syncthreads: threads of a block wait at different barriers";
    for (size_t number = 0; number < count; number++) threads[number].state = State::ready;
    passed_barrier();
  }
}

}  // namespace

unsigned thread_number() { return current - threads.data(); }
Dim block_number() { return block_index; }

bool on_stack(uintptr_t address) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(current->stack);
  return address >= start && address < start + STACK;
}

void fail(const std::string& what) {
  const Dim& t = current->index;
  error = what + " (thread " + std::to_string(t.x) + "," + std::to_string(t.y) + "," + std::to_string(t.z) +
          " of block " + std::to_string(block_index.x) + "," + std::to_string(block_index.y) + "," +
          std::to_string(block_index.z) + ")";
  leave(State::ended);
  abort();  // nobody resumes a thread that has ended
}

std::string execute(const Launch& given) {
  launch = &given;
  error.clear();
  count = size_t(given.block.x) * given.block.y * given.block.z;
  if (threads.size() < count) threads.resize(count);
  std::vector<void*> pointers;
  std::vector<Range> arrays;
  for (size_t i = 0; i < given.arguments.size(); i++) {
    pointers.push_back(const_cast<char*>(given.arguments[i].data()));
    if (given.arguments[i].size() != sizeof(uintptr_t)) continue;
    uintptr_t start;
    memcpy(&start, given.arguments[i].data(), sizeof start);
    if (start < memory_start() || start >= memory_end()) continue;
    const char* name = given.kernel->parameters[i];
    arrays.push_back({name, start, declared_size(given.kernel->name, name)});
  }
  arguments = pointers.data();
  begin_launch(arrays);
  open_memory(true);
  for (unsigned z = 0; z < given.grid.z && error.empty(); z++)
    for (unsigned y = 0; y < given.grid.y && error.empty(); y++)
      for (unsigned x = 0; x < given.grid.x && error.empty(); x++) {
        block_index = {x, y, z};
        run_block();
      }
  open_memory(false);
  return error.empty() ? "" : given.kernel->name + ": " + error;
}

}  // namespace emulated

// What kernels call, see include/cuda.h.
using namespace emulated;
extern "C" {
Dim emulated_thread_index() { return current->index; }
Dim emulated_block_index() { return block_index; }
Dim emulated_block_size() { return launch->block; }
Dim emulated_grid_size() { return launch->grid; }
unsigned emulated_lane() { return thread_number() % 32; }
char* emulated_shared(size_t offset) { return shared_memory + offset; }

void emulated_barrier(int line) {
  current->line = line;
  leave(State::at_barrier);
}

uint32_t emulated_exchange(uint64_t value, uint64_t* lanes) {
  current->value = value;
  leave(State::in_warp);
  memcpy(lanes, current->seen, sizeof current->seen);
  return current->lanes;
}

// An asynchronous copy, of zeros where `from` is null, is an access of the thread that asks for it, at the time when it is made.
static void make(const Copy& copy) {
  if (copy.from) touch(reinterpret_cast<uintptr_t>(copy.from), copy.bytes, false, false);
  touch(reinterpret_cast<uintptr_t>(copy.to), copy.bytes, true, false);
  copy.from ? memcpy(copy.to, copy.from, copy.bytes) : memset(copy.to, 0, copy.bytes);
}
void emulated_copy(void* to, const void* from, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
    fail("cp.async: an address is no multiple of the " + std::to_string(bytes) + " bytes copied");
  settings.early ? make({to, from, bytes}) : current->open.push_back({to, from, bytes});
}
void emulated_commit() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}
void emulated_wait(unsigned left) {
  auto& groups = current->groups;
  for (; groups.size() > left; groups.erase(groups.begin()))
    for (const Copy& copy : groups[0]) make(copy);
}

void emulated_atomic(const void* address, unsigned bytes) {
  touch(reinterpret_cast<uintptr_t>(address), bytes, true, true);
}
}
