// One launch: from an array of arguments to a typed call for each thread of each block.
#pragma once

namespace {
namespace detmode_host {

// Trampolines: an array of pointers to the arguments becomes a typed call.

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

#if DETMODE_FOREIGN
template <>
struct Element<char> : Element<signed char> {};
template <>
struct Element<long> : Element<long long> {};
template <>
struct Element<unsigned long> : Element<unsigned long long> {};
#endif

template <char kind, char element = ' ', bool is_known = true>
struct KindOf {
  static constexpr bool known = is_known;
  static constexpr char text[2] = {kind, element};
};
// Of what is not listed below, a struct may be passed: by value, as the launcher packed it.
template <typename T>
struct Kind : KindOf<'s', ' ', __is_class(T) && __is_trivially_copyable(T)> {};
#if DETMODE_FOREIGN
// Other people's kernels take numbers of any type.
#define DETMODE_NUMBER(T) \
  template <>             \
  struct Kind<T> : KindOf<'v', Element<T>::code> {};
DETMODE_NUMBER(bool)
DETMODE_NUMBER(char)
DETMODE_NUMBER(signed char)
DETMODE_NUMBER(unsigned char)
DETMODE_NUMBER(short)
DETMODE_NUMBER(unsigned short)
DETMODE_NUMBER(int)
DETMODE_NUMBER(unsigned int)
DETMODE_NUMBER(long)
DETMODE_NUMBER(unsigned long)
DETMODE_NUMBER(long long)
DETMODE_NUMBER(unsigned long long)
DETMODE_NUMBER(float)
DETMODE_NUMBER(double)
#undef DETMODE_NUMBER
#else
template <>
struct Kind<bool> : KindOf<'b'> {};
template <>
struct Kind<long long> : KindOf<'i'> {};
template <>
struct Kind<double> : KindOf<'d'> {};
#endif
template <typename T>
struct Kind<T*> : KindOf<'p', Element<T>::code> {};
template <typename T>
struct Kind<const T*> : KindOf<'c', Element<T>::code> {};

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
  static constexpr int sizes[sizeof...(P) + 1] = {static_cast<int>(sizeof(P))..., 0};
};

template <typename T>
void shuffle(T* items, u64 n) {
  for (u64 i = n; i > 1; --i) {
    u32 j = random_below(static_cast<u32>(i));
    T swapped = items[i - 1];
    items[i - 1] = items[j];
    items[j] = swapped;
  }
}

void begin_block() {
  S.started = 0;
  S.exited = 0;
  S.ready_head = S.ready_tail = 0;
  S.barrier_arrived = 0;
  S.uses_warps = false;
  if (S.shuffled) shuffle(S.order, static_cast<u64>(S.n_threads));
  for (int w = 0; w * 32 < S.n_threads; ++w) S.warps[w].arrived = 0;
  if (S.shared_bytes > 0) fill_poison(S.shared, S.shared_bytes);
#if DETMODE_RACES
  begin_clocks(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
#endif
}

void run_block(Fiber* first) {
#if DETMODE_RACES
  R.on = true;
#endif
  switch_to(first);
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

#if DETMODE_RACES
// A block that stopped midway, with what belongs to it.
struct StoppedBlock {
  u64 linear;
  BlockState state;
  BlockClocks clocks;
  SharedGranules granules;
  char* memory;
};
constexpr int MAX_STOPPED = 256;

inline void copy_shared(char* memory, bool saves, size_t dynamic) {
  char* own = reinterpret_cast<char*>(S.dynamic_shared);
  __builtin_memcpy(saves ? memory : S.shared, saves ? S.shared : memory, S.shared_bytes);
  memory += S.shared_bytes;
  __builtin_memcpy(saves ? memory : own, saves ? own : memory, dynamic);
}

// Each block runs until it ends or stops; which one goes on then is drawn, or, without a seed, the
// next that has not begun, and after those the one that stopped first.
void run_watched(const u32* order, u64 n_blocks, size_t dynamic) {
  StoppedBlock* stopped[MAX_STOPPED];
  int n_stopped = 0;
  u64 begun = 0;
  while (S.status == OK && (begun < n_blocks || n_stopped > 0)) {
    bool has_room = n_stopped < MAX_STOPPED && S.n_fibers - S.n_free + S.n_threads <= MAX_FIBERS;
    bool begins = begun < n_blocks && has_room;
    // Blocks that seem to spin need others: each has its turn then.
    bool draws = S.shuffled && S.still < PATIENCE;
    if (S.watch->stop != 0) {
      fail(STOPPED, "stopped");
      break;
    }
    if (!begins && S.still > ENDLESS) {
      fail(LAUNCH_ERROR,
           "%d blocks spin, block (%u, %u, %u) among them, and nothing changes any more; %llu "
           "blocks have not begun: a block may only wait for one that has certainly begun, such as "
           "the holder of an earlier ticket",
           n_stopped, blockIdx.x, blockIdx.y, blockIdx.z, n_blocks - begun);
      break;
    }
    if (begins && draws && n_stopped > 0) {
      begins = random_below(static_cast<u32>(n_stopped) + 1) == 0;
    }
    u64 linear;
    S.idle = 0;
    if (begins) {
      linear = order != nullptr ? order[begun] : begun;
      ++begun;
      set_block(linear);
      if (dynamic > 0) fill_poison(reinterpret_cast<char*>(S.dynamic_shared), dynamic);
      begin_block();
      run_block(take_fiber());
    } else {
      int pick = draws ? static_cast<int>(random_below(static_cast<u32>(n_stopped))) : 0;
      StoppedBlock* block = stopped[pick];
      --n_stopped;
      for (int i = pick; i < n_stopped; ++i) stopped[i] = stopped[i + 1];
      linear = block->linear;
      set_block(linear);
      static_cast<BlockState&>(S) = block->state;
      take_clocks(block->clocks);
      take_shared_granules(&block->granules);
      copy_shared(block->memory, false, dynamic);
      __builtin_free(block->memory);
      __builtin_free(block);
      run_block(pop_ready());
    }
    if (!S.stops) continue;
    S.stops = false;
    StoppedBlock* block = static_cast<StoppedBlock*>(__builtin_malloc(sizeof(StoppedBlock)));
    block->linear = linear;
    block->state = S;
    block->clocks = R;
    block->granules = take_shared_granules(nullptr);
    // The next block's lists are its own.
    __builtin_memset(static_cast<BlockClocks*>(&R), 0, sizeof(BlockClocks));
    block->memory = static_cast<char*>(__builtin_malloc(S.shared_bytes + dynamic + 1));
    copy_shared(block->memory, true, dynamic);
    stopped[n_stopped++] = block;
  }
  while (n_stopped > 0) {
    take_clocks(stopped[--n_stopped]->clocks);
    take_shared_granules(&stopped[n_stopped]->granules);
    __builtin_free(stopped[n_stopped]->memory);
    __builtin_free(stopped[n_stopped]);
  }
}
#endif

void run_blocks(const Launch& launch) {
  u64 n_blocks = u64(gridDim.x) * gridDim.y * gridDim.z;
  u32* order = nullptr;
  if (S.shuffled && n_blocks > 1) {
    order = static_cast<u32*>(__builtin_malloc(n_blocks * sizeof(u32)));
    for (u64 i = 0; i < n_blocks; ++i) order[i] = static_cast<u32>(i);
    shuffle(order, n_blocks);
  }
  size_t shared = static_cast<size_t>(launch.shared_bytes);
#if DETMODE_RACES
  if (S.watch != nullptr) {
    run_watched(S.watch->order != nullptr ? S.watch->order : order, n_blocks, shared);
    __builtin_free(order);
    return;
  }
#endif
  for (u64 b = 0; b < n_blocks && S.status == OK; ++b) {
    set_block(order != nullptr ? order[b] : b);
    if (shared > 0) fill_poison(reinterpret_cast<char*>(S.dynamic_shared), shared);
    begin_block();
    run_block(take_fiber());
  }
  __builtin_free(order);
}

#if !DETMODE_ASAN
// Sets an action, and notes the former one. A child that was forked during a launch of another
// thread has ours already, and the former one from its parent.
void replace_action(int number, const struct sigaction& action, struct sigaction* former) {
  struct sigaction current;
  sigaction(number, nullptr, &current);
  if (current.sa_sigaction != action.sa_sigaction) *former = current;
  sigaction(number, &action, nullptr);
}

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
  fail(number == SIGFPE ? LAUNCH_ERROR : OUT_OF_BOUNDS,
       "block (%u, %u, %u), thread (%u, %u, %u): %s%p", blockIdx.x, blockIdx.y, blockIdx.z,
       threadIdx.x, threadIdx.y, threadIdx.z,
       number == SIGFPE ? "integer division by zero or overflow at "
                        : "access to memory that is not there, or a stack overflow, at ",
       info->si_addr);
  siglongjmp(S.escape, 1);
}

// A watched launch ends by Ctrl-C, and by SIGURG where it does not look whether it is to end.

constexpr int ENDING[] = {SIGINT, SIGURG};
struct sigaction former_endings[2];

// Untracked: a tracked access would end the launch here, and leave the signal blocked.
DETMODE_UNTRACKED void on_ending(int number, siginfo_t* info, void* context) {
  const struct sigaction& former = former_endings[number == SIGINT ? 0 : 1];
  if (number == SIGINT && former.sa_handler == SIG_IGN) return;
  bool is_ours = S.running && S.watch != nullptr;
  if (is_ours && number == SIGINT && S.watch->stop == 0) S.watch->stop = 2;
  if (is_ours && number == SIGURG && S.watch->stop != 0 &&
      pthread_equal(pthread_self(), S.os_thread)) {
#if DETMODE_RACES
    R.on = false;
#endif
    fail(STOPPED, "stopped");
    siglongjmp(S.escape, 1);
  }
  if (former.sa_flags & SA_SIGINFO) {
    former.sa_sigaction(number, info, context);
  } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
    former.sa_handler(number);
  } else if (former.sa_handler == SIG_DFL && number == SIGINT) {
    sigaction(SIGINT, &former, nullptr);
    raise(SIGINT);
  }
}

void listen_for_endings() {
  struct sigaction action = {};
  action.sa_sigaction = on_ending;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 2; ++i) replace_action(ENDING[i], action, &former_endings[i]);
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
  for (int i = 0; i < 3; ++i) replace_action(FAULTS[i], action, &former_actions[i]);
  S.os_thread = pthread_self();
  S.running = true;
  if (S.watch != nullptr) listen_for_endings();
  if (sigsetjmp(S.escape, 1) == 0) run_blocks(launch);
  S.running = false;
  for (int i = 0; i < 2 && S.watch != nullptr; ++i) {
    sigaction(ENDING[i], &former_endings[i], nullptr);
  }
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
  S.watch = launch.watch;
  S.stops = false;
  S.idle = S.still = 0;
  if (S.watch != nullptr) S.switch_period = 1u << random_below(5);
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
  S.stacks = launch.stacks;
  S.n_fibers = S.n_free = 0;
  for (size_t i = 0; i < GUARD_BYTES; i += 2) {
    poison[i] = static_cast<char>(POISON & 0xff);
    poison[i + 1] = static_cast<char>(POISON >> 8);
  }
#if DETMODE_FINDS_SHARED
  if (S.shared_bytes == 0) dl_iterate_phdr(find_shared, nullptr);
  S.shared = &shared_anchor - anchor_offset;
#endif
  size_t shared = static_cast<size_t>(launch.shared_bytes);
  if (shared > DYNAMIC_BYTES) {
    fail(LAUNCH_ERROR, "%zu bytes of dynamic shared memory are asked for; a GPU has at most %zu",
         shared, DYNAMIC_BYTES);
    return S.status;
  }
  S.dynamic_shared = dynamic_memory;
  __builtin_memcpy(S.dynamic_shared + shared, poison, GUARD_BYTES);
  for (int i = 0; i < launch.n_buffers; ++i) guard_buffer(launch.buffers[i]);
#if DETMODE_RACES
  begin_launch(launch, shared);
#endif

