// Detects changes of the state that a network was captured from: parameters, buffers and submodules, weights that are
// changed in place or get other memory, and values that its forward reads, such as attributes and globals. Each call
// checks all of it; it is in C++ because there are hundreds of entries. Dictionaries of modules are compared only after
// the interpreter reported a change of one of them: from Python 3.12 on by a watcher, before by the version of each
// dictionary.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor_state.h"
#include "value_samples.h"

namespace engine {

class __attribute__((visibility("hidden"))) StateWatch {
 public:
  // Remembers the dictionaries' present contents.
  explicit StateWatch(const pybind11::list& dictionaries) { add(dictionaries, pybind11::list(), pybind11::list()); }

  // Watches more. A read is a tuple (owner, key, value), or (owner, key) for a key that is absent. The owner is a
  // dictionary, a class (key: an attribute of its own), a cell (key: None) or a list (key: None; value: a tuple of its
  // items). Reads in `attributes` have dictionaries that seldom change and are checked after a reported change only;
  // those in `variables` are checked at each call.
  void add(const pybind11::list& dictionaries, const pybind11::list& attributes, const pybind11::list& variables);

  // Watches samples of the values of tensors that are among the watched ones, for changes that torch does not record.
  // The present values are the right ones. device: as for ValueSamples.
  void watch_values(const std::vector<Memory>& memory, int device);

  // Returns whether each dictionary still has the same values under the same names, in the same order, each read its
  // value, and each tensor its memory, its version and the samples of its values. Values are the same if they are one
  // object, or equal numbers, strings or tuples of these.
  bool unchanged() const;

  // Returns whether samples were found changed after calls that used the old values, which happens on a GPU only.
  bool is_late() const { return values_ && values_->is_late(); }

 private:
  struct Entry {
    pybind11::object name, value;
  };
  struct Read {
    pybind11::object owner, key, value;  // no value: the key is absent
    bool same() const;
  };
  struct Tensor {  // kept by the entry or read that it is the value of
    PyObject* object;
    TensorState state;
    TensorWords words;
  };
  struct Dictionary {
    pybind11::dict entries;
    size_t end;  // index in entries_ after its last entry
  };
  struct Reported {  // a dictionary whose changes are reported
    PyObject* dictionary;
    uint64_t version;
  };
  Read read(const pybind11::handle& tuple);
  void watch_tensor(const pybind11::handle& value);
  void report(const pybind11::handle& dictionary);
  bool reported() const;
  void acknowledge() const;
  bool same_values() const;

  std::vector<Dictionary> dictionaries_;
  std::vector<Entry> entries_;
  std::vector<Read> attributes_, variables_;
  std::vector<Tensor> tensors_;
  std::optional<ValueSamples> values_;
  mutable std::vector<Reported> reported_;
  bool reports_ = true;        // the interpreter reports changes of all dictionaries
  mutable uint64_t seen_ = 0;  // the number of reports at the last comparison
};

}  // namespace engine
