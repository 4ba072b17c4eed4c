// A launch's memory: copies of its tensors between guard zones, and poison where nothing was
// written.
#pragma once

namespace {
namespace detmode_host {

// What guard zones hold; memcpy of it also fills larger memory.
char poison[GUARD_BYTES];

inline void fill_poison(char* memory, size_t bytes) {
  for (; bytes > GUARD_BYTES; bytes -= GUARD_BYTES, memory += GUARD_BYTES) {
    __builtin_memcpy(memory, poison, GUARD_BYTES);
  }
  __builtin_memcpy(memory, poison, bytes);
}

void guard_buffer(Buffer& buffer) {
  size_t bytes = static_cast<size_t>(buffer.bytes);
  // The copy keeps the alignment of the original, up to a cache line: a kernel may branch on it.
  size_t alignment = reinterpret_cast<size_t>(buffer.data) % 64;
  buffer.memory = static_cast<char*>(__builtin_malloc(bytes + 2 * GUARD_BYTES + 128));
  size_t base = (reinterpret_cast<size_t>(buffer.memory) + 63) / 64 * 64;
  char* before = reinterpret_cast<char*>(base + alignment);
  buffer.copy = before + GUARD_BYTES;
  __builtin_memcpy(before, poison, GUARD_BYTES);
  __builtin_memcpy(buffer.copy, buffer.data, bytes);
  __builtin_memcpy(buffer.copy + bytes, poison, GUARD_BYTES);
#if DETMODE_ASAN
  __asan_poison_memory_region(before, GUARD_BYTES);
  __asan_poison_memory_region(buffer.copy + bytes, GUARD_BYTES);
#endif
}

void check_buffer(Buffer& buffer, int position) {
  size_t bytes = static_cast<size_t>(buffer.bytes);
  char* before = buffer.copy - GUARD_BYTES;
  char* after = buffer.copy + bytes;
#if DETMODE_ASAN
  __asan_unpoison_memory_region(before, GUARD_BYTES);
  __asan_unpoison_memory_region(after, GUARD_BYTES);
#endif
  if (__builtin_memcmp(after, poison, GUARD_BYTES) != 0) {
    size_t i = 0;
    while (after[i] == poison[i]) ++i;
    fail(OUT_OF_BOUNDS, "argument %d: out-of-bounds write %zu bytes after the end of its %zu bytes",
         position, i, bytes);
  }
  if (__builtin_memcmp(before, poison, GUARD_BYTES) != 0) {
    size_t i = GUARD_BYTES - 1;
    while (before[i] == poison[i]) --i;
    fail(OUT_OF_BOUNDS, "argument %d: out-of-bounds write %zu bytes before its start", position,
         GUARD_BYTES - i);
  }
  if (!buffer.writable && __builtin_memcmp(buffer.copy, buffer.data, bytes) != 0) {
    size_t i = 0;
    while (buffer.copy[i] == buffer.data[i]) ++i;
    fail(LAUNCH_ERROR, "argument %d: write into a const input, at byte %zu of %zu", position, i,
         bytes);
  }
}

#if DETMODE_FINDS_SHARED
thread_local char shared_anchor;
ptrdiff_t anchor_offset;

int find_shared(dl_phdr_info* info, size_t, void*) {
  const char* begin = static_cast<const char*>(info->dlpi_tls_data);
  for (int i = 0; begin != nullptr && i < info->dlpi_phnum; ++i) {
    size_t bytes = info->dlpi_phdr[i].p_memsz;
    ptrdiff_t offset = &shared_anchor - begin;
    if (info->dlpi_phdr[i].p_type != PT_TLS || offset < 0 || offset >= ptrdiff_t(bytes)) continue;
    S.shared_bytes = bytes;
    anchor_offset = offset;
    return 1;
  }
  return 0;
}
#endif

}  // namespace detmode_host

template <typename T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(detmode_host::S.dynamic_shared);
}

}  // namespace
