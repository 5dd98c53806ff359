// The part of the CUDA driver API that the engine calls, found at run time with dlopen, so that neither
// building nor importing the engine needs CUDA. Declarations follow the driver's documented ABI.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernel.h"

namespace engine::cuda {

using Result = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using DevicePointer = uint64_t;

enum FunctionAttribute { kRegisters = 4, kLocalBytes = 3, kMaxThreads = 0, kMaxDynamicShared = 8 };

// CUlaunchAttribute. {6, {}, 1} allows programmatic stream serialization: the kernel may start as soon as all blocks of
// its predecessor in the stream allow it.
struct LaunchAttribute {
  int id;
  char unused[4];
  int value;
  char rest[60];
};

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNode {
  Function function;
  unsigned grid[3], block[3], shared_bytes;
  void** parameters;
  void** extra;
  void* kernel;
  Context context;
};

constexpr int kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE

// One end of a CUDA_MEMCPY3D.
struct CopyEnd {
  size_t x, y, z, level;
  int memory_type;
  void* host;
  DevicePointer device;
  void* array;
  void* reserved;
  size_t pitch, height;
};

// CUDA_MEMCPY3D
struct Copy {
  CopyEnd from, to;
  size_t width, height, depth;  // width in bytes
};

// CUgraphEdgeData. {1, 0, 1} is a programmatic edge: the successor may start as soon as all blocks of this kernel allow
// it.
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};

// CUtensorMap: opaque, 64-byte aligned.
constexpr int kTensorMapBytes = 128;

using Graph = void*;
using GraphNode = void*;
using GraphExec = void*;

struct Driver {
  Result (*init)(unsigned);
  Result (*get_error_string)(Result, const char**);
  Result (*device_get)(int*, int);
  Result (*primary_context_retain)(Context*, int);
  Result (*context_get)(Context*);
  Result (*context_set)(Context);
  Result (*module_load)(Module*, const void*);
  Result (*module_unload)(Module);
  Result (*module_function)(Function*, Module, const char*);
  Result (*function_set)(Function, int, int);
  Result (*function_get)(int*, int, Function);
  Result (*alloc)(DevicePointer*, size_t);
  Result (*free)(DevicePointer);
  Result (*fill)(DevicePointer, unsigned char, size_t);
  Result (*copy_to_host)(void*, DevicePointer, size_t);
  Result (*copy_to_device)(DevicePointer, const void*, size_t);
  Result (*alloc_host)(void**, size_t, unsigned flags);
  Result (*free_host)(void*);
  Result (*launch)(const LaunchConfig*, Function, void** parameters, void** extra);
  Result (*encode_tiled)(void* map, int element, unsigned rank, void* address, const uint64_t* sizes,
                         const uint64_t* strides, const unsigned* box, const unsigned* element_strides, int interleave,
                         int swizzle, int promotion, int fill);
  Result (*encode_im2col)(void* map, int element, unsigned rank, void* address, const uint64_t* sizes,
                          const uint64_t* strides, const int* lower, const int* upper, unsigned channels,
                          unsigned pixels, const unsigned* element_strides, int interleave, int swizzle, int promotion,
                          int fill);
  Result (*graph_create)(Graph*, unsigned flags);
  Result (*graph_destroy)(Graph);
  Result (*graph_add_kernel)(GraphNode*, Graph, const GraphNode*, size_t, const KernelNode*);
  Result (*graph_add_edges)(Graph, const GraphNode* from, const GraphNode* to, const EdgeData*, size_t);
  Result (*graph_add_copy)(GraphNode*, Graph, const GraphNode*, size_t, const Copy*, Context);
  Result (*graph_add_child)(GraphNode*, Graph, const GraphNode*, size_t, Graph child);
  Result (*graph_clone)(Graph*, Graph original);
  Result (*graph_instantiate)(GraphExec*, Graph, unsigned long long flags);
  Result (*graph_set_kernel)(GraphExec, GraphNode, const KernelNode*);
  Result (*graph_set_copy)(GraphExec, GraphNode, const Copy*, Context);
  Result (*graph_exec_destroy)(GraphExec);
  Result (*graph_launch)(GraphExec, Stream);
  Result (*stream_capturing)(Stream, int* status);
  Result (*stream_create)(Stream*, unsigned flags);
  Result (*stream_synchronize)(Stream);
  Result (*context_synchronize)();
};

// Returns the driver, loaded and initialized once. Throws Error if there is none.
const Driver& driver();

enum ErrorCode {  // CUresult
  kInvalidValue = 1,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kAssert = 710,
  kLaunchFailed = 719,
  kNotSupported = 801
};

// A driver function failed with this CUresult.
struct DriverError : Error {
  DriverError(Result result, const std::string& text) : Error(text), result(result) {}
  Result result;
};

// Throws DriverError with `what` and the driver's message unless `result` is success.
void check(Result result, const char* what);

// Returns whether a stream is being captured into a graph.
bool is_capturing(Stream stream);

// Returns a new stream of a device, which does not wait for the legacy default stream. It is never destroyed.
Stream create_stream(int ordinal);

// Makes a device's primary context, the one torch uses, current for a scope.
class ContextScope {
 public:
  explicit ContextScope(Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

 private:
  Context previous_ = nullptr;
  bool changed_ = false;
};

// Returns the primary context of a device by CUDA ordinal; it is retained for the life of the process.
Context primary_context(int ordinal);

}  // namespace engine::cuda
