// Stacks for CUDA threads, and the switch from one to another.
#pragma once

#if !DETMODE_UCONTEXT
// Switching stacks saves what the C calling convention asks a function to keep, and nothing else.
// The symbols are local to this object: several of them live in one process.
extern "C" __attribute__((visibility("hidden"))) void detmode_switch_stack(void** from, void* to);
#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".local detmode_switch_stack\n"
    ".type detmode_switch_stack,@function\n"
    "detmode_switch_stack:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size detmode_switch_stack,.-detmode_switch_stack\n");
#else
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".local detmode_switch_stack\n"
    ".type detmode_switch_stack,%function\n"
    "detmode_switch_stack:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n"
    "  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n"
    "  ldp x21, x22, [sp, #16]\n"
    "  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size detmode_switch_stack,.-detmode_switch_stack\n");
#endif
#endif

namespace {
namespace detmode_host {

void fiber_main();

#if DETMODE_ASAN
// Tells ASan that this stack runs now; the stack that was left may be the OS thread's, whose bounds
// only ASan knows.
inline void arrive(void* fake_stack) {
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
  if (S.previous == &S.main) {
    S.main.stack = static_cast<char*>(const_cast<void*>(bottom));
    S.main.stack_bytes = bytes;
  }
}
#endif

inline void switch_to(Fiber* to) {
  Fiber* from = S.current;
  S.current = to;
#if DETMODE_ASAN
  S.previous = from;
  __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#if DETMODE_UCONTEXT
  swapcontext(&from->context, &to->context);
#else
  detmode_switch_stack(&from->sp, to->sp);
#endif
#if DETMODE_ASAN
  arrive(from->fake_stack);
#endif
}

void fiber_start() {
#if DETMODE_ASAN
  arrive(nullptr);
#endif
  fiber_main();
}

// Points the fiber at the beginning of fiber_start, on an empty stack.
DETMODE_UNTRACKED void reset_fiber(Fiber* fiber) {
#if DETMODE_ASAN
  fiber->fake_stack = nullptr;
  __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
#endif
#if DETMODE_UCONTEXT
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = fiber->stack_bytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_start, 0);
#else
  // Stacks that all begin at one offset of a page would share a few sets of the CPU's caches.
  size_t color = static_cast<size_t>(fiber - S.fibers) * 192 % 16384;
  void** top = reinterpret_cast<void**>(fiber->stack + fiber->stack_bytes - color);
#if defined(__x86_64__)
  // fiber_start finds the stack as after a call: 8 bytes past a multiple of 16.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_start);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(&fiber_start);
#endif
  fiber->sp = top;
#endif
}

DETMODE_UNTRACKED void map_stack(Stacks& stacks) {
  // One page below the stack stays without access: an overflow faults instead of writing elsewhere.
  constexpr size_t page = 4096 * 16;
  char* memory = static_cast<char*>(mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(memory, page, PROT_NONE);
  stacks.at[stacks.n++] = memory + page;
}

DETMODE_UNTRACKED Fiber* take_fiber() {
  if (S.n_free > 0) return S.free[--S.n_free];
  if (S.n_fibers == S.stacks->n) map_stack(*S.stacks);
  Fiber* fiber = &S.fibers[S.n_fibers];
  fiber->stack = S.stacks->at[S.n_fibers++];
  fiber->stack_bytes = STACK_BYTES;
  reset_fiber(fiber);
  return fiber;
}

// Leaves the launch from any fiber; the fibers' stacks are reset before the next one.
[[noreturn]] inline void abandon() {
  switch_to(&S.main);
  __builtin_unreachable();
}

}  // namespace detmode_host
}  // namespace
