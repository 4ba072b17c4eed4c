// Calls of listed operators without Python and without the GIL. A boxed kernel stands at the key of
// a backend, above detmode's kernel in Python. It looks a call up by all that its launcher depends
// on, writes the number of its row and place to a log, and repeats the steps of the launcher's plan
// with the call's own tensors, or calls ATen's kernel, which is deterministic under PyTorch's flag.
// What it does not know it hands to Python, which may teach it.
//
// Only threads that hold the GIL add anything but log entries and notes. Readers take no lock, so
// nothing is freed while a thread looks.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/nonzero.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ScopeExit.h>
#include <dlfcn.h>
#include <torch/csrc/Exceptions.h>  // python_error
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <typeinfo>

#if PY_VERSION_HEX >> 16 == 0x030B
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#endif

namespace {

using Word = int64_t;
using Words = std::vector<Word>;
using Stack = torch::jit::Stack;

constexpr int KEY_WORDS = 256;  // of a call; longer keys are Python's
constexpr int SLOTS = 32;       // tensors of a call, with those that its plan allocates
constexpr int PARAMETER_WORDS = 160;
constexpr size_t HEADS = 1 << 12;  // of a table's chains
constexpr size_t SEEN = 1 << 14;   // keys that were met once
constexpr size_t NOTES = 1 << 18;  // nodes of autograd whose forward is remembered
constexpr int LOG = 1 << 13;
constexpr int MODE_OPS = 1 << 13;  // operators that modes may leave to C++; others are Python's
constexpr int LEVELS = 32;         // levels that receive calls at a time; others are Python's

inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

struct Any {
  bool operator()(const auto&) const { return true; }
};
template <class Value>
struct Chains {  // by hash; values are added and never taken out
  struct Link {
    uint64_t hash;
    Value value;
    Link* next;
  };
  std::atomic<Link*> heads[HEADS] = {};
  std::deque<Link> links;

  template <class Same = Any>
  Value* find(uint64_t hash, Same same = {}) const {
    Link* link = heads[hash >> 52].load(std::memory_order_acquire);
    for (; link; link = link->next)
      if (link->hash == hash && same(link->value)) return &link->value;
    return nullptr;
  }
  void add(uint64_t hash, Value value) {
    auto& head = heads[hash >> 52];
    links.push_back({hash, std::move(value), head.load()});
    head.store(&links.back(), std::memory_order_release);
  }
};

// What is left to C++ of the calls of an operator that a dispatch mode receives.
enum Share : uint8_t { NOTHING, ALL, DENSE, KNOWN };
enum Step : Word { END, EMPTY, FILL, COPY, LAUNCH, STRIDED_COPY, HOST };
// In the place of steps. ATen's kernel makes the call: counted, uncounted, counted but not while
// PyTorch's flag only warns. Or Python makes it. Or values decide on sizes, and these on the plan.
enum Way : Word { NATIVE = -1, NEVER = -2, PASSED = -3, STRICT = -4, BY_VALUES = -5 };
enum Look : Word { NONZERO, LARGEST };  // at the values of a tensor

struct Plan {
  Words key;
  uint32_t row;  // of the rule table: calls at one place may meet several
  Words steps;   // or a Way
};
struct Table {  // of a block
  uint64_t number;
  Chains<Plan> plans;
  Chains<uint32_t> entries;  // by operator, row and place
  std::atomic<uint64_t> seen[SEEN] = {};
  std::atomic<Share> shares[MODE_OPS] = {};

