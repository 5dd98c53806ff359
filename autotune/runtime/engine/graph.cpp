#include "graph.h"

#include <algorithm>
#include <utility>

#include "driver.h"

namespace engine {
using cuda::check;
using cuda::driver;

namespace {

// The node's description for the driver. `params` and `argument` must outlive its use.
cuda::KernelNode describe(const PreparedImage& kernel, const at_pointers& pointers, uint8_t* params, void** argument) {
  kernel.write_params(params, pointers);
  *argument = params;
  const at_prepared& values = kernel.values();
  cuda::KernelNode node{};
  node.function = kernel.function();
  for (int i = 0; i < 3; ++i) node.grid[i] = values.grid[i];
  node.block[0] = values.threads;
  node.block[1] = node.block[2] = 1;
  node.shared_bytes = values.shared_bytes;
  node.parameters = argument;
  node.context = kernel.context();
  return node;
}

}  // namespace

Graph::~Graph() {
  if (exec_) driver().graph_exec_destroy(exec_);
  if (graph_) driver().graph_destroy(graph_);
}

int Graph::add(const std::shared_ptr<Prepared>& kernel, const std::vector<int64_t>& pointers,
               const std::vector<int>& after, bool overlap) {
  auto image = std::dynamic_pointer_cast<PreparedImage>(kernel);
  if (!image) throw Error("a CUDA graph takes kernels of device images only");
  if (graph_) throw Error("a graph that has run takes no more kernels");
  nodes_.push_back({std::move(image), Operands(pointers, slots_), after, overlap, nullptr});
  return static_cast<int>(nodes_.size()) - 1;
}

void Graph::build(const SlotAddresses& given) {
  try {
    build(given, true);
  } catch (const cuda::DriverError& error) {
    // Older drivers refuse programmatic edges into a kernel with several predecessors.
    const bool refused = error.result == cuda::kInvalidValue || error.result == cuda::kNotSupported;
    if (!refused || !has_early_joins()) throw;
    build(given, false);
  }
}

bool Graph::has_early_joins() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return node.may_be_early() && node.after.size() > 1; });
}

void Graph::build(const SlotAddresses& given, bool early_joins) {
  if (graph_) driver().graph_destroy(std::exchange(graph_, nullptr));  // left by a failed build
  check(driver().graph_create(&graph_, 0), "a CUDA graph");
  for (Node& node : nodes_) {
    uint8_t params[AT_MAX_PARAMS];
    void* argument;
    const cuda::KernelNode description = describe(*node.kernel, node.operands.with(given), params, &argument);
    check(driver().graph_add_kernel(&node.handle, graph_, nullptr, 0, &description), "a kernel of a CUDA graph");
    for (int i : node.after) {
      const cuda::EdgeData full{}, programmatic{1, 0, 1, {}};
      const bool early = node.may_be_early() && (early_joins || node.after.size() == 1);
      check(driver().graph_add_edges(graph_, &nodes_.at(i).handle, &node.handle, early ? &programmatic : &full, 1),
            "an edge of a CUDA graph");
    }
  }
  check(driver().graph_instantiate(&exec_, graph_, 0), "a CUDA graph");
}

void Graph::update(const SlotAddresses& given) {
  const SlotAddresses before = std::exchange(given_, {});  // if an update fails, the next run updates every kernel
  for (Node& node : nodes_) {
    if (!node.operands.differ(given, before)) continue;
    uint8_t params[AT_MAX_PARAMS];
    void* argument;
    const cuda::KernelNode description = describe(*node.kernel, node.operands.with(given), params, &argument);
    check(driver().graph_set_kernel(exec_, node.handle, &description), "new pointers for a CUDA graph");
  }
}

void Graph::run(void* stream, const SlotAddresses& given) {
  if (nodes_.empty()) return;
  std::lock_guard lock(mutex_);
  cuda::ContextScope scope(nodes_.front().kernel->context());
  if (!exec_) build(given);
  else if (given != given_) update(given);
  given_ = given;
  check(driver().graph_launch(exec_, stream), "launch of a CUDA graph");
}

}  // namespace engine
