// Kernels from a shared library: see "Shared libraries" in abi.h.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"

namespace engine {

class SharedLibrary : public std::enable_shared_from_this<SharedLibrary> {
 public:
  // Loads the library from a path. OpenMP symbols resolve to the runtime that the process already has.
  explicit SharedLibrary(const std::string& path);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;

  std::vector<std::string> names() const;

  // Throws Refused or Error with the kernel's own message.
  std::shared_ptr<Prepared> prepare(const std::string& name, const std::string& problem);

 private:
  void* handle_;
  const at_library* table_;
};

}  // namespace engine
