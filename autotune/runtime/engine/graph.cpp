#include "graph.h"

#include <algorithm>
#include <utility>

#include "driver.h"

namespace engine {
using cuda::check;
using cuda::driver;

struct Graph::Node {
  explicit Node(const std::vector<int>& after) : after(after) {}
  virtual ~Node() = default;

  // Adds the node to a graph, without edges, and returns its handle.
  virtual void* add_to(void* graph, const SlotAddresses& given) const = 0;

  // Writes new addresses into an instantiated graph, if the node has any that differ.
  virtual void update(void* /*exec*/, const SlotAddresses& /*given*/, const SlotAddresses& /*before*/) const {}

  // Returns whether the node may start while kernels before it end: requested by `add`, and supported by the kernel.
  virtual bool may_be_early() const { return false; }
  virtual bool is_kernel() const { return false; }

  const std::vector<int> after;
  void* handle = nullptr;
};

struct Graph::KernelNode : Node {
  KernelNode(std::shared_ptr<PreparedImage> kernel, Operands operands, bool overlap, const std::vector<int>& after)
      : Node(after), kernel_(std::move(kernel)), operands_(std::move(operands)), overlap_(overlap) {}

  void* add_to(void* graph, const SlotAddresses& given) const override {
    const Description described(*kernel_, operands_.with(given));
    void* added = nullptr;
    check(driver().graph_add_kernel(&added, graph, nullptr, 0, &described.node), "a kernel of a CUDA graph");
    return added;
  }

  void update(void* exec, const SlotAddresses& given, const SlotAddresses& before) const override {
    if (!operands_.differ(given, before)) return;
    const Description described(*kernel_, operands_.with(given));
    check(driver().graph_set_kernel(exec, handle, &described.node), "new pointers for a CUDA graph");
  }

  bool may_be_early() const override { return overlap_ && kernel_->values().waits; }
  bool is_kernel() const override { return true; }

 private:
  // The kernel for the driver, with the memory that the driver reads.
  struct Description {
    Description(const PreparedImage& kernel, const at_pointers& pointers) {
      kernel.write_params(params, pointers);
      const at_prepared& values = kernel.values();
      node.function = kernel.function();
      for (int i = 0; i < 3; ++i) node.grid[i] = values.grid[i];
      node.block[0] = values.threads;
      node.block[1] = node.block[2] = 1;
      node.shared_bytes = values.shared_bytes;
      node.parameters = &argument;
      node.context = kernel.context();
    }
    Description(const Description&) = delete;

    uint8_t params[AT_MAX_PARAMS];
    void* argument = params;
    cuda::KernelNode node{};
  };

  std::shared_ptr<PreparedImage> kernel_;
  Operands operands_;
  bool overlap_;
};

struct Graph::CopyNode : Node {
  CopyNode(Operands ends, size_t bytes, void* context, const std::vector<int>& after)
      : Node(after), ends_(std::move(ends)), bytes_(bytes), context_(context) {}

  void* add_to(void* graph, const SlotAddresses& given) const override {
    const cuda::Copy described = describe(given);
    void* added = nullptr;
    check(driver().graph_add_copy(&added, graph, nullptr, 0, &described, context_), "a copy of a CUDA graph");
    return added;
  }

  void update(void* exec, const SlotAddresses& given, const SlotAddresses& before) const override {
    if (!ends_.differ(given, before)) return;
    const cuda::Copy described = describe(given);
    check(driver().graph_set_copy(exec, handle, &described, context_), "new pointers for a CUDA graph");
  }

 private:
  cuda::Copy describe(const SlotAddresses& given) const {
    const at_pointers pointers = ends_.with(given);
    cuda::Copy copy{};
    copy.to.memory_type = copy.from.memory_type = cuda::kDeviceMemory;
    copy.to.device = reinterpret_cast<cuda::DevicePointer>(pointers.p[0]);
    copy.from.device = reinterpret_cast<cuda::DevicePointer>(pointers.p[1]);
    copy.width = bytes_;
    copy.height = copy.depth = 1;
    return copy;
  }

