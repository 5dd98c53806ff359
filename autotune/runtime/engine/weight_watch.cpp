#include "weight_watch.h"

namespace py = pybind11;

namespace engine {
namespace {

constexpr int64_t kUnversioned = -1;

// Returns a tensor's version, or kUnversioned for a tensor made in inference mode, which has none.
int64_t version(getter get, PyObject* tensor, void* closure) {
  PyObject* value = get(tensor, closure);
  if (!value) {
    PyErr_Clear();
    return kUnversioned;
  }
  const int64_t count = PyLong_AsLongLong(value);
  Py_DECREF(value);
  return count;
}

uint64_t changes = 1;  // counts the changes of all watched dictionaries

#if PY_VERSION_HEX >= 0x030C0000
int count_change(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
  ++changes;
  return 0;
}

// Lets the interpreter count the changes of a dictionary; returns false if it cannot. This is never undone, because
// another WeightWatch may watch the same dictionary.
bool count_changes(PyObject* dictionary) {
  static const int watcher = PyDict_AddWatcher(count_change);
  if (watcher >= 0 && PyDict_Watch(watcher, dictionary) == 0) return true;
  PyErr_Clear();
  return false;
}
#else
bool count_changes(PyObject*) { return false; }
#endif

}  // namespace

WeightWatch::WeightWatch(const py::list& dictionaries) {
  for (const auto& item : dictionaries) {
    auto entries = item.cast<py::dict>();
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(entries.ptr(), &at, &name, &value);) add(name, value);
    reported_ = count_changes(entries.ptr()) && reported_;
    dictionaries_.push_back({std::move(entries), entries_.size()});
  }
}

void WeightWatch::add(PyObject* name, PyObject* value) {
  entries_.push_back({py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value)});
  // Finds the getter behind the attribute once: the getter is several times faster than an attribute lookup.
  const auto attribute = py::getattr(py::type::handle_of(value), "_version", py::none());
  if (!Py_IS_TYPE(attribute.ptr(), &PyGetSetDescr_Type)) return;
  const PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(attribute.ptr())->d_getset;
  const int64_t now = version(definition->get, value, definition->closure);
  if (now != kUnversioned) versioned_.push_back({value, definition->get, definition->closure, now});
}

bool WeightWatch::same_objects() const {
  auto entry = entries_.begin();
  for (const Dictionary& dictionary : dictionaries_) {
    const auto end = entries_.begin() + dictionary.end;
    if (PyDict_GET_SIZE(dictionary.entries.ptr()) != end - entry) return false;
    PyObject *name, *value;
    for (Py_ssize_t at = 0; entry != end && PyDict_Next(dictionary.entries.ptr(), &at, &name, &value); ++entry)
      if (name != entry->name.ptr() || value != entry->value.ptr()) return false;
  }
  return true;
}

bool WeightWatch::unchanged() const {
  if (!reported_ || seen_ != changes) {
    if (!same_objects()) return false;
    seen_ = changes;
  }
  for (const Versioned& one : versioned_)
    if (version(one.get, one.tensor, one.closure) != one.version) return false;
  return true;
}

}  // namespace engine
