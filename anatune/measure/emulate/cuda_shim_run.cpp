// Runs a kernel that was compiled with cuda_shim.h: a program of its own, so that whatever the kernel does ends here.
//
//   PROGRAM FD LAUNCH ORDER SEED GRID BLOCK FIRST STRIDE DYNAMIC_BYTES GRANULE  (NAME BYTES PLACE WRITABLE)...
//
// LAUNCH is the number of the kernel's function. FD holds the arguments, each at its own page-aligned PLACE. Every argument and every shared array lies alone between
// inaccessible memory: against its upper end in even orders, its lower end in odd ones.
// Order 0: threads ascending, asynchronous copies arrive when waited for; 1: descending, they arrive at once; else both
// at random by SEED. Blocks FIRST, FIRST + STRIDE, ... run, one after another.
// Compiled with -fsanitize=thread,bounds, the kernel calls __tsan_* of cuda_shim_trace.h at each access of memory (there is no
// ThreadSanitizer behind it): bounds, alignment, reads of unwritten memory and races are then found exactly, whatever the order.
// Exit status 0 and a line of counts on the standard output, or 3 and one line on the standard error.
#include "cuda_shim_trace.h"
#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace {

// ---- Fibers ----

#if defined(__x86_64__) && !defined(SHIM_UCONTEXT)
extern "C" void shim_swap(void** save, void* to);
asm(R"(.text
.globl shim_swap
.type shim_swap, @function
shim_swap:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size shim_swap, .-shim_swap
)");
void* scheduler;
void to_scheduler() { shim_swap(&fibers[current].pointer, scheduler); }
void to_fiber(int t) { shim_swap(&scheduler, fibers[t].pointer); }
#else
ucontext_t scheduler;
void to_scheduler() { swapcontext(&fibers[current].context, &scheduler); }
void to_fiber(int t) { swapcontext(&scheduler, &fibers[t].context); }
#endif

void wait_as(State state, int line, unsigned mask = 0, bool orders = true) {
  Fiber& f = fibers[current];
  f.state = state;
  f.orders = orders;
  f.line = line;
  f.mask = mask;
  to_scheduler();
}

void wait_for_lanes(unsigned mask, int line, bool orders) {
  int first = current / 32 * 32, count = num_threads - first;
  if (count < 32) mask &= (1u << count) - 1;
  wait_as(AT_WARP, line, mask, orders);
}

void entry() {
  shim_kernel(launch, arguments);
  fibers[current].state = DONE;
  to_scheduler();
  abort();
}

