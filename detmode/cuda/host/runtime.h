// The host runner: what CUDA C++ gives a kernel, for g++ or clang++ on a CPU.
//
// A .cu file and its includes are compiled after this header, inside the same unnamed namespace, so
// that overloads meet as they do in CUDA and every static variable belongs to one object file.
//
// Each CUDA thread runs on a fiber's stack until it blocks. A thread that never blocks costs a
// function call; its stack goes on to the next thread. Blocks run one after another.
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define DETMODE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DETMODE_ASAN 1
#endif
#endif
#ifndef DETMODE_ASAN
#define DETMODE_ASAN 0
#endif
#ifndef DETMODE_RACES
#define DETMODE_RACES 0
#endif

#if DETMODE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Switching stacks saves what the C calling convention asks a function to keep, and nothing else.
// The symbols are local to this object: several of them live in one process.
#if defined(DETMODE_UCONTEXT)
#include <ucontext.h>
#elif defined(__x86_64__) && defined(__linux__)
#define DETMODE_UCONTEXT 0
extern "C" __attribute__((visibility("hidden"))) void detmode_switch_stack(void** from, void* to);
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".local detmode_switch_stack\n"
    ".type detmode_switch_stack,@function\n"
    "detmode_switch_stack:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size detmode_switch_stack,.-detmode_switch_stack\n");
#elif defined(__aarch64__) && defined(__linux__)
#define DETMODE_UCONTEXT 0
extern "C" __attribute__((visibility("hidden"))) void detmode_switch_stack(void** from, void* to);
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".local detmode_switch_stack\n"
    ".type detmode_switch_stack,%function\n"
    "detmode_switch_stack:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n"
    "  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n"
    "  ldp x21, x22, [sp, #16]\n"
    "  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size detmode_switch_stack,.-detmode_switch_stack\n");
#else
#define DETMODE_UCONTEXT 1
#include <ucontext.h>
#endif

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static
// Shared variables are the library's thread-local ones, and nothing else is: one piece of memory,
// so that each block can start with all of them poisoned. AddressSanitizer would not guard those.
#if defined(__ELF__) && !DETMODE_ASAN
#define DETMODE_FINDS_SHARED 1
#define __shared__ static thread_local
#include <link.h>
#else
#define DETMODE_FINDS_SHARED 0
#define __shared__ static
#endif

namespace {

struct uint3 {
  unsigned int x, y, z;
};
struct dim3 {
  unsigned int x, y, z;
  dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
};

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;
constexpr int warpSize = 32;

namespace detmode_host {

typedef unsigned long long u64;
typedef unsigned int u32;

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = DETMODE_ASAN ? size_t(512) << 10 : size_t(128) << 10;
constexpr size_t GUARD_BYTES = 4096;
// A NaN as half, bfloat16, float and double; an absurd integer; not a likely thing to write.
constexpr unsigned short POISON = 0xfff5;

enum Status { OK = 0, LAUNCH_ERROR = 1, DEVICE_ASSERT = 2 };

struct Fiber {
#if DETMODE_UCONTEXT
  ucontext_t context;
#else
  void* sp;
#endif
  char* stack;
  size_t stack_bytes;
  int thread;
#if DETMODE_ASAN
  void* fake_stack;
#endif
};

enum Collective { SHUFFLE, BALLOT, ANY, ALL, MATCH_ANY, SYNC_WARP };

struct Lane {
  u64 value;
  u64 result;
  int source;
  u32 mask;
  int kind;
  int line;
  Fiber* fiber;
};

struct Warp {
  u32 exists;
  u32 arrived;
  u32 exited;
  Lane lanes[32];
};

typedef void (*Call)(void** slots);

struct Entry {
  const char* name;
  Call call;
  const char* kinds;
};

struct Buffer {
  const char* data;
  long long bytes;
  int writable;
  char* memory;
  char* copy;
};
// A buffer's number, or WORD where `value` is the argument, STRUCT where it is its address.
enum { WORD = -1, STRUCT = -2 };
struct Argument {
  u64 value;
  int buffer;
  long long offset;
};
struct Launch {
  const Entry* entry;
  const u32* grid;
  const u32* block;
  long long shared_bytes;
  const Argument* arguments;
  int n_arguments;
  Buffer* buffers;
  const int* positions;
  int n_buffers;
  int shuffled;
  u64 seed;
  char* message;
  int message_bytes;
};

struct State {
  Call call;
  void** slots;
  Fiber* current;
  Fiber main;
  Fiber fibers[MAX_THREADS];
  int n_fibers;
  Fiber* free[MAX_THREADS];
  int n_free;
  int n_threads;
  int started;
  int exited;
  int order[MAX_THREADS];
  uint3 index[MAX_THREADS];
  Fiber* ready[MAX_THREADS];
  u32 ready_head;
  u32 ready_tail;
  bool shuffled;
  u64 random;
  long until_switch;
  Fiber* barrier[MAX_THREADS];
  int barrier_arrived;
  int barrier_kind;
  int barrier_line;
  int barrier_count;
  int barrier_result;
  Warp warps[MAX_THREADS / 32];
  bool uses_warps;
  unsigned char* dynamic_shared;
  char* shared;
  size_t shared_bytes;
  int status;
  char* message;
  int message_bytes;
  bool running;
  pthread_t os_thread;
  sigjmp_buf escape;
#if DETMODE_ASAN
  Fiber* previous;
#endif
};

State S;

inline u64 next_random() {
  u64 x = S.random;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  S.random = x;
  return x * 0x2545f4914f6cdd1dull;
}
inline u32 random_below(u32 n) { return static_cast<u32>(((next_random() >> 32) * n) >> 32); }

inline u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void fiber_main();

#if DETMODE_ASAN
// Tells ASan that this stack runs now; the stack that was left may be the OS thread's, whose bounds
// only ASan knows.
inline void arrive(void* fake_stack) {
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
  if (S.previous == &S.main) {
    S.main.stack = static_cast<char*>(const_cast<void*>(bottom));
    S.main.stack_bytes = bytes;
  }
}
#endif

inline void switch_to(Fiber* to) {
  Fiber* from = S.current;
  S.current = to;
#if DETMODE_ASAN
  S.previous = from;
  __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#if DETMODE_UCONTEXT
  swapcontext(&from->context, &to->context);
#else
  detmode_switch_stack(&from->sp, to->sp);
#endif
#if DETMODE_ASAN
  arrive(from->fake_stack);
#endif
}

void fiber_start() {
#if DETMODE_ASAN
  arrive(nullptr);
#endif
  fiber_main();
}

// Points the fiber at the beginning of fiber_start, on an empty stack.
void reset_fiber(Fiber* fiber) {
#if DETMODE_ASAN
  fiber->fake_stack = nullptr;
  __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
#endif
#if DETMODE_UCONTEXT
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = fiber->stack_bytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_start, 0);
#else
  // Stacks that all begin at one offset of a page would share a few sets of the CPU's caches.
  size_t color = static_cast<size_t>(fiber - S.fibers) * 192 % 16384;
  void** top = reinterpret_cast<void**>(fiber->stack + fiber->stack_bytes - color);
#if defined(__x86_64__)
  // fiber_start finds the stack as after a call: 8 bytes past a multiple of 16.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_start);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(&fiber_start);
#endif
  fiber->sp = top;
#endif
}

Fiber* take_fiber() {
  if (S.n_free > 0) return S.free[--S.n_free];
  Fiber* fiber = &S.fibers[S.n_fibers++];
  // One page below the stack stays without access: an overflow faults instead of writing elsewhere.
  constexpr size_t page = 4096 * 16;
  char* memory = static_cast<char*>(mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(memory, page, PROT_NONE);
  fiber->stack = memory + page;
  fiber->stack_bytes = STACK_BYTES;
  reset_fiber(fiber);
  return fiber;
}

inline void fail(int status, const char* format, ...) __attribute__((format(printf, 2, 3)));
inline void fail(int status, const char* format, ...) {
  if (S.status != OK) return;
  S.status = status;
  __builtin_va_list arguments;
  __builtin_va_start(arguments, format);
  __builtin_vsnprintf(S.message, static_cast<size_t>(S.message_bytes), format, arguments);
  __builtin_va_end(arguments);
}

// Leaves the launch from any fiber; the fibers' stacks are reset before the next one.
[[noreturn]] inline void abandon() {
  switch_to(&S.main);
  __builtin_unreachable();
}

}  // namespace detmode_host
}  // namespace

