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

  // Adds a kernel that runs after the kernels `after` (their numbers, from 0); returns its number.
  // overlap: it may be placed on the machine while its predecessors end (programmatic dependent launch).
  int add(const std::shared_ptr<Prepared>& kernel, const std::vector<int64_t>& pointers, const std::vector<int>& after,
          bool overlap);

  // Enqueues the graph. Kernels whose slots have other addresses than in the run before are told so first. Thread-safe;
  // runs of one graph follow each other, as CUDA has it.
  void run(void* stream, const Given& given);

 private:
  struct Node {
    std::shared_ptr<PreparedImage> kernel;
    Operands operands;
    std::vector<int> after;
    bool overlap;
    void* handle;
  };
  void build(const Given& given);
  void build(const Given& given, bool early_joins);
  void update(const Given& given);

  std::vector<Node> nodes_;
  Slots slots_;
  Given given_;  // what the instantiated graph has
  std::mutex mutex_;
  void* graph_ = nullptr;
  void* exec_ = nullptr;
};

}  // namespace engine
