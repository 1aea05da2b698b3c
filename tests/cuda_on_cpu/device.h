// What the files of the emulated device share: launches, its memory, and what watches both.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulated {

struct Dim { unsigned x, y, z; };

// An array that a kernel is given, or declares as shared memory: `size` 0 where nobody has said it.
struct Range { const char* name; uintptr_t start; size_t size; };

// What g++ made of a kernel, found in its library by the kernel's name.
struct Kernel {
  std::string name;
  void (*run)(void**);
  const char* const* parameters;  // their names, ended by null
  const unsigned* sizes;          // bytes of each parameter
  const Range* shared;            // arrays in shared memory by their offset, ended by a null name
};

struct Launch {
  const Kernel* kernel;
  Dim grid, block;
  size_t dynamic_shared;
  std::vector<std::vector<char>> arguments;
};

constexpr size_t MAX_SHARED = 232448, STATIC_SHARED = 49152, RED_ZONE = 64;

// Settings of the test, see `__init__.py`.
struct Settings {
  int order = 0;        // 0: threads upwards, 1: downwards, 2: shuffled
  bool early = false;   // asynchronous copies within kernels are made at once, else as late as allowed
  bool races = true;    // whether races are looked for
};
extern Settings settings;

// threads.cpp: runs a launch, thread after thread. The error's text, empty for none.
std::string execute(const Launch& launch);
// Ends the launch at once; called by a thread of it. Does not return.
[[noreturn]] void fail(const std::string& what);
unsigned thread_number();
Dim block_number();
bool on_stack(uintptr_t address);
extern char* shared_memory;

// shadow.cpp: watches what the threads of a launch touch.
void begin_launch(const std::vector<Range>& arrays);
void begin_block(const Kernel& kernel, size_t dynamic_shared);
void passed_barrier();
void touch(uintptr_t address, size_t size, bool writing, bool atomic);
void forget(uintptr_t start, size_t size);  // freed, or newly allocated

// memory.cpp: the device's memory, which the host cannot touch outside of launches and copies.
void open_memory(bool open);
bool find_allocation(uintptr_t address, uintptr_t& start, size_t& size);
uintptr_t memory_start();
uintptr_t memory_end();
constexpr size_t MEMORY = 2ull << 30;

// The sizes that the tests declare for a kernel's parameters, in bytes; 0 where they do not.
size_t declared_size(const std::string& kernel, const std::string& parameter);

}  // namespace emulated