#if DETMODE_RACES
#include "races.h"
#endif

namespace {
namespace detmode_host {

inline void push_ready(Fiber* fiber) { S.ready[S.ready_tail++ % MAX_THREADS] = fiber; }
inline u32 n_ready() { return S.ready_tail - S.ready_head; }
inline Fiber* pop_ready() {
  u32 count = n_ready();
  u32 head = S.ready_head++ % MAX_THREADS;
  if (S.shuffled && count > 1) {
    u32 pick = (head + random_below(count)) % MAX_THREADS;
    Fiber* fiber = S.ready[pick];
    S.ready[pick] = S.ready[head];
    return fiber;
  }
  return S.ready[head];
}

inline bool prefer_ready() {
  return n_ready() > 0 && (S.started == S.n_threads || !S.shuffled || (next_random() >> 63) != 0);
}

void describe_deadlock() {
  int returned = -1;
  if (S.barrier_arrived > 0) {
    bool waits[MAX_THREADS] = {};
    for (int i = 0; i < S.barrier_arrived; ++i) waits[S.barrier[i]->thread] = true;
    for (int t = 0; t < S.n_threads && returned < 0; ++t) {
      bool in_warp = false;
      const Warp& warp = S.warps[t / 32];
      if (S.uses_warps) in_warp = (warp.arrived >> (t % 32)) & 1u;
      if (!waits[t] && !in_warp) returned = t;
    }
    uint3 at = S.index[S.barrier[0]->thread];
    fail(
        LAUNCH_ERROR,
        "barrier divergence: in block (%u, %u, %u) %d of %d threads wait at the __syncthreads() of "
        "line %d, thread (%u, %u, %u) among them, and the others (thread %d, say) have returned "
        "or wait elsewhere; every thread of a block must reach it",
        blockIdx.x, blockIdx.y, blockIdx.z, S.barrier_arrived, S.n_threads, S.barrier_line, at.x,
        at.y, at.z, returned);
    return;
  }
  for (int w = 0; w * 32 < S.n_threads; ++w) {
    const Warp& warp = S.warps[w];
    if (warp.arrived == 0) continue;
    const Lane& lane = warp.lanes[__builtin_ctz(warp.arrived)];
    fail(LAUNCH_ERROR,
         "warp divergence: in block (%u, %u, %u), warp %d, lanes %#x wait at the warp operation of "
         "line %d for the mask %#x, and lanes %#x have returned; every lane of the mask must reach "
         "it",
         blockIdx.x, blockIdx.y, blockIdx.z, w, warp.arrived, lane.line, lane.mask, warp.exited);
    return;
  }
}

// What runs next when the current fiber cannot go on.
Fiber* next_fiber() {
  if (prefer_ready()) return pop_ready();
  if (S.started < S.n_threads) return take_fiber();
  if (S.exited < S.n_threads) describe_deadlock();
  return &S.main;
}

inline void set_thread(int thread) { threadIdx = S.index[thread]; }

void fiber_main() {
  for (;;) {
    while (S.started < S.n_threads && !(n_ready() > 0 && prefer_ready())) {
      int thread = S.order[S.started++];
      S.current->thread = thread;
      set_thread(thread);
      S.call(S.slots);
      ++S.exited;
      if (S.uses_warps) {
        thread = S.current->thread;
        S.warps[thread / 32].exited |= 1u << (thread % 32);
      }
    }
    // This stack is free, and may be the very one that starts the next thread.
    S.free[S.n_free++] = S.current;
    Fiber* to = next_fiber();
    if (to != S.current) switch_to(to);
  }
}

// The current thread waits until someone makes it ready.
inline void block() {
  switch_to(next_fiber());
  set_thread(S.current->thread);
}
inline void yield() {
  push_ready(S.current);
  Fiber* to = next_fiber();
  if (to != S.current) switch_to(to);
  set_thread(S.current->thread);
}

// An atomic is where another thread's order can show, so with a seed some of them let others run.
__attribute__((noinline)) void switch_at_atomic() {
  if (!S.shuffled) {
    S.until_switch = 1l << 60;
    return;
  }
  S.until_switch = 1 + static_cast<long>(random_below(64));
  yield();
}
inline void atomic_point() {
  if (__builtin_expect(--S.until_switch <= 0, 0)) switch_at_atomic();
}

enum Barrier { BARRIER, BARRIER_COUNT, BARRIER_AND, BARRIER_OR };

__attribute__((noinline)) int block_barrier(int kind, bool predicate, int line) {
  if (S.barrier_arrived == 0) {
    S.barrier_kind = kind;
    S.barrier_line = line;
    S.barrier_count = 0;
  } else if (S.barrier_kind != kind || S.barrier_line != line) {
    fail(
        LAUNCH_ERROR,
        "barrier divergence: in block (%u, %u, %u) thread (%u, %u, %u) reached the __syncthreads() "
        "of line %d while others wait at the one of line %d; every thread of a block must reach "
        "the same one",
        blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, line,
        S.barrier_line);
    abandon();
  }
  S.barrier_count += predicate ? 1 : 0;
  S.barrier[S.barrier_arrived++] = S.current;
  if (S.barrier_arrived == S.n_threads) {
    S.barrier_arrived = 0;
#if DETMODE_RACES
    order_block();
#endif
    int count = S.barrier_count;
    S.barrier_result = kind == BARRIER_COUNT ? count
                       : kind == BARRIER_AND ? count == S.n_threads
                                             : count > 0;
    for (int i = 0; i < S.n_threads; ++i) push_ready(S.barrier[i]);
    Fiber* to = pop_ready();
    if (to != S.current) switch_to(to);
    set_thread(S.current->thread);
  } else {
    block();
  }
  // Read before anyone can complete the next barrier: that needs this thread's arrival.
  return S.barrier_result;
}

void complete_collective(Warp& warp, u32 mask, int kind) {
  u64 shared = 0;
  if (kind == BALLOT || kind == ANY || kind == ALL) {
    u32 ballot = 0;
    for (int l = 0; l < 32; ++l) {
      if (((mask >> l) & 1u) && warp.lanes[l].value != 0) ballot |= 1u << l;
    }
    shared = kind == BALLOT ? ballot : kind == ANY ? ballot != 0 : ballot == mask;
  }
  for (int l = 0; l < 32; ++l) {
    if (!((mask >> l) & 1u)) continue;
    Lane& lane = warp.lanes[l];
    if (kind == SHUFFLE) {
      // A lane outside the mask has no value to give; CUDA leaves the result undefined.
      lane.result =
          ((mask >> lane.source) & 1u) ? warp.lanes[lane.source].value : 0xfff5fff5fff5fff5ull;
    } else if (kind == MATCH_ANY) {
      u32 equal = 0;
      for (int m = 0; m < 32; ++m) {
        if (((mask >> m) & 1u) && warp.lanes[m].value == lane.value) equal |= 1u << m;
      }
      lane.result = equal;
    } else {
      lane.result = shared;
    }
  }
}

__attribute__((noinline)) u64 collective(int kind, u32 mask, u64 value, int source, int line) {
  if (!S.uses_warps) {
    S.uses_warps = true;
    // The threads that ended before the first warp operation of this block are not known yet.
    for (int w = 0; w * 32 < S.n_threads; ++w) S.warps[w].exited = 0;
    bool waits[MAX_THREADS] = {};
    for (int i = 0; i < S.barrier_arrived; ++i) waits[S.barrier[i]->thread] = true;
    for (u32 i = 0; i < n_ready(); ++i) {
      waits[S.ready[(S.ready_head + i) % MAX_THREADS]->thread] = true;
    }
    waits[S.current->thread] = true;
    for (int i = 0; i < S.started; ++i) {
      int t = S.order[i];
      if (!waits[t]) S.warps[t / 32].exited |= 1u << (t % 32);
    }
  }
  int thread = S.current->thread;
  int own = thread % 32;
  Warp& warp = S.warps[thread / 32];
  mask &= warp.exists;
  if (!((mask >> own) & 1u)) {
    fail(LAUNCH_ERROR,
         "warp divergence: lane %d calls a warp operation with the mask %#x (line %d)", own, mask,
         line);
    abandon();
  }
  if (mask & warp.exited) {
    fail(LAUNCH_ERROR,
         "warp divergence: in block (%u, %u, %u), warp %d, lanes %#x of the mask %#x have returned "
         "before the warp operation of line %d",
         blockIdx.x, blockIdx.y, blockIdx.z, thread / 32, mask & warp.exited, mask, line);
    abandon();
  }
  for (u32 others = warp.arrived & mask; others != 0; others &= others - 1) {
    const Lane& other = warp.lanes[__builtin_ctz(others)];
    if (other.mask != mask || other.kind != kind || other.line != line) {
      fail(LAUNCH_ERROR,
           "warp divergence: lane %d is at the warp operation of line %d with mask %#x, lane %d at "
           "line %d with mask %#x",
           own, line, mask, __builtin_ctz(others), other.line, other.mask);
      abandon();
    }
  }
  Lane& lane = warp.lanes[own];
  lane.value = value;
  lane.source = source;
  lane.mask = mask;
  lane.kind = kind;
  lane.line = line;
  lane.fiber = S.current;
  warp.arrived |= 1u << own;
  if ((warp.arrived & mask) != mask) {
    block();
    return lane.result;
  }
  warp.arrived &= ~mask;
  complete_collective(warp, mask, kind);
#if DETMODE_RACES
  if (kind == SYNC_WARP) order_warp(thread / 32, mask);
#endif
  u64 result = lane.result;
  for (int l = 0; l < 32; ++l) {
    if (((mask >> l) & 1u) && l != own) push_ready(warp.lanes[l].fiber);
  }
  if (S.shuffled && n_ready() > 0) yield();
  return result;
}

inline void assert_failed(const char* condition, const char* file, int line) {
  fail(DEVICE_ASSERT, "%s:%d: block (%u, %u, %u), thread (%u, %u, %u): assertion `%s` failed", file,
       line, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, condition);
  abandon();
}

// Trampolines: an array of pointers to the arguments becomes a typed call.

template <typename T, typename U>
struct same_type {
  static constexpr bool value = false;
};
template <typename T>
struct same_type<T, T> {
  static constexpr bool value = true;
};

template <typename T>
struct unqualified {
  using type = T;
};
template <typename T>
struct unqualified<const T> {
  using type = T;
};

// One character for the dtype behind a pointer; the launcher compares it with the tensor's dtype.
// The structs of dtype.cuh carry theirs; another struct, or void, takes any tensor.
template <typename T, typename = void>
struct Element {
  static constexpr char code = '*';
};
template <typename T>
struct Element<T, decltype(static_cast<void>(T::detmode_code))> {
  static constexpr char code = T::detmode_code;
};
#define DETMODE_ELEMENT(T, character)       \
  template <>                               \
  struct Element<T> {                       \
    static constexpr char code = character; \
  };
DETMODE_ELEMENT(bool, '?')
DETMODE_ELEMENT(signed char, 'b')
DETMODE_ELEMENT(unsigned char, 'B')
DETMODE_ELEMENT(short, 'h')
DETMODE_ELEMENT(unsigned short, 'H')
DETMODE_ELEMENT(int, 'i')
DETMODE_ELEMENT(unsigned int, 'I')
DETMODE_ELEMENT(long long, 'q')
DETMODE_ELEMENT(unsigned long long, 'Q')
DETMODE_ELEMENT(float, 'f')
DETMODE_ELEMENT(double, 'd')
#undef DETMODE_ELEMENT

// Of what is not listed below, a struct may be passed: by value, as the launcher packed it.
template <typename T>
struct Kind {
  static constexpr bool known = __is_class(T) && __is_trivially_copyable(T);
  static constexpr char text[2] = {'s', ' '};
};
template <>
struct Kind<bool> {
  static constexpr bool known = true;
  static constexpr char text[2] = {'b', ' '};
};
template <>
struct Kind<long long> {
  static constexpr bool known = true;
  static constexpr char text[2] = {'i', ' '};
};
template <>
struct Kind<double> {
  static constexpr bool known = true;
  static constexpr char text[2] = {'d', ' '};
};
template <typename T>
struct Kind<T*> {
  static constexpr bool known = true;
  static constexpr char text[2] = {'p', Element<T>::code};
};
template <typename T>
struct Kind<const T*> {
  static constexpr bool known = true;
  static constexpr char text[2] = {'c', Element<T>::code};
};

template <size_t... I>
struct Indices {};
template <size_t n, size_t... I>
struct MakeIndices : MakeIndices<n - 1, n - 1, I...> {};
template <size_t... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

template <auto kernel>
struct Trampoline;
template <typename... P, void (*kernel)(P...)>
struct Trampoline<kernel> {
  static_assert(
      (Kind<typename unqualified<P>::type>::known && ...),
      "a kernel's scalar parameters are int64_t, double or bool, and its other parameters "
      "are pointers and plain structs");
  template <size_t... I>
  static __forceinline__ void unpack(void** slots, Indices<I...>) {
    kernel(*static_cast<typename unqualified<P>::type*>(slots[I])...);
  }
  static void call(void** slots) { unpack(slots, typename MakeIndices<sizeof...(P)>::type()); }
  struct Kinds {
    char text[2 * sizeof...(P) + 1];
  };
  static constexpr Kinds make_kinds() {
    Kinds kinds = {};
    size_t n = 0;
    ((kinds.text[n++] = Kind<typename unqualified<P>::type>::text[0],
      kinds.text[n++] = Kind<typename unqualified<P>::type>::text[1]),
     ...);
    return kinds;
  }
  static constexpr Kinds kinds = make_kinds();
};

// One launch.

// What guard zones hold; memcpy of it also fills larger memory.
char poison[GUARD_BYTES];

inline void fill_poison(char* memory, size_t bytes) {
  for (; bytes > GUARD_BYTES; bytes -= GUARD_BYTES, memory += GUARD_BYTES) {
    __builtin_memcpy(memory, poison, GUARD_BYTES);
  }
  __builtin_memcpy(memory, poison, bytes);
}

void guard_buffer(Buffer& buffer) {
  size_t bytes = static_cast<size_t>(buffer.bytes);
  // The copy keeps the alignment of the original, up to a cache line: a kernel may branch on it.
  size_t alignment = reinterpret_cast<size_t>(buffer.data) % 64;
  buffer.memory = static_cast<char*>(__builtin_malloc(bytes + 2 * GUARD_BYTES + 128));
  size_t base = (reinterpret_cast<size_t>(buffer.memory) + 63) / 64 * 64;
  char* before = reinterpret_cast<char*>(base + alignment);
  buffer.copy = before + GUARD_BYTES;
  __builtin_memcpy(before, poison, GUARD_BYTES);
  __builtin_memcpy(buffer.copy, buffer.data, bytes);
  __builtin_memcpy(buffer.copy + bytes, poison, GUARD_BYTES);
#if DETMODE_ASAN
  __asan_poison_memory_region(before, GUARD_BYTES);
  __asan_poison_memory_region(buffer.copy + bytes, GUARD_BYTES);
#endif
}

void check_buffer(Buffer& buffer, int position) {
  size_t bytes = static_cast<size_t>(buffer.bytes);
  char* before = buffer.copy - GUARD_BYTES;
  char* after = buffer.copy + bytes;
#if DETMODE_ASAN
  __asan_unpoison_memory_region(before, GUARD_BYTES);
  __asan_unpoison_memory_region(after, GUARD_BYTES);
#endif
  if (__builtin_memcmp(after, poison, GUARD_BYTES) != 0) {
    size_t i = 0;
    while (after[i] == poison[i]) ++i;
    fail(LAUNCH_ERROR, "argument %d: out-of-bounds write %zu bytes after the end of its %zu bytes",
         position, i, bytes);
  }
  if (__builtin_memcmp(before, poison, GUARD_BYTES) != 0) {
    size_t i = GUARD_BYTES - 1;
    while (before[i] == poison[i]) --i;
    fail(LAUNCH_ERROR, "argument %d: out-of-bounds write %zu bytes before its start", position,
         GUARD_BYTES - i);
  }
  if (!buffer.writable && __builtin_memcmp(buffer.copy, buffer.data, bytes) != 0) {
    size_t i = 0;
    while (buffer.copy[i] == buffer.data[i]) ++i;
    fail(LAUNCH_ERROR, "argument %d: write into a const input, at byte %zu of %zu", position, i,
         bytes);
  }
}

#if DETMODE_FINDS_SHARED
thread_local char shared_anchor;
ptrdiff_t anchor_offset;

int find_shared(dl_phdr_info* info, size_t, void*) {
  const char* begin = static_cast<const char*>(info->dlpi_tls_data);
  for (int i = 0; begin != nullptr && i < info->dlpi_phnum; ++i) {
    size_t bytes = info->dlpi_phdr[i].p_memsz;
    ptrdiff_t offset = &shared_anchor - begin;
    if (info->dlpi_phdr[i].p_type != PT_TLS || offset < 0 || offset >= ptrdiff_t(bytes)) continue;
    S.shared_bytes = bytes;
    anchor_offset = offset;
    return 1;
  }
  return 0;
}
#endif

void run_block() {
  S.started = 0;
  S.exited = 0;
  S.ready_head = S.ready_tail = 0;
  S.barrier_arrived = 0;
  S.uses_warps = false;
  if (S.shuffled) {
    for (u32 i = static_cast<u32>(S.n_threads); i > 1; --i) {
      u32 j = random_below(i);
      int swapped = S.order[i - 1];
      S.order[i - 1] = S.order[j];
      S.order[j] = swapped;
    }
  }
  for (int w = 0; w * 32 < S.n_threads; ++w) S.warps[w].arrived = 0;
  if (S.shared_bytes > 0) fill_poison(S.shared, S.shared_bytes);
#if DETMODE_RACES
  begin_block(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  R.on = true;
#endif
  switch_to(take_fiber());
#if DETMODE_RACES
  R.on = false;
#endif
}

void set_block(u64 linear) {
  blockIdx.x = static_cast<u32>(linear % gridDim.x);
  linear /= gridDim.x;
  blockIdx.y = static_cast<u32>(linear % gridDim.y);
  blockIdx.z = static_cast<u32>(linear / gridDim.y);
}

void run_blocks(const Launch& launch) {
  u64 n_blocks = u64(gridDim.x) * gridDim.y * gridDim.z;
  u32* order = nullptr;
  if (S.shuffled && n_blocks > 1) {
    order = static_cast<u32*>(__builtin_malloc(n_blocks * sizeof(u32)));
    for (u64 i = 0; i < n_blocks; ++i) order[i] = static_cast<u32>(i);
    for (u64 i = n_blocks; i > 1; --i) {
      u32 j = random_below(static_cast<u32>(i));
      u32 swapped = order[i - 1];
      order[i - 1] = order[j];
      order[j] = swapped;
    }
  }
  size_t shared = static_cast<size_t>(launch.shared_bytes);
  for (u64 b = 0; b < n_blocks && S.status == OK; ++b) {
    set_block(order != nullptr ? order[b] : b);
    if (shared > 0) fill_poison(reinterpret_cast<char*>(S.dynamic_shared), shared);
    run_block();
  }
  __builtin_free(order);
}

#if !DETMODE_ASAN
// A fault in a kernel ends the launch, not the process. Under ASan, ASan reports it.

constexpr int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction former_actions[3];
char signal_stack[64 << 10];

void on_fault(int number, siginfo_t* info, void*) {
  if (!S.running || !pthread_equal(pthread_self(), S.os_thread)) {
    // Not ours: with the former action back, the faulting instruction runs again.
    for (int i = 0; i < 3; ++i) sigaction(FAULTS[i], &former_actions[i], nullptr);
    return;
  }
  fail(LAUNCH_ERROR, "block (%u, %u, %u), thread (%u, %u, %u): %s%p", blockIdx.x, blockIdx.y,
       blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
       number == SIGFPE ? "integer division by zero or overflow at "
                        : "access to memory that is not there, or a stack overflow, at ",
       info->si_addr);
  siglongjmp(S.escape, 1);
}

void run_guarded(const Launch& launch) {
  stack_t own = {};
  stack_t former_stack = {};
  own.ss_sp = signal_stack;
  own.ss_size = sizeof(signal_stack);
  sigaltstack(&own, &former_stack);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 3; ++i) sigaction(FAULTS[i], &action, &former_actions[i]);
  S.os_thread = pthread_self();
  S.running = true;
  if (sigsetjmp(S.escape, 1) == 0) run_blocks(launch);
  S.running = false;
  for (int i = 0; i < 3; ++i) sigaction(FAULTS[i], &former_actions[i], nullptr);
  if (former_stack.ss_flags & SS_DISABLE) former_stack.ss_size = sizeof(signal_stack);
  sigaltstack(&former_stack, nullptr);
}
#else
void run_guarded(const Launch& launch) { run_blocks(launch); }
#endif

int run(const Launch& launch) {
  S.status = OK;
  S.message = launch.message;
  S.message_bytes = launch.message_bytes;
  S.call = launch.entry->call;
  S.shuffled = launch.shuffled != 0;
  S.random = mix(launch.seed) | 1u;
  S.until_switch = 0;
  gridDim = dim3(launch.grid[0], launch.grid[1], launch.grid[2]);
  blockDim = dim3(launch.block[0], launch.block[1], launch.block[2]);
  S.n_threads = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  for (int t = 0; t < S.n_threads; ++t) {
    u32 linear = static_cast<u32>(t);
    S.order[t] = t;
    S.index[t].x = linear % blockDim.x;
    S.index[t].y = linear / blockDim.x % blockDim.y;
    S.index[t].z = linear / blockDim.x / blockDim.y;
  }
  for (int w = 0; w * 32 < S.n_threads; ++w) {
    int rest = S.n_threads - w * 32;
    S.warps[w].exists = rest >= 32 ? ~0u : (1u << rest) - 1u;
  }
  S.current = &S.main;
  // After a launch that ended all its threads every fiber is free; an abandoned one left some
  // inside a kernel.
  if (S.n_free != S.n_fibers) {
    S.n_free = 0;
    for (int f = 0; f < S.n_fibers; ++f) {
      reset_fiber(&S.fibers[f]);
      S.free[S.n_free++] = &S.fibers[f];
    }
  }
  for (size_t i = 0; i < GUARD_BYTES; i += 2) {
    poison[i] = static_cast<char>(POISON & 0xff);
    poison[i + 1] = static_cast<char>(POISON >> 8);
  }
#if DETMODE_FINDS_SHARED
  if (S.shared_bytes == 0) dl_iterate_phdr(find_shared, nullptr);
  S.shared = &shared_anchor - anchor_offset;
#endif
  size_t shared = static_cast<size_t>(launch.shared_bytes);
  char* shared_memory = static_cast<char*>(__builtin_malloc(shared + 2 * GUARD_BYTES + 16));
  S.dynamic_shared = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<size_t>(shared_memory) + GUARD_BYTES + 15) / 16 * 16);
  __builtin_memcpy(S.dynamic_shared + shared, poison, GUARD_BYTES);
  for (int i = 0; i < launch.n_buffers; ++i) guard_buffer(launch.buffers[i]);
#if DETMODE_RACES
  begin_launch(launch, shared);
#endif

