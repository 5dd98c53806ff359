// Python bindings of the engine.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "fast_path.h"
#include "device_image.h"
#include "driver.h"
#include "graph.h"
#include "program.h"
#include "shared_library.h"
#include "state_watch.h"

namespace py = pybind11;
using namespace engine;

PYBIND11_MODULE(_engine, m) {
  m.doc() = "Loads kernels from binaries and runs lists of them; see templates/abi.h for the contract.";
  m.attr("ABI_VERSION") = AT_ABI_VERSION;

  py::object base = py::module_::import("autotune.core.errors").attr("AutotuneError");
  static py::exception<Error> error(m, "EngineError", base);
  static py::exception<Refused> refused(m, "RefusedError", error);
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const Refused& e) {
      py::set_error(refused, e.what());
    } catch (const Error& e) {
      py::set_error(error, e.what());
    }
  });

  m.def(
      "create_stream", [](int device) { return reinterpret_cast<uintptr_t>(cuda::create_stream(device)); },
      py::arg("device"), "Returns the handle of a new CUDA stream, which lives as long as the process.");

  m.def(
      "same_objects",
      [](const py::tuple& given, const py::tuple& expected) {
        if (given.size() != expected.size()) return false;
        for (size_t i = 0; i < given.size(); i++) {
          PyObject* wanted = PyTuple_GET_ITEM(expected.ptr(), i);
          if (wanted != Py_None && wanted != PyTuple_GET_ITEM(given.ptr(), i)) return false;
        }
        return true;
      },
      py::arg("given"), py::arg("expected"),
      "Returns whether a tuple holds the very objects of another one, whose items None stand for any object.");

  py::class_<Prepared, std::shared_ptr<Prepared>>(m, "Prepared", "A kernel prepared for one problem.")
      .def_readonly("workspace_bytes", &Prepared::workspace_bytes)
      .def("describe", &Prepared::describe);

  py::class_<SharedLibrary, std::shared_ptr<SharedLibrary>>(m, "SharedLibrary", "Kernels of a shared library.")
      .def(py::init([](const py::bytes& bytes, const std::string& name) {
             return std::make_shared<SharedLibrary>(std::string(bytes), name);
           }),
           py::arg("bytes"), py::arg("name"))
      .def("names", &SharedLibrary::names)
      .def("prepare", [](SharedLibrary& self, const std::string& name, const py::bytes& problem) {
        return self.prepare(name, std::string(problem));
      });

  py::class_<DeviceImage, std::shared_ptr<DeviceImage>>(m, "DeviceImage", "Kernels of a device image (cubin).")
      .def(py::init([](const py::bytes& bytes, int device) {
             return std::make_shared<DeviceImage>(std::string(bytes), device);
           }),
           py::arg("bytes"), py::arg("device"))
      .def("prepare", [](DeviceImage& self, const std::string& name, const py::bytes& problem) {
        return self.prepare(name, std::string(problem));
      });

  py::class_<Program>(m, "Program", "Prepared kernels with their pointers, run in one call without the GIL.")
      .def(py::init<Slots>(), py::arg("slots") = Slots())
      .def("add", &Program::add, py::arg("kernel"), py::arg("pointers"), py::arg("overlap") = false)
      .def(
          "run",
          [](const Program& self, uintptr_t stream, const SlotAddresses& slots) {
            py::gil_scoped_release release;
            self.run(reinterpret_cast<void*>(stream), slots);
          },
          py::arg("stream") = 0, py::arg("slots") = SlotAddresses())
      .def("__len__", &Program::size);

  py::class_<Graph>(m, "Graph",
                    "Prepared device kernels, copies and captured graphs as a CUDA graph, launched in one call without "
                    "the GIL.")
      .def(py::init<int, Slots>(), py::arg("device"), py::arg("slots") = Slots())
      .def("add", &Graph::add, py::arg("kernel"), py::arg("pointers"), py::arg("after"), py::arg("overlap") = false)
      .def("add_copy", &Graph::add_copy, py::arg("to"), py::arg("source"), py::arg("bytes"), py::arg("after"))
      .def(
          "add_captured",
          [](Graph& self, uintptr_t captured, const std::vector<int>& after) {
            return self.add_captured(reinterpret_cast<void*>(captured), after);
          },
          py::arg("captured"), py::arg("after"))
      .def(
          "run",
          [](Graph& self, uintptr_t stream, const SlotAddresses& slots) {
            py::gil_scoped_release release;
            self.run(reinterpret_cast<void*>(stream), slots);
          },
          py::arg("stream"), py::arg("slots"));

  py::class_<StateWatch>(m, "StateWatch",
                         "Tells whether dictionaries, values that were read, and tensors are what they were.")
      .def(py::init<const py::list&>(), py::arg("dictionaries"))
      .def("add", &StateWatch::add, py::arg("dictionaries"), py::arg("attributes"), py::arg("variables"))
      .def("watch_values", &StateWatch::watch_values, py::arg("memory"), py::arg("device"))
      .def("unchanged", &StateWatch::unchanged)
      .def_property_readonly("is_late", &StateWatch::is_late);

  py::class_<FastPath>(m, "FastPath", "Runs inputs that are known, without the interpreter between input and launch.")
      .def(py::init<const py::object&, py::object, py::object, py::object>(), py::arg("exchange"),
           py::arg("empty_like"), py::arg("count"), py::arg("weights"))
      .def("add", &FastPath::add, py::arg("x"), py::arg("execution"))
      .def("run", &FastPath::run, py::arg("x"), py::arg("out"))
      .def("drop", &FastPath::drop, py::arg("execution"));
}
