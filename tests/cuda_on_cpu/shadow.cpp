// Watches every access of a kernel's threads: is it within an array, and does no other thread touch the same byte.
//
// g++ calls `__tsan_read4` and its like before each access where it compiles with -fsanitize=thread. The functions are
// ours: a thread here is a thread of a block. For each byte of memory there is a cell that says who last wrote and read
// it. Blocks run one after the other, and a block's barriers cut its time into segments with rising numbers, so an
// access of this launch was in another block exactly if its segment lies before this block's first.
#include "device.h"

#include <sys/mman.h>

#include <cstring>

namespace emulated {
namespace {

constexpr uint16_t ATOMIC = 0x8000, MANY = 0x8000, NUMBER = 0x7fff;

struct Cell {
  uint32_t written, read;       // the segments of the last write and read, 0 for none
  uint32_t read_elsewhere;      // a segment in which a block before the last reader's read it
  uint16_t writer, reader;      // threads; with ATOMIC or MANY
};

template <class T> T* reserve(size_t n) {
  return static_cast<T*>(mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

Cell* global_cells = reserve<Cell>(MEMORY);
Cell* shared_cells = reserve<Cell>(MAX_SHARED + 4096);
uint32_t segment = 1, first_of_launch = 1, first_of_block = 1;
std::vector<Range> arrays, shared_arrays;

bool within(const Range& array, uintptr_t address, size_t size) {
  return address >= array.start && address + size <= array.start + array.size;
}

// The array to which an address belongs, or that it misses: the last that begins at or before it.
std::string name_of(const std::vector<Range>& among, uintptr_t address) {
  const Range* best = nullptr;
  for (const Range& array : among)
    if (array.start <= address && (!best || array.start >= best->start)) best = &array;
  return best ? std::string(best->name) + ", byte " + std::to_string(address - best->start) +
                    (best->size ? " of " + std::to_string(best->size) : "")
              : "an address before all arrays";
}

void check(Cell* cells, size_t size, bool shared, bool writing, bool atomic, uintptr_t address) {
  const uint16_t me = thread_number();
  const uint32_t oldest = shared ? first_of_block : first_of_launch;
  auto conflicts = [&](uint32_t then, uint16_t who) {
    if (then < oldest) return false;
    return then < first_of_block || (then == segment && (who & NUMBER) != me);
  };
  for (size_t i = 0; i < size; i++) {
    Cell& cell = cells[i];
    const bool both_atomic = atomic && (cell.writer & ATOMIC);
    const char* other = nullptr;
    if (!both_atomic && conflicts(cell.written, cell.writer)) other = "wrote";
    else if (writing && cell.read >= oldest &&
             (conflicts(cell.read, cell.reader) || (cell.read == segment && (cell.reader & MANY)) ||
              (!shared && cell.read_elsewhere >= oldest)))
      other = "read";
    if (other) {
      const bool wrote = other[0] == 'w';
      const uint32_t then = wrote ? cell.written : cell.read;
      const bool elsewhere = then < first_of_block || (!wrote && !shared && cell.read_elsewhere >= oldest);
      fail(std::string("a race: this thread ") + (writing ? "writes" : "reads") + " what " +
           (elsewhere ? "a thread of another block" : "thread " + std::to_string((wrote ? cell.writer : cell.reader) & NUMBER)) +
           " " + other + " with no barrier between: " + (shared ? "shared array " : "array ") +
           name_of(shared ? shared_arrays : arrays, address + i));
    }
    if (writing) {
      cell.written = segment;
      cell.writer = me | (atomic ? ATOMIC : 0);
    } else {
      const bool same = cell.read == segment;
      if (cell.read >= oldest && cell.read < first_of_block) cell.read_elsewhere = cell.read;
      cell.reader = same && ((cell.reader & MANY) || (cell.reader & NUMBER) != me) ? me | MANY : me;
      cell.read = segment;
    }
  }
}

}  // namespace

void begin_launch(const std::vector<Range>& given) {
  first_of_launch = ++segment;
  arrays = given;
  for (Range& array : arrays) {
    uintptr_t start;
    size_t size;
    if (!array.size && find_allocation(array.start, start, size)) array.size = start + size - array.start;
  }
}

void begin_block(const Kernel& kernel, size_t dynamic_shared) {
  first_of_block = ++segment;
  memset(shared_memory, 0xff, MAX_SHARED);  // NaN, or an index far away
  shared_arrays.clear();
  size_t end = 0;
  const uintptr_t start = reinterpret_cast<uintptr_t>(shared_memory);
  for (const Range* array = kernel.shared; array->name; array++) {
    const size_t size = array->size ? array->size : dynamic_shared;
    shared_arrays.push_back({array->name, start + array->start, size});
    end = array->start + size;
  }
  if (end > MAX_SHARED) fail("more shared memory than a multiprocessor has");
}

void passed_barrier() { ++segment; }

void forget(uintptr_t start, size_t size) {
  madvise(global_cells + (start - memory_start()), size * sizeof(Cell), MADV_DONTNEED);
}

void touch(uintptr_t address, size_t size, bool writing, bool atomic) {
  const char* what = writing ? "writes" : "reads";
  const uintptr_t shared = reinterpret_cast<uintptr_t>(shared_memory);
  if (address >= memory_start() && address < memory_end()) {
    bool inside = false;
    for (const Range& array : arrays) inside = inside || within(array, address, size);
    if (!inside) fail(std::string("out of bounds: this thread ") + what + " beyond its arrays, at " + name_of(arrays, address));
    if (settings.races) check(global_cells + (address - memory_start()), size, false, writing, atomic, address);
  } else if (address >= shared && address < shared + MAX_SHARED + 4096) {
    bool inside = false;
    for (const Range& array : shared_arrays) inside = inside || within(array, address, size);
    if (!inside) fail(std::string("out of bounds: this thread ") + what + " beyond shared memory, at " + name_of(shared_arrays, address));
    if (settings.races) check(shared_cells + (address - shared), size, true, writing, atomic, address);
  } else if (!on_stack(address)) {
    fail(std::string("out of bounds: this thread ") + what + " what is no memory of the device");
  }
}

}  // namespace emulated

using emulated::touch;
extern "C" {
// A device loads and stores vectors only at multiples of their size.
static void whole(void* p, size_t size, bool writing) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  if (address % size) emulated::fail("misaligned: a vector of " + std::to_string(size) + " bytes at no multiple of them");
  touch(address, size, writing, false);
}
#define WATCH(SIZE)                                                                                               \
  void __tsan_read##SIZE(void* p) { whole(p, SIZE, false); }                                                      \
  void __tsan_write##SIZE(void* p) { whole(p, SIZE, true); }                                                      \
  void __tsan_unaligned_read##SIZE(void* p) { touch(reinterpret_cast<uintptr_t>(p), SIZE, false, false); }        \
  void __tsan_unaligned_write##SIZE(void* p) { touch(reinterpret_cast<uintptr_t>(p), SIZE, true, false); }
WATCH(1) WATCH(2) WATCH(4) WATCH(8) WATCH(16)
void __tsan_read_range(void* p, size_t n) { touch(reinterpret_cast<uintptr_t>(p), n, false, false); }
void __tsan_write_range(void* p, size_t n) { touch(reinterpret_cast<uintptr_t>(p), n, true, false); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
