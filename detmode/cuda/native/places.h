// Places of calls: the nearest frame of the user's, the innermost module, and in a backward the
// note that the node's forward has left. Frames and modules are known by their addresses, which
// Python teaches.
#pragma once
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <typeinfo>

#include "chains.h"

#if PY_VERSION_HEX >> 16 == 0x030B
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#endif

namespace {

constexpr size_t NOTES = 1 << 18;  // nodes of autograd whose forward is remembered

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

thread_local uint64_t first_number = 0;   // of the thread's nodes since it has joined a table
std::atomic<bool> had_regions{false};     // of detmode.allow, since the process began
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

}  // namespace
