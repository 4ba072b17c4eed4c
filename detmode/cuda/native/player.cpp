// Calls of listed operators without Python and without the GIL. A boxed kernel stands at the key of
// a backend, above detmode's kernel in Python. It looks a call up by all that its launcher depends
// on, writes the number of its row and place to a log, and repeats the steps of the launcher's plan
// with the call's own tensors, or calls ATen's kernel, which is deterministic under PyTorch's flag.
// What it does not know it hands to Python, which may teach it.
//
// Only threads that hold the GIL add anything but log entries and notes. Readers take no lock, so
// nothing is freed while a thread looks.
//
// It is one translation unit: what its headers define lies in an unnamed namespace, as here.
#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <cstring>
#include <deque>
#include <mutex>

#include "chains.h"
#include "interpreter.h"
#include "key.h"
#include "places.h"
#include "replay.h"
#include "unboxed.h"

namespace {

constexpr size_t SEEN = 1 << 14;  // keys that were met once
constexpr int LOG = 1 << 13;
constexpr int MODE_OPS = 1 << 13;  // operators that modes may leave to C++; others are Python's
constexpr int LEVELS = 32;         // levels that receive calls at a time; others are Python's

// What is left to C++ of the calls of an operator that a dispatch mode receives.
enum Share : uint8_t { NOTHING, ALL, DENSE, KNOWN };
// In the place of steps. ATen's kernel makes the call: counted, uncounted, counted but not while
// PyTorch's flag only warns. Or Python makes it. Or values decide on sizes, and these on the plan.
enum Way : Word { NATIVE = -1, NEVER = -2, PASSED = -3, STRICT = -4, BY_VALUES = -5 };

struct Plan {
  Words key;
  uint32_t row;  // of the rule table: calls at one place may meet several
  Words steps;   // or a Way
};
struct Table {  // of a block
  uint64_t number;
  PyObject* steps;             // a list of what its plans have Python call
  std::atomic<uint64_t> turn;  // of acting for blocks: threads join each
  Chains<Plan> plans;
  Chains<uint32_t> entries;  // by operator, row and place
  std::atomic<uint64_t> seen[SEEN] = {}, n_seen{0};
  std::atomic<Share> shares[MODE_OPS] = {};

  const Plan* plan_for(const auto& key) const {
    return plans.find(key.hash, [&](const Plan& plan) { return key == plan.key; });
  }
  // Whether a key was met before. Else it is noted at one of two places, by turns: keys that meet
  // at one would displace each other for good.
  bool has_seen(uint64_t hash) {
    auto &first = seen[hash % SEEN], &second = seen[(hash >> 32) % SEEN];
    if (first == hash || second == hash) return true;
    (n_seen++ % 2 ? first : second) = hash;
    return false;
  }
};

// The calls in their order, for Python to count: the numbers of their entries.
std::mutex& log_mutex = *new std::mutex;
uint32_t logged[LOG], n_logged = 0;
std::atomic<Table*> active{nullptr};  // null while all calls are Python's
std::atomic<int> n_marks{0};          // allow regions that are open, and calls that are repeated
std::atomic<int> lookers{0};
std::atomic<uint64_t> n_replayed{0};
std::vector<Table*>& retired = *new std::vector<Table*>;

// What a kernel in Python is to learn from the call that it has been handed.
struct Pending {
  const Op* op = nullptr;
  uint64_t table = 0, hash = 0;
  bool shares_memory = false, has_sizes = false;
  Words key;  // empty where no plan is wanted
};
thread_local Pending pending;
thread_local int in_python = 0;  // calls that were handed over and have not returned
std::vector<int*> n_holds;       // Python's, of each setting
// The turns in which Python has counted a call of this thread, and has met one of its forwards.
thread_local uint64_t joined = 0, met = 0;

uint64_t entry_hash(const Op& op, uint32_t row, uint64_t place) {
  return mix(mix(mix(7, op.number), row), place);
}

// What torch.jit.trace is to see, it sees by Python.
bool is_traced() { return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer); }

// Makes the calls of an operator that it knows, at one dispatch key.
struct Maker : c10::OperatorKernel {
  explicit Maker(Op* op) : op(*op) {}
  Op& op;

