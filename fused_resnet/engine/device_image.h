// Kernels from a device image (cubin): see "Device images" in abi.h.
#pragma once
#include <memory>
#include <string>

#include "kernel.h"

namespace engine {

class DeviceImage : public std::enable_shared_from_this<DeviceImage> {
 public:
  // Loads the image into the primary context of GPU `ordinal`.
  DeviceImage(const std::string& bytes, int ordinal);
  ~DeviceImage();
  DeviceImage(const DeviceImage&) = delete;

  // Runs the kernel's `prepare` on the GPU for the bytes of a problem struct. Throws Refused or Error.
  std::shared_ptr<Prepared> prepare(const std::string& symbol, const std::string& problem);

 private:
  friend class PreparedImage;
  void* context_;
  void* module_ = nullptr;
};

}  // namespace engine