  const Plan* plan_for(const auto& key) const {
    return plans.find(key.hash, [&](const Plan& plan) { return key == plan.key; });
  }
};

struct Op {
  c10::OperatorHandle handle;
  c10::DispatchKey key;
  size_t n_arguments;
  int number;
  bool is_above;           // at autograd's key, where places are noted
  bool is_taught = false;  // else all calls are Python's
  std::optional<c10::SafeKernelFunction> native, below;  // ATen's kernel; detmode's in Python
  std::optional<c10::RegistrationHandleRAII> registration;
};

// Never destroyed: daemon threads may go on while the process ends.
std::deque<Op>& ops = *new std::deque<Op>;
// The calls in their order, for Python to count: the numbers of their entries.
std::mutex& log_mutex = *new std::mutex;
uint32_t logged[LOG], n_logged = 0;
std::atomic<Table*> active{nullptr};  // null while all calls are Python's
std::atomic<int> n_regions{0};        // allow regions that are open
std::atomic<bool> had_regions{false};
std::atomic<int> lookers{0};
std::atomic<uint64_t> n_replayed{0};
std::vector<Table*>& retired = *new std::vector<Table*>;
PyObject* host_step = nullptr;  // makes a step of a plan on the host

// What a kernel in Python is to learn from the call that it has been handed.
struct Pending {
  const Op* op = nullptr;
  uint64_t table = 0, hash = 0;
  bool shares_memory = false, has_sizes = false;
  Words key;  // empty where no plan is wanted
};
thread_local Pending pending;
thread_local int in_python = 0;  // calls that were handed over and have not returned
// Calls of ATen's kernels that need PyTorch's flag. Others that need it off hold them up, and wait.
std::atomic<int> n_native{0};
std::vector<int*> n_holds;  // Python's, of each setting
thread_local int in_native = 0;
thread_local uint64_t joined = 0;  // the table for which Python has counted a call of this thread
thread_local uint64_t first_number = 0;  // of the nodes that the thread has made since

enum Role : uint32_t { OTHER, MODULE, ENGINE, USER, UNFIT };  // of the code of a frame

// By address: a number that no other object gets, with the role in the lowest bits; 0 once gone.
Chains<uint64_t>& objects = *new Chains<uint64_t>;
uint64_t n_objects = 0;
// Without loss, so that no two addresses share one.
uint64_t hash_of(const void* address) { return mix(1, reinterpret_cast<uint64_t>(address)); }

uint64_t object_at(const void* address) {
  uint64_t* object = objects.find(hash_of(address));
  return object ? std::atomic_ref(*object).load() : 0;
}

void set_object(const void* address, uint64_t value) {
  uint64_t* object = objects.find(hash_of(address));
  object ? std::atomic_ref(*object).store(value) : objects.add(hash_of(address), value);
}

#if PY_VERSION_HEX >> 16 == 0x030B
// A thread's frames change only by the thread itself, which is here: reading them takes no GIL.
using Frame = _PyInterpreterFrame*;
struct FrameLock {};
Frame complete(Frame f) {
  while (f && _PyFrame_IsIncomplete(f)) f = f->previous;
  return f;
}
Frame innermost(PyThreadState* state) { return complete(state->cframe->current_frame); }
Frame caller_of(Frame f) { return complete(f->previous); }
const void* code_of(Frame f) { return f->f_code; }
uint64_t instruction_of(Frame f) { return _PyInterpreterFrame_LASTI(f); }
const void* self_of(Frame f) {
  PyObject* self = f->localsplus[0];
  return self && Py_IS_TYPE(self, &PyCell_Type) ? PyCell_GET(self) : self;
}
#else
using Frame = THPFrameObjectPtr;  // of an object, which CPython makes for these functions
using FrameLock = pybind11::gil_scoped_acquire;
Frame innermost(PyThreadState* state) { return Frame(PyThreadState_GetFrame(state)); }
Frame caller_of(Frame& f) { return Frame(PyFrame_GetBack(f)); }
// What these two return lives as long as the frame.
const void* code_of(Frame& f) { return THPCodeObjectPtr(PyFrame_GetCode(f)).get(); }
const void* self_of(Frame& f) {
  THPObjectPtr self(PyFrame_GetVarString(f, "self"));
  if (!self) PyErr_Clear();
  return self.get();
}
uint64_t instruction_of(Frame& f) { return PyFrame_GetLasti(f); }
#endif

// Finds numbers for the nearest frame of the user's and the innermost module, 0 where there is
// none; false if Python has to look.
bool find_frames(uint64_t& user, uint64_t& module) {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state) return true;
  [[maybe_unused]] FrameLock lock;
  for (Frame f = innermost(state); f && !(user && module); f = caller_of(f)) {
    const uint64_t code = object_at(code_of(f));
    const auto role = Role(code & 7);
    if (!code || role == UNFIT) return false;
    if (role == ENGINE) return true;  // what called a backward has not made the call
    if (role == USER && !user) user = mix(mix(2, code), instruction_of(f));
    if (role == MODULE && !module && !(module = object_at(self_of(f)))) return false;
  }
  return true;
}