  Operands ends_;  // to, from
  size_t bytes_;
  void* context_;
};

struct Graph::CapturedNode : Node {
  CapturedNode(void* captured, const std::vector<int>& after) : Node(after) {
    check(driver().graph_clone(&clone_, captured), "a copy of a captured CUDA graph");
  }
  ~CapturedNode() override { driver().graph_destroy(clone_); }

  void* add_to(void* graph, const SlotAddresses&) const override {
    void* added = nullptr;
    check(driver().graph_add_child(&added, graph, nullptr, 0, clone_), "a captured graph in a CUDA graph");
    return added;
  }

 private:
  void* clone_ = nullptr;
};

Graph::Graph(int device, Slots slots) : context_(cuda::primary_context(device)), slots_(std::move(slots)) {}

Graph::~Graph() {
  if (exec_) driver().graph_exec_destroy(exec_);
  if (graph_) driver().graph_destroy(graph_);
}

int Graph::append(std::unique_ptr<Node> node) {
  if (graph_) throw Error("a graph that has run takes no more nodes");
  nodes_.push_back(std::move(node));
  return static_cast<int>(nodes_.size()) - 1;
}

int Graph::add(const std::shared_ptr<Prepared>& kernel, const std::vector<int64_t>& pointers,
               const std::vector<int>& after, bool overlap) {
  auto image = std::dynamic_pointer_cast<PreparedImage>(kernel);
  if (!image) throw Error("a CUDA graph takes kernels of device images only");
  return append(std::make_unique<KernelNode>(std::move(image), Operands(pointers, slots_), overlap, after));
}

int Graph::add_copy(int64_t to, int64_t from, size_t bytes, const std::vector<int>& after) {
  return append(std::make_unique<CopyNode>(Operands({to, from}, slots_), bytes, context_, after));
}

int Graph::add_captured(void* captured, const std::vector<int>& after) {
  return append(std::make_unique<CapturedNode>(captured, after));
}

void Graph::build(const SlotAddresses& given) {
  try {
    build(given, true);
  } catch (const cuda::DriverError& error) {
    // Older drivers refuse programmatic edges into a kernel with several predecessors.
    const bool refused = error.result == cuda::kInvalidValue || error.result == cuda::kNotSupported;
    const bool has_early_joins = std::any_of(
        nodes_.begin(), nodes_.end(), [](const auto& node) { return node->may_be_early() && node->after.size() > 1; });
    if (!refused || !has_early_joins) throw;
    build(given, false);
  }
}

void Graph::build(const SlotAddresses& given, bool early_joins) {
  if (graph_) driver().graph_destroy(std::exchange(graph_, nullptr));  // left by a failed build
  check(driver().graph_create(&graph_, 0), "a CUDA graph");
  for (const auto& node : nodes_) {
    node->handle = node->add_to(graph_, given);
    for (int i : node->after) {
      const Node& before = *nodes_.at(i);
      const cuda::EdgeData full{}, programmatic{1, 0, 1, {}};
      const bool early = node->may_be_early() && before.is_kernel() && (early_joins || node->after.size() == 1);
      check(driver().graph_add_edges(graph_, &before.handle, &node->handle, early ? &programmatic : &full, 1),
            "an edge of a CUDA graph");
    }
  }
  check(driver().graph_instantiate(&exec_, graph_, 0), "a CUDA graph");
}

void Graph::update(const SlotAddresses& given) {
  const SlotAddresses before = std::exchange(given_, {});  // if an update fails, the next run updates every node
  for (const auto& node : nodes_) node->update(exec_, given, before);
}

void Graph::run(void* stream, const SlotAddresses& given) {
  if (nodes_.empty()) return;
  std::lock_guard lock(mutex_);
  cuda::ContextScope scope(context_);
  if (!exec_) build(given);
  else if (given != given_) update(given);
  given_ = given;
  check(driver().graph_launch(exec_, stream), "launch of a CUDA graph");
}

}  // namespace engine
