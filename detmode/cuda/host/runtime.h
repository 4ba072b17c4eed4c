// The host runner: what CUDA C++ gives a kernel, for g++ or clang++ on a CPU.
//
// A .cu file and its includes are compiled after this header, inside the same unnamed namespace, so
// that overloads meet as they do in CUDA and every static variable belongs to one object file.
//
// Each CUDA thread runs on a fiber's stack until it blocks. A thread that never blocks costs a
// function call; its stack goes on to the next thread. Blocks run one after another.
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define DETMODE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DETMODE_ASAN 1
#endif
#endif
#ifndef DETMODE_ASAN
#define DETMODE_ASAN 0
#endif
#ifndef DETMODE_RACES
#define DETMODE_RACES 0
#endif
// Of functions whose own accesses are no kernel's.
#if DETMODE_RACES
#define DETMODE_UNTRACKED __attribute__((no_sanitize_thread))
#else
#define DETMODE_UNTRACKED
#endif

#if DETMODE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef DETMODE_UCONTEXT
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define DETMODE_UCONTEXT 0
#else
#define DETMODE_UCONTEXT 1
#endif
#endif
#if DETMODE_UCONTEXT
#include <ucontext.h>
#endif

#ifndef DETMODE_FOREIGN
#define DETMODE_FOREIGN 0
#endif
#if DETMODE_FOREIGN
#define __global__
#define __constant__
#define __managed__
#define __grid_constant__
#define __CUDACC__ 1
#else
#define __global__ static
#define __constant__ static
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Shared variables are the library's thread-local ones, and nothing else is: one piece of memory,
// so that each block can start with all of them poisoned. AddressSanitizer would not guard those.
#if defined(__ELF__) && !DETMODE_ASAN
#define DETMODE_FINDS_SHARED 1
#define __shared__ static thread_local
#include <link.h>
#else
#define DETMODE_FINDS_SHARED 0
#define __shared__ static
#endif

// In the order in which they build on each other.
// clang-format off
#include "state.h"
#include "fibers.h"
#if DETMODE_RACES
#include "races.h"
#endif
#include "schedule.h"
#include "memory.h"
#include "launch.h"
#include "intrinsics.h"
#if DETMODE_FOREIGN
#include "foreign.h"
#endif
// clang-format on