void prepare(int t) {
  Fiber& f = fibers[t];
  if (!f.stack) {
    char* low = static_cast<char*>(
        mmap(nullptr, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (low == MAP_FAILED) fail("no memory for the stacks of %d threads", num_threads);
    mprotect(low, STACK, PROT_NONE);
    f.stack = low + STACK;
  }
  memset(f.stack + STACK - CLEARED_STACK, poison, CLEARED_STACK);
#if defined(__x86_64__) && !defined(SHIM_UCONTEXT)
  void** top = reinterpret_cast<void**>(f.stack + STACK);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.pointer = top;
#else
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = STACK;
  f.context.uc_link = nullptr;
  makecontext(&f.context, entry, 0);
#endif
  f.state = READY;
  f.num_copies = f.first_copy = 0;
  f.group = 0;
}

void shuffled(int* items, int count) {
  for (int i = 0; i < count; ++i) items[i] = order == 1 ? count - 1 - i : i;
  if (order > 1)
    for (int i = count - 1; i > 0; --i) {
      int j = int(random_bits() % uint64_t(i + 1)), kept = items[i];
      items[i] = items[j];
      items[j] = kept;
    }
}

// Run the lanes of one warp until each waits for the block or has ended.
void run_warp(int warp) {
  int first = warp * 32, count = num_threads - first < 32 ? num_threads - first : 32, lanes[32];
  for (;;) {
    shuffled(lanes, count);
    for (int i = 0; i < count; ++i) {
      int t = first + lanes[i];
      if (fibers[t].state != READY) continue;
      current = t;
      threadIdx.x = unsigned(t);
      to_fiber(t);
    }
    int waiting = -1;
    for (int t = first; t < first + count; ++t)
      if (fibers[t].state == AT_WARP) waiting = t;
    if (waiting < 0) return;
    const Fiber& one = fibers[waiting];
    for (int i = 0; i < count; ++i) {
      const Fiber& f = fibers[first + i];
      if (!(one.mask >> i & 1)) continue;
      if (f.state != AT_WARP || f.line != one.line || f.mask != one.mask)
        fail("divergent warp operation in block %u: thread %d waits at line %d for thread %d, which %s line %d",
             blockIdx.x, waiting, one.line, first + i,
             f.state == DONE ? "ended after" : f.state == AT_BLOCK ? "waits for the block at" : "waits at", f.line);
    }
    unsigned mask = one.mask;
    if (one.orders) ++warp_epochs[warp];
    for (int i = 0; i < count; ++i)
      if (mask >> i & 1) fibers[first + i].state = READY;
  }
}

void run_block() {
  int num_warps = (num_threads + 31) / 32, warps[MAX_THREADS / 32];
  block_epoch = ++epoch;
  for (int t = 0; t < num_threads; ++t) prepare(t);
  clear_shared();
  for (;;) {
    shuffled(warps, num_warps);
    for (int i = 0; i < num_warps; ++i) run_warp(warps[i]);
    current = -1;
    int ended = -1, waiting = -1;
    for (int t = 0; t < num_threads; ++t) {
      Fiber& f = fibers[t];
      if (f.state == DONE) ended = t;
      else if (waiting < 0) waiting = t;
      else if (f.line != fibers[waiting].line)
        fail("divergent barrier in block %u: thread %d waits at line %d, thread %d at line %d", blockIdx.x, waiting,
             fibers[waiting].line, t, f.line);
    }
    if (waiting < 0) break;
    if (ended >= 0)
      fail("divergent barrier in block %u: thread %d waits at line %d, but thread %d has ended", blockIdx.x, waiting,
           fibers[waiting].line, ended);
    for (int t = 0; t < num_threads; ++t) fibers[t].state = READY;
    ++num_barriers;
    ++epoch;
  }
}

// ---- Asynchronous copies ----

void mark_in_flight(Region& r, const char* at, int bytes, bool flying) {
  for (int i = 0; i < bytes; i += granule) {
    Cell& c = r.cells[(at - r.begin + i) / granule];
    c.written = flying ? IN_FLIGHT : epoch;
    c.writer = uint16_t(current);
    c.warp_written = warp_epochs[current / 32];
  }
}

void arrive(const Copy& c) {
  char* to = shared_arena + c.to;
  memcpy(to, c.from, size_t(c.read));
  memset(to + c.read, 0, size_t(c.bytes - c.read));
}

}  // namespace

extern "C" {

void shim_block_barrier(int line) { wait_as(AT_BLOCK, line); }

void shim_warp_barrier(unsigned mask, int line) { wait_for_lanes(mask, line, true); }

void** shim_warp_deposit(const void* mine, int line) {
  deposits[current] = const_cast<void*>(mine);
  wait_for_lanes(0xffffffffu, line, false);
  return deposits + current / 32 * 32;
}

void shim_warp_release(int line) { wait_for_lanes(0xffffffffu, line, false); }

void* shim_shared(int slot, const char* name, size_t bytes) {
  if (slot >= MAX_ARRAYS) fail("more than %d shared arrays", MAX_ARRAYS);
  if (!slots[slot]) {
    slots[slot] = new_region(name, bytes, shared_next, -1, 0, true);
    memset(slots[slot]->pages, poison, size_t(slots[slot]->pages_end - slots[slot]->pages));
  }
  return slots[slot]->begin;
}

void* shim_dynamic_shared(const char* name) { return shim_shared(0, name, dynamic_bytes); }

unsigned shim_shared_address(const void* pointer) {
  const char* at = static_cast<const char*>(pointer);
  if (at < shared_arena || at >= shared_arena + SHARED_SPACE)
    fail("thread %d of block %u takes the shared address of memory that is not shared", current, blockIdx.x);
  return unsigned(at - shared_arena);
}

void* shim_shared_pointer(unsigned address) { return shared_arena + address; }

void shim_async_copy(unsigned to, const void* from, int bytes, int read) {
  char* target = shared_arena + to;
  Region* r = region_of(target, 0);
  if (reinterpret_cast<uintptr_t>(target) % unsigned(bytes) || reinterpret_cast<uintptr_t>(from) % unsigned(bytes))
    shim_misaligned(target, bytes);
  const char* source = static_cast<const char*>(from);
  Region* s = region_of(source, 0);
  if (!r || !r->shared || target < r->begin || target + bytes > r->end) outside("copies to shared memory", target, bytes);
  if (read && (!s || s->shared || source < s->begin || source + read > s->end)) outside("copies", source, read);
  if (order == 1 || (order > 1 && random_bits() & 1)) arrive({to, from, bytes, read, 0});
  Fiber& f = fibers[current];
  if (f.num_copies == f.room) {
    if (f.first_copy > 0) {
      memmove(f.copies, f.copies + f.first_copy, size_t(f.num_copies - f.first_copy) * sizeof(Copy));
      f.num_copies -= f.first_copy;
      f.first_copy = 0;
    }
    if (f.num_copies == f.room) {
      f.room = f.room ? 2 * f.room : 16;
      f.copies = static_cast<Copy*>(realloc(f.copies, size_t(f.room) * sizeof(Copy)));
    }
  }
  f.copies[f.num_copies++] = {to, from, bytes, read, f.group};
  if (shim_traced) {
    access(target, size_t(bytes), true, size_t(bytes));
    mark_in_flight(*r, target, bytes, true);
  }
}

void shim_async_commit() { ++fibers[current].group; }

void shim_async_wait(int groups_in_flight) {
  Fiber& f = fibers[current];
  for (; f.first_copy < f.num_copies; ++f.first_copy) {
    const Copy& c = f.copies[f.first_copy];
    if (int(f.group - c.group) <= groups_in_flight) break;
    arrive(c);
    if (shim_traced) mark_in_flight(*region_of(shared_arena + c.to, 0), shared_arena + c.to, c.bytes, false);
  }
}

#define SHIM_ATOMIC(type, name)                              \
  type shim_atomic_add_##name(type* address, type value) {   \
    if (shim_traced) atomic_access(address, sizeof(type));   \
    type old = *address;                                     \
    *address = old + value;                                  \
    return old;                                              \
  }
SHIM_ATOMIC(float, float)
SHIM_ATOMIC(int, int)
SHIM_ATOMIC(unsigned, unsigned)

void shim_misaligned(const void* pointer, int bytes) {
  Region* r = region_of(pointer, GUARD / 2);
  fail("misaligned address: thread %d of block %u accesses %d bytes at byte %td of %s", current, blockIdx.x, bytes,
       r ? static_cast<const char*>(pointer) - r->begin : 0, r ? r->name : "a local array");
}

void shim_trap(const char* message) { fail("thread %d of block %u: %s", current, blockIdx.x, message); }
}

