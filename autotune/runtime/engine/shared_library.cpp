#include "shared_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

namespace engine {

namespace {

// A file in memory. No other process can write it, and once it is sealed neither can this one.
class MemoryFile {
 public:
  MemoryFile(const std::string& bytes, const std::string& name)
      : descriptor_(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (descriptor_ < 0) fail();
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t count = write(descriptor_, bytes.data() + at, bytes.size() - at);
      if (count < 0 && errno != EINTR) fail();
      at += count > 0 ? count : 0;
    }
    if (fcntl(descriptor_, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail();
  }
  ~MemoryFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  MemoryFile(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  [[noreturn]] void fail() {
    const std::string reason = std::strerror(errno);
    if (descriptor_ >= 0) close(descriptor_);
    throw Error("a shared library cannot be held in memory: " + reason);
  }

  int descriptor_;
};

std::mutex paths_lock;
std::set<std::string> paths_in_use;

// Returns a path of a descriptor that no loaded library has. dlopen returns the loaded library for a path that it
// knows, and descriptors are reused as soon as they are closed, so a path in use is told apart by more slashes.
std::string unused_path(int descriptor) {
  const std::lock_guard<std::mutex> lock(paths_lock);
  for (std::string slashes = "/";; slashes += "/") {
    const std::string path = "/proc/self/fd" + slashes + std::to_string(descriptor);
    if (paths_in_use.insert(path).second) return path;
  }
}

void* load(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); }

}  // namespace

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

SharedLibrary::SharedLibrary(const std::string& bytes, const std::string& name) {
  const MemoryFile file(bytes, name);  // closed at the end: the mapping keeps the memory
  path_ = unused_path(file.descriptor());
  handle_ = load(path_);
  if (!handle_) {
    // Torch usually loads its own OpenMP runtime; a build of torch without one uses the system's.
    dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
    handle_ = load(path_);
  }
  if (!handle_) {
    const std::string reason = dlerror();
    unload();
    throw Error("the shared library " + name + " does not load: " + reason);
  }
  auto get = reinterpret_cast<const at_library* (*)()>(dlsym(handle_, "at_library_get"));
  table_ = get ? get() : nullptr;
  if (!table_ || table_->abi_version != AT_ABI_VERSION) {
    unload();
    throw Error(name + " is not a kernel library of ABI version " + std::to_string(AT_ABI_VERSION));
  }
}

SharedLibrary::~SharedLibrary() { unload(); }

void SharedLibrary::unload() {
  if (handle_) dlclose(handle_);
  const std::lock_guard<std::mutex> lock(paths_lock);
  paths_in_use.erase(path_);
}

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