  u64 values[256];
  void* slots[256];
  for (int i = 0; i < launch.n_arguments; ++i) {
    const Argument& argument = launch.arguments[i];
    values[i] = argument.buffer < 0
                    ? argument.value
                    : reinterpret_cast<u64>(launch.buffers[argument.buffer].copy + argument.offset);
    slots[i] = argument.buffer == STRUCT ? reinterpret_cast<void*>(argument.value) : &values[i];
  }
  S.slots = slots;
  run_guarded(launch);
#if DETMODE_RACES
  R.on = false;
  forget_tracked();
#endif

  for (int i = 0; i < launch.n_buffers; ++i) {
    check_buffer(launch.buffers[i], launch.positions[i]);
  }
  if (__builtin_memcmp(S.dynamic_shared + shared, poison, GUARD_BYTES) != 0) {
    fail(LAUNCH_ERROR, "out-of-bounds write after the %zu bytes of dynamic shared memory", shared);
  }
  for (int i = 0; i < launch.n_buffers; ++i) {
    Buffer& buffer = launch.buffers[i];
    if (buffer.writable && S.status == OK) {
      __builtin_memcpy(const_cast<char*>(buffer.data), buffer.copy,
                       static_cast<size_t>(buffer.bytes));
    }
    __builtin_free(buffer.memory);
  }
  __builtin_free(shared_memory);
  return S.status;
}

}  // namespace detmode_host

