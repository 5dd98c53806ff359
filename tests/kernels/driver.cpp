// A CUDA driver without a GPU, for tests of the engine's driver calls: it prints a line for each launch.
//
// The handle of a function is its name. Each kernel has two tensor maps, of its first two operands, then its pointers.
// Every second kernel sets at_prepared::waits. Copies and captured graphs of a graph are told by the addresses of both
// ends and the bytes, and by the handle. The engine's own kernel, which compares samples of memory, runs on the host.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "abi.h"

namespace {

struct Params {
  void* maps[2][16];  // 128 bytes per map; the first 8 are the operand's address
  at_pointers pointers;
};
static_assert(sizeof(Params) <= AT_MAX_PARAMS);

// One end of a copy of a graph, and the copy.
struct End {
  size_t x, y, z, level;
  int memory;
  void* host;
  uint64_t device;
  void *array, *reserved;
  size_t pitch, height;
};

struct Copy {
  End from, to;
  size_t width, height, depth;
};

// A node of a graph: a kernel, a copy, or, without either, a captured graph.
struct Node {
  std::string name;
  Params params;
  Copy copy;
  void* captured;
};

void* const kContext = reinterpret_cast<void*>(0x100);
thread_local void* current = nullptr;
std::atomic<int> encoded = 0, prepared = 0;
std::vector<Node> nodes;

void tell(const char* name, const Params& params) {
  std::printf(" %s", name);
  for (int i = 0; i < 2; ++i) std::printf(" %ld", reinterpret_cast<long>(params.maps[i][0]));
  for (void* pointer : params.pointers.p) std::printf(" %ld", reinterpret_cast<long>(pointer));
}

void tell(const Node& node) {
  const Copy& copy = node.copy;
  if (!node.name.empty()) tell(node.name.c_str(), node.params);
  else if (copy.width && copy.height == 1 && copy.depth == 1 && copy.from.memory == 2 && copy.to.memory == 2)
    std::printf(" copy %lu %lu %lu", copy.from.device, copy.to.device, copy.width);
  else std::printf(" captured %ld", reinterpret_cast<long>(node.captured));
}

int add(void** node, const Node& added) {
  nodes.push_back(added);
  *node = reinterpret_cast<void*>(nodes.size());
  return 0;
}

int encode(void* map, void* address) {
  std::memset(map, 0, 128);
  std::memcpy(map, &address, sizeof address);
  ++encoded;
  return current == kContext ? 0 : 201;
}

}  // namespace

extern "C" {

struct Attribute {
  int id, unused, value, rest[15];
};

struct Launch {
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned attribute_count;
};

struct Kernel {
  const char* function;
  unsigned grid[3], block[3], shared;
  void** parameters;
};

int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) { return *text = "told by the test", 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = kContext, 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) { return current = context, 0; }
int cuModuleLoadData(void**, const void*) { return 0; }
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void*, const char* name) { return *function = strdup(name), 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuFuncGetAttribute(int* value, int, void*) { return *value = 1024, 0; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  void* const memory = std::malloc(bytes);
  std::memset(memory, 'x', bytes);  // uninitialized device memory
  return *address = reinterpret_cast<uint64_t>(memory), 0;
}
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t bytes) {
  return std::memset(reinterpret_cast<void*>(address), value, bytes), 0;
}
int cuMemFree_v2(uint64_t address) { return std::free(reinterpret_cast<void*>(address)), 0; }

int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), 0;
}

