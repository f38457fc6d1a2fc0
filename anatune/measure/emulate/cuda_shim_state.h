// The state of a run (cuda_shim_run.cpp): threads, arrays between guard pages, and how a fault is reported.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__) || defined(SHIM_UCONTEXT)
#include <ucontext.h>
#endif


struct Uint3 { unsigned x, y, z; };
extern "C" {
Uint3 threadIdx, blockIdx, blockDim = {1, 1, 1}, gridDim = {1, 1, 1};
alignas(64) char shim_poison[64];
void shim_kernel(int launch, void** arguments);  // made for each kernel: calls one of its functions
extern const int shim_traced;        // it was compiled with -fsanitize=thread,bounds
[[noreturn]] void shim_misaligned(const void* pointer, int bytes);
}

namespace {

constexpr size_t GUARD = size_t(1) << 26;         // what wrong indices land in, on both sides of each array
constexpr size_t SHARED_SPACE = size_t(1) << 31;  // 32-bit addresses reach it
constexpr size_t STACK = size_t(1) << 18;
constexpr size_t CLEARED_STACK = 2048;
constexpr int MAX_THREADS = 1024, MAX_ARRAYS = 64;

struct Cell {  // of a piece of shared memory: who wrote and read it last, and when
  uint32_t written, read;
  uint16_t writer, reader;
  uint32_t warp_written, warp_read;
};
struct Region {
  const char* name;
  char *begin, *end, *pages, *pages_end;
  bool writable, shared;
  Cell* cells;        // shared memory
  uint32_t* writers;  // results: 1 + the thread that wrote the piece, over the whole grid; ATOMIC: any with atomics
};

Region regions[MAX_ARRAYS];
int num_regions;
char *arena, *arena_end, *arena_next, *shared_arena, *shared_next;
Region* slots[MAX_ARRAYS];
int order, granule = 4, launch;
int poison = 0xff;  // NaN; in odd orders 0x7f: 3.4e38, which no maximum hides
uint64_t seed;
size_t dynamic_bytes, page;
long num_barriers;

enum State : unsigned char { READY, AT_BLOCK, AT_WARP, DONE };
struct Copy { unsigned to; const void* from; int bytes, read; unsigned group; };
struct Fiber {
  State state;
  bool orders;  // what it waits at orders memory
  int line;
  unsigned mask;
  char* stack;
#if defined(__x86_64__) && !defined(SHIM_UCONTEXT)
  void* pointer;
#else
  ucontext_t context;
#endif
  Copy* copies;
  int num_copies, room, first_copy;
  unsigned group;
};
Fiber fibers[MAX_THREADS];
int current = -1, num_threads;
void* deposits[MAX_THREADS];
void** arguments;
uint32_t epoch, block_epoch;               // since the start; that of the block's start
uint32_t warp_epochs[MAX_THREADS / 32];    // __syncwarps so far: shuffles and the like order no memory

[[noreturn]] void fail(const char* format, ...) {
  char text[640];
  int used = 0;
  va_list list;
  va_start(list, format);
  used = vsnprintf(text, sizeof text - 2, format, list);
  va_end(list);
  if (used > int(sizeof text) - 2) used = sizeof text - 2;
  text[used++] = '\n';
  if (write(2, text, size_t(used)) < 0) _exit(4);
  _exit(3);
}

uint64_t random_bits() {  // splitmix64
  uint64_t z = (seed += 0x9e3779b97f4a7c15ull);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// ---- Memory ----

Region* region_of(const void* address, size_t margin) {
  const char* at = static_cast<const char*>(address);
  for (int i = 0; i < num_regions; ++i)
    if (at >= regions[i].pages - margin && at < regions[i].pages_end + margin) return &regions[i];
  return nullptr;
}

Region* new_region(const char* name, size_t bytes, char*& next, int fd, size_t place, bool writable) {
  if (num_regions == MAX_ARRAYS) fail("more than %d arrays", MAX_ARRAYS);
  Region& r = regions[num_regions];
  size_t size = (bytes + page - 1) / page * page;
  size = size ? size : page;
  next += GUARD;
  r.name = name;
  r.writable = writable;
  r.shared = fd < 0;
  r.pages = next;
  r.pages_end = next + size;
  next += size;
  int access = PROT_READ | (writable ? PROT_WRITE : 0);
  void* got = fd < 0 ? mmap(r.pages, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
                     : mmap(r.pages, size, access, MAP_SHARED | MAP_FIXED, fd, off_t(place));
  if (got == MAP_FAILED) fail("%s: no memory for %zu bytes", name, bytes);
  r.begin = r.pages + (order & 1 ? 0 : (size - bytes) / 16 * 16);
  r.end = r.begin + bytes;
  if (r.shared) r.cells = static_cast<Cell*>(calloc(bytes / size_t(granule) + 1, sizeof(Cell)));
  else if (writable) r.writers = static_cast<uint32_t*>(calloc(bytes / size_t(granule) + 1, 4));
  ++num_regions;
  return &r;
}

void clear_shared() {
  for (int i = 0; i < num_regions; ++i)
    if (regions[i].shared) memset(regions[i].pages, poison, size_t(regions[i].pages_end - regions[i].pages));
}

void check_slack() {  // between an array and the page's end
  for (int i = 0; i < num_regions; ++i) {
    Region& r = regions[i];
    if (!r.writable) continue;
    int fill = r.shared ? poison : 0xff;
    for (char* p = r.pages; p < r.pages_end; ++p) {
      if (p == r.begin) p = r.end;
      if (p < r.pages_end && static_cast<unsigned char>(*p) != fill)
        fail("a thread of block %u wrote byte %td of %s, which has %td bytes", blockIdx.x, p - r.begin, r.name,
             r.end - r.begin);
    }
  }
}

[[noreturn]] void outside(const char* what, const void* address, int bytes) {
  const char* at = static_cast<const char*>(address);
  Region* r = region_of(address, GUARD / 2);
  char size[32] = "";
  if (bytes) snprintf(size, sizeof size, " %d bytes", bytes);
  if (!r) fail("thread %d of block %u %s%s at an address outside of every array", current, blockIdx.x, what, size);
  if (at >= r->begin && at < r->end)  // a read-only page, or an access across the end
    fail(r->writable ? "thread %d of block %u %s%s across the end of %s" : "thread %d of block %u %s%s of %s, an operand",
         current, blockIdx.x, what, size, r->name);
  fail("thread %d of block %u %s%s at byte %td of %s, which has %td bytes", current, blockIdx.x, what, size, at - r->begin,
       r->name, r->end - r->begin);
}

void on_signal(int number, siginfo_t* info, void*) {
  if (number == SIGFPE) fail("thread %d of block %u divides by zero", current, blockIdx.x);
  if (number != SIGSEGV && number != SIGBUS) fail("thread %d of block %u raised signal %d", current, blockIdx.x, number);
  const char* at = static_cast<const char*>(info->si_addr);
  for (int i = 0; i < num_threads; ++i)
    if (fibers[i].stack && at >= fibers[i].stack - STACK && at < fibers[i].stack)
      fail("thread %d of block %u needs more than %zu bytes of local memory", current, blockIdx.x, STACK);
  outside("reads or writes", at, 0);
}

}  // namespace
