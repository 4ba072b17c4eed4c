// Kernels that take the arguments of a call as C++ has them, for frequent signatures. Without them
// PyTorch boxes each call under a mode twice: for its kernel at the key `PythonTLSSnapshot`, and
// for the one at the key `Python`.
#pragma once
#include <ATen/core/PythonFallbackKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/to_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsafe_split_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zeros_like_ops.h>

#include <string>
#include <unordered_map>

namespace {

using Set = c10::DispatchKeySet;

template <class Signature>
struct Snapshot;
// As PyTorch's kernel for all operators: notes the thread's state, and calls the next kernel.
template <class Result, class... Args>
struct Snapshot<Result(Args...)> final : c10::OperatorKernel {
  explicit Snapshot(const c10::OperatorHandle& op) : op(op.typed<Result(Args...)>()) {}
  Result operator()(Set set, Args... args) {
    const at::impl::MaybeSetTLSOnEntryGuard guard;
    static const Set next(Set::FULL_AFTER, c10::DispatchKey::PythonTLSSnapshot);
    return op.redispatch(set & next, std::forward<Args>(args)...);
  }
  c10::TypedOperatorHandle<Result(Args...)> op;
};

template <class Kernel, class Signature>
struct Unboxed;
// Passes a call on where the boxed kernel would, and else gives it to that one.
template <class Kernel, class Result, class... Args>
struct Unboxed<Kernel, Result(Args...)> final : c10::OperatorKernel {
  Unboxed(const c10::OperatorHandle& op, std::unique_ptr<Kernel> kernel)
      : op(op.typed<Result(Args...)>()),
        kernel(kernel.get()),
        boxed(c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel))) {}
  Result operator()(Set set, Args... args) {
    if (!kernel->passes_on(args...))
      return boxed.template call<Result, Args...>(op, set, std::forward<Args>(args)...);
    const typename Kernel::Below below;
    return op.call(std::forward<Args>(args)...);
  }
  c10::TypedOperatorHandle<Result(Args...)> op;
  Kernel* kernel;
  c10::KernelFunction boxed;
};

// The types of a schema; operators that have the same take the same types in C++.
std::string types_of(const c10::FunctionSchema& schema) {
  std::string text;
  const auto add = [&](const c10::Argument& argument) {
    const auto* alias = argument.alias_info();
    text += argument.real_type()->str() + (alias && alias->isWrite() ? "!," : ",");
  };
  for (const auto& argument : schema.arguments()) add(argument);
  text += "->";
  for (const auto& result : schema.returns()) add(result);
  return text;
}

template <class Kernel>
struct Makers {
  c10::KernelFunction (*snapshot)(const c10::OperatorHandle&);
  c10::KernelFunction (*at_python)(const c10::OperatorHandle&, std::unique_ptr<Kernel>);
};

// By the types of their schemas, what makes kernels of operators.
template <class Kernel>
struct Signatures : std::unordered_map<std::string, Makers<Kernel>> {
  template <class Operator>
  void add() {
    using Signature = typename Operator::schema;
    const auto op =
        c10::Dispatcher::singleton().findSchema({Operator::name, Operator::overload_name});
    if (!op) return;
    (*this)[types_of(op->schema())] = {
        [](const c10::OperatorHandle& op) {
          return c10::KernelFunction::makeFromUnboxedFunctor<false, Snapshot<Signature>>(
              std::make_unique<Snapshot<Signature>>(op));
        },
        [](const c10::OperatorHandle& op, std::unique_ptr<Kernel> kernel) {
          using Functor = Unboxed<Kernel, Signature>;
          return c10::KernelFunction::makeFromUnboxedFunctor<false, Functor>(
              std::make_unique<Functor>(op, std::move(kernel)));
        }};
  }
  template <class... Operators>
  void add_all() {
    (add<Operators>(), ...);
  }
  Signatures() {
    using namespace at::_ops;
    add_all<alias, sigmoid_, mul_Tensor, mul__Tensor, mul_Scalar, mul__Scalar, add_Tensor,
            add__Tensor, addcmul, addcmul_, where_self, view, permute, unsqueeze, select_int,
            transpose_int, slice_Tensor, expand, at::_ops::clone, to_dtype, _to_copy, copy_,
            sum_dim_IntList, linear, addmm, cat, unsafe_split_Tensor, zeros_like,
            empty_memory_format, _softmax, _local_scalar_dense, _foreach_sqrt, _foreach_mul_Scalar,
            _foreach_mul__Scalar, _foreach_mul__Tensor, _foreach_mul__List, _foreach_add__List,
            _foreach_div__ScalarList, _foreach_addcdiv__ScalarList>();
  }
};

}  // namespace
