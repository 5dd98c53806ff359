// A CUDA graph of prepared device kernels, copies and captured graphs: branches run side by side, a run is one launch.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "device_image.h"

namespace engine {

class Graph {
 public:
  // device: CUDA ordinal of the GPU that the graph runs on.
  Graph(int device, Slots slots);
  ~Graph();
  Graph(const Graph&) = delete;

  // Each of these adds a node that runs after the nodes with the numbers `after`, and returns its own number, counted
  // from 0.

  // overlap: the kernel may start while kernels before it end (programmatic dependent launch).
  int add(const std::shared_ptr<Prepared>& kernel, const std::vector<int64_t>& pointers, const std::vector<int>& after,
          bool overlap);

  // Adds a copy of `bytes` within the GPU's memory. `to` and `from` are addresses, or -1 - i for the i-th slot.
  int add_copy(int64_t to, int64_t from, size_t bytes, const std::vector<int>& after);

  // Adds a copy of a cudaGraph_t, such as one that torch captured. The memory of its nodes must outlive this graph.
  int add_captured(void* captured, const std::vector<int>& after);

  // Enqueues the graph. Nodes whose slots have other addresses than in the previous run are updated first.
  // Thread-safe; CUDA runs the launches of one graph one after the other.
  void run(void* stream, const SlotAddresses& given);

 private:
  struct Node;
  struct KernelNode;
  struct CopyNode;
  struct CapturedNode;

  int append(std::unique_ptr<Node> node);
  void build(const SlotAddresses& given);
  void build(const SlotAddresses& given, bool early_joins);
  void update(const SlotAddresses& given);

  void* context_;
  std::vector<std::unique_ptr<Node>> nodes_;
  Slots slots_;
  SlotAddresses given_;  // addresses in the instantiated graph
  std::mutex mutex_;
  void* graph_ = nullptr;
  void* exec_ = nullptr;
};

}  // namespace engine
