// The replay of a plan: the steps of a launcher, with the tensors of another call of the same key.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>
#include <torch/csrc/Exceptions.h>  // python_error
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "key.h"

namespace {

using Stack = torch::jit::Stack;

constexpr int PARAMETER_WORDS = 160;

enum Step : Word { END, EMPTY, FILL, COPY, LAUNCH, STRIDED_COPY, HOST, CALL };
enum Argument : Word {
  VIEW,
  INTEGER,
  FLOAT,
  LOGICAL,
  NUMBER
};  // of a call; the last stands for a tensor

PyObject* host_step = nullptr;  // makes a step of a plan on the host

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

// Calls of ATen's kernels that need PyTorch's flag. Others that need it off hold them up, and wait.
std::atomic<int> n_native{0};
thread_local int in_native = 0;
struct Native {
  Native() { in_native++, n_native++; }
  ~Native() { in_native--, n_native--; }
};

// The keys above `Python` are excluded, except those that resolve views (as resolve_views of
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
    if (kind == HOST) return call_host(reinterpret_cast<PyObject*>(*s_++));
    if (kind == CALL) return call_aten();
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
  void call_aten() {  // of an operator that writes to what it is given
    const BelowMode below;
    const Native native;
    const auto& op = ops[*s_++];
    Stack stack;
    for (size_t i = 0; i < op.n_arguments; i++) stack.push_back(argument());
    op.handle.callBoxed(&stack);
  }
  c10::IValue argument() {
    const Word kind = *s_++;
    if (kind == VIEW) return view();
    if (kind == INTEGER) return *s_++;
    if (kind == FLOAT) return std::bit_cast<double>(*s_++);
    if (kind == LOGICAL) return bool(*s_++);
    if (kind == NUMBER) return at::native::wrapped_scalar_tensor(argument().toScalar());
    TORCH_CHECK(false, "a call of a plan has no argument ", kind);
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
  // Calls Python with a step, which the table keeps, and the slots: the host runner is there.
  void call_host(PyObject* step) {
    if (host_step == Py_None) return;  // in benchmarks
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    pybind11::gil_scoped_acquire gil;
    pybind11::tuple slots(n_);
    for (int i = 0; i < n_; i++) PyTuple_SET_ITEM(slots.ptr(), i, THPVariable_Wrap(tensors_[i]));
    PyObject* result = PyObject_CallFunctionObjArgs(host_step, step, slots.ptr(), nullptr);
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

}  // namespace
