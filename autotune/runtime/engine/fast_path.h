// Runs bound plans without the Python interpreter between the input and the launch. The input's signature and address,
// the current stream and the result's address are read with the DLPack C functions of the framework's tensors.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "graph.h"
#include "program.h"
#include "state_watch.h"

namespace engine {

// DLTensor: DLPack 1.x, dlpack.h
struct Tensor {
  void* data;
  int32_t device_type, device;
  int32_t rank;
  uint8_t kind, bits;
  uint16_t lanes;
  int64_t *sizes, *strides;  // in elements
  uint64_t offset;           // bytes from data to the first element
};

// DLPackExchangeAPI: DLPack 1.3. All return 0, or another number with a Python error set.
struct Exchange {
  uint32_t major, minor;
  void* older;
  int (*allocate)(void*, void**, void*, void (*)(void*, const char*, const char*));
  int (*take)(void* object, void** out);
  int (*give)(void* managed, void** out);
  int (*read)(void* object, Tensor* out);  // may be absent
  int (*stream)(int32_t device_type, int32_t device, void** out);
};

class __attribute__((visibility("hidden"))) FastPath {
 public:
  // exchange: the DLPack exchange capsule of the tensor class, or None: then every call takes the slow path.
  // empty_like: makes a result from a template. count: an iterator that numbers the runs of the process.
  // weights: tells whether the weights that plans were made from have changed.
  FastPath(const pybind11::object& exchange, pybind11::object empty_like, pybind11::object count,
           pybind11::object weights);

  // Runs inputs with the signature of x on an ExecutionContext (autotune/runtime/executor.py) from now on. Its
  // attributes are read once, here: `direct`, a Graph or a Program with the slots input and result; `template`, a
  // tensor with the result's signature; and `wait_until_idle`. Each run of a Program holds its `lock`, which is another
  // one after a fork, and each run sets its attribute `used`.
  void add(const pybind11::object& x, const pybind11::object& execution);

  // Returns the result, which is `out` unless that is None. Returns None if the call must take the slow path: the
  // signature is unknown, the stream is being captured, `out` has another signature than results, or the weights have
  // changed. Weights are checked after the launch, while the GPU works.
  pybind11::object run(const pybind11::object& x, const pybind11::object& out) const;

  // Forgets an ExecutionContext. A thread that runs it meanwhile calls its `wait_until_idle` afterwards.
  void drop(const pybind11::object& execution);

 private:
  // Device, dtype, shape and strides of a tensor.
  struct Signature {
    Tensor tensor;
    std::vector<int64_t> sizes, strides;
    explicit Signature(const Tensor& x);
    bool matches(const Tensor& x) const;
  };
  struct CachedCall {
    Signature input, output;
    void* stream;
    void* context;  // the CUDA context; null on a CPU
    pybind11::object execution, like, wait_until_idle;
    Graph* graph = nullptr;  // either the graph or the program of the ExecutionContext
    const Program* program = nullptr;
    bool dropped = false;
    bool is_captured() const;
  };
  bool read(const pybind11::object& object, Tensor& x) const;
  bool read_stream(const Tensor& x, void*& stream) const;
  std::shared_ptr<CachedCall> find(const Tensor& x, void* stream) const;

  const Exchange* exchange_ = nullptr;
  pybind11::object capsule_, empty_like_, count_, weights_;
  pybind11::str used_;
  std::vector<std::shared_ptr<CachedCall>> cached_;
};

}  // namespace engine