std::atomic<uint64_t> notes[NOTES] = {};  // the upper half is the node's, the lower the entry

std::pair<std::atomic<uint64_t>*, uint64_t> note_at(uint64_t thread, uint64_t number) {
  // The nodes of one thread do not displace each other before they have to.
  const uint64_t tag = mix(mix(3, thread), number) >> 32 << 32;
  return {&notes[(number + mix(4, thread)) % NOTES], tag ? tag : 1ull << 32};
}

uint32_t noted(const torch::autograd::Node& node) {
  // Writing to a view: the node of the copy is made right after the one of the operator.
  const bool is_copy = typeid(node) == typeid(torch::autograd::CopySlices);
  const auto [note, tag] = note_at(node.thread_id(), node.sequence_nr() - is_copy);
  const uint64_t value = note->load();
  return (value >> 32 << 32) == tag ? uint32_t(value) : 0;
}

// False if an earlier call has made the node.
bool note(uint64_t number, uint32_t entry) {
  const auto [note, tag] = note_at(at::RecordFunction::currentThreadId(), number);
  if (number < first_number) return true;
  if ((note->load() >> 32 << 32) == tag) return false;
  *note = tag | entry;
  return true;
}

// A number for the place that a report would show of the call; 0 if Python has to find it out.
uint64_t place() {
  uint64_t user = 0, module = 0;
  if (!find_frames(user, module)) return 0;
  const auto node = torch::autograd::get_current_node();
  if (!node) return user ? mix(user, module) : 0;
  const uint32_t forward = noted(*node);
  // What was allowed where there is no note, and what is to be passed on to the nodes of a
  // backward, Python knows.
  if (had_regions && (!forward || at::GradMode::is_enabled())) return 0;
  if (user && module) return mix(mix(5, user), module);
  // Whose note holds depends on the kind of the node, too.
  return forward ? mix(mix(mix(6, user), forward), typeid(*node).hash_code()) : 0;
}

uint64_t entry_hash(const Op& op, uint32_t row, uint64_t place) {
  return mix(mix(mix(7, op.number), row), place);
}

// Keys of tensors of Python's classes, and of forward-mode AD's zeros, which have no memory.
const c10::DispatchKeySet FOREIGN({c10::DispatchKey::Python, c10::DispatchKey::ZeroTensor});

struct Key {  // all that a launcher, or the choice of a row, may depend on
  Key(const Op& op, const c10::IValue* arguments) {
    put(op.number);
    put(Word(at::GradMode::is_enabled()) |
        at::globalContext().deterministicFillUninitializedMemory() << 1);
    for (size_t i = 0; i < op.n_arguments; i++) put(arguments[i]);
    for (int i = 1; i < n_tensors; i++)
      for (int j = 0; j < i; j++)
        shares_memory |= tensors[i]->storage().is_alias_of(tensors[j]->storage());
    put(Word(shares_memory));
  }
  Word words[KEY_WORDS];
  const at::Tensor* tensors[SLOTS];
  int n = 0, n_tensors = 0;
  uint64_t hash = 0;
  bool is_plain = true, needs_grad = false, shares_memory = false;
  std::deque<at::Tensor> places;  // of what is not zero
  // Adds the sizes that values decide on; false if Python is to look.
  bool add_sizes(const Words& looks) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (size_t i = 1; i < looks.size(); i += 3) {
      const at::Tensor& values = *tensors[looks[i + 1]];
      if (looks[i] == NONZERO) {
        put(places.emplace_back(at::nonzero(values)));
        continue;
      }
      const auto [smallest, largest] = at::aminmax(values);
      if (smallest.item().toLong() < 0) return false;
      put(std::max(largest.item().toLong() + 1, looks[i + 2]));
    }
    return is_plain;
  }
  bool makes_node() const { return needs_grad && at::GradMode::is_enabled(); }
  bool operator==(const Words& key) const {
    return key.size() == size_t(n) && !memcmp(key.data(), words, sizeof(Word) * n);
  }

  void put_all(const auto& list, auto value_of) {
    put(Word(list.size()));
    for (const auto& value : list) put(value_of(value));
  }
  // Each value after its kind: of an optional argument, or a number, the schema leaves it open.
  enum Kind : Word { NONE = 1, UNDEFINED, TENSOR, INT, BOOL, DOUBLE, STRING, DEVICE, LIST };
  void put(Word word) {
    if (n == KEY_WORDS) return void(is_plain = false);
    words[n++] = word, hash = mix(hash, word);
  }
  void put(const at::Tensor& t) {
    if (!t.defined()) return put(UNDEFINED);
    if (n_tensors == SLOTS || t.layout() != at::kStrided || !t.has_storage() || t.is_conj() ||
        t.is_neg() || t.key_set().has_any(FOREIGN))
      return void(is_plain = false);
    tensors[n_tensors++] = &t;
    needs_grad |= t.requires_grad();
    // Vectors in memory begin at multiples of 16 bytes; what is aligned further has its own plan.
    put(TENSOR | Word(t.dim()) << 8 | Word(t.scalar_type()) << 16 | Word(t.requires_grad()) << 24 |
        (reinterpret_cast<Word>(t.const_data_ptr()) & 63) << 32 |
        Word(uint8_t(t.get_device())) << 40 | Word(t.device().type()) << 48);
    for (auto size : t.sizes()) put(size);
    for (auto stride : t.strides()) put(stride);
  }
  void put(const c10::IValue& v) {
    if (v.isTensor()) return put(v.toTensor());
    if (v.isNone()) return put(NONE);
    if (v.isInt()) return put(INT), put(Word(v.toInt()));
    if (v.isBool()) return put(BOOL), put(Word(v.toBool()));
    if (v.isDouble()) return put(DOUBLE), put(std::bit_cast<Word>(v.toDouble()));
    if (v.isDevice())
      return put(DEVICE), put(Word(v.toDevice().type()) << 8 | uint8_t(v.toDevice().index()));
    if (v.isString()) return put(STRING), put_all(v.toStringRef(), [](char c) { return Word(c); });
    if (v.isList()) return put(LIST), put_all(v.toListRef(), std::identity());
    is_plain = false;  // generators, streams, process groups, complex numbers
  }
};

