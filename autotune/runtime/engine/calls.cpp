#include "calls.h"

#include <algorithm>

#include "driver.h"

namespace py = pybind11;

namespace engine {
namespace {

constexpr int32_t kCpu = 1, kCuda = 2;  // DLDeviceType
constexpr uint64_t kAccess = 16;        // bytes to which kernels take addresses to be aligned

uint64_t address(const Tensor& x) { return reinterpret_cast<uint64_t>(x.data) + x.offset; }

// For errors that only say that something is not so.
bool no_error() {
  PyErr_Clear();
  return false;
}

// Holds a lock of Python's for a scope.
struct Held {
  py::object lock;
  explicit Held(py::object lock) : lock(std::move(lock)) { this->lock.attr("acquire")(); }
  ~Held() { Py_XDECREF(PyObject_CallMethod(lock.ptr(), "release", nullptr)); }
};

}  // namespace

Calls::Calls(const py::object& exchange, py::object empty_like, py::object count, py::object watch)
    : capsule_(exchange),
      empty_like_(std::move(empty_like)),
      count_(std::move(count)),
      watch_(std::move(watch)),
      used_("used") {
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(exchange.ptr(), kName)) return;
  const auto* found = static_cast<const Exchange*>(PyCapsule_GetPointer(exchange.ptr(), kName));
  if (found->major == 1 && found->read && found->stream) exchange_ = found;
}

Calls::Kind::Kind(const Tensor& x)
    : tensor(x), sizes(x.sizes, x.sizes + x.rank), strides(x.strides, x.strides + x.rank) {}

bool Calls::Kind::is_of(const Tensor& x) const {
  return x.device_type == tensor.device_type && x.device == tensor.device && x.rank == tensor.rank &&
         x.kind == tensor.kind && x.bits == tensor.bits && x.lanes == tensor.lanes &&
         std::equal(sizes.begin(), sizes.end(), x.sizes) && std::equal(strides.begin(), strides.end(), x.strides);
}

bool Calls::read(const py::object& object, Tensor& x) const {
  return exchange_->read(object.ptr(), &x) == 0 ? x.strides != nullptr : no_error();
}

// The current stream of a tensor's device; false for devices that are neither a CPU nor a GPU.
bool Calls::read_stream(const Tensor& x, void*& stream) const {
  stream = nullptr;
  if (x.device_type == kCpu) return true;
  return x.device_type == kCuda && (exchange_->stream(x.device_type, x.device, &stream) == 0 || no_error());
}

std::shared_ptr<Calls::Known> Calls::find(const Tensor& x, void* stream) const {
  for (const auto& one : known_)
    if (one->stream == stream && one->input.is_of(x)) return one;
  return nullptr;
}

bool Calls::Known::is_captured() const {
  if (!context) return false;
  cuda::ContextScope scope(context);  // a thread may have none yet, and a default stream is that of the current one
  return cuda::is_capturing(stream);
}

void Calls::add(const py::object& x, const py::object& frame) {
  Tensor from, to;
  void* stream;
  py::object like = frame.attr("template");
  if (!exchange_ || !read(x, from) || !read_stream(from, stream) || !read(like, to) || find(from, stream)) return;
  Known one{Kind(from), Kind(to), stream, nullptr, frame, std::move(like), nullptr, nullptr};
  if (from.device_type == kCuda) one.context = cuda::primary_context(from.device);
  const py::object runner = frame.attr("direct");
  if (py::isinstance<Graph>(runner)) one.graph = runner.cast<Graph*>();
  else one.program = runner.cast<const Program*>();
  known_.push_back(std::make_shared<Known>(std::move(one)));
}

py::object Calls::run(const py::object& x, const py::object& out) const {
  if (known_.empty()) return py::none();
  Tensor from, to;
  void* stream;
  if (!read(x, from) || address(from) % kAccess || !read_stream(from, stream)) return py::none();
  const std::shared_ptr<Known> known =
      find(from, stream);  // kept, should it be dropped while others have the interpreter
  if (!known || known->is_captured()) return py::none();

  py::object y = out;
  if (out.is_none()) {
    y = py::reinterpret_steal<py::object>(PyObject_CallOneArg(empty_like_.ptr(), known->like.ptr()));
    if (!y) throw py::error_already_set();
  }
  if (!read(y, to) || address(to) % kAccess || !known->output.is_of(to)) return py::none();

  const Given given{static_cast<int64_t>(address(from)), static_cast<int64_t>(address(to))};
  const auto now = py::reinterpret_steal<py::object>(PyIter_Next(count_.ptr()));
  if (!now || PyObject_SetAttr(known->frame.ptr(), used_.ptr(), now.ptr())) throw py::error_already_set();
  if (known->graph) {  // which has a lock of its own
    py::gil_scoped_release release;
    known->graph->run(stream, given);
  } else {
    const Held lock(known->frame.attr("lock"));
    py::gil_scoped_release release;
    known->program->run(stream, given);
  }
  if (known->dropped) known->frame.attr("settle")();
  return watch_.cast<const Watch&>().unchanged() ? y : py::none();
}

void Calls::drop(const py::object& frame) {
  const auto its = [&](const auto& one) { return one->frame.is(frame); };
  for (const auto& one : known_) one->dropped |= its(one);
  known_.erase(std::remove_if(known_.begin(), known_.end(), its), known_.end());
}

}  // namespace engine