  // Counts a call and makes it; false if Python is to make it, and to learn what is next.
  bool act(const std::atomic<Table*>& tables, c10::DispatchKeySet set, Stack* stack,
           Pending& next) {
    Key key(op, stack->data() + stack->size() - op.n_arguments);
    if (!key.is_plain || !at::globalContext().deterministicAlgorithms()) return false;
    lookers++;  // what the thread finds stays until the end of the block
    const auto look = c10::make_scope_exit([] { lookers--; });
    Table* table = tables.load();
    if (!table) return false;
    const Plan* plan = table->plan_for(key);
    const bool by_values = plan && plan->steps[0] == BY_VALUES;
    if (by_values && !key.add_sizes(plan->steps)) return false;
    if (by_values) plan = table->plan_for(key);
    if (plan && plan->steps[0] == NEVER) return false;
    const bool is_passed = plan && plan->steps[0] == PASSED;
    if (is_passed && !key.makes_node()) return call_aten(set, stack);
    const uint64_t where = place();
    const uint32_t* entry =
        plan && where ? table->entries.find(entry_hash(op, plan->row, where)) : nullptr;
    if (!entry || (is_passed ? met : joined) != table->turn) {
      // At the second sight: what is met once leaves nothing behind, and costs Python nothing.
      const bool is_new = !plan;
      if (is_new && !table->has_seen(key.hash)) return false;
      next = {&op, table->number, key.hash, key.shares_memory, by_values, {}};
      if (is_new) next.key.assign(key.words, key.words + key.n);
      return false;
    }
    if (is_passed) return note(at::sequence_number::peek() - 1, *entry), call_aten(set, stack);
    if (plan->steps[0] < 0) return call_native(key, *entry, plan->steps[0], set, stack);
    if (!count(key, *entry)) return false;
    Replay replay(key, plan->steps.data());
    replay.run();
    torch::jit::drop(*stack, op.n_arguments);
    replay.put_results(stack);
    n_replayed.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  static bool count(const Key& key, uint32_t entry) {
    std::lock_guard lock(log_mutex);
    if (n_logged == LOG) return false;  // Python counts the call, and empties the log first
    logged[n_logged++] = entry;
    if (key.makes_node()) note(at::sequence_number::peek() - 1, entry);
    return true;
  }
  // Calls ATen's kernel, if PyTorch's settings are those of its deterministic path and stay so.
  bool call_native(const Key& key, uint32_t entry, Word way, c10::DispatchKeySet set,
                   Stack* stack) {
    const Native native;
    const auto& settings = at::globalContext();
    if (std::ranges::any_of(n_holds, [](int* n) { return std::atomic_ref(*n).load() != 0; }) ||
        !settings.deterministicAlgorithms() || settings.benchmarkCuDNN() ||
        (way == STRICT && settings.deterministicAlgorithmsWarnOnly()) || !count(key, entry))
      return false;
    return call_aten(set, stack);
  }
  bool call_aten(c10::DispatchKeySet set, Stack* stack) {
    op.native ? op.native->callBoxed(op.handle, set, stack) : op.handle.callBoxed(stack);
    return true;
  }
  void hand_over(Pending next, c10::DispatchKeySet set, Stack* stack) {
    std::swap(pending, next);
    in_python++;
    const auto leave = c10::make_scope_exit([&] { in_python--, std::swap(pending, next); });
    op.below->callBoxed(op.handle, set, stack);
  }
};

// At the key of a backend, or of autograd, above detmode's kernel in Python.
struct Kernel final : Maker {
  using Maker::Maker;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet set, Stack* stack) {
    if (in_native) return op.native->callBoxed(op.handle, set, stack);  // a part of a counted call
    Pending next;
    // What a call in Python calls, and what a dispatch mode is to see, Python decides on.
    const bool may_act = !in_python && active.load() && !n_marks && !is_traced() &&
                         !c10::impl::TorchDispatchModeTLS::stack_len();
    const bool is_made = may_act && (op.is_above ? call_noted(set, stack, next)
                                                 : op.is_taught && act(active, set, stack, next));
    if (!is_made) hand_over(std::move(next), set, stack);
  }