template <typename T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(detmode_host::S.dynamic_shared);
}

// What CUDA declares for every kernel.

inline void __syncthreads(int line = __builtin_LINE()) {
  detmode_host::block_barrier(detmode_host::BARRIER, false, line);
}
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return detmode_host::block_barrier(detmode_host::BARRIER_COUNT, predicate != 0, line);
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return detmode_host::block_barrier(detmode_host::BARRIER_AND, predicate != 0, line);
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return detmode_host::block_barrier(detmode_host::BARRIER_OR, predicate != 0, line);
}
inline void __syncwarp(unsigned int mask = 0xffffffffu, int line = __builtin_LINE()) {
  detmode_host::collective(detmode_host::SYNC_WARP, mask, 0, 0, line);
}
#if DETMODE_RACES
inline void __threadfence() { detmode_host::order_fence(); }
#else
inline void __threadfence() {}
#endif
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }

#define DETMODE_VOTE(name, type, kind)                                                          \
  inline type name(unsigned int mask, int predicate, int line = __builtin_LINE()) {             \
    return static_cast<type>(                                                                   \
        detmode_host::collective(detmode_host::kind, mask, predicate != 0 ? 1u : 0u, 0, line)); \
  }
DETMODE_VOTE(__ballot_sync, unsigned int, BALLOT)
DETMODE_VOTE(__any_sync, int, ANY)
DETMODE_VOTE(__all_sync, int, ALL)
#undef DETMODE_VOTE

