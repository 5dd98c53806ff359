#include "tensor_state.h"

#include <cstring>

namespace py = pybind11;

namespace engine {
namespace {

constexpr int kUnknown = -1;

// Offsets in bytes: of the pointer to the TensorImpl in a Python tensor; of the pointer to the storage, the element
// offset and the pointer to the version counter in a TensorImpl; of the address in a storage; of the number in a
// version counter.
struct Layout {
  int impl = kUnknown, storage = kUnknown, offset = kUnknown, counter = kUnknown, address = kUnknown,
      version = kUnknown;
  bool is_known() const { return version != kUnknown; }
};

// Sizes in bytes of the objects that are searched, rounded down; torch 2.0 to 2.13 has 192, 64 and 24.
constexpr int kImplBytes = 176, kStorageBytes = 48, kCounterBytes = 20;

template <typename T>
T word(const void* object, int offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof value);
  return value;
}

// Returns the first offset at which an object holds a value, or kUnknown.
template <typename T>
int find(const void* object, int bytes, T value) {
  for (int offset = 0; offset + int(sizeof(T)) <= bytes; offset += sizeof(T))
    if (word<T>(object, offset) == value) return offset;
  return kUnknown;
}

const void* address_of(const py::object& number) { return reinterpret_cast<const void*>(number.cast<uintptr_t>()); }

// A tensor that is looked at, with what torch says of it.
struct Example {
  py::object tensor;
  const void* impl;
  const void* storage;
  uintptr_t address;
  int64_t offset;

  explicit Example(py::object given)
      : tensor(std::move(given)),
        impl(address_of(tensor.attr("_cdata"))),
        storage(address_of(tensor.attr("untyped_storage")().attr("_cdata"))),
        address(tensor.attr("untyped_storage")().attr("data_ptr")().cast<uintptr_t>()),
        offset(tensor.attr("storage_offset")().cast<int64_t>()) {}
  int64_t version() const { return tensor.attr("_version").cast<int64_t>(); }
};

TensorState read(const Layout& at, PyObject* tensor) {
  const auto* impl = word<const void*>(tensor, at.impl);
  const auto* storage = word<const void*>(impl, at.storage);
  const auto* counter = word<const void*>(impl, at.counter);
  return {storage ? word<uintptr_t>(storage, at.address) : 0, word<int64_t>(impl, at.offset),
          counter ? int64_t(word<uint32_t>(counter, at.version)) : kUnversioned};
}

// Returns the offset of the pointer to the version counter: a detached tensor shares it, and `.data` does not.
int find_counter(const Example& one, const Example& detached, const Example& apart) {
  for (int offset = 0; offset + 8 <= kImplBytes; offset += 8) {
    const auto mine = word<uintptr_t>(one.impl, offset);
    if (mine && mine == word<uintptr_t>(detached.impl, offset) && mine != word<uintptr_t>(apart.impl, offset) &&
        word<uintptr_t>(apart.impl, offset) != 0 && offset != 8)  // 8: the reference counts
      return offset;
  }
  return kUnknown;
}

// Makes tensors that count versions and have memory of the host, also within inference mode and a default device.
class PlainTensors {
 public:
  explicit PlainTensors(const py::module_& torch) : torch_(torch), normal_(torch.attr("inference_mode")(false)) {
    normal_.attr("__enter__")();
  }
  ~PlainTensors() { normal_.attr("__exit__")(py::none(), py::none(), py::none()); }
  template <typename... Sizes>
  py::object operator()(Sizes... sizes) const {
    return torch_.attr("zeros")(sizes..., py::arg("device") = "cpu");
  }

 private:
  py::module_ torch_;
  py::object normal_;
};

Layout learn(const py::module_& torch) {
  Layout at;
  const PlainTensors zeros(torch);
  const py::object base = zeros(20021);
  const Example one(base.attr("narrow")(0, 10007, 3)), detached(one.tensor.attr("detach")()),
      apart(one.tensor.attr("data"));
  at.impl = find(one.tensor.ptr(), int(Py_TYPE(one.tensor.ptr())->tp_basicsize), one.impl);
  at.storage = find(one.impl, kImplBytes, one.storage);
  at.offset = find(one.impl, kImplBytes, one.offset);
  at.address = find(one.storage, kStorageBytes, one.address);
  const int counter = find_counter(one, detached, apart);
  if (at.impl < 0 || at.storage < 0 || at.offset < 0 || at.address < 0 || counter < 0) return {};
  for (int i = 0; i < 4321; ++i) torch.attr("autograd").attr("graph").attr("increment_version")(one.tensor);
  at.counter = counter;
  const int version = find(word<const void*>(one.impl, counter), kCounterBytes, uint32_t(one.version()));
  if (version < 0) return {};
  at.version = version;
  const auto agrees = [&](const Example& example) {
    const TensorState now = read(at, example.tensor.ptr());
    return now == TensorState{example.address, example.offset, example.version()};
  };
  const Example other(torch.attr("nn").attr("Parameter")(zeros(2, 3)));
  bool right = agrees(one) && agrees(detached) && agrees(apart) && agrees(other);
  one.tensor.attr("zero_")();
  right = right && agrees(one) && agrees(detached) && agrees(apart);
  other.tensor.attr("__setattr__")("data", zeros(5));
  return right && agrees(Example(other.tensor)) ? at : Layout{};
}

py::object loaded_torch() {
  return py::module_::import("sys").attr("modules").attr("get")("torch");  // none: there can be no tensor
}

// Learned when the first tensor is read. No static initializer learns it: another thread would wait for that with the
// GIL, which the calls of torch may release.
const Layout& layout() {
  static const Layout* learned = nullptr;
  if (!learned) {
    try {
      learned = new Layout(learn(loaded_torch().cast<py::module_>()));
    } catch (py::error_already_set&) {  // an attribute that this version of torch lacks
      learned = new Layout();
    }
  }
  return *learned;
}

TensorState ask_torch(const py::handle& tensor) {
  const auto number = [&](const py::object& value) { return value.cast<int64_t>(); };
  TensorState now{0, 0, kUnversioned};
  try {
    now.version = number(tensor.attr("_version"));
  } catch (py::error_already_set&) {  // made in inference mode
  }
  try {
    now.offset = number(tensor.attr("storage_offset")());
    now.address = tensor.attr("data_ptr")().cast<uintptr_t>() - now.offset * number(tensor.attr("element_size")());
  } catch (py::error_already_set&) {  // sparse, or without memory
  }
  return now;
}

}  // namespace

bool is_tensor(PyObject* object) {
  static PyObject* kind = nullptr;
  if (!kind) {
    const py::object torch = loaded_torch();
    if (torch.is_none() || !py::hasattr(torch, "Tensor")) return false;
    kind = py::object(torch.attr("Tensor")).release().ptr();
  }
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(kind));
}

TensorState tensor_state(PyObject* tensor) { return layout().is_known() ? read(layout(), tensor) : ask_torch(tensor); }

TensorWords tensor_words(PyObject* tensor) {
  const Layout& at = layout();
  if (!at.is_known()) return {};
  const auto* impl = word<const char*>(tensor, at.impl);
  const auto* storage = word<const char*>(impl, at.storage);
  const auto* counter = word<const char*>(impl, at.counter);
  return {impl + at.storage, impl + at.offset, storage + at.address, counter + at.version};
}

}  // namespace engine