int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) { return *memory = std::malloc(bytes), 0; }
int cuMemFreeHost(void* memory) { return std::free(memory), 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuCtxSynchronize() { return 0; }

int compare(uint64_t addresses, uint64_t values, uint32_t* changed, unsigned count, unsigned threads) {
  for (unsigned i = 0; i < count && i < threads; ++i) {
    const void* now = reinterpret_cast<void**>(addresses)[i];
    void* const expected = reinterpret_cast<char*>(values) + 16 * i;
    if (!changed) std::memcpy(expected, now, 16);
    else if (std::memcmp(expected, now, 16)) *changed = 1;
  }
  std::printf("%s %u\n", changed ? "compare" : "record", count);
  std::fflush(stdout);
  return current == kContext ? 0 : 201;
}

// A kernel's prepare function. A kernel whose name begins with "refuses" refuses every problem; DRIVER_REASON is its
// reason.
void prepare(const char* name, at_prepared& values) {
  values.abi_version = AT_ABI_VERSION;
  if (std::strncmp(name, "refuses", 7) == 0) {
    values.status = AT_REFUSED;
    if (const char* reason = std::getenv("DRIVER_REASON")) std::memcpy(values.params, reason, std::strlen(reason) + 1);
    return;
  }
  values.status = AT_OK;
  values.params_bytes = sizeof(Params);
  values.pointers_offset = offsetof(Params, pointers);
  values.tensor_map_count = 2;
  values.waits = prepared++ % 2;
  for (int i = 0; i < 2; ++i) {
    values.tensor_maps[i].pointer = i;
    values.tensor_maps[i].params_offset = i * 128;
    values.tensor_maps[i].pixels = i;  // one tiled map, one im2col map
  }
}

int cuLaunchKernelEx(const Launch* launch, const char* name, void** parameters, void**) {
  if (std::strstr(name, "_prepare")) return prepare(name, **static_cast<at_prepared**>(parameters[1])), 0;
  if (std::strcmp(name, "compare") == 0) {
    auto** const values = reinterpret_cast<uint64_t**>(parameters);
    return compare(*values[0], *values[1], reinterpret_cast<uint32_t*>(*values[2]), unsigned(*values[3]),
                   launch->grid[0] * launch->block[0]);
  }
  const bool early = launch->attribute_count == 1 && launch->attributes->id == 6 && launch->attributes->value == 1;
  std::printf("%s %ld", early ? "early" : "launch", reinterpret_cast<long>(launch->stream));
  tell(name, *static_cast<Params*>(parameters[0]));
  std::printf("\n");
  return current == kContext ? 0 : 201;
}

int cuTensorMapEncodeTiled(void* map, int, unsigned, void* address) { return encode(map, address); }
int cuTensorMapEncodeIm2col(void* map, int, unsigned, void* address) { return encode(map, address); }
int cuGraphCreate(void**, unsigned) { return nodes.clear(), 0; }
int cuGraphDestroy(void*) { return 0; }

// If DRIVER_EDGE_ERROR is set, the call fails with that error for a programmatic edge: byte 2 of CUgraphEdgeData is its
// type. If DRIVER_EDGES is set, each edge is told by the numbers of its nodes, counted from 1.
int cuGraphAddDependencies_v2(void*, void* const* from, void* const* to, const void* edge, size_t) {
  const char* error = std::getenv("DRIVER_EDGE_ERROR");
  if (std::getenv("DRIVER_EDGES"))
    std::printf("edge %ld %ld\n", reinterpret_cast<long>(*from), reinterpret_cast<long>(*to));
  const bool programmatic = static_cast<const char*>(edge)[2];
  if (programmatic) {
    std::printf("programmatic edge\n");
    std::fflush(stdout);  // an error that Python prints comes behind it
  }
  return programmatic && error ? std::atoi(error) : 0;
}

int cuGraphInstantiateWithFlags(void** exec, void*, unsigned long long) { return *exec = kContext, 0; }
int cuGraphExecDestroy(void*) { return 0; }

int cuGraphAddKernelNode_v2(void** node, void*, const void*, size_t, const Kernel* kernel) {
  return add(node, {kernel->function, *static_cast<Params*>(kernel->parameters[0]), {}, nullptr});
}
int cuGraphAddMemcpyNode(void** node, void*, const void*, size_t, const Copy* copy, void* context) {
  return context == kContext ? add(node, {"", {}, *copy, nullptr}) : 201;
}
int cuGraphAddChildGraphNode(void** node, void*, const void*, size_t, void* child) {
  return add(node, {"", {}, {}, child});
}
int cuGraphClone(void** clone, void* graph) { return *clone = graph, 0; }
int cuGraphExecMemcpyNodeSetParams(void*, void* node, const Copy* copy, void* context) {
  nodes.at(reinterpret_cast<size_t>(node) - 1).copy = *copy;
  return context == kContext ? 0 : 201;
}

int cuGraphExecKernelNodeSetParams_v2(void*, void* node, const Kernel* kernel) {
  const size_t number = reinterpret_cast<size_t>(node) - 1;
  if (const char* failing = std::getenv("DRIVER_FAILS"); failing && kernel->function == std::string(failing))
    return 999;
  nodes.at(number).params = *static_cast<Params*>(kernel->parameters[0]);
  return 0;
}

int cuStreamIsCapturing(void*, int* status) { return *status = 0; }

int cuStreamCreate(void** stream, unsigned) {
  *stream = nullptr;
  return 0;
}

int cuGraphLaunch(void*, void* stream) {
  std::printf("graph %ld", reinterpret_cast<long>(stream));
  for (const Node& node : nodes) tell(node);
  std::printf("\n");
  return current == kContext ? 0 : 201;
}

void driver_report() {
  std::printf("encoded %d\n", encoded.load());
  std::fflush(stdout);
  encoded = 0;
}
}
