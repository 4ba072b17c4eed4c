// What the parts of the host runner share: positions, what a launch is given, and its state.
#pragma once

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
// Those of all blocks that are under way at a time; each has a stack of its own.
constexpr int MAX_FIBERS = 8192;
constexpr size_t STACK_BYTES = DETMODE_ASAN ? size_t(512) << 10 : size_t(128) << 10;
constexpr size_t GUARD_BYTES = 4096;
// The most that a block can have on any GPU.
constexpr size_t DYNAMIC_BYTES = 232448;
alignas(1024) unsigned char dynamic_memory[DYNAMIC_BYTES + GUARD_BYTES];
// A NaN as half, bfloat16, float and double; an absurd integer; not a likely thing to write.
constexpr unsigned short POISON = 0xfff5;

enum Status {
  OK = 0,
  LAUNCH_ERROR = 1,
  DEVICE_ASSERT = 2,
  OUT_OF_BOUNDS = 3,
  DATA_RACE = 4,
  STOPPED = 5
};

struct Fiber {
#if DETMODE_UCONTEXT
  ucontext_t context;
#else
  void* sp;
#endif
  char* stack;
  size_t stack_bytes;
  int thread;
#if DETMODE_RACES
  const void* dropping;  // where it calls an atomic whose result nobody reads, or null
#endif
#if DETMODE_ASAN
  void* fake_stack;
#endif
};

// Of launches one after another, of this library and of others: each library with stacks of its
// own would use up what a process may map.
struct Stacks {
  int n;
  char* at[MAX_FIBERS];
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
  const int* sizes;
};

// A __device__ or __constant__ variable of the source.
struct Variable {
  const char* name;
  void* address;
  long long bytes;
};

struct Buffer {
  const char* data;
  long long bytes;
  int writable;
  char* memory;
  char* copy;
};
// `buffer` is a buffer's number, or WORD where `value` is the argument, STRUCT where its address.
enum { WORD = -1, STRUCT = -2 };
struct Argument {
  u64 value;
  int buffer;
  long long offset;
};
// A launch that is watched closely: blocks may stop midway, and what they touch is noted.
struct Watch {
  const u32* order;  // of the blocks, or null: by the seed
  int races;         // clocks are compared
  u64* touched;      // see touch() in races.h
  long long capacity;
  long long n_touched;  // more than the capacity: there was not enough
  int stopped;          // how often a block stopped midway
  u32 atomics;          // a bit for each AtomicKind that ran
  volatile int stop;    // the launch is to end: its time is over (1), or Ctrl-C came (2)
  u32 float_adds[4];    // where atomics add floats, as of place_of(), the first such places
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
  const Variable* variables;
  int n_variables;
  Watch* watch;  // or null
  Stacks* stacks;
  char* message;
  int message_bytes;
};

// The part of the state that belongs to the block that runs.
struct BlockState {
  int started;
  int exited;
  int order[MAX_THREADS];
  Fiber* ready[MAX_THREADS];
  u32 ready_head;
  u32 ready_tail;
  Fiber* barrier[MAX_THREADS];
  int barrier_arrived;
  int barrier_kind;
  int barrier_line;
  int barrier_count;
  int barrier_result;
  Warp warps[MAX_THREADS / 32];
  bool uses_warps;
};

struct State : BlockState {
  Call call;
  void** slots;
  Fiber* current;
  Fiber main;
  Stacks* stacks;
  Fiber fibers[MAX_FIBERS];
  int n_fibers;
  Fiber* free[MAX_FIBERS];
  int n_free;
  int n_threads;
  uint3 index[MAX_THREADS];
  bool shuffled;
  u64 random;
  long until_switch;
  Watch* watch;
  u32 switch_period;  // at most so many atomics lie between two switches
  bool stops;         // the block that runs stops midway, and goes on later
  long idle;          // points of the block since it went on, or since memory changed
  long still;         // those of all blocks since then
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

inline void fail(int status, const char* format, ...) __attribute__((format(printf, 2, 3)));
inline void fail(int status, const char* format, ...) {
  if (S.status != OK) return;
  S.status = status;
  __builtin_va_list arguments;
  __builtin_va_start(arguments, format);
  __builtin_vsnprintf(S.message, static_cast<size_t>(S.message_bytes), format, arguments);
  __builtin_va_end(arguments);
}

}  // namespace detmode_host
}  // namespace
