#include "state_watch.h"

#include <algorithm>

namespace py = pybind11;

namespace engine {
namespace {

constexpr size_t kAhead = 8;  // tensors between the one that is compared and the one whose words are loaded

#if PY_VERSION_HEX >= 0x030C0000
uint64_t reports = 1;  // counts the changes of all watched dictionaries

int count_change(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
  ++reports;
  return 0;
}

// Lets the interpreter count the changes of a dictionary; returns false if it cannot. This is never undone, because
// another StateWatch may watch the same dictionary.
bool count_changes(PyObject* dictionary) {
  static const int watcher = PyDict_AddWatcher(count_change);
  if (watcher >= 0 && PyDict_Watch(watcher, dictionary) == 0) return true;
  PyErr_Clear();
  return false;
}

py::object attributes_of(PyObject* type) {
  return py::reinterpret_steal<py::object>(PyType_GetDict((PyTypeObject*)type));
}
#else
py::object attributes_of(PyObject* type) { return py::reinterpret_borrow<py::object>(((PyTypeObject*)type)->tp_dict); }

uint64_t now(PyObject* dictionary) { return reinterpret_cast<PyDictObject*>(dictionary)->ma_version_tag; }
#endif

bool is_simple(PyObject* value) {
  if (!PyTuple_CheckExact(value))
    return PyLong_Check(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
    if (!is_simple(PyTuple_GET_ITEM(value, i))) return false;
  return true;
}

bool same(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (!one || !other || Py_TYPE(one) != Py_TYPE(other) || !is_simple(one) || !is_simple(other)) return false;
  const int equal = PyObject_RichCompareBool(one, other, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool same_items(PyObject* list, PyObject* items) {
  if (PyList_GET_SIZE(list) != PyTuple_GET_SIZE(items)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i)
    if (!same(PyList_GET_ITEM(list, i), PyTuple_GET_ITEM(items, i))) return false;
  return true;
}

}  // namespace

void StateWatch::add(const py::list& dictionaries, const py::list& attributes, const py::list& variables) {
  for (const auto& item : dictionaries) {
    auto entries = item.cast<py::dict>();
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(entries.ptr(), &at, &name, &value);) {
      entries_.push_back({py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value)});
      watch_tensor(value);
    }
    report(entries);
    dictionaries_.push_back({std::move(entries), entries_.size()});
  }
  for (const auto& item : attributes) {
    attributes_.push_back(read(item));
    report(attributes_.back().owner);
  }
  for (const auto& item : variables) variables_.push_back(read(item));
}

StateWatch::Read StateWatch::read(const py::handle& tuple) {
  auto fields = tuple.cast<py::tuple>();
  Read result{fields[0], fields[1], fields.size() > 2 ? py::object(fields[2]) : py::object()};
  if (PyType_Check(result.owner.ptr())) result.owner = attributes_of(result.owner.ptr());
  if (result.value) watch_tensor(result.value);
  return result;
}

bool StateWatch::Read::same() const {
  if (PyDict_Check(owner.ptr())) return engine::same(PyDict_GetItemWithError(owner.ptr(), key.ptr()), value.ptr());
  if (PyList_Check(owner.ptr())) return same_items(owner.ptr(), value.ptr());
  return engine::same(PyCell_GET(owner.ptr()), value.ptr());
}

void StateWatch::watch_tensor(const py::handle& value) {
  if (is_tensor(value.ptr())) tensors_.push_back({value.ptr(), tensor_state(value.ptr()), tensor_words(value.ptr())});
}

void StateWatch::watch_values(const std::vector<Memory>& memory, int device) { values_.emplace(memory, device); }

void StateWatch::report(const py::handle& dictionary) {
#if PY_VERSION_HEX >= 0x030C0000
  reports_ = count_changes(dictionary.ptr()) && reports_;
  seen_ = 0;
#else
  const auto known = [&](const Reported& one) { return one.dictionary == dictionary.ptr(); };
  if (reported_.empty() || !known(reported_.back())) reported_.push_back({dictionary.ptr(), 0});
#endif
  // Version 0 and an outdated `seen_` make the next call compare: a value may have changed since it was read.
}

// Returns whether a dictionary may have changed since the last acknowledge().
bool StateWatch::reported() const {
#if PY_VERSION_HEX >= 0x030C0000
  return !reports_ || seen_ != reports;
#else
  return std::any_of(reported_.begin(), reported_.end(),
                     [](const Reported& one) { return one.version != now(one.dictionary); });
#endif
}

void StateWatch::acknowledge() const {
#if PY_VERSION_HEX >= 0x030C0000
  seen_ = reports;
#else
  for (Reported& one : reported_) one.version = now(one.dictionary);
#endif
}

bool StateWatch::same_values() const {
  auto entry = entries_.begin();
  for (const Dictionary& dictionary : dictionaries_) {
    const auto end = entries_.begin() + dictionary.end;
    if (PyDict_GET_SIZE(dictionary.entries.ptr()) != end - entry) return false;
    PyObject *name, *value;
    for (Py_ssize_t at = 0; entry != end && PyDict_Next(dictionary.entries.ptr(), &at, &name, &value); ++entry)
      if (name != entry->name.ptr() || !same(value, entry->value.ptr())) return false;
  }
  return std::all_of(attributes_.begin(), attributes_.end(), [](const Read& one) { return one.same(); });
}

bool StateWatch::unchanged() const {
  if (reported()) {
    if (!same_values()) return false;
    acknowledge();
  }
  for (const Read& one : variables_)
    if (!one.same()) return false;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i + kAhead < tensors_.size()) {
      __builtin_prefetch(tensors_[i + kAhead].object);
      prefetch(tensors_[i + kAhead].words);
    }
    if (!(tensor_state(tensors_[i].object) == tensors_[i].state)) return false;
  }
  return !values_ || values_->unchanged();  // last: a tensor that has changed may have no memory at its old address
}

}  // namespace engine