namespace detmode_host {
inline int own_lane() { return S.current->thread % 32; }
template <typename T>
inline T exchange(unsigned int mask, T value, int source, int line) {
  u64 bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = collective(SHUFFLE, mask, bits, source, line);
  T result;
  __builtin_memcpy(&result, &bits, sizeof(T));
  return result;
}
}  // namespace detmode_host

#define DETMODE_SHUFFLE(T)                                                                         \
  inline T __shfl_sync(unsigned int mask, T value, int source, int width = 32,                     \
                       int line = __builtin_LINE()) {                                              \
    int segment = detmode_host::own_lane() / width * width;                                        \
    return detmode_host::exchange(mask, value, segment + (source & (width - 1)), line);            \
  }                                                                                                \
  inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32,          \
                          int line = __builtin_LINE()) {                                           \
    int own = detmode_host::own_lane();                                                            \
    int source = own - static_cast<int>(delta);                                                    \
    return detmode_host::exchange(mask, value, source < own / width * width ? own : source, line); \
  }                                                                                                \
  inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32,        \
                            int line = __builtin_LINE()) {                                         \
    int own = detmode_host::own_lane();                                                            \
    int source = own + static_cast<int>(delta);                                                    \
    return detmode_host::exchange(mask, value, source / width != own / width ? own : source,       \
                                  line);                                                           \
  }                                                                                                \
  inline T __shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32,              \
                           int line = __builtin_LINE()) {                                          \
    int own = detmode_host::own_lane();                                                            \
    int source = own ^ lane_mask;                                                                  \
    return detmode_host::exchange(mask, value, source / width > own / width ? own : source, line); \
  }
