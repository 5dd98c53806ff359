#include "shared_library.h"

#include <dlfcn.h>

namespace engine {

class PreparedLibrary : public Prepared {
 public:
  PreparedLibrary(std::shared_ptr<SharedLibrary> library, const at_kernel& kernel, void* state, int64_t workspace)
      : library_(std::move(library)), kernel_(kernel), state_(state) {
    workspace_bytes = workspace;
  }
  ~PreparedLibrary() override { kernel_.release(state_); }

  void launch(const at_pointers& pointers, void* stream, bool) const override {
    char text[256] = "";
    if (kernel_.launch(state_, pointers.p, stream, text, sizeof text) != AT_OK)
      throw Error(std::string(kernel_.name) + ": " + text);
  }

  std::unique_ptr<const Launch> freeze(const at_pointers& pointers) const override;
  std::string describe() const override { return kernel_.name; }

 private:
  std::shared_ptr<SharedLibrary> library_;  // keeps the code loaded
  const at_kernel& kernel_;
  void* state_;
};

class FrozenLibrary : public Launch {
 public:
  FrozenLibrary(const PreparedLibrary& kernel, const at_pointers& pointers) : kernel_(kernel), pointers_(pointers) {}
  void run(void* stream, bool overlap) const override { kernel_.launch(pointers_, stream, overlap); }

 private:
  const PreparedLibrary& kernel_;
  at_pointers pointers_;
};

std::unique_ptr<const Launch> PreparedLibrary::freeze(const at_pointers& pointers) const {
  return std::make_unique<FrozenLibrary>(*this, pointers);
}

SharedLibrary::SharedLibrary(const std::string& path) {
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_) {
    // Torch usually loads its own OpenMP runtime; a build of torch without one uses the system's.
    dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (!handle_) throw Error(std::string("a shared library does not load: ") + dlerror());
  auto get = reinterpret_cast<const at_library* (*)()>(dlsym(handle_, "at_library_get"));
  table_ = get ? get() : nullptr;
  if (!table_ || table_->abi_version != AT_ABI_VERSION) {
    dlclose(handle_);
    throw Error(path + " is not a kernel library of ABI version " + std::to_string(AT_ABI_VERSION));
  }
}

SharedLibrary::~SharedLibrary() { dlclose(handle_); }

std::vector<std::string> SharedLibrary::names() const {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < table_->count; ++i) names.push_back(table_->kernels[i].name);
  return names;
}

std::shared_ptr<Prepared> SharedLibrary::prepare(const std::string& name, const std::string& problem) {
  for (uint32_t i = 0; i < table_->count; ++i) {
    const at_kernel& kernel = table_->kernels[i];
    if (name != kernel.name) continue;
    void* state = nullptr;
    int64_t workspace = 0;
    char text[256] = "";
    const int status = kernel.prepare(problem.data(), &state, &workspace, text, sizeof text);
    if (status == AT_REFUSED) throw Refused(name + ": " + text);
    if (status != AT_OK) throw Error(name + ": " + text);
    return std::make_shared<PreparedLibrary>(shared_from_this(), kernel, state, workspace);
  }
  throw Error("the library has no kernel named " + name);
}

}  // namespace engine
