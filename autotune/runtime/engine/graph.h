// Prepared device kernels as a CUDA graph: branches run side by side, and a run is one launch.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "device_image.h"

namespace engine {

class Graph {
 public:
  explicit Graph(Slots slots) : slots_(std::move(slots)) {}
  ~Graph();
  Graph(const Graph&) = delete;

  // Adds a kernel that runs after the kernels with the numbers `after`; returns its own number, counted from 0.
  // overlap: it may start while its predecessors end (programmatic dependent launch).
  int add(const std::shared_ptr<Prepared>& kernel, const std::vector<int64_t>& pointers, const std::vector<int>& after,
          bool overlap);

  // Enqueues the graph. Kernels whose slots have other addresses than in the previous run are updated first.
  // Thread-safe; CUDA runs the launches of one graph one after the other.
  void run(void* stream, const SlotAddresses& given);

 private:
  struct Node {
    std::shared_ptr<PreparedImage> kernel;
    Operands operands;
    std::vector<int> after;
    bool overlap;
    void* handle;

    // Returns whether the kernel may start while its predecessors end: requested by `add`, and supported by the kernel.
    bool may_be_early() const { return overlap && kernel->values().waits; }
  };
  bool has_early_joins() const;
  void build(const SlotAddresses& given);
  void build(const SlotAddresses& given, bool early_joins);
  void update(const SlotAddresses& given);

  std::vector<Node> nodes_;
  Slots slots_;
  SlotAddresses given_;  // addresses in the instantiated graph
  std::mutex mutex_;
  void* graph_ = nullptr;
  void* exec_ = nullptr;
};

}  // namespace engine
