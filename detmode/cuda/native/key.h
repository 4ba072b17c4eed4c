// Operators at dispatch keys, and the keys under which their calls are looked up.
#pragma once
#include <ATen/Context.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/nonzero.h>

#include <bit>
#include <cstring>
#include <deque>
#include <functional>

#include "chains.h"

namespace {

using Word = int64_t;
using Words = std::vector<Word>;

constexpr int KEY_WORDS = 256;  // of a call; longer keys are Python's
constexpr int SLOTS = 32;       // tensors of a call, with those that its plan allocates

enum Look : Word { NONZERO, LARGEST };  // at the values of a tensor

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

// Keys of tensors of Python's classes, and of forward-mode AD's zeros, which have no memory.
const c10::DispatchKeySet FOREIGN({c10::DispatchKey::Python, c10::DispatchKey::ZeroTensor});

// Whether no tensor is of a foreign class, and, if they are to be dense, nothing is to be noted.
struct Plain {
  explicit Plain(bool are_dense) : are_dense(are_dense), has_grad(at::GradMode::is_enabled()) {}
  bool are_dense, has_grad;

  bool operator()(const at::Tensor& t) const {
    return !t.defined() ||
           (!t.key_set().has_any(FOREIGN) &&
            !(are_dense && (t.layout() != at::kStrided || (has_grad && t.requires_grad()))));
  }
  bool operator()(const std::optional<at::Tensor>& t) const { return !t || (*this)(*t); }
  bool operator()(at::TensorList list) const { return std::ranges::all_of(list, *this); }
  bool operator()(const at::ITensorListRef& list) const {
    return std::all_of(list.begin(), list.end(), *this);
  }
  bool operator()(const c10::IValue& value) const {
    if (value.isTensor()) return (*this)(value.toTensor());
    return !value.isList() || std::ranges::all_of(value.toListRef(), *this);
  }
  template <class Value>
  bool operator()(const Value&) const {  // no tensors
    return true;
  }
};

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
  std::deque<at::Tensor> parts;  // those of sparse tensors, and the places of what is not zero
  // Adds the sizes that values decide on; false if Python is to look.
  bool add_sizes(const Words& looks) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (size_t i = 1; i < looks.size(); i += 3) {
      const at::Tensor& values = *tensors[looks[i + 1]];
      if (looks[i] == NONZERO) {
        put(parts.emplace_back(at::nonzero(values)));
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
  enum Kind : Word { NONE = 1, UNDEFINED, TENSOR, INT, BOOL, DOUBLE, STRING, DEVICE, LIST, SPARSE };
  void put(Word word) {
    if (n == KEY_WORDS) return void(is_plain = false);
    words[n++] = word, hash = mix(hash, word);
  }
  void put(const at::Tensor& t) {
    if (!t.defined()) return put(UNDEFINED);
    if (n_tensors == SLOTS || t.is_conj() || t.is_neg() || t.key_set().has_any(FOREIGN))
      return void(is_plain = false);
    if (t.is_sparse() || t.unsafeGetTensorImpl()->is_sparse_compressed()) return put_sparse(t);
    if (t.layout() != at::kStrided || !t.has_storage()) return void(is_plain = false);
    tensors[n_tensors++] = &t;
    needs_grad |= t.requires_grad();
    // Vectors in memory begin at multiples of 16 bytes; what is aligned further has its own plan.
    put(TENSOR | Word(t.dim()) << 8 | Word(t.scalar_type()) << 16 | Word(t.requires_grad()) << 24 |
        (reinterpret_cast<Word>(t.const_data_ptr()) & 63) << 32 |
        Word(uint8_t(t.get_device())) << 40 | Word(t.device().type()) << 48);
    for (auto size : t.sizes()) put(size);
    for (auto stride : t.strides()) put(stride);
  }
  // Its components are the slots.
  void put_sparse(const at::Tensor& t) {
    needs_grad |= t.requires_grad();
    put(SPARSE | Word(t.dim()) << 8 | Word(t.layout()) << 16 | Word(t.requires_grad()) << 24 |
        Word(t.is_sparse() && t.is_coalesced()) << 25);
    for (auto size : t.sizes()) put(size);
    const auto put_part = [&](at::Tensor part) { put(parts.emplace_back(std::move(part))); };
    if (t.is_sparse()) {
      const auto* impl = static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
      return put_part(impl->indices()), put_part(impl->values());
    }
    const auto* impl = static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl());
    put_part(impl->compressed_indices()), put_part(impl->plain_indices()), put_part(impl->values());
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

}  // namespace
