#include "fast_path.h"

#include <algorithm>

#include "driver.h"

namespace py = pybind11;

namespace engine {
namespace {

constexpr int32_t kCpu = 1, kCuda = 2;  // DLDeviceType
constexpr uint64_t kAccess = 16;        // bytes: kernels require addresses aligned to their widest access

uint64_t address(const Tensor& x) { return reinterpret_cast<uint64_t>(x.data) + x.offset; }

// Clears a Python error that stands for a negative answer.
bool no_error() {
  PyErr_Clear();
  return false;
}

// Holds a Python lock for a scope.
struct PythonLock {
  py::object lock;
  explicit PythonLock(py::object lock) : lock(std::move(lock)) { this->lock.attr("acquire")(); }
  ~PythonLock() { Py_XDECREF(PyObject_CallMethod(lock.ptr(), "release", nullptr)); }
};

}  // namespace

FastPath::FastPath(const py::object& exchange, py::object empty_like, py::object count, py::object weights)
    : capsule_(exchange),
      empty_like_(std::move(empty_like)),
      count_(std::move(count)),
      weights_(std::move(weights)),
      used_("used") {
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(exchange.ptr(), kName)) return;
  const auto* found = static_cast<const Exchange*>(PyCapsule_GetPointer(exchange.ptr(), kName));
  if (found->major == 1 && found->read && found->stream) exchange_ = found;
}

FastPath::Signature::Signature(const Tensor& x)
    : tensor(x), sizes(x.sizes, x.sizes + x.rank), strides(x.strides, x.strides + x.rank) {}

bool FastPath::Signature::matches(const Tensor& x) const {
  return x.device_type == tensor.device_type && x.device == tensor.device && x.rank == tensor.rank &&
         x.kind == tensor.kind && x.bits == tensor.bits && x.lanes == tensor.lanes &&
         std::equal(sizes.begin(), sizes.end(), x.sizes) && std::equal(strides.begin(), strides.end(), x.strides);
}

bool FastPath::read(const py::object& object, Tensor& x) const {
  return exchange_->read(object.ptr(), &x) == 0 ? x.strides != nullptr : no_error();
}

// Reads the current stream of a tensor's device. Returns false for devices other than CPU and GPU.
bool FastPath::read_stream(const Tensor& x, void*& stream) const {
  stream = nullptr;
  if (x.device_type == kCpu) return true;
  return x.device_type == kCuda && (exchange_->stream(x.device_type, x.device, &stream) == 0 || no_error());
}

std::shared_ptr<FastPath::CachedCall> FastPath::find(const Tensor& x, void* stream) const {
  for (const auto& one : cached_)
    if (one->stream == stream && one->input.matches(x)) return one;
  return nullptr;
}

bool FastPath::CachedCall::is_captured() const {
  if (!context) return false;
  cuda::ContextScope scope(context);  // a new thread has no context; default streams belong to the current one
  return cuda::is_capturing(stream);
}

void FastPath::add(const py::object& x, const py::object& execution) {
  Tensor from, to;
  void* stream;
  py::object like = execution.attr("template");
  if (!exchange_ || !read(x, from) || !read_stream(from, stream) || !read(like, to) || find(from, stream)) return;
  CachedCall one{Signature(from), Signature(to), stream, nullptr, execution, std::move(like)};
  one.wait_until_idle = execution.attr("wait_until_idle");
  if (from.device_type == kCuda) one.context = cuda::primary_context(from.device);
  const py::object runner = execution.attr("direct");
  if (py::isinstance<Graph>(runner)) one.graph = runner.cast<Graph*>();
  else one.program = runner.cast<const Program*>();
  cached_.push_back(std::make_shared<CachedCall>(std::move(one)));
}

py::object FastPath::run(const py::object& x, const py::object& out) const {
  if (cached_.empty()) return py::none();
  Tensor from, to;
  void* stream;
  if (!read(x, from) || address(from) % kAccess || !read_stream(from, stream)) return py::none();
  const std::shared_ptr<CachedCall> call = find(from, stream);  // shared: another thread may drop it during the run
  if (!call || call->is_captured()) return py::none();

  py::object y = out;
  if (out.is_none()) {
    y = py::reinterpret_steal<py::object>(PyObject_CallOneArg(empty_like_.ptr(), call->like.ptr()));
    if (!y) throw py::error_already_set();
  }
  if (!read(y, to) || address(to) % kAccess || !call->output.matches(to)) return py::none();

  const SlotAddresses given{static_cast<int64_t>(address(from)), static_cast<int64_t>(address(to))};
  const auto now = py::reinterpret_steal<py::object>(PyIter_Next(count_.ptr()));
  if (!now || PyObject_SetAttr(call->execution.ptr(), used_.ptr(), now.ptr())) throw py::error_already_set();
  if (call->graph) {  // a Graph has its own lock
    py::gil_scoped_release release;
    call->graph->run(stream, given);
  } else {
    const PythonLock lock(call->execution.attr("lock"));  // read here: a fork gives the child's context a new one
    py::gil_scoped_release release;
    call->program->run(stream, given);
  }
  if (call->dropped) call->wait_until_idle();
  return weights_.cast<const StateWatch&>().unchanged() ? y : py::none();
}

void FastPath::drop(const py::object& execution) {
  const auto matches = [&](const auto& call) { return call->execution.is(execution); };
  for (const auto& call : cached_) call->dropped |= matches(call);
  cached_.erase(std::remove_if(cached_.begin(), cached_.end(), matches), cached_.end());
}

}  // namespace engine
