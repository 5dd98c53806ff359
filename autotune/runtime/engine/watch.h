// Python dictionaries that must stay as they are: a module's parameters, buffers and children. Looking at all of them
// on each call is what makes weights changed in place count, so it is done here and not in Python; and from Python 3.12
// on the interpreter tells of changed dictionaries, so that only tensors are looked at.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace engine {

class __attribute__((visibility("hidden"))) Watch {
 public:
  // The dictionaries as they are now.
  explicit Watch(const pybind11::list& dictionaries);

  // Whether each still has the same objects under the same names, in the same order, and each tensor its version.
  bool unchanged() const;

 private:
  struct Entry {
    pybind11::object name, value;
  };
  struct Counted {  // a tensor, and how its version is read
    PyObject* tensor;
    getter get;
    void* closure;
    int64_t version;
  };
  struct Dictionary {
    pybind11::dict entries;
    size_t end;  // of its entries in entries_, which begin where those of the one before it end
  };
  void add(PyObject* name, PyObject* value);
  bool same_objects() const;

  std::vector<Dictionary> dictionaries_;
  std::vector<Entry> entries_;
  std::vector<Counted> counted_;
  bool told_ = true;           // of changes, by the interpreter
  mutable uint64_t seen_ = 0;  // the number of changes at which the objects were the same
};

}  // namespace engine
