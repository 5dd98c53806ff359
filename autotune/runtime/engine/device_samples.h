// Compares samples of a GPU's memory with what they were, on a stream of its own.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "driver.h"
#include "value_samples.h"

namespace engine {

class DeviceSamples {
 public:
  static constexpr size_t kPiece = 16;  // bytes that a thread compares; addresses are rounded down to a multiple

  // Waits for the device, so that all that was launched before has written its values, and reads them.
  DeviceSamples(const std::vector<Sample>& samples, int device);
  ~DeviceSamples();
  DeviceSamples(const DeviceSamples&) = delete;

  // Returns whether no comparison that has ended found a change; starts one if the last one began long enough ago.
  bool unchanged();

 private:
  void launch(cuda::DevicePointer changed);

  cuda::Context context_;
  cuda::Stream stream_;
  cuda::Function compare_;
  cuda::DevicePointer addresses_ = 0, values_ = 0;
  volatile uint32_t* changed_ = nullptr;  // in the host's memory; the kernel sets it
  unsigned count_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace engine
