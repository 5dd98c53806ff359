// Entries of Python dictionaries that must stay what they are: a module's parameters, buffers and children. Looking at
// all of them on each call is what makes weights changed in place count, so it is done here and not in Python.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace engine {

class __attribute__((visibility("hidden"))) Watch {
 public:
  struct __attribute__((visibility("hidden"))) Entry {
    pybind11::dict owner;
    pybind11::str name;
    pybind11::object value;
    int64_t version;  // of a tensor that counts its changes; else -1
  };

  // The entry as it is now.
  static Entry entry(pybind11::dict owner, pybind11::str name);

  explicit Watch(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  // Whether each name still has the same object, and each tensor its version.
  bool unchanged() const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace engine