  // Makes a call at autograd's key, and notes its place for its backward.
  bool call_noted(c10::DispatchKeySet set, Stack* stack, Pending& next) {
    const auto needs_grad = [](const auto& v) {
      return v.isTensor() && v.toTensor().requires_grad();
    };
    const bool may_make_node =
        std::any_of(stack->end() - op.n_arguments, stack->end(), [&](const c10::IValue& v) {
          return v.isList() ? std::ranges::any_of(v.toListRef(), needs_grad) : needs_grad(v);
        });
    if (!may_make_node || !at::GradMode::is_enabled()) return call_aten(set, stack);
    lookers++;
    const auto look = c10::make_scope_exit([] { lookers--; });
    const Table* table = active.load();
    if (!table) return false;
    next = {&op, table->number};
    const uint64_t where = place(), number = at::sequence_number::peek();
    const uint32_t* entry = where ? table->entries.find(entry_hash(op, 0, where)) : nullptr;
    if (!entry) return false;
    call_aten(set, stack);
    if (at::sequence_number::peek() != number) note(number, *entry);
    return true;
  }
};

// The state in which a dispatch mode makes the calls that it receives: it is off as well.
struct InMode : BelowMode {
  torch::torch_dispatch_mode::StashTorchDispatchModeGuard off;
};

// A level that receives calls as a dispatch mode, innermost of its thread's, and its table.
struct Level {
  std::atomic<PyObject*> mode{nullptr};
  std::atomic<Table*> table{nullptr};
};
Level levels[LEVELS];
std::unordered_map<c10::OperatorName, int>& mode_ops =
    *new std::unordered_map<c10::OperatorName, int>;
std::atomic<int> n_levels{0};  // of the array, that have been in use

// At the key `Python`, where dispatch modes receive calls, above PyTorch's kernel that calls them.
struct ModeKernel final : Maker {
  using Maker::Maker;
  using Below = InMode;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet set, Stack* stack) {
    const Level* level = receiver();
    // Of a tensor's class, or of another mode: what it calls inside is the program's.
    if (!level) return op.below->callBoxed(op.handle, set, stack);
    const Share share = share_of(*level, op);
    if ((share == ALL || share == DENSE) && is_plain(share == DENSE, *stack)) {
      const InMode inside;
      return op.handle.callBoxed(stack);
    }
    Pending next;
    const bool may_act = share >= DENSE && !in_python && !n_marks;
    if (!may_act || !makes(*level, set, stack, next)) hand_over(std::move(next), set, stack);
  }
  // Whether a call with these arguments is to be made at once, and nothing else.
  bool passes_on(const auto&... arguments) const {
    const Level* level = receiver();
    const Share share = level ? share_of(*level, op) : NOTHING;
    if (share != ALL && share != DENSE) return false;
    const Plain is_plain(share == DENSE);
    return (is_plain(arguments) && ...);
  }

  static const Level* receiver() {
    const auto n_modes = c10::impl::TorchDispatchModeTLS::stack_len();
    if (!n_modes || is_traced()) return nullptr;
    const auto& innermost = c10::impl::TorchDispatchModeTLS::get_stack_at(n_modes - 1);
    PyObject* mode = innermost->ptr(getPyInterpreter());
    for (const Level* level = levels; level < levels + n_levels.load(); level++)
      if (level->mode.load() == mode) return level;
    return nullptr;
  }
  static Share share_of(const Level& level, const Op& op) {
    lookers++;
    const auto look = c10::make_scope_exit([] { lookers--; });
    Table* table = level.table.load();
    return table && op.number < MODE_OPS ? table->shares[op.number].load() : NOTHING;
  }
  bool is_plain(bool are_dense, const Stack& stack) const {
    return std::all_of(stack.end() - op.n_arguments, stack.end(), Plain(are_dense));
  }
  bool makes(const Level& level, c10::DispatchKeySet set, Stack* stack, Pending& next) {
    if (c10::impl::TorchDispatchModeTLS::stack_len() > 1) return false;
    const InMode inside;
    return act(level.table, set, stack, next);
  }
};

