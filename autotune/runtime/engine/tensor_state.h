// Reads the address and the version of a torch tensor. Torch's own functions for both take 30 to 80 ns a tensor, which
// for the hundreds of tensors of a network is longer than a launch. So the words are read where torch keeps them: their
// offsets are found once, by comparing tensors whose addresses and versions are known. Where they are not found, as in
// a version of torch with another layout, torch's functions are called.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>

namespace engine {

struct TensorState {
  uintptr_t address = 0;  // of the first byte of the storage; 0 for a tensor without memory
  int64_t offset = 0;     // of the first element in the storage, in elements
  int64_t version = 0;    // number of in-place changes that torch has recorded; kUnversioned if it records none
  bool operator==(const TensorState& other) const {
    return address == other.address && offset == other.offset && version == other.version;
  }
};

constexpr int64_t kUnversioned = -1;  // the version of tensors that were made in inference mode

// The words that tensor_state reads: in the tensor's TensorImpl, its storage and its version counter.
struct TensorWords {
  const void *impl = nullptr, *offset = nullptr, *storage = nullptr, *counter = nullptr;
};

// Returns the present places of the words.
TensorWords tensor_words(PyObject* tensor);

// Loads words into the cache. Four dependent loads for each of hundreds of tensors take longer than all else; the words
// need not exist any more.
inline void prefetch(const TensorWords& words) {
  __builtin_prefetch(words.impl);
  __builtin_prefetch(words.offset);
  __builtin_prefetch(words.storage);
  __builtin_prefetch(words.counter);
}

// Returns whether an object is a torch tensor. Never imports torch.
bool is_tensor(PyObject* object);

// Returns the present state of a tensor.
TensorState tensor_state(PyObject* tensor);

}  // namespace engine