DETMODE_SHUFFLE(int)
DETMODE_SHUFFLE(unsigned int)
DETMODE_SHUFFLE(long)
DETMODE_SHUFFLE(unsigned long)
DETMODE_SHUFFLE(long long)
DETMODE_SHUFFLE(unsigned long long)
DETMODE_SHUFFLE(float)
DETMODE_SHUFFLE(double)
#undef DETMODE_SHUFFLE

#define DETMODE_MATCH(T)                                                                          \
  inline unsigned int __match_any_sync(unsigned int mask, T value, int line = __builtin_LINE()) { \
    detmode_host::u64 bits = 0;                                                                   \
    __builtin_memcpy(&bits, &value, sizeof(T));                                                   \
    return static_cast<unsigned int>(                                                             \
        detmode_host::collective(detmode_host::MATCH_ANY, mask, bits, 0, line));                  \
  }
DETMODE_MATCH(int)
DETMODE_MATCH(unsigned int)
DETMODE_MATCH(long long)
DETMODE_MATCH(unsigned long long)
DETMODE_MATCH(float)
DETMODE_MATCH(double)
#undef DETMODE_MATCH

// Atomics, for the types for which CUDA has them. One OS thread runs the whole launch, so a plain
// read and write is atomic.
#if DETMODE_RACES
#define DETMODE_ATOMIC_POINT(address)                                                              \
  detmode_host::note_atomic(address, sizeof(*(address)), true, true, __builtin_return_address(0)); \
  detmode_host::atomic_point()