// Whether the one mode that is on would pass the copying of a saved result on.
bool passes_detach_on(const c10::TensorImpl& tensor) {
  static const Op& detach = ops[mode_ops.at({"aten::detach", ""})];
  if (c10::impl::TorchDispatchModeTLS::stack_len() > 1 || tensor.key_set().has_any(FOREIGN))
    return false;
  const Level* level = ModeKernel::receiver();
  return level && ModeKernel::share_of(*level, detach) == ALL;
}

}  // namespace

extern "C" {  // What Python calls, by ctypes, with the GIL

uint32_t* dm_n_logged() { return &n_logged; }

// A number for an operator at a key, all of whose calls Python may make; -1 if there is none.
int dm_op(const char* name, const char* overload, const char* key) {
  auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return -1;
  const size_t n_arguments = handle->schema().arguments().size();
  const bool is_above = std::string_view(key).starts_with("Autograd");
  ops.push_back({*handle, c10::parseDispatchKey(key), n_arguments, int(ops.size()), is_above});
  return ops.size() - 1;
}
// Before detmode's kernel is registered.
void dm_prepare(int number, int is_taught) {
  ops[number].native = ops[number].handle.getComputedKernelForDispatchKey(ops[number].key);
  ops[number].is_taught = is_taught;
}
// Above detmode's kernel, which has been registered.
void dm_register(int number) {
  Op& op = ops[number];
  op.registration.reset();
  op.below = op.handle.getComputedKernelForDispatchKey(op.key);
  op.registration.emplace(c10::Dispatcher::singleton().registerImpl(
      op.handle.operator_name(), op.key,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(&op)), std::nullopt,
      nullptr, "detmode"));
}
void dm_unregister(int op) { ops[op].registration.reset(); }
// Once, for all operators of ATen and of the profiler, which optimizers call. Where no mode is,
// nothing reaches the kernels.
void dm_register_for_modes() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const Signatures<ModeKernel> signatures;
  const auto put = [&](const Op& op, c10::DispatchKey key, c10::KernelFunction kernel) {
    static auto& registrations = *new std::deque<c10::RegistrationHandleRAII>;
    registrations.push_back(dispatcher.registerImpl(
        op.handle.operator_name(), key, std::move(kernel), std::nullopt, nullptr, "detmode"));
  };
  for (const auto& name : dispatcher.getAllOpNames()) {
    const bool is_torchs = name.name.starts_with("aten::") || name.name.starts_with("profiler::");
    if (!is_torchs || !dispatcher.findSchema(name)) continue;
    const int number = dm_op(name.name.c_str(), name.overload_name.c_str(), "Python");
    Op& op = ops[mode_ops[name] = number];
    op.below = op.handle.getComputedKernelForDispatchKey(op.key);
    const auto makers = signatures.find(types_of(op.handle.schema()));
    if (makers != signatures.end()) try {
        auto kernel = makers->second.at_python(op.handle, std::make_unique<ModeKernel>(&op));
        constexpr auto SNAPSHOT = c10::DispatchKey::PythonTLSSnapshot;
        if (!op.handle.hasKernelForDispatchKey(SNAPSHOT))
          put(op, SNAPSHOT, makers->second.snapshot(op.handle));
        put(op, op.key, std::move(kernel));
        continue;
      } catch (const c10::Error&) {  // in C++ it takes other types
      }
    put(op, op.key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ModeKernel>(&op)));
  }
  ask_for_copies(passes_detach_on);
}
// The number of an operator whose calls modes may leave to C++; -1 if it has none.
int dm_mode_op(const char* name, const char* overload) {
  const auto found = mode_ops.find({name, overload});
  return found == mode_ops.end() ? -1 : found->second;
}
// Has C++ share in the calls that a mode receives; with no table, leaves them to Python.
void dm_level(PyObject* mode, Table* table) {
  const auto is_free = [&](const Level& level) { return !level.mode || level.mode == mode; };
  Level* level = std::ranges::find(levels, mode, [](const Level& l) { return l.mode.load(); });
  if (level == std::end(levels)) level = std::ranges::find_if(levels, is_free);
  if (level == std::end(levels)) return;
  level->table = table;
  level->mode = table ? mode : nullptr;
  n_levels = std::max<int>(n_levels, level - levels + 1);
}
void dm_share(Table* table, int op, int share) {
  if (op < MODE_OPS) table->shares[op] = Share(share);
}

