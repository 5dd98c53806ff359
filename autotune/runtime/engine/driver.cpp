#include "driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "kernel.h"

namespace engine::cuda {
namespace {

template <typename F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function)
    throw Error(std::string("the CUDA driver lacks ") + name + "; a driver of CUDA 12.3 or newer is needed");
}

Driver load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw Error("no CUDA driver: libcuda.so.1 was not found");
  Driver d{};
  find(library, "cuInit", d.init);
  find(library, "cuGetErrorString", d.get_error_string);
  find(library, "cuDeviceGet", d.device_get);
  find(library, "cuDevicePrimaryCtxRetain", d.primary_context_retain);
  find(library, "cuCtxGetCurrent", d.context_get);
  find(library, "cuCtxSetCurrent", d.context_set);
  find(library, "cuModuleLoadData", d.module_load);
  find(library, "cuModuleUnload", d.module_unload);
  find(library, "cuModuleGetFunction", d.module_function);
  find(library, "cuFuncSetAttribute", d.function_set);
  find(library, "cuFuncGetAttribute", d.function_get);
  find(library, "cuMemAlloc_v2", d.alloc);
  find(library, "cuMemFree_v2", d.free);
  find(library, "cuMemsetD8_v2", d.fill);
  find(library, "cuMemcpyDtoH_v2", d.copy_to_host);
  find(library, "cuMemcpyHtoD_v2", d.copy_to_device);
  find(library, "cuMemHostAlloc", d.alloc_host);
  find(library, "cuMemFreeHost", d.free_host);
  find(library, "cuLaunchKernelEx", d.launch);
  find(library, "cuTensorMapEncodeTiled", d.encode_tiled);
  find(library, "cuTensorMapEncodeIm2col", d.encode_im2col);
  find(library, "cuGraphCreate", d.graph_create);
  find(library, "cuGraphDestroy", d.graph_destroy);
  find(library, "cuGraphAddKernelNode_v2", d.graph_add_kernel);
  find(library, "cuGraphAddMemcpyNode", d.graph_add_copy);
  find(library, "cuGraphAddChildGraphNode", d.graph_add_child);
  find(library, "cuGraphAddDependencies_v2", d.graph_add_edges);
  find(library, "cuGraphClone", d.graph_clone);
  find(library, "cuGraphInstantiateWithFlags", d.graph_instantiate);
  find(library, "cuGraphExecKernelNodeSetParams_v2", d.graph_set_kernel);
  find(library, "cuGraphExecMemcpyNodeSetParams", d.graph_set_copy);
  find(library, "cuGraphExecDestroy", d.graph_exec_destroy);
  find(library, "cuGraphLaunch", d.graph_launch);
  find(library, "cuStreamIsCapturing", d.stream_capturing);
  find(library, "cuStreamCreate", d.stream_create);
  find(library, "cuStreamSynchronize", d.stream_synchronize);
  find(library, "cuCtxSynchronize", d.context_synchronize);
  if (d.init(0) != 0) throw Error("the CUDA driver does not initialise: no usable GPU");
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

namespace {

// Whether an error of a kernel stays: every later call of the context fails with it.
bool ends_context(Result result) {
  return result == kIllegalAddress || result == kLaunchTimeout || (result >= kAssert && result <= kLaunchFailed);
}

}  // namespace

void check(Result result, const char* what) {
  if (result == 0) return;
  const char* text = nullptr;
  driver().get_error_string(result, &text);
  std::string message =
      std::string(what) + ": " + (text ? text : "unknown error") + " (CUDA error " + std::to_string(result) + ")";
  if (ends_context(result))
    message +=
        ". A kernel that ran before failed, of this or of another library, and ended the CUDA context of this "
        "process: start the process again; CUDA_LAUNCH_BLOCKING=1 helps to find the kernel";
  throw DriverError(result, message);
}

bool is_capturing(Stream stream) {
  int status = 0;
  check(driver().stream_capturing(stream, &status), "cuStreamIsCapturing");
  return status != 0;
}

Context primary_context(int ordinal) {
  static std::mutex mutex;
  static std::map<int, Context> contexts;
  std::lock_guard lock(mutex);
  Context& context = contexts[ordinal];
  if (!context) {
    int device;
    check(driver().device_get(&device, ordinal), "cuDeviceGet");
    check(driver().primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  }
  return context;
}

ContextScope::ContextScope(Context context) {
  driver().context_get(&previous_);
  if (previous_ == context) return;
  check(driver().context_set(context), "cuCtxSetCurrent");
  changed_ = true;
}

Stream create_stream(int ordinal) {
  constexpr unsigned kNonBlocking = 1;
  ContextScope scope(primary_context(ordinal));
  Stream stream;
  check(driver().stream_create(&stream, kNonBlocking), "a CUDA stream");
  return stream;
}

ContextScope::~ContextScope() {
  if (changed_) driver().context_set(previous_);
}

}  // namespace engine::cuda