struct Symbol {  // of a library that PyTorch has loaded
  const char *library, *name;
  template <class F>
  operator F*() const {
    void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void* function = loaded ? dlsym(loaded, name) : nullptr;
    TORCH_CHECK(function, "no library that is loaded has ", name);
    return reinterpret_cast<F*>(function);
  }
};

struct Driver {  // this path has not run on a GPU
  using U = unsigned;
  static constexpr auto CUDA = "libcuda.so.1", TORCH = "libtorch_cuda.so";
  int (*launch)(void*, U, U, U, U, U, U, U, void*, void**, void**) = Symbol{CUDA, "cuLaunchKernel"};
  int (*set8)(char*, unsigned char, size_t, void*) = Symbol{CUDA, "cuMemsetD8Async"};
  int (*set16)(char*, unsigned short, size_t, void*) = Symbol{CUDA, "cuMemsetD16Async"};
  int (*set32)(char*, U, size_t, void*) = Symbol{CUDA, "cuMemsetD32Async"};
  int (*copy)(char*, char*, size_t, void*) = Symbol{CUDA, "cuMemcpyDtoDAsync_v2"};
  int (*current_stream)(int, void**) = Symbol{TORCH, "aoti_torch_get_current_cuda_stream"};

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }
  static void check(int status) {
    TORCH_CHECK(!status, "CUDA driver error ", status, " in the replay of a substitute");
  }
};

// Repeats the steps of a plan. Slots are the call's tensors, and then what it allocates.
struct Replay {
  Replay(const Key& key, const Word* steps) : s_(steps) {
    for (int i = 0; i < key.n_tensors; i++) add(*key.tensors[i]);
    if (!n_ || !tensors_[0].is_cuda()) return;
    guard_.reset_device(tensors_[0].device());
    Driver::check(Driver::get().current_stream(tensors_[0].get_device(), &stream_));
    on_gpu_ = true;
  }
  void run() {
    while (*s_ != END) step(*s_++);
  }
  void put_results(Stack* stack) {
    for (const Word *n = s_ + 1, *slot = n + 1; slot <= n + *n; slot++)
      stack->emplace_back(*slot < 0 ? at::Tensor() : tensors_[*slot]);
  }

