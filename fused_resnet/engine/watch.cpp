#include "watch.h"

namespace py = pybind11;

namespace engine {
namespace {

constexpr int64_t kUncounted = -1;

// A tensor's version; kUncounted for tensors made in inference mode, which count none.
int64_t version(getter get, PyObject* tensor, void* closure) {
  PyObject* value = get(tensor, closure);
  if (!value) {
    PyErr_Clear();
    return kUncounted;
  }
  const int64_t count = PyLong_AsLongLong(value);
  Py_DECREF(value);
  return count;
}

}  // namespace

Watch::Watch(const py::list& dictionaries) {
  for (const auto& item : dictionaries) {
    auto entries = item.cast<py::dict>();
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(entries.ptr(), &at, &name, &value);) add(name, value);
    dictionaries_.push_back({std::move(entries), entries_.size()});
  }
}

void Watch::add(PyObject* name, PyObject* value) {
  Entry entry{py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value), nullptr, nullptr,
              kUncounted};
  // The function behind the attribute, found once: a lookup of the attribute costs several times what the function does.
  const auto attribute = py::getattr(py::type::handle_of(value), "_version", py::none());
  if (Py_IS_TYPE(attribute.ptr(), &PyGetSetDescr_Type)) {
    const PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(attribute.ptr())->d_getset;
    entry.version = version(definition->get, value, definition->closure);
    if (entry.version != kUncounted) entry.get = definition->get, entry.closure = definition->closure;
  }
  entries_.push_back(std::move(entry));
}

bool Watch::unchanged() const {
  auto entry = entries_.begin();
  for (const Dictionary& dictionary : dictionaries_) {
    const auto end = entries_.begin() + dictionary.end;
    if (PyDict_GET_SIZE(dictionary.entries.ptr()) != end - entry) return false;
    PyObject *name, *value;
    for (Py_ssize_t at = 0; entry != end && PyDict_Next(dictionary.entries.ptr(), &at, &name, &value); ++entry) {
      if (name != entry->name.ptr() || value != entry->value.ptr()) return false;
      if (entry->get && version(entry->get, value, entry->closure) != entry->version) return false;
    }
  }
  return true;
}

}  // namespace engine
