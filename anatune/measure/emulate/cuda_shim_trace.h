// Every access of a kernel that was compiled with -fsanitize=thread: bounds, alignment, unwritten memory, races.
// A thread's own arrays, which may lie in registers, have bounds only: -fsanitize=bounds asks before each index.
#pragma once
#include "cuda_shim_state.h"

namespace {

constexpr uint32_t IN_FLIGHT = 0xffffffffu;
constexpr uint16_t SEVERAL = 0xffff;
constexpr uint32_t ATOMIC = 0xffffffffu;

bool in_order(uint32_t when, uint16_t who, uint32_t warp_when) {  // before the running thread's present access?
  if (when != epoch || who == current) return true;
  return who != SEVERAL && who / 32 == current / 32 && warp_when != warp_epochs[current / 32];
}

void shared_access(Region& r, const char* at, size_t bytes, bool writes) {
  size_t first = size_t(at - r.begin) / size_t(granule), last = size_t(at + bytes - 1 - r.begin) / size_t(granule);
  for (size_t i = first; i <= last; ++i) {
    Cell& c = r.cells[i];
    size_t where = i * size_t(granule);
    if (c.written == IN_FLIGHT)
      fail("thread %d of block %u %s byte %zu of %s while an asynchronous copy of thread %d into it is in flight",
           current, blockIdx.x, writes ? "writes" : "reads", where, r.name, c.writer);
    if (!writes && c.written < block_epoch)
      fail("thread %d of block %u reads byte %zu of %s, which nothing has written yet", current, blockIdx.x, where, r.name);
    if (!in_order(c.written, c.writer, c.warp_written))
      fail("race in block %u: thread %d %s byte %zu of %s, which thread %d wrote, without a barrier between them",
           blockIdx.x, current, writes ? "writes" : "reads", where, r.name, c.writer);
    if (writes && c.read >= block_epoch && !in_order(c.read, c.reader, c.warp_read)) {
      char who[32] = "other threads";
      if (c.reader != SEVERAL) snprintf(who, sizeof who, "thread %d", c.reader);
      fail("race in block %u: thread %d writes byte %zu of %s, which %s read, without a barrier between them",
           blockIdx.x, current, where, r.name, who);
    }
    uint16_t me = uint16_t(current);
    if (writes) {
      c.written = epoch;
      c.writer = me;
      c.warp_written = warp_epochs[current / 32];
    } else {
      bool another = c.read == epoch && c.reader != me && !in_order(c.read, c.reader, c.warp_read);
      c.read = epoch;
      c.reader = another ? SEVERAL : me;
      c.warp_read = warp_epochs[current / 32];
    }
  }
}

void result_access(Region& r, const char* at, size_t bytes, bool writes) {
  size_t first = size_t(at - r.begin) / size_t(granule), last = size_t(at + bytes - 1 - r.begin) / size_t(granule);
  uint32_t me = blockIdx.x * uint32_t(MAX_THREADS) + uint32_t(current) + 1;
  for (size_t i = first; i <= last; ++i) {
    uint32_t& writer = r.writers[i];
    if (writer != me && (writer || !writes)) {
      if (!writer)
        fail("thread %d of block %u reads byte %zu of %s, which nothing has written yet", current, blockIdx.x,
             i * size_t(granule), r.name);
      if (writer == ATOMIC)
        fail("race: thread %d of block %u %s byte %zu of %s, which is changed by atomics, too", current, blockIdx.x,
             writes ? "writes" : "reads", i * size_t(granule), r.name);
      fail("race: thread %d of block %u %s byte %zu of %s, which thread %u of block %u wrote", current, blockIdx.x,
           writes ? "writes" : "reads", i * size_t(granule), r.name, (writer - 1) % MAX_THREADS,
           (writer - 1) / MAX_THREADS);
    }
    writer = me;
  }
}

// What an earlier launch left is there; the order of atomics among each other is nobody's.
void atomic_access(const void* address, size_t bytes) {
  const char* at = static_cast<const char*>(address);
  Region* r = region_of(at, 0);
  if (!r || at < r->begin || at + bytes > r->end) outside("adds to", at, int(bytes));
  if (r->shared) fail("thread %d of block %u adds to shared memory atomically: the emulator lacks this", current, blockIdx.x);
  if (!r->writable) outside("adds to", at, int(bytes));
  if (reinterpret_cast<uintptr_t>(at) % bytes)
    fail("misaligned address: thread %d of block %u adds to %zu bytes at byte %td of %s", current, blockIdx.x, bytes,
         at - r->begin, r->name);
  for (size_t i = size_t(at - r->begin) / size_t(granule); i <= size_t(at + bytes - 1 - r->begin) / size_t(granule); ++i) {
    if (r->writers[i] && r->writers[i] != ATOMIC)
      fail("race: thread %d of block %u adds to byte %zu of %s, which thread %u of block %u wrote", current, blockIdx.x,
           i * size_t(granule), r->name, (r->writers[i] - 1) % MAX_THREADS, (r->writers[i] - 1) / MAX_THREADS);
    r->writers[i] = ATOMIC;
  }
}

inline void access(const void* address, size_t bytes, bool writes, size_t alignment) {
  const char* at = static_cast<const char*>(address);
  if (at < arena || at >= arena_end || current < 0) return;  // a local array
  Region* r = nullptr;
  for (int i = 0; i < num_regions; ++i)
    if (at >= regions[i].begin && at + bytes <= regions[i].end) r = &regions[i];
  if (!r) outside(writes ? "writes" : "reads", at, int(bytes));
  if (reinterpret_cast<uintptr_t>(at) & (alignment - 1))
    fail("misaligned address: thread %d of block %u %s %zu bytes at byte %td of %s", current, blockIdx.x,
         writes ? "writes" : "reads", bytes, at - r->begin, r->name);
  if (r->shared) shared_access(*r, at, bytes, writes);
  else if (writes && !r->writable) outside("writes", at, int(bytes));
  else if (r->writable) result_access(*r, at, bytes, writes);
}

}  // namespace

extern "C" {
#define ACCESS(n)                                                                              \
  void __tsan_read##n(void* p) { access(p, n, false, n); }                                     \
  void __tsan_write##n(void* p) { access(p, n, true, n); }                                     \
  void __tsan_unaligned_read##n(void* p) { access(p, n, false, 1); }                           \
  void __tsan_unaligned_write##n(void* p) { access(p, n, true, 1); }                           \
  void __tsan_volatile_read##n(void* p) { access(p, n, false, n); }                            \
  void __tsan_volatile_write##n(void* p) { access(p, n, true, n); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_read_range(void* p, size_t n) { access(p, n, false, 1); }
void __tsan_write_range(void* p, size_t n) { access(p, n, true, 1); }
struct Place { const char* file; uint32_t line, column; };
void __ubsan_handle_out_of_bounds(void* place, uintptr_t index) {  // there is no UBSan behind it, either
  fail("thread %d of block %u has index %lld outside of its own array in line %u of the kernel", current, blockIdx.x,
       static_cast<long long>(index), static_cast<Place*>(place)->line);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void* __tsan_memcpy(void* to, const void* from, size_t n) { access(from, n, false, 1); access(to, n, true, 1); return memcpy(to, from, n); }
void* __tsan_memset(void* to, int value, size_t n) { access(to, n, true, 1); return memset(to, value, n); }
}