  void add(at::Tensor tensor) {
    TORCH_CHECK(n_ < SLOTS, "a plan has more tensors than a replay holds");
    data_[n_] = static_cast<char*>(tensor.data_ptr());
    tensors_[n_++] = std::move(tensor);
  }
  // The place that the next two words give.
  char* at() { return s_ += 2, data_[s_[-2]] + s_[-1]; }
  void step(Word kind) {
    if (kind == EMPTY) return allocate();
    if (kind == FILL) return fill();
    if (kind == COPY) return copy();
    if (kind == LAUNCH) return launch();
    if (kind == STRIDED_COPY) return copy_views();
    if (kind == HOST) return call_host(*s_++);
    TORCH_CHECK(false, "a plan has no step ", kind);
  }
  void allocate() {  // as compiled code does: nothing is filled
    const size_t dims = s_[1];
    auto* allocator = c10::GetAllocator(on_gpu_ ? at::kCUDA : at::kCPU);
    const c10::DispatchKeySet key(on_gpu_ ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
    add(at::detail::empty_strided_generic({s_ + 2, dims}, {s_ + 2 + dims, dims}, allocator, key,
                                          at::ScalarType(s_[0])));
    s_ += 2 + 2 * dims;
  }
  void fill() {
    char* target = at();
    const Word bytes = s_[0], *pattern = s_ + 1, width = s_[2];
    s_ += 3;
    if (!on_gpu_)
      for (Word i = 0; i < bytes; i += width) memcpy(target + i, pattern, width);
    else if (width == 1)
      Driver::check(Driver::get().set8(target, *pattern, bytes, stream_));
    else if (width == 2)
      Driver::check(Driver::get().set16(target, *pattern, bytes / 2, stream_));
    else
      Driver::check(Driver::get().set32(target, *pattern, bytes / 4, stream_));
  }
  void copy() {
    char *target = at(), *source = at();
    const size_t bytes = *s_++;
    if (!on_gpu_) return void(memmove(target, source, bytes));
    Driver::check(Driver::get().copy(target, source, bytes, stream_));
  }
  at::Tensor view() {  // of a slot, from a byte on, with a dtype, sizes and strides
    const size_t dims = s_[3];
    const Word *head = s_, *sizes = head + 4;
    s_ += 4 + 2 * dims;
    return at::from_blob(data_[head[0]] + head[1], {sizes, dims}, {sizes + dims, dims},
                         tensors_[head[0]].options().dtype(at::ScalarType(head[2])));
  }
  void copy_views() {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor target = view(), source = view();
    at::_ops::copy_::call(target, source, false);
  }
  void launch() {
    const Word *head = s_, n_pointers = s_[8], n_numbers = s_[9], n_parameters = s_[10];
    Word words[PARAMETER_WORDS];
    void* parameters[PARAMETER_WORDS];
    TORCH_CHECK(n_pointers + n_numbers <= PARAMETER_WORDS && n_parameters <= PARAMETER_WORDS,
                "a launch of a plan has more parameters than a replay holds");
    s_ += 11;
    for (int i = 0; i < n_pointers; i++, s_ += 2)
      words[i] = s_[0] < 0 ? 0 : reinterpret_cast<Word>(data_[s_[0]] + s_[1]);
    memcpy(words + n_pointers, s_, sizeof(Word) * n_numbers);
    s_ += n_numbers;
    for (int i = 0; i < n_parameters; i++) parameters[i] = words + *s_++;
    Driver::check(Driver::get().launch(reinterpret_cast<void*>(head[0]), head[1], head[2], head[3],
                                       head[4], head[5], head[6], head[7], stream_, parameters,
                                       nullptr));
  }
  // Calls Python with the number of a step and the slots: the host runner is there.
  void call_host(Word number) {
    if (host_step == Py_None) return;  // in benchmarks
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    pybind11::gil_scoped_acquire gil;
    pybind11::tuple slots(n_);
    for (int i = 0; i < n_; i++) PyTuple_SET_ITEM(slots.ptr(), i, THPVariable_Wrap(tensors_[i]));
    PyObject* result = PyObject_CallFunction(host_step, "LO", (long long)number, slots.ptr());
    if (result) return Py_DECREF(result);
    python_error error;  // what it raised, or an interrupt
    error.persist();
    throw error;
  }

  const Word* s_;
  at::Tensor tensors_[SLOTS];
  char* data_[SLOTS];
  int n_ = 0;
  bool on_gpu_ = false;
  void* stream_ = nullptr;
  c10::OptionalDeviceGuard guard_;
};

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
    if (!entry || joined != table->number) {
      next = {&op, table->number, key.hash, key.shares_memory, by_values, {}};
      // At the second sight: what is met once leaves nothing behind.
      if (!plan && table->seen[key.hash % SEEN].exchange(key.hash) == key.hash)
        next.key.assign(key.words, key.words + key.n);
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
    in_native++, n_native++;
    const auto leave = c10::make_scope_exit([] { in_native--, n_native--; });
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
    const bool may_act = !in_python && active.load() && !n_regions && !is_traced() &&
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

// The state in which a dispatch mode makes the calls that it receives: it is off, and the keys
// above `Python` are excluded, except those that resolve views (as resolve_views of
// process/dispatch.py).
struct BelowMode {
  static c10::impl::LocalDispatchKeySet keys() {
    using Set = c10::DispatchKeySet;
    static const Set above = Set(Set::FULL) - Set(Set::FULL_AFTER, c10::DispatchKey::Python) -
                             Set(c10::DispatchKey::Python);
    static const Set views({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    auto keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = (keys.excluded_ | above) - views;
    return keys;
  }
  c10::impl::ForceDispatchKeyGuard guard{keys()};
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

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet set, Stack* stack) {
    const Level* level = receiver();
    const Share share = level ? share_of(*level) : NOTHING;
    if ((share == ALL || share == DENSE) && is_plain(share == DENSE, *stack)) {
      const BelowMode below;
      return op.handle.callBoxed(stack);
    }
    Pending next;
    const bool may_act = share >= DENSE && !in_python && !n_regions;
    if (!may_act || !makes(*level, set, stack, next)) hand_over(std::move(next), set, stack);
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
  Share share_of(const Level& level) const {
    lookers++;
    const auto look = c10::make_scope_exit([] { lookers--; });
    Table* table = level.table.load();
    return table && op.number < MODE_OPS ? table->shares[op.number].load() : NOTHING;
  }
  // Whether no tensor is of a foreign class, and, if they are to be dense, nothing is to be noted.
  bool is_plain(bool are_dense, const Stack& stack) const {
    const bool has_grad = at::GradMode::is_enabled();
    const auto is_plain = [&](const at::Tensor& t) {
      return !t.defined() ||
             (!t.key_set().has_any(FOREIGN) &&
              !(are_dense && (t.layout() != at::kStrided || (has_grad && t.requires_grad()))));
    };
    return std::all_of(stack.end() - op.n_arguments, stack.end(), [&](const c10::IValue& value) {
      if (value.isTensor()) return is_plain(value.toTensor());
      return !value.isList() || std::ranges::all_of(value.toListRef(), [&](const auto& element) {
        return !element.isTensor() || is_plain(element.toTensor());
      });
    });
  }
  bool makes(const Level& level, c10::DispatchKeySet set, Stack* stack, Pending& next) {
    if (c10::impl::TorchDispatchModeTLS::stack_len() > 1) return false;
    const BelowMode below;
    return act(level.table, set, stack, next);
  }
};

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
// Once, for all operators of ATen. Where no mode is, nothing reaches the kernels.
void dm_register_for_modes() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::") || !dispatcher.findSchema(name)) continue;
    const int number = dm_op(name.name.c_str(), name.overload_name.c_str(), "Python");
    Op& op = ops[mode_ops[name] = number];
    op.below = op.handle.getComputedKernelForDispatchKey(op.key);
    op.registration.emplace(dispatcher.registerImpl(
        name, op.key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ModeKernel>(&op)),
        std::nullopt, nullptr, "detmode"));
  }
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

Table* dm_table(uint64_t number) { return new Table{number}; }
void dm_retire(Table* table) {
  Table* expected = table;
  active.compare_exchange_strong(expected, nullptr);
  for (Level& level : levels)
    if (level.table == table) level.table = nullptr;
  retired.push_back(table);
  if (lookers.load()) return;  // it will be freed with the next
  for (Table* unused : retired) delete unused;
  retired.clear();
}
void dm_activate(Table* table) { active = table; }
void dm_regions(int open) {
  n_regions = open;
  if (open) had_regions = true;
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
void dm_join(uint64_t table) {
  if (joined != table) joined = table, first_number = at::sequence_number::peek();
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
