#include "watch.h"

namespace py = pybind11;

namespace engine {
namespace {

constexpr int64_t kUncounted = -1;

// A number that every change of a dictionary changes; 0 where Python keeps none.
uint64_t changes(const py::dict& dictionary) {
#if PY_VERSION_HEX < 0x030E0000 && !defined(PYPY_VERSION)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<const PyDictObject*>(dictionary.ptr())->ma_version_tag;
#pragma GCC diagnostic pop
#else
  return 0;
#endif
}

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
    const uint64_t count = changes(entries);
    dictionaries_.push_back({std::move(entries), entries_.size(), count});
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
  if (entry.get) counted_.push_back(entry);
  entries_.push_back(std::move(entry));
}

bool Watch::unchanged() {
  auto entry = entries_.begin();
  for (Dictionary& dictionary : dictionaries_) {
    const auto begin = entry, end = entries_.begin() + dictionary.end;
    entry = end;
    const uint64_t count = changes(dictionary.entries);
    if (count && count == dictionary.changes) continue;
    if (!holds(dictionary, begin, end)) return false;
    dictionary.changes = count;  // something was taken out and put back
  }
  for (const Entry& one : counted_)
    if (version(one.get, one.value.ptr(), one.closure) != one.version) return false;
  return true;
}

bool Watch::holds(const Dictionary& dictionary, Entries::const_iterator entry, Entries::const_iterator end) const {
  if (PyDict_GET_SIZE(dictionary.entries.ptr()) != end - entry) return false;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; entry != end && PyDict_Next(dictionary.entries.ptr(), &at, &name, &value); ++entry)
    if (name != entry->name.ptr() || value != entry->value.ptr()) return false;
  return true;
}

}  // namespace engine
