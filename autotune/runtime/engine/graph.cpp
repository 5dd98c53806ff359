#include "graph.h"

#include <algorithm>
#include <map>
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
  virtual bool is_kernel() const { return is_own_kernel(); }
  virtual bool is_own_kernel() const { return false; }  // not of a captured graph

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
  bool is_own_kernel() const override { return true; }

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

// A kernel, copy, fill or empty node of a captured graph, with the addresses of its capture.
struct Graph::CapturedNode : Node {
  CapturedNode(std::shared_ptr<void> captured, void* node, int type, bool early, void* context,
               const std::vector<int>& after)
      : Node(after), captured_(std::move(captured)), node_(node), type_(type), early_(early), context_(context) {}

  void* add_to(void* graph, const SlotAddresses&) const override {
    void* added = nullptr;
    check(add_to(graph, &added), "a captured node in a CUDA graph");
    return added;
  }

  bool may_be_early() const override { return early_; }
  bool is_kernel() const override { return type_ == cuda::kKernelNode; }

 private:
  cuda::Result add_to(void* graph, void** added) const {
    cuda::Result failed = 0;
    if (type_ == cuda::kKernelNode) {
      cuda::KernelNode kernel{};
      if ((failed = driver().node_kernel(node_, &kernel))) return failed;
      if ((failed = driver().graph_add_kernel(added, graph, nullptr, 0, &kernel))) return failed;
      return driver().copy_kernel_attributes(*added, node_);
    }
    if (type_ == cuda::kCopyNode) {
      cuda::Copy copy{};
      if ((failed = driver().node_copy(node_, &copy))) return failed;
      return driver().graph_add_copy(added, graph, nullptr, 0, &copy, context_);
    }
    if (type_ == cuda::kFillNode) {
      cuda::Fill fill{};
      if ((failed = driver().node_fill(node_, &fill))) return failed;
      return driver().graph_add_fill(added, graph, nullptr, 0, &fill, context_);
    }
    return driver().graph_add_empty(added, graph, nullptr, 0);
  }

  std::shared_ptr<void> captured_;
  void* node_;
  int type_;
  bool early_;
  void* context_;
};

// A captured graph with other kinds of nodes, such as calls of the host, as one node.
struct Graph::ChildNode : Node {
  ChildNode(std::shared_ptr<void> captured, const std::vector<int>& after)
      : Node(after), captured_(std::move(captured)) {}

  void* add_to(void* graph, const SlotAddresses&) const override {
    void* added = nullptr;
    check(driver().graph_add_child(&added, graph, nullptr, 0, captured_.get()), "a captured graph in a CUDA graph");
    return added;
  }

 private:
  std::shared_ptr<void> captured_;
};

struct Graph::JoinNode : Node {
  using Node::Node;

  void* add_to(void* graph, const SlotAddresses&) const override {
    void* added = nullptr;
    check(driver().graph_add_empty(&added, graph, nullptr, 0), "a join of a CUDA graph");
    return added;
  }
};

namespace {

struct Captured {
  int type;
  bool early;              // all edges to it are programmatic
  std::vector<int> after;  // positions in the same list, all of them smaller
  bool last = true;
};

// Returns the nodes of a graph in an order in which they can run, and their handles.
std::pair<std::vector<Captured>, std::vector<void*>> nodes_of(void* graph) {
  size_t count = 0, edges = 0;
  check(driver().graph_nodes(graph, nullptr, &count), "the nodes of a captured CUDA graph");
  check(driver().graph_edges(graph, nullptr, nullptr, nullptr, &edges), "the edges of a captured CUDA graph");
  std::vector<void*> handles(count), from(edges), to(edges), order;
  std::vector<cuda::EdgeData> data(edges);
  if (count) check(driver().graph_nodes(graph, handles.data(), &count), "the nodes of a captured CUDA graph");
  if (edges)
    check(driver().graph_edges(graph, from.data(), to.data(), data.data(), &edges),
          "the edges of a captured CUDA graph");
  std::map<void*, std::vector<size_t>> incoming, outgoing;
  for (size_t i = 0; i < edges; ++i) incoming[to[i]].push_back(i), outgoing[from[i]].push_back(i);
  std::map<void*, size_t> waits;
  for (void* handle : handles)
    if (!(waits[handle] = incoming[handle].size())) order.push_back(handle);
  for (size_t i = 0; i < order.size(); ++i)
    for (size_t edge : outgoing[order[i]])
      if (!--waits[to[edge]]) order.push_back(to[edge]);
  std::map<void*, int> places;
  std::vector<Captured> found;
  for (void* handle : order) {
    places[handle] = static_cast<int>(found.size());
    Captured one;
    check(driver().node_type(handle, &one.type), "a node of a captured CUDA graph");
    const std::vector<size_t>& before = incoming[handle];
    one.early =
        !before.empty() && std::all_of(before.begin(), before.end(), [&](size_t edge) { return data[edge].type == 1; });
    for (size_t edge : before) {
      one.after.push_back(places.at(from[edge]));
      found[one.after.back()].last = false;
    }
    found.push_back(one);
  }
  return {found, order};
}

}  // namespace

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
  void* made = nullptr;
  check(driver().graph_clone(&made, captured), "a copy of a captured CUDA graph");
  const std::shared_ptr<void> clone(made, [](void* graph) { driver().graph_destroy(graph); });
  const auto [nodes, handles] = nodes_of(clone.get());
  const auto known = {cuda::kKernelNode, cuda::kCopyNode, cuda::kFillNode, cuda::kEmptyNode};
  if (!std::all_of(nodes.begin(), nodes.end(), [&](const Captured& node) {
        return std::find(known.begin(), known.end(), node.type) != known.end();
      }))
    return append(std::make_unique<ChildNode>(clone, after));
  const int first = static_cast<int>(nodes_.size());
  std::vector<int> last;
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::vector<int> before = nodes[i].after.empty() ? after : nodes[i].after;
    if (!nodes[i].after.empty())
      for (int& place : before) place += first;
    const int number =
        append(std::make_unique<CapturedNode>(clone, handles[i], nodes[i].type, nodes[i].early, context_, before));
    if (nodes[i].last) last.push_back(number);
  }
  return last.size() == 1 ? last[0] : append(std::make_unique<JoinNode>(last.empty() ? after : last));
}

void Graph::build(const SlotAddresses& given) {
  for (const Early early : {Early::kAfterAll, Early::kAfterOwn, Early::kAfterOne}) {
    try {
      return build(given, early);
    } catch (const cuda::DriverError& error) {
      const bool refused = error.result == cuda::kInvalidValue || error.result == cuda::kNotSupported;
      if (!refused || early == Early::kAfterOne) throw;
    }
  }
}

void Graph::build(const SlotAddresses& given, Early early) {
  if (graph_) driver().graph_destroy(std::exchange(graph_, nullptr));  // left by a failed build
  check(driver().graph_create(&graph_, 0), "a CUDA graph");
  for (const auto& node : nodes_) {
    node->handle = node->add_to(graph_, given);
    // A driver refuses a kernel with edges of both kinds.
    const bool is_early =
        node->may_be_early() && (early != Early::kAfterOne || node->after.size() == 1) &&
        std::all_of(node->after.begin(), node->after.end(), [&](int i) {
          return early == Early::kAfterAll ? nodes_.at(i)->is_kernel() : nodes_.at(i)->is_own_kernel();
        });
    for (int i : node->after) {
      const cuda::EdgeData full{}, programmatic{1, 0, 1, {}};
      check(driver().graph_add_edges(graph_, &nodes_.at(i)->handle, &node->handle, is_early ? &programmatic : &full, 1),
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
