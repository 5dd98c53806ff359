// Calls of what is bound, without the interpreter between input and launch: which plan an input is for, its address,
// the stream, and the result's address come from DLPack's C functions for a framework's tensors.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "graph.h"
#include "program.h"
#include "watch.h"

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

class __attribute__((visibility("hidden"))) Calls {
 public:
  // exchange: the capsule of a tensor class, or None where it has none: then no call is known. empty_like: result's
  // template
  // -> result. count: an iterator; who ran last has its last number. watch: a Watch of what plans are made of.
  Calls(const pybind11::object& exchange, pybind11::object empty_like, pybind11::object count, pybind11::object watch);

  // From now on inputs that are as x run on a frame: on its `direct`, a Graph or a Program whose slots are input and
  // result. Its template is how results look, its lock is held while a program runs, `used` is set.
  void add(const pybind11::object& x, const pybind11::object& frame);

  // The result, in `out` if that is not None; None where x must go the long way: nothing is known for it, its stream is
  // being captured, `out` is not as results are, or the watch tells of a change, which is looked for while the device
  // works.
  pybind11::object run(const pybind11::object& x, const pybind11::object& out) const;

  // Forget all that runs on a frame. Who runs on it meanwhile calls its `settle` afterwards.
  void drop(const pybind11::object& frame);

 private:
  // All of a tensor but its values.
  struct Kind {
    Tensor tensor;
    std::vector<int64_t> sizes, strides;
    explicit Kind(const Tensor& x);
    bool is_of(const Tensor& x) const;
  };
  struct Known {
    Kind input, output;
    void* stream;
    void* context;  // of a GPU
    pybind11::object frame, like;
    Graph* graph;  // or the program: the frame's
    const Program* program;
    bool dropped = false;
    bool is_captured() const;
  };
  bool read(const pybind11::object& object, Tensor& x) const;
  bool read_stream(const Tensor& x, void*& stream) const;
  std::shared_ptr<Known> find(const Tensor& x, void* stream) const;

  const Exchange* exchange_ = nullptr;
  pybind11::object capsule_, empty_like_, count_, watch_;
  pybind11::str used_;
  std::vector<std::shared_ptr<Known>> known_;
};

}  // namespace engine
