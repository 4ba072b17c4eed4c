// Data races of one launch: two accesses to a byte, one of them a plain write or both plain and one
// a write, that nothing orders. What orders two accesses is CUDA's memory model: a block's barrier,
// __syncwarp() for the lanes of its mask, and a fence before an atomic or volatile write with a
// fence after the read of it. A shuffle, a vote and an atomic order nothing by themselves.
//
// The compiler's instrumentation for thread sanitizers calls the functions at the end of this file
// before every access; no sanitizer's library is loaded. Each granule of a launch's memory
// remembers its last accesses with the thread and that thread's clock, which each order advances.
// Whether an earlier access is ordered before the current thread is then a comparison of clocks,
// whatever the order in which the host runner ran the two.
#pragma once

#if defined(__ELF__)
// Where this library's file is mapped.
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));
#endif

namespace {
namespace detmode_host {

// An access by a thread. A clock of 0 is no access.
struct Access {
  u32 block;
  u32 clock;
  u32 place;
  unsigned short thread;
  unsigned char bytes;  // a bit for each byte of the granule
  unsigned char atomic;
};

// Of atomic writes and of reads that nothing orders, the first and the last.
struct Granule {
  Access write;
  Access atomic_writes[2];
  Access reads[2];
  u32 touched_by;  // the last block, counted from 1, ...
  u32 touched_as;  // ... and the kinds of its accesses: 1 reads, 2 writes, 4 commutes as bits 8 on
};

struct Tracked {
  char* begin;
  size_t bytes;
  int granule;   // bytes of each
  int argument;  // SHARED, or a variable's number below it
  Granule* granules;
  size_t mapped;
};

// What a thread knew at a fence: the clocks of its own block's threads, and the releases of others
// that had reached it.
struct Release {
  u32 block;
  u32* clocks;
  Release** known;
  int n_known;
  Release* next_made;
};

struct Releases {
  Release** items;
  int n;
  int family;
};

// The releases that a read of this address, with a fence behind it, acquires.
struct Mark {
  const void* address;
  Releases releases;
  Mark* next;
};

constexpr int SHARED = -1;
constexpr int MAX_TRACKED =
    386;  // the most arguments and variables, and shared memory of both kinds
constexpr int MARK_LISTS = 1024;

// The part that belongs to the block that runs.
struct BlockClocks {
  u32 block;
  u32 clocks[MAX_THREADS];
  u32 at_barrier[MAX_THREADS];
  u32 at_warp[MAX_THREADS][32];
  Release* released[MAX_THREADS];
  Releases read[MAX_THREADS];
  Releases acquired[MAX_THREADS];
  Releases of_block;
};

struct Races : BlockClocks {
  bool on;
  Tracked tracked[MAX_TRACKED];
  int n_tracked;
  Launch const* launch;
  char unwritten[256];  // the first read of shared memory that nobody had written
  Mark* marks[MARK_LISTS];
  Release* made;
};

Races R;

DETMODE_UNTRACKED inline void add_release(Releases& to, Release* release) {
  for (int i = 0; i < to.n; ++i) {
    if (to.items[i] == release) return;
  }
  if (to.n == to.family) {
    to.family = to.family == 0 ? 4 : 2 * to.family;
    to.items = static_cast<Release**>(
        __builtin_realloc(to.items, static_cast<size_t>(to.family) * sizeof(Release*)));
  }
  to.items[to.n++] = release;
}
DETMODE_UNTRACKED inline void add_releases(Releases& to, const Releases& from) {
  for (int i = 0; i < from.n; ++i) add_release(to, from.items[i]);
}

// Pages that nobody touches cost nothing.
DETMODE_UNTRACKED inline Granule* map_granules(size_t bytes) {
  return static_cast<Granule*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

DETMODE_UNTRACKED void track(char* begin, size_t bytes, int granule, int argument) {
  if (bytes == 0) return;
  Tracked& tracked = R.tracked[R.n_tracked++];
  tracked.begin = begin;
  tracked.bytes = bytes;
  tracked.granule = granule;
  tracked.argument = argument;
  tracked.mapped = (bytes / static_cast<size_t>(granule) + 2) * sizeof(Granule);
  tracked.granules = map_granules(tracked.mapped);
  if (tracked.granules == MAP_FAILED) {
    --R.n_tracked;
    fail(LAUNCH_ERROR, "no memory to look for data races in %zu bytes of argument %d", bytes,
         argument);
  }
}

DETMODE_UNTRACKED void forget_tracked() {
  for (int i = 0; i < R.n_tracked; ++i) munmap(R.tracked[i].granules, R.tracked[i].mapped);
  R.n_tracked = 0;
  for (int i = 0; i < MARK_LISTS; ++i) {
    while (Mark* mark = R.marks[i]) {
      R.marks[i] = mark->next;
      __builtin_free(mark->releases.items);
      __builtin_free(mark);
    }
  }
  while (Release* release = R.made) {
    R.made = release->next_made;
    __builtin_free(release->clocks);
    __builtin_free(release->known);
    __builtin_free(release);
  }
}

// The lists of the block that runs are replaced by another block's.
DETMODE_UNTRACKED void take_clocks(const BlockClocks& clocks) {
  for (int t = 0; t < MAX_THREADS; ++t) {
    __builtin_free(R.read[t].items);
    __builtin_free(R.acquired[t].items);
  }
  __builtin_free(R.of_block.items);
  static_cast<BlockClocks&>(R) = clocks;
}

// What is remembered of shared memory, dynamic and not, goes with the block when it stops.
struct SharedGranules {
  Granule* of[2];
};
DETMODE_UNTRACKED SharedGranules take_shared_granules(const SharedGranules* next) {
  SharedGranules taken = {};
  int n = 0;
  for (int i = 0; i < R.n_tracked; ++i) {
    Tracked& tracked = R.tracked[i];
    if (tracked.argument != SHARED) continue;
    taken.of[n] = tracked.granules;
    tracked.granules = next != nullptr ? next->of[n] : map_granules(tracked.mapped);
    if (next != nullptr) munmap(taken.of[n], tracked.mapped);
    ++n;
  }
  return taken;
}

DETMODE_UNTRACKED void begin_clocks(u32 block) {
  R.block = block;
  R.of_block.n = 0;
  for (int t = 0; t < S.n_threads; ++t) {
    R.clocks[t] = 1;
    R.at_barrier[t] = 0;
    __builtin_memset(R.at_warp[t], 0, sizeof(R.at_warp[t]));
    R.released[t] = nullptr;
    R.read[t].n = R.acquired[t].n = 0;
  }
}

// All threads of the block have reached a barrier.
DETMODE_UNTRACKED void order_block() {
  for (int t = 0; t < S.n_threads; ++t) {
    R.at_barrier[t] = R.clocks[t]++;
    add_releases(R.of_block, R.acquired[t]);
    R.acquired[t].n = 0;
  }
}

// All lanes of `mask` have reached a __syncwarp().
DETMODE_UNTRACKED void order_warp(int warp, u32 mask) {
  u32 seen[32] = {};
  Releases acquired = {};
  for (u32 lanes = mask; lanes != 0; lanes &= lanes - 1) {
    int lane = __builtin_ctz(lanes), thread = warp * 32 + lane;
    for (int other = 0; other < 32; ++other) {
      if (seen[other] < R.at_warp[thread][other]) seen[other] = R.at_warp[thread][other];
    }
    seen[lane] = R.clocks[thread]++;
    add_releases(acquired, R.acquired[thread]);
  }
  for (u32 lanes = mask; lanes != 0; lanes &= lanes - 1) {
    int thread = warp * 32 + __builtin_ctz(lanes);
    __builtin_memcpy(R.at_warp[thread], seen, sizeof(seen));
    add_releases(R.acquired[thread], acquired);
  }
  __builtin_free(acquired.items);
}

// The latest clock of `thread`, of the current block, that `self` has seen.
DETMODE_UNTRACKED inline u32 seen_clock(int self, int thread) {
  if (thread == self) return R.clocks[self];
  u32 seen = R.at_barrier[thread];
  if (thread / 32 == self / 32 && seen < R.at_warp[self][thread % 32]) {
    seen = R.at_warp[self][thread % 32];
  }
  return seen;
}

// A fence: later marks carry what the thread knows now, and what marks it has read is known.
DETMODE_UNTRACKED void order_fence() {
  if (!R.on) return;
  int self = S.current->thread;
  add_releases(R.acquired[self], R.read[self]);
  R.read[self].n = 0;
  Release* release = static_cast<Release*>(__builtin_malloc(sizeof(Release)));
  release->block = R.block;
  release->clocks =
      static_cast<u32*>(__builtin_malloc(static_cast<size_t>(S.n_threads) * sizeof(u32)));
  for (int t = 0; t < S.n_threads; ++t) release->clocks[t] = seen_clock(self, t);
  Releases known = {};
  add_releases(known, R.of_block);
  add_releases(known, R.acquired[self]);
  // Those that reached the others reach whoever acquires this.
  for (int i = 0, direct = known.n; i < direct; ++i) {
    for (int k = 0; k < known.items[i]->n_known; ++k) add_release(known, known.items[i]->known[k]);
  }
  release->known = known.items;
  release->n_known = known.n;
  release->next_made = R.made;
  R.made = release;
  R.released[self] = release;
  ++R.clocks[self];
}

DETMODE_UNTRACKED inline bool release_covers(const Releases& releases, const Access& earlier) {
  for (int i = 0; i < releases.n; ++i) {
    const Release* release = releases.items[i];
    for (int k = -1; k < release->n_known; ++k) {
      const Release* each = k < 0 ? release : release->known[k];
      if (each->block == earlier.block && earlier.clock <= each->clocks[earlier.thread]) {
        return true;
      }
    }
  }
  return false;
}

DETMODE_UNTRACKED inline bool ordered(const Access& earlier, int self) {
  if (earlier.block == R.block) {
    if (earlier.thread == self || earlier.clock <= seen_clock(self, earlier.thread)) return true;
  }
  return release_covers(R.of_block, earlier) || release_covers(R.acquired[self], earlier);
}

DETMODE_UNTRACKED inline Mark* find_mark(const void* address, bool make) {
  Mark** list = &R.marks[reinterpret_cast<size_t>(address) / 4 % MARK_LISTS];
  for (Mark* mark = *list; mark != nullptr; mark = mark->next) {
    if (mark->address == address) return mark;
  }
  if (!make) return nullptr;
  Mark* mark = static_cast<Mark*>(__builtin_calloc(1, sizeof(Mark)));
  mark->address = address;
  mark->next = *list;
  *list = mark;
  return mark;
}

DETMODE_UNTRACKED void note_mark(const void* address, int self, bool reads, bool writes) {
  if (reads) {
    Mark* mark = find_mark(address, false);
    if (mark != nullptr) add_releases(R.read[self], mark->releases);
  }
  if (writes) {
    Mark* mark = find_mark(address, R.released[self] != nullptr);
    if (mark == nullptr) return;
    // A plain replacement hides the earlier marks; a read and write in one hands them on.
    if (!reads) mark->releases.n = 0;
    if (R.released[self] != nullptr) add_release(mark->releases, R.released[self]);
  }
}

// Where the call before `code` stands in this library's file, for addr2line.
DETMODE_UNTRACKED inline u32 place_of(const void* code) {
#if defined(__ELF__)
  return static_cast<u32>(static_cast<const char*>(code) - __ehdr_start) - 1;
#else
  (void)code;
  return 0;
#endif
}

// From COMMUTES on, the number of an operation that commutes with itself: intrinsics.h.
enum AccessKind { READ = 0, WRITE = 1, ATOMIC = 2, READS_TOO = 4, COMMUTES = 8 };

DETMODE_UNTRACKED void describe(char* text, size_t size, const Access& access) {
  u32 b = access.block;
  const uint3& at = S.index[access.thread];
  __builtin_snprintf(text, size, "thread (%u, %u, %u) of block (%u, %u, %u)", at.x, at.y, at.z,
                     b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y);
}

DETMODE_UNTRACKED void report(const Tracked& tracked, size_t offset, size_t bytes,
                              const Access& now, bool writes, const Access* earlier, bool wrote) {
  char where[64], self[96], other[96];
  if (tracked.argument == SHARED) {
    __builtin_snprintf(where, sizeof(where), "shared memory");
  } else if (tracked.argument < SHARED) {
    __builtin_snprintf(where, sizeof(where), "variable '%s' at byte %zu",
                       R.launch->variables[SHARED - 1 - tracked.argument].name, offset);
  } else {
    __builtin_snprintf(where, sizeof(where), "argument %d at byte %zu", tracked.argument, offset);
  }
  describe(self, sizeof(self), now);
  const char* atomically = now.atomic ? " atomically" : "";
  if (earlier == nullptr) {
    char* message = S.watch != nullptr ? R.unwritten : S.message;
    int size = S.watch != nullptr ? static_cast<int>(sizeof(R.unwritten)) : S.message_bytes;
    __builtin_snprintf(message, static_cast<size_t>(size),
                       "%s reads %zu bytes of %s (at +%#x) that no thread of its block has written "
                       "before",
                       self, bytes, where, now.place);
    // If another thread writes it later, that is a race, and the better message.
    if (S.watch != nullptr) return;
    S.status = LAUNCH_ERROR;
  } else {
    describe(other, sizeof(other), *earlier);
    fail(DATA_RACE,
         "data race: %s %s %zu bytes of %s%s (at +%#x), which %s %s%s (at +%#x), and nothing "
         "orders the two",
         self, writes ? "writes" : "reads", bytes, where, atomically, now.place, other,
         wrote ? "wrote" : "read", earlier->atomic ? " atomically" : "", earlier->place);
  }
  abandon();
}

// The variables and constants of this library, where a compiler may read without asking.
#if defined(__ELF__)
extern "C" const char _end[] __attribute__((visibility("hidden")));
DETMODE_UNTRACKED inline bool in_library(const char* from) {
  const char* shared = reinterpret_cast<const char*>(dynamic_memory);
  return __ehdr_start <= from && from < _end &&
         !(shared <= from && from < shared + sizeof(dynamic_memory));
}
#else
DETMODE_UNTRACKED inline bool in_library(const char*) { return true; }
#endif

// True for the stack that runs. Just before a switch the current fiber is already the next one.
DETMODE_UNTRACKED inline bool on_stack(const char* from) {
  auto holds = [](const Fiber& fiber, const char* address) DETMODE_UNTRACKED {
    return fiber.stack <= address && address < fiber.stack + fiber.stack_bytes;
  };
  if (holds(*S.current, from)) return true;
  const char* frame = static_cast<const char*>(__builtin_frame_address(0));
  for (int i = 0; i < S.n_fibers; ++i) {
    if (holds(S.fibers[i], frame)) return holds(S.fibers[i], from);
  }
  return true;  // the stack of the OS thread
}

// An access that lies not wholly in the launch's memory: if not on the thread's stack, it is out of
// bounds.
DETMODE_UNTRACKED void require_known(const char* from, size_t bytes, bool writes,
                                     const void* code) {
  if (in_library(from) || on_stack(from)) return;
  char self[96], where[128];
  Access now = {R.block, 0, place_of(code), static_cast<unsigned short>(S.current->thread), 0, 0};
  describe(self, sizeof(self), now);
  __builtin_snprintf(where, sizeof(where), "at %p, which belongs to no argument", from);
  for (int i = 0; i < R.n_tracked; ++i) {
    const Tracked& tracked = R.tracked[i];
    const char* end = tracked.begin + tracked.bytes;
    const char* name = tracked.argument == SHARED ? "shared memory" : "argument";
    char number[16] = "";
    if (tracked.argument < SHARED) continue;
    if (tracked.argument >= 0) __builtin_snprintf(number, 16, " %d", tracked.argument);
    if (tracked.begin <= from + bytes && from < end + GUARD_BYTES) {
      __builtin_snprintf(where, sizeof(where), "%zd bytes after the start of %s%s, which has %zu",
                         from - tracked.begin, name, number, tracked.bytes);
      if (from >= tracked.begin) break;
    } else if (from < tracked.begin && tracked.begin - from <= ptrdiff_t(GUARD_BYTES)) {
      __builtin_snprintf(where, sizeof(where), "%zd bytes before the start of %s%s",
                         tracked.begin - from, name, number);
    }
  }
  fail(OUT_OF_BOUNDS, "%s %s %zu bytes out of bounds (at +%#x): %s", self,
       writes ? "writes" : "reads", bytes, now.place, where);
  abandon();
}

inline void memory_changed() { S.idle = S.still = 0; }

// Notes which blocks access what: in pairs of words, the block with the kind of its access and the
// part of memory, and the granule there. Kinds: 1 reads, 2 writes, 3 both, and from 4 on one for
// each operation that commutes with itself.
DETMODE_UNTRACKED void touch(Tracked& tracked, size_t offset, size_t bytes, int kind) {
  Watch& watch = *S.watch;
  if (watch.capacity == 0) return;
  size_t granule = static_cast<size_t>(tracked.granule);
  for (size_t g = offset / granule; g * granule < offset + bytes; ++g) {
    Granule& cell = tracked.granules[g];
    u32 block = R.block + 1;
    u32 commutes = static_cast<u32>(kind) / COMMUTES;
    u32 bits = (kind & WRITE) == 0 ? 1u : (kind & READS_TOO) == 0 ? 2u : 3u;
    if (commutes != 0) bits = 4u | commutes << 8;
    u32 before = cell.touched_by == block ? cell.touched_as : 0;
    if ((before & bits) == bits && (commutes == 0 || before >> 8 == commutes)) continue;
    cell.touched_as = (commutes != 0 ? before & 7u : before) | bits;
    cell.touched_by = block;
    if (watch.n_touched < watch.capacity) {
      u64* record = watch.touched + 2 * watch.n_touched;
      u32 noted = commutes != 0 ? 3 + commutes : bits;
      record[0] = R.block | u64(noted) << 32 | u64(tracked.argument + 1024) << 40;
      record[1] = g;
    }
    ++watch.n_touched;
  }
}

// Before a volatile access: schedule.h.
DETMODE_UNTRACKED void volatile_point();

// Leaves a watched launch that is to end.
DETMODE_UNTRACKED inline void end_if_told() {
  if (!R.on || S.watch == nullptr || __builtin_expect(S.watch->stop == 0, 1)) return;
  R.on = false;  // fail() makes accesses, too
  fail(STOPPED, "stopped");
  abandon();
}

// A GPU refuses what is not aligned to its size.
DETMODE_UNTRACKED inline void require_aligned(const void* address, size_t bytes, const void* code) {
  if (!R.on || S.watch == nullptr || reinterpret_cast<size_t>(address) % bytes == 0) return;
  char self[96];
  Access now = {R.block, 0, place_of(code), static_cast<unsigned short>(S.current->thread), 0, 0};
  describe(self, sizeof(self), now);
  fail(LAUNCH_ERROR, "%s accesses %zu bytes at an address that is no multiple of it (at +%#x)",
       self, bytes, now.place);
  abandon();
}

DETMODE_UNTRACKED void note(const void* address, size_t bytes, int kind, const void* code) {
  if (!R.on) return;
  end_if_told();
  const char* from = static_cast<const char*>(address);
  Tracked* tracked = R.tracked;
  Tracked* end = R.tracked + R.n_tracked;
  while (tracked != end && !(tracked->begin <= from && from < tracked->begin + tracked->bytes)) {
    ++tracked;
  }
  if (tracked == end) {
    require_known(from, bytes, (kind & WRITE) != 0, code);
    return;
  }
  int self = S.current->thread;
  bool writes = (kind & WRITE) != 0, atomic = (kind & ATOMIC) != 0;
  bool shared = tracked->argument == SHARED;
  size_t granule = static_cast<size_t>(tracked->granule);
  size_t offset = static_cast<size_t>(from - tracked->begin);
  if (offset + bytes > tracked->bytes) require_known(from, bytes, writes, code);
  if (S.watch != nullptr) {
    if (writes && (kind & READS_TOO) == 0) memory_changed();
    if (!shared) touch(*tracked, offset, bytes, kind);
    if (!S.watch->races) return;
  }
  Access now = {R.block,
                R.clocks[self],
                place_of(code),
                static_cast<unsigned short>(self),
                0,
                static_cast<unsigned char>(atomic)};
  for (size_t g = offset / granule; g * granule < offset + bytes; ++g) {
    Granule& cell = tracked->granules[g];
    size_t low = g * granule < offset ? offset - g * granule : 0;
    size_t high = (g + 1) * granule < offset + bytes ? granule : offset + bytes - g * granule;
    now.bytes = static_cast<unsigned char>((1u << high) - (1u << low));
    auto present = [&](const Access& earlier) DETMODE_UNTRACKED {
      return earlier.clock != 0 && !(shared && earlier.block != R.block);
    };
    auto check = [&](const Access& earlier, bool wrote) DETMODE_UNTRACKED {
      if (!present(earlier) || (earlier.bytes & now.bytes) == 0 || ordered(earlier, self)) return;
      report(*tracked, offset, bytes, now, writes, &earlier, wrote);
    };
    auto remember = [&](Access(&accesses)[2]) DETMODE_UNTRACKED {
      Access& first = accesses[0];
      bool replaces = !present(first) || (first.bytes == now.bytes && ordered(first, self));
      (replaces ? first : accesses[1]) = now;
    };
    if (shared && !writes && R.unwritten[0] == '\0' && !present(cell.write) &&
        !present(cell.atomic_writes[0])) {
      report(*tracked, offset, bytes, now, false, nullptr, false);
    }
    check(cell.write, true);
    for (const Access& write : cell.atomic_writes) {
      if (!atomic) check(write, true);
    }
    for (const Access& read : cell.reads) {
      if (writes && !(atomic && read.atomic)) check(read, false);
    }
    if (!writes) {
      remember(cell.reads);
    } else if (atomic) {
      remember(cell.atomic_writes);
    } else {
      cell.write = now;
    }
  }
}

// A volatile access is an atomic one that orders nothing, as the memory model has it.
DETMODE_UNTRACKED void note_atomic(const void* address, size_t bytes, bool reads, bool writes,
                                   const void* code, int commutes = 0) {
  if (!R.on) return;
  int kind = ATOMIC | (writes ? WRITE : READ) | (reads && writes ? READS_TOO : 0);
  note(address, bytes, kind + commutes * COMMUTES, code);
  if (S.watch == nullptr || S.watch->races) note_mark(address, S.current->thread, reads, writes);
}

DETMODE_UNTRACKED int granule_of(const Launch& launch, int buffer) {
  for (int i = 0; i < launch.n_arguments; ++i) {
    char code = launch.entry->kinds[2 * i + 1];
    if (launch.arguments[i].buffer == buffer && !__builtin_strchr("fFdDiIqQ", code)) return 1;
  }
  return 4;
}

void begin_launch(const Launch& launch, size_t dynamic_shared) {
  R.launch = &launch;
  R.unwritten[0] = '\0';
  for (int i = 0; i < launch.n_buffers; ++i) {
    const Buffer& buffer = launch.buffers[i];
    track(buffer.copy, static_cast<size_t>(buffer.bytes), granule_of(launch, i),
          launch.positions[i]);
  }
  for (int i = 0; i < launch.n_variables; ++i) {
    const Variable& variable = launch.variables[i];
    track(static_cast<char*>(variable.address), static_cast<size_t>(variable.bytes), 1,
          SHARED - 1 - i);
  }
  track(reinterpret_cast<char*>(S.dynamic_shared), dynamic_shared, 1, SHARED);
  track(S.shared, S.shared_bytes, 1, SHARED);
}

}  // namespace detmode_host
}  // namespace

// What the instrumentation calls.
#define DETMODE_HOOK extern "C" __attribute__((visibility("hidden"))) DETMODE_UNTRACKED void
#define DETMODE_HOOKS(n)                                                              \
  DETMODE_HOOK __tsan_read##n(void* address) {                                        \
    detmode_host::require_aligned(address, n, __builtin_return_address(0));           \
    detmode_host::note(address, n, detmode_host::READ, __builtin_return_address(0));  \
  }                                                                                   \
  DETMODE_HOOK __tsan_write##n(void* address) {                                       \
    detmode_host::require_aligned(address, n, __builtin_return_address(0));           \
    detmode_host::note(address, n, detmode_host::WRITE, __builtin_return_address(0)); \
  }                                                                                   \
  DETMODE_HOOK __tsan_unaligned_read##n(void* address) {                              \
    detmode_host::note(address, n, detmode_host::READ, __builtin_return_address(0));  \
  }                                                                                   \
  DETMODE_HOOK __tsan_unaligned_write##n(void* address) {                             \
    detmode_host::note(address, n, detmode_host::WRITE, __builtin_return_address(0)); \
  }                                                                                   \
  DETMODE_HOOK __tsan_volatile_read##n(void* address) {                               \
    detmode_host::volatile_point();                                                   \
    detmode_host::note_atomic(address, n, true, false, __builtin_return_address(0));  \
  }                                                                                   \
  DETMODE_HOOK __tsan_volatile_write##n(void* address) {                              \
    detmode_host::volatile_point();                                                   \
    detmode_host::note_atomic(address, n, false, true, __builtin_return_address(0));  \
  }
DETMODE_HOOKS(1)
DETMODE_HOOKS(2)
DETMODE_HOOKS(4)
DETMODE_HOOKS(8)
DETMODE_HOOKS(16)
DETMODE_HOOK __tsan_read_range(void* address, size_t bytes) {
  detmode_host::note(address, bytes, detmode_host::READ, __builtin_return_address(0));
}
DETMODE_HOOK __tsan_write_range(void* address, size_t bytes) {
  detmode_host::note(address, bytes, detmode_host::WRITE, __builtin_return_address(0));
}
DETMODE_HOOK __tsan_init() {}
DETMODE_HOOK __tsan_vptr_update(void*, void*) {}
DETMODE_HOOK __tsan_func_entry(void*) {}
DETMODE_HOOK __tsan_func_exit() {}
#undef DETMODE_HOOKS
#undef DETMODE_HOOK
