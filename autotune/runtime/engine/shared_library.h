// Kernels from a shared library: see "Shared libraries" in abi.h.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"

namespace engine {

class SharedLibrary : public std::enable_shared_from_this<SharedLibrary> {
 public:
  // Loads the library from its bytes: no file is read that another process could change. Debuggers and /proc/PID/maps
  // show it as "/memfd:NAME". OpenMP symbols resolve to the runtime that the process already has.
  SharedLibrary(const std::string& bytes, const std::string& name);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;

  std::vector<std::string> names() const;

  // Throws Refused or Error with the kernel's own message.
  std::shared_ptr<Prepared> prepare(const std::string& name, const std::string& problem);

 private:
  void unload();

  std::string path_;
  void* handle_ = nullptr;
  const at_library* table_ = nullptr;
};

}  // namespace engine
