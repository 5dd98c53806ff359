// Notices changes of weights that torch does not record: writes through `.data`, through NumPy, by a kernel of another
// library, or by another process. Comparing all values would take longer than a small network, so samples are compared:
// all of a small tensor, and pieces spread over a large one. Nearly all such writes change whole tensors.
//
// On a CPU each check compares the samples. On a GPU a kernel compares them on a stream of its own, at most once a
// millisecond, so a change is found by a later check: is_late().
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace engine {

using Memory = std::pair<uintptr_t, size_t>;  // address and size in bytes

constexpr int kHostMemory = -1;

// A piece of a tensor's memory.
struct Sample {
  uintptr_t address;
  uint32_t bytes;
};

// Returns pieces of `piece` bytes at most, which together have about kSampledBytes: each memory as a whole that is no
// larger than its share, and pieces at equal distances of the others.
std::vector<Sample> samples_of(const std::vector<Memory>& memory, size_t piece);

class DeviceSamples;

class ValueSamples {
 public:
  // The present values are the right ones. device: CUDA ordinal of the GPU that holds the memory, or kHostMemory.
  ValueSamples(const std::vector<Memory>& memory, int device);
  ~ValueSamples();
  ValueSamples(const ValueSamples&) = delete;

  // Returns whether no sample is known to have changed. The memory must exist.
  bool unchanged() const;
  bool is_late() const;

 private:
  std::vector<Sample> samples_;
  std::vector<unsigned char> values_;  // of all samples, one behind the other
  std::unique_ptr<DeviceSamples> on_device_;
};

}  // namespace engine
