#include "device_samples.h"

#include <map>
#include <mutex>

namespace engine {
namespace {

// Time between comparisons. A launch takes the host about 2 us and the GPU about as long, beside the network.
constexpr std::chrono::microseconds kPeriod(1000);
constexpr unsigned kThreads = 128, kMapped = 2;  // CU_MEMHOSTALLOC_DEVICEMAP

// compare(addresses, values, changed, count): thread i compares 16 bytes at addresses[i] with values[i], and stores 1
// to changed if they differ. Without `changed` it stores them to values[i] instead. The driver compiles this text for
// the GPU, so a machine without CUDA's compiler can run it.
constexpr char kCompare[] = R"ptx(
.version 6.4
.target sm_70
.address_size 64
.visible .entry compare(.param .u64 addresses, .param .u64 values, .param .u64 changed, .param .u32 count)
{
  .reg .u32 %i, %block, %size, %count, %a<4>, %b<4>, %one;
  .reg .u64 %at, %from, %values, %changed, %offset;
  .reg .pred %outside, %records, %differs;
  mov.u32 %i, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mad.lo.u32 %i, %block, %size, %i;
  ld.param.u32 %count, [count];
  setp.ge.u32 %outside, %i, %count;
  @%outside ret;
  ld.param.u64 %at, [addresses];
  mul.wide.u32 %offset, %i, 8;
  add.u64 %at, %at, %offset;
  ld.global.u64 %from, [%at];
  ld.volatile.global.v4.u32 {%a0, %a1, %a2, %a3}, [%from];
  ld.param.u64 %values, [values];
  mul.wide.u32 %offset, %i, 16;
  add.u64 %values, %values, %offset;
  ld.param.u64 %changed, [changed];
  setp.eq.u64 %records, %changed, 0;
  @%records bra record;
  ld.global.v4.u32 {%b0, %b1, %b2, %b3}, [%values];
  xor.b32 %a0, %a0, %b0;
  xor.b32 %a1, %a1, %b1;
  xor.b32 %a2, %a2, %b2;
  xor.b32 %a3, %a3, %b3;
  or.b32 %a0, %a0, %a1;
  or.b32 %a2, %a2, %a3;
  or.b32 %a0, %a0, %a2;
  setp.ne.u32 %differs, %a0, 0;
  mov.u32 %one, 1;
  @%differs st.volatile.global.u32 [%changed], %one;
  ret;
record:
  st.global.v4.u32 [%values], {%a0, %a1, %a2, %a3};
  ret;
}
)ptx";

// What all samples of a GPU share; it lives as long as the process.
struct Shared {
  cuda::Function compare;
  cuda::Stream stream;
};

Shared shared(int device) {
  static std::mutex mutex;
  static std::map<int, Shared> known;
  std::lock_guard lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  cuda::Module module;
  Shared made;
  cuda::check(cuda::driver().module_load(&module, kCompare), "compiling the comparison of samples");
  cuda::check(cuda::driver().module_function(&made.compare, module, "compare"), "the comparison of samples");
  made.stream = cuda::create_stream(device);
  return known[device] = made;
}

}  // namespace

DeviceSamples::DeviceSamples(const std::vector<Sample>& samples, int device)
    : context_(cuda::primary_context(device)), count_(unsigned(samples.size())) {
  if (!count_) return;
  const cuda::ContextScope scope(context_);
  const auto& driver = cuda::driver();
  const auto [compare, stream] = shared(device);
  compare_ = compare, stream_ = stream;
  std::vector<uint64_t> addresses;
  for (const Sample& one : samples) addresses.push_back(one.address / kPiece * kPiece);
  cuda::check(driver.context_synchronize(), "waiting for the GPU");
  cuda::check(driver.alloc(&addresses_, addresses.size() * sizeof(uint64_t)), "memory for samples");
  cuda::check(driver.alloc(&values_, addresses.size() * kPiece), "memory for samples");
  cuda::check(driver.copy_to_device(addresses_, addresses.data(), addresses.size() * sizeof(uint64_t)), "a copy");
  // A copy from pageable memory may go on when the call returns, and the samples' stream does not wait for it.
  cuda::check(driver.context_synchronize(), "a copy of addresses");
  void* flag;
  cuda::check(driver.alloc_host(&flag, sizeof(uint32_t), kMapped), "memory for samples");
  changed_ = static_cast<volatile uint32_t*>(flag);
  *changed_ = 0;
  launch(0);
  cuda::check(driver.stream_synchronize(stream_), "reading samples");
}

DeviceSamples::~DeviceSamples() {
  if (!count_) return;
  const cuda::ContextScope scope(context_);
  cuda::driver().stream_synchronize(stream_);  // without a check: a destructor raises nothing
  cuda::driver().free(addresses_);
  cuda::driver().free(values_);
  cuda::driver().free_host(const_cast<uint32_t*>(changed_));
}

void DeviceSamples::launch(cuda::DevicePointer changed) {
  void* parameters[] = {&addresses_, &values_, &changed, &count_};
  const cuda::LaunchConfig config{{(count_ + kThreads - 1) / kThreads, 1, 1}, {kThreads, 1, 1}, 0, stream_, nullptr, 0};
  cuda::check(cuda::driver().launch(&config, compare_, parameters, nullptr), "comparing samples");
  last_ = std::chrono::steady_clock::now();
}

bool DeviceSamples::unchanged() {
  if (!count_) return true;
  if (*changed_) return false;
  if (std::chrono::steady_clock::now() - last_ >= kPeriod) {
    const cuda::ContextScope scope(context_);
    launch(reinterpret_cast<cuda::DevicePointer>(changed_));  // one address for both sides (unified addressing)
  }
  return true;
}

}  // namespace engine