  // Static, so that they lie in this library, where the check of accesses expects them.
  alignas(16) static u64 values[1024];
  static void* slots[256];
  u64* value = values;
  for (int i = 0; i < launch.n_arguments; ++i) {
    const Argument& argument = launch.arguments[i];
    int words = 2;
    slots[i] = value;
    if (argument.buffer == STRUCT) {
      int bytes = launch.entry->sizes[i];
      words = (bytes + 15) / 16 * 2;
      __builtin_memcpy(value, reinterpret_cast<void*>(argument.value), static_cast<size_t>(bytes));
    } else {
      *value = argument.buffer < 0
                   ? argument.value
                   : reinterpret_cast<u64>(launch.buffers[argument.buffer].copy + argument.offset);
    }
    value += words;
  }
  S.slots = slots;
  run_guarded(launch);
#if DETMODE_RACES
  R.on = false;
  if (S.watch != nullptr && R.unwritten[0] != '\0') fail(LAUNCH_ERROR, "%s", R.unwritten);
  forget_tracked();
#endif

  for (int i = 0; i < launch.n_buffers; ++i) {
    check_buffer(launch.buffers[i], launch.positions[i]);
  }
  if (__builtin_memcmp(S.dynamic_shared + shared, poison, GUARD_BYTES) != 0) {
    fail(OUT_OF_BOUNDS, "out-of-bounds write after the %zu bytes of dynamic shared memory", shared);
  }
  for (int i = 0; i < launch.n_buffers; ++i) {
    Buffer& buffer = launch.buffers[i];
    if (buffer.writable && S.status == OK) {
      __builtin_memcpy(const_cast<char*>(buffer.data), buffer.copy,
                       static_cast<size_t>(buffer.bytes));
    }
    __builtin_free(buffer.memory);
  }
  return S.status;
}

}  // namespace detmode_host
}  // namespace