// Frees a table, when Python drops what owns it: a callback in Python would lose interrupts.
static void retire(PyObject* owner) {
  auto* table = static_cast<Table*>(PyCapsule_GetPointer(owner, nullptr));
  Table* expected = table;
  active.compare_exchange_strong(expected, nullptr);
  for (Level& level : levels)
    if (level.table == table) level.table = nullptr;
  retired.push_back(table);
  if (lookers.load()) return;  // it will be freed with the next
  for (Table* unused : std::exchange(retired, {})) {
    Py_DECREF(unused->steps);
    delete unused;
  }
}
// A new table's owner.
PyObject* dm_table(uint64_t number, PyObject* steps) {
  return PyCapsule_New(new Table{number, Py_NewRef(steps), number}, nullptr, retire);
}
Table* dm_table_of(PyObject* owner) {
  return static_cast<Table*>(PyCapsule_GetPointer(owner, nullptr));
}
void dm_activate(Table* table) { active = table; }
// Begins a table's turn, which the thread joins, if its block is meant, as it has the last.
void dm_turn(Table* table, uint64_t turn, int is_here) {
  const uint64_t last = table->turn.exchange(turn);
  if (is_here && joined == last) joined = turn;
  if (is_here && met == last) met = turn;
}
void dm_marks(int regions, int repetitions) {
  n_marks = regions + repetitions;
  if (regions) had_regions = true;
}
int dm_take(uint32_t* numbers) {
  std::lock_guard lock(log_mutex);
  memcpy(numbers, logged, sizeof *logged * n_logged);
  return std::exchange(n_logged, 0);
}
void dm_after_fork() {  // other threads are not here
  new (&log_mutex) std::mutex;
  n_native = in_native;
}
void dm_holds(int** numbers, int count) { n_holds.assign(numbers, numbers + count); }
int dm_native_here() { return in_native; }
int dm_native_elsewhere() {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // after Python's hold
  return n_native - in_native;
}
uint64_t dm_replayed() { return n_replayed; }
void dm_host_step(PyObject* function) { host_step = Py_NewRef(function); }

void dm_know(const void* address, int role) { set_object(address, ++n_objects << 3 | role); }
void dm_forget(const void* address) { set_object(address, 0); }
void dm_join(uint64_t turn, int is_counted) {
  if (met != turn) met = turn, first_number = at::sequence_number::peek();
  if (is_counted) joined = turn;
}

// What is to be learned from the call in this thread: 0 nothing, 1 an entry, 2 a plan, too, 3 one
// for the sizes that values decide on; and, as the rest of that number, of which operator.
int dm_pending(uint64_t table) {
  if (!pending.op || pending.table != table) return 0;
  return pending.op->number << 2 | (pending.key.empty() ? 1 : 2 + pending.has_sizes);
}
void dm_add_plan(Table* table, uint32_t row, const Word* words, size_t n) {
  // Which of the tensors that share memory is meant, an address does not say.
  const bool is_lost = pending.shares_memory && words[0] >= 0;
  table->plans.add(pending.hash,
                   {pending.key, row, is_lost ? Words{NEVER} : Words(words, words + n)});
}
// Adds an entry for the place of the call; false where that is not known.
int dm_add_entry(Table* table, uint32_t row, uint32_t entry) {
  const uint64_t where = place();  // of frames that have become known meanwhile
  if (!where) return 0;
  const uint64_t hash = entry_hash(*pending.op, row, where);
  if (!table->entries.find(hash)) table->entries.add(hash, entry);
  return 1;
}
int dm_note(uint64_t number, uint32_t entry) { return note(number, entry); }
uint32_t dm_noted() {  // the entry of the forward whose backward runs in this thread
  const auto node = torch::autograd::get_current_node();
  return node ? noted(*node) : 0;
}
}
