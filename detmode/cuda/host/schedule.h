// Which thread runs next: the order of threads, barriers and the operations of a warp.
#pragma once

namespace {
namespace detmode_host {

// Points are a watched launch's atomics and volatile accesses. After so many without a change of
// memory a thread spins, ...
constexpr long SPINS = 32;
// ... blocks stop only for others' sake, ...
constexpr long PATIENCE = 4096;
// ... and nothing will ever change.
constexpr long ENDLESS = 1000000;

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
  // What a thread waits for may come from one that has not begun.
  if (S.idle >= SPINS && S.started < S.n_threads) return false;
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
#if DETMODE_RACES
      S.current->dropping = nullptr;  // an abandoned launch may have left it
#endif
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

#if DETMODE_RACES
// The current block goes on later; see run_watched.
DETMODE_UNTRACKED inline void stop_block() {
  push_ready(S.current);
  S.stops = true;
  ++S.watch->stopped;
  switch_to(&S.main);
  set_thread(S.current->thread);
}

// Before an atomic or a volatile access of a watched launch.
DETMODE_UNTRACKED __attribute__((noinline)) void watched_point() {
  end_if_told();
  ++S.still;
  if (++S.idle >= SPINS) {
    long threads = static_cast<long>(n_ready()) + S.n_threads - S.started + 1;
    if (S.idle >= SPINS * (threads + 1)) {
      stop_block();
    } else if (S.idle % SPINS == 0) {
      yield();
    }
  } else if (S.shuffled && S.still < PATIENCE && --S.until_switch <= 0) {
    S.until_switch = 1 + static_cast<long>(random_below(S.switch_period));
    // Another thread of the block can go on only if there is one that does not wait.
    bool others = n_ready() > 0 || S.started < S.n_threads;
    if (!others || random_below(2) == 0) {
      stop_block();
    } else {
      yield();
    }
  }
}

DETMODE_UNTRACKED void volatile_point() {
  if (S.watch != nullptr && R.on) watched_point();
}
#endif

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
#if DETMODE_RACES
  if (S.watch != nullptr) {
    watched_point();
    return;
  }
#endif
  if (__builtin_expect(--S.until_switch <= 0, 0)) switch_at_atomic();
}

enum Barrier { BARRIER, BARRIER_COUNT, BARRIER_AND, BARRIER_OR };

__attribute__((noinline)) int block_barrier(int kind, bool predicate, int line) {
#if DETMODE_RACES
  end_if_told();
#endif
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
#if DETMODE_RACES
  end_if_told();
#endif
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

}  // namespace detmode_host
}  // namespace