#define DETMODE_ATOMIC_FUNCTION static DETMODE_UNTRACKED __attribute__((noinline, unused))
#else
#define DETMODE_ATOMIC_POINT(address) detmode_host::atomic_point()
#define DETMODE_ATOMIC_FUNCTION inline
#endif
#define DETMODE_ATOMIC(name, T, result)                 \
  DETMODE_ATOMIC_FUNCTION T name(T* address, T value) { \
    DETMODE_ATOMIC_POINT(address);                      \
    T old = *address;                                   \
    *address = static_cast<T>(result);                  \
    return old;                                         \
  }
#define DETMODE_ATOMIC_ADD(T) DETMODE_ATOMIC(atomicAdd, T, old + value)
DETMODE_ATOMIC(atomicAdd, int, static_cast<unsigned int>(old) + static_cast<unsigned int>(value))
DETMODE_ATOMIC_ADD(unsigned int)
DETMODE_ATOMIC_ADD(unsigned long long)
DETMODE_ATOMIC_ADD(float)
DETMODE_ATOMIC_ADD(double)
DETMODE_ATOMIC(atomicSub, int, static_cast<unsigned int>(old) - static_cast<unsigned int>(value))
DETMODE_ATOMIC(atomicSub, unsigned int, old - value)
#define DETMODE_ATOMIC_EXCH(T) DETMODE_ATOMIC(atomicExch, T, value)
DETMODE_ATOMIC_EXCH(int)
DETMODE_ATOMIC_EXCH(unsigned int)
DETMODE_ATOMIC_EXCH(unsigned long long)
DETMODE_ATOMIC_EXCH(float)
#define DETMODE_ATOMIC_ORDER(T)                           \
  DETMODE_ATOMIC(atomicMin, T, value < old ? value : old) \
  DETMODE_ATOMIC(atomicMax, T, old < value ? value : old)
DETMODE_ATOMIC_ORDER(int)
DETMODE_ATOMIC_ORDER(unsigned int)
DETMODE_ATOMIC_ORDER(long long)
DETMODE_ATOMIC_ORDER(unsigned long long)
#define DETMODE_ATOMIC_BITS(T)             \
  DETMODE_ATOMIC(atomicAnd, T, old& value) \
  DETMODE_ATOMIC(atomicOr, T, old | value) \
  DETMODE_ATOMIC(atomicXor, T, old ^ value)
DETMODE_ATOMIC_BITS(int)
DETMODE_ATOMIC_BITS(unsigned int)
DETMODE_ATOMIC_BITS(unsigned long long)
DETMODE_ATOMIC(atomicInc, unsigned int, old >= value ? 0 : old + 1)
DETMODE_ATOMIC(atomicDec, unsigned int, old == 0 || old > value ? value : old - 1)
#define DETMODE_ATOMIC_CAS(T)                                           \
  DETMODE_ATOMIC_FUNCTION T atomicCAS(T* address, T compare, T value) { \
    DETMODE_ATOMIC_POINT(address);                                      \
    T old = *address;                                                   \
    if (old == compare) *address = value;                               \
    return old;                                                         \
  }
