// Runs programs and graphs of the engine from several threads at once, for ThreadSanitizer. The driver is
// tests/kernels/driver.cpp; argument 1 is a file that it takes as a device image.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>

#include "device_image.h"
#include "graph.h"
#include "program.h"

int main(int, char** arguments) {
  using namespace engine;
  constexpr int kThreads = 4, kRuns = 200, kKernels = 4;
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto image = std::make_shared<DeviceImage>(bytes, 0);
  const Slots slots{std::nullopt, std::nullopt, 70, 71, 0};
  Program program(slots);
  Graph graph(slots);
  for (int i = 0; i < kKernels; ++i) {
    const auto kernel = image->prepare("k" + std::to_string(i), "");
    const std::vector<int64_t> pointers{i ? -3 : -1, i < kKernels - 1 ? -4 : -2, 80 + i};
    program.add(kernel, pointers, i % 2);
    graph.add(kernel, pointers, i ? std::vector<int>{i - 1} : std::vector<int>{}, i % 2);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRuns; ++i) {
        void* const stream = reinterpret_cast<void*>(static_cast<intptr_t>(t + 1));
        program.run(stream, {100 + t, 200 + i});
        graph.run(stream, {100 + t, 200 + i % 3});  // other addresses than the other threads
        if (i % 50 == 0) image->prepare("k" + std::to_string(t), "");
        try {
          image->prepare("refuses", "");
          std::abort();
        } catch (const Refused&) {
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
}
