// Hash tables that threads read without a lock while one that holds the GIL adds to them.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

namespace {

constexpr size_t HEADS = 1 << 12;  // of a table's chains

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

}  // namespace
