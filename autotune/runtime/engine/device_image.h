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
  void* context_ = nullptr;
  void* module_ = nullptr;
};

// A kernel of a device image with its launch configuration and parameters, except the pointers.
class PreparedImage : public Prepared {
 public:
  PreparedImage(std::shared_ptr<DeviceImage> image, void* function, const at_prepared& values);
  void launch(const at_pointers& pointers, void* stream, bool overlap) const override;
  std::unique_ptr<const Launch> freeze(const at_pointers& pointers) const override;
  std::string describe() const override;
  void* context() const override;

  void* function() const { return function_; }
  const at_prepared& values() const { return values_; }

  // Writes the kernel's parameters with these pointers; `params` has room for values().params_bytes.
  void write_params(uint8_t* params, const at_pointers& pointers) const;

  // Enqueues the kernel with parameters that were written.
  void launch_with(const uint8_t* params, void* stream, bool overlap) const;

 private:
  std::shared_ptr<DeviceImage> image_;  // keeps the code loaded
  void* function_;
  at_prepared values_;
};

}  // namespace engine
