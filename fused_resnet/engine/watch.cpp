#include "watch.h"

namespace py = pybind11;

namespace engine {
namespace {

constexpr int64_t kUncounted = -1;

// A tensor's version; kUncounted for all other objects, and for tensors made in inference mode, which count none.
int64_t version(PyObject* object) {
  static PyObject* name = PyUnicode_InternFromString("_version");
  PyObject* value = PyObject_GetAttr(object, name);
  if (!value) {
    PyErr_Clear();
    return kUncounted;
  }
  const int64_t count = PyLong_AsLongLong(value);
  Py_DECREF(value);
  return count;
}

}  // namespace

Watch::Entry Watch::entry(py::dict owner, py::str name) {
  PyObject* value = PyDict_GetItemWithError(owner.ptr(), name.ptr());
  if (!value) throw py::key_error(std::string(name));
  return {std::move(owner), std::move(name), py::reinterpret_borrow<py::object>(value), version(value)};
}

bool Watch::unchanged() const {
  for (const Entry& entry : entries_) {
    PyObject* value = PyDict_GetItemWithError(entry.owner.ptr(), entry.name.ptr());
    if (value != entry.value.ptr()) return false;
    if (entry.version != kUncounted && version(value) != entry.version) return false;
  }
  return true;
}

}  // namespace engine
