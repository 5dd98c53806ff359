// Detects changes of a module's parameters, buffers and submodules, including weights that are changed in place. Each
// call checks all of them; it is in C++ because there are hundreds. From Python 3.12 on the interpreter reports changed
// dictionaries, so only the versions of tensors are checked.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace engine {

class __attribute__((visibility("hidden"))) WeightWatch {
 public:
  // Remembers the dictionaries' present contents.
  explicit WeightWatch(const pybind11::list& dictionaries);

  // Returns whether each dictionary still has the same objects under the same names, in the same order, and each tensor
  // the same version.
  bool unchanged() const;

 private:
  struct Entry {
    pybind11::object name, value;
  };
  struct Versioned {  // a tensor and the getter of its version
    PyObject* tensor;
    getter get;
    void* closure;
    int64_t version;
  };
  struct Dictionary {
    pybind11::dict entries;
    size_t end;  // index in entries_ after its last entry
  };
  void add(PyObject* name, PyObject* value);
  bool same_objects() const;

  std::vector<Dictionary> dictionaries_;
  std::vector<Entry> entries_;
  std::vector<Versioned> versioned_;
  bool reported_ = true;       // the interpreter reports changes
  mutable uint64_t seen_ = 0;  // the value of `changes` at the last check of the objects
};

}  // namespace engine