int main(int argc, char** argv) {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody waits for the answer
#endif
  page = size_t(sysconf(_SC_PAGESIZE));
  int fd = atoi(argv[1]);
  launch = atoi(argv[2]);
  order = atoi(argv[3]);
  poison = order & 1 ? 0x7f : 0xff;
  memset(shim_poison, poison, sizeof shim_poison);
  seed = strtoull(argv[4], nullptr, 10);
  gridDim.x = unsigned(atoi(argv[5]));
  num_threads = atoi(argv[6]);
  blockDim.x = unsigned(num_threads);
  unsigned first = unsigned(atoi(argv[7])), stride = unsigned(atoi(argv[8]));
  dynamic_bytes = strtoull(argv[9], nullptr, 10);
  granule = atoi(argv[10]);
  if (num_threads < 1 || num_threads > MAX_THREADS) fail("%d threads a block, expected 1 to %d", num_threads, MAX_THREADS);
  size_t bytes = SHARED_SPACE;
  for (int i = 11; i + 3 < argc; i += 4) bytes += strtoull(argv[i + 1], nullptr, 10) + 2 * GUARD;
  void* reserved = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail("no address space for %zu bytes", bytes);
  shared_arena = shared_next = arena = static_cast<char*>(reserved);
  arena_end = arena + bytes;
  arena_next = arena + SHARED_SPACE;
  static void* pointers[MAX_ARRAYS];
  int n = 0;
  for (int i = 11; i + 3 < argc; i += 4)
    pointers[n++] = new_region(argv[i], strtoull(argv[i + 1], nullptr, 10), arena_next, fd,
                               strtoull(argv[i + 2], nullptr, 10), argv[i + 3][0] == '1')->begin;
  arguments = pointers;
  static char alternate[65536];
  stack_t stack = {};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  for (int number : numbers) sigaction(number, &action, nullptr);
  for (unsigned block = first; block < gridDim.x; block += stride) {
    blockIdx.x = block;
    run_block();
    check_slack();
  }
  printf("%ld\n", num_barriers);
  return 0;
}