DETMODE_ATOMIC_CAS(int)
DETMODE_ATOMIC_CAS(unsigned int)
DETMODE_ATOMIC_CAS(unsigned long long)
DETMODE_ATOMIC_CAS(unsigned short)
#undef DETMODE_ATOMIC
#undef DETMODE_ATOMIC_POINT
#undef DETMODE_ATOMIC_FUNCTION
#undef DETMODE_ATOMIC_ADD
#undef DETMODE_ATOMIC_EXCH
#undef DETMODE_ATOMIC_ORDER
#undef DETMODE_ATOMIC_BITS
#undef DETMODE_ATOMIC_CAS

template <typename To, typename From>
inline To detmode_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}
inline int __float_as_int(float x) { return detmode_bits<int>(x); }
inline unsigned int __float_as_uint(float x) { return detmode_bits<unsigned int>(x); }
inline float __int_as_float(int x) { return detmode_bits<float>(x); }
inline float __uint_as_float(unsigned int x) { return detmode_bits<float>(x); }
inline long long __double_as_longlong(double x) { return detmode_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return detmode_bits<double>(x); }

template <typename T>
__forceinline__ T __ldg(const T* address) {
  return *address;
}
inline void __trap() { detmode_host::assert_failed("__trap()", "kernel", 0); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned int __brev(unsigned int x) {
  unsigned int r = 0;
  for (int i = 0; i < 32; ++i) r |= ((x >> i) & 1u) << (31 - i);
  return r;
}
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>((static_cast<__int128>(a) * b) >> 64);
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline double __drcp_rn(double a) { return 1.0 / a; }

inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned int x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(__builtin_rintf(x)); }
inline int __float2int_rd(float x) { return static_cast<int>(__builtin_floorf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline long long __float2ll_rn(float x) { return static_cast<long long>(__builtin_rintf(x)); }
inline long long __float2ll_rd(float x) { return static_cast<long long>(__builtin_floorf(x)); }
inline long long __float2ll_rz(float x) { return static_cast<long long>(x); }
inline long long __double2ll_rn(double x) { return static_cast<long long>(__builtin_rint(x)); }
inline long long __double2ll_rd(double x) { return static_cast<long long>(__builtin_floor(x)); }
inline long long __double2ll_rz(double x) { return static_cast<long long>(x); }

#define DETMODE_MATH1(name)                                        \
  inline float name##f(float x) { return __builtin_##name##f(x); } \
  inline float name(float x) { return __builtin_##name##f(x); }    \
  inline double name(double x) { return __builtin_##name(x); }
DETMODE_MATH1(sqrt)
DETMODE_MATH1(fabs)
DETMODE_MATH1(floor)
DETMODE_MATH1(ceil)
DETMODE_MATH1(trunc)
DETMODE_MATH1(round)
DETMODE_MATH1(rint)
DETMODE_MATH1(nearbyint)
DETMODE_MATH1(exp)
DETMODE_MATH1(exp2)
DETMODE_MATH1(expm1)
DETMODE_MATH1(log)
DETMODE_MATH1(log2)
DETMODE_MATH1(log10)
DETMODE_MATH1(log1p)
DETMODE_MATH1(sin)
DETMODE_MATH1(cos)
DETMODE_MATH1(tan)
DETMODE_MATH1(asin)
DETMODE_MATH1(acos)
DETMODE_MATH1(atan)
DETMODE_MATH1(sinh)
DETMODE_MATH1(cosh)
DETMODE_MATH1(tanh)
DETMODE_MATH1(cbrt)
DETMODE_MATH1(erf)
DETMODE_MATH1(erfc)
#undef DETMODE_MATH1
#define DETMODE_MATH2(name)                                                    \
  inline float name##f(float x, float y) { return __builtin_##name##f(x, y); } \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); }    \
  inline double name(double x, double y) { return __builtin_##name(x, y); }
DETMODE_MATH2(fmin)
DETMODE_MATH2(fmax)
DETMODE_MATH2(fmod)
DETMODE_MATH2(pow)
DETMODE_MATH2(atan2)
DETMODE_MATH2(hypot)
DETMODE_MATH2(copysign)
DETMODE_MATH2(nextafter)
#undef DETMODE_MATH2
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float ldexpf(float x, int e) { return __builtin_ldexpf(x, e); }
inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
inline double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
inline float frexpf(float x, int* e) { return __builtin_frexpf(x, e); }
inline double frexp(double x, int* e) { return __builtin_frexp(x, e); }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
inline bool signbit(float x) { return __builtin_signbit(x); }
inline bool signbit(double x) { return __builtin_signbit(x); }

inline int abs(int x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
// CUDA's min and max of floating-point numbers are fmin and fmax: a NaN loses.
#define DETMODE_ORDER(T)                           \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
DETMODE_ORDER(int)
DETMODE_ORDER(unsigned int)
DETMODE_ORDER(long long)
DETMODE_ORDER(unsigned long long)
#undef DETMODE_ORDER
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }

#define DETMODE_VECTOR(T, name, alignment)                              \
  struct __attribute__((aligned(2 * sizeof(T)))) name##2 { T x, y; };   \
  inline name##2 make_##name##2(T x, T y) {                             \
    name##2 v = {x, y};                                                 \
    return v;                                                           \
  }                                                                     \
  struct __attribute__((aligned(alignment))) name##4 { T x, y, z, w; }; \
  inline name##4 make_##name##4(T x, T y, T z, T w) {                   \
    name##4 v = {x, y, z, w};                                           \
    return v;                                                           \
  }
DETMODE_VECTOR(short, short, 8)
DETMODE_VECTOR(unsigned short, ushort, 8)
DETMODE_VECTOR(int, int, 16)
DETMODE_VECTOR(unsigned int, uint, 16)
DETMODE_VECTOR(long long, longlong, 16)
DETMODE_VECTOR(unsigned long long, ulonglong, 16)
DETMODE_VECTOR(float, float, 16)
DETMODE_VECTOR(double, double, 16)
#undef DETMODE_VECTOR

}  // namespace
