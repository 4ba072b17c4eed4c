// PyTorch's interface to Python, of which one function is answered here. Autograd copies a result
// that it saves, and copies it again for a backward; while a mode is on, PyTorch asks the mode's
// Python for the copies, past the dispatcher. Without an answer it makes them itself, as it does
// without a mode.
#pragma once
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/PyInterpreter.h>
#include <torch/csrc/PyInterpreter.h>

#include <type_traits>

namespace {

// A template, so that only functions that the PyTorch at hand has are compiled: they override its.
template <class Interface>
struct Asked : Interface {
  using Impl = c10::TensorImpl;
  using Bool = c10::SymBool;
  using Int = c10::SymInt;
  using Ints = c10::SymIntArrayRef;
  using Op = c10::OperatorHandle;
  using Keys = c10::DispatchKeySet;
  using Stack = torch::jit::Stack;

  const Interface* python;
  bool (*makes_copies)(const Impl&);  // whether PyTorch itself is to copy such a tensor

  c10::intrusive_ptr<Impl> detach(const Impl* self) const {
    return makes_copies(*self) ? nullptr : python->detach(self);
  }

#define PASS(result, name, parameters, ...) \
  result name parameters const { return python->name(__VA_ARGS__); }
  PASS(std::string, name, ())
  PASS(void, incref, (PyObject * o), o)
  PASS(void, decref, (PyObject * o), o)
  PASS(void, decref, (PyObject * o, bool has_slot), o, has_slot)
  PASS(bool, try_incref, (const c10::impl::PyObjectSlot& slot), slot)
  PASS(size_t, refcnt, (PyObject * o), o)
  PASS(void, dispatch, (const Op& op, Stack* stack), op, stack)
  PASS(void, reportErrorCallback, (PyObject * callback, c10::DispatchKey key), callback, key)
  PASS(void, python_op_registration_trampoline,
       (const Op& op, c10::DispatchKey key, Keys set, Stack* stack, bool with_set, bool with_op),
       op, key, set, stack, with_set, with_op)
  PASS(void, throw_abstract_impl_not_imported_error,
       (std::string name, const char* module, const char* context), name, module, context)
  PASS(void, python_dispatcher, (const Op& op, Keys set, Stack* stack), op, set, stack)
  PASS(bool, is_contiguous, (const Impl* t, at::MemoryFormat format), t, format)
  PASS(Bool, sym_is_contiguous, (const Impl* t, at::MemoryFormat format), t, format)
  PASS(bool, is_strides_like, (const Impl* t, at::MemoryFormat format), t, format)
  PASS(bool, is_non_overlapping_and_dense, (const Impl* t), t)
  PASS(c10::Device, device, (const Impl* t), t)
  PASS(int64_t, dim, (const Impl* t), t)
  PASS(c10::IntArrayRef, strides, (const Impl* t), t)
  PASS(c10::IntArrayRef, sizes, (const Impl* t), t)
  PASS(Ints, sym_sizes, (const Impl* t), t)
  PASS(c10::Layout, layout, (const Impl* t), t)
  PASS(int64_t, numel, (const Impl* t), t)
  PASS(Int, sym_numel, (const Impl* t), t)
  PASS(Ints, sym_strides, (const Impl* t), t)
  PASS(Int, sym_storage_offset, (const Impl* t), t)
  using Type = c10::DeviceType;
  PASS(void, trace_gpu_event_creation, (Type type, uintptr_t event), type, event)
  PASS(void, trace_gpu_event_deletion, (Type type, uintptr_t event), type, event)
  PASS(void, trace_gpu_event_record, (Type type, uintptr_t event, uintptr_t stream), type, event,
       stream)
  PASS(void, trace_gpu_event_wait, (Type type, uintptr_t event, uintptr_t stream), type, event,
       stream)
  PASS(void, trace_gpu_memory_allocation, (Type type, uintptr_t data), type, data)
  PASS(void, trace_gpu_memory_deallocation, (Type type, uintptr_t data), type, data)
  PASS(void, trace_gpu_stream_creation, (Type type, uintptr_t stream), type, stream)
  PASS(void, trace_gpu_device_synchronization, (Type type), type)
  PASS(void, trace_gpu_stream_synchronization, (Type type, uintptr_t stream), type, stream)
  PASS(void, trace_gpu_event_synchronization, (Type type, uintptr_t event), type, event)
  PASS(void, reset_backward_hooks, (const Impl* t), t)
#undef PASS
};

// Has PyTorch ask before each such copy, for as long as the process lives; Python makes them as
// ever where PyTorch has a function that is not among these.
template <class Interface = c10::impl::PyInterpreterVTable>
void ask_for_copies(bool (*makes_copies)(const c10::TensorImpl&)) {
  if constexpr (!std::is_abstract_v<Asked<Interface>>) {
    auto* asked = new Asked<Interface>;  // never destroyed: tensors may outlive all else
    asked->python = getPyInterpreter()->vtable_;
    asked->makes_copies = makes_copies;
    getPyInterpreter()->vtable_ = asked;
  }
}

}  // namespace
