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

uint64_t changes = 1;  // of any dictionary that is watched

#if PY_VERSION_HEX >= 0x030C0000
int count_change(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
  ++changes;
  return 0;
}

// Has the interpreter count changes of a dictionary from now on; false if it cannot. It is never told to stop, because
// another Watch may look at the same dictionary.
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

Watch::Watch(const py::list& dictionaries) {
  for (const auto& item : dictionaries) {
    auto entries = item.cast<py::dict>();
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(entries.ptr(), &at, &name, &value);) add(name, value);
    told_ = count_changes(entries.ptr()) && told_;
    dictionaries_.push_back({std::move(entries), entries_.size()});
  }
}

void Watch::add(PyObject* name, PyObject* value) {
  entries_.push_back({py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value)});
  // The function behind the attribute, found once: a lookup of the attribute costs several times what the function
  // does.
  const auto attribute = py::getattr(py::type::handle_of(value), "_version", py::none());
  if (!Py_IS_TYPE(attribute.ptr(), &PyGetSetDescr_Type)) return;
  const PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(attribute.ptr())->d_getset;
  const int64_t now = version(definition->get, value, definition->closure);
  if (now != kUncounted) counted_.push_back({value, definition->get, definition->closure, now});
}

bool Watch::same_objects() const {
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

bool Watch::unchanged() const {
  if (!told_ || seen_ != changes) {
    if (!same_objects()) return false;
    seen_ = changes;
  }
  for (const Counted& one : counted_)
    if (version(one.get, one.tensor, one.closure) != one.version) return false;
  return true;
}

}  // namespace engine
