#include "device_image.h"

#include <algorithm>
#include <cstring>

#include "driver.h"

namespace engine {
using cuda::check;
using cuda::ContextScope;
using cuda::driver;

namespace {

// L2 promotion to 256 bytes: neighbouring data of a tensor is loaded soon after.
constexpr int kNoInterleave = 0, kPromoteTo256Bytes = 3, kFillWithZeros = 0;

void encode(const at_tensor_map& m, void* address, uint8_t* to) {
  alignas(64) uint8_t map[cuda::kTensorMapBytes];
  const int result =
      m.pixels ? driver().encode_im2col(map, m.element, m.rank, address, m.sizes, m.strides, m.lower, m.upper, m.box[0],
                                        m.pixels, m.element_strides, kNoInterleave, m.swizzle, kPromoteTo256Bytes,
                                        kFillWithZeros)
               : driver().encode_tiled(map, m.element, m.rank, address, m.sizes, m.strides, m.box, m.element_strides,
                                       kNoInterleave, m.swizzle, kPromoteTo256Bytes, kFillWithZeros);
  if (result != 0 && reinterpret_cast<uintptr_t>(address) % 16 != 0)
    throw Error("operand " + std::to_string(m.pointer) + " of a kernel that loads by TMA is not aligned to 16 bytes");
  check(result, "a tensor map");
  std::memcpy(to, map, sizeof map);
}

}  // namespace

PreparedImage::PreparedImage(std::shared_ptr<DeviceImage> image, void* function, const at_prepared& values)
    : image_(std::move(image)), function_(function), values_(values) {
  workspace_bytes = values.workspace_bytes;
}

void* PreparedImage::context() const { return image_->context_; }

void PreparedImage::write_params(uint8_t* params, const at_pointers& pointers) const {
  std::memcpy(params, values_.params, values_.params_bytes);
  std::memcpy(params + values_.pointers_offset, &pointers, sizeof pointers);
  for (int i = 0; i < values_.tensor_map_count; ++i) {
    const at_tensor_map& map = values_.tensor_maps[i];
    encode(map, pointers.p[map.pointer], params + map.params_offset);
  }
}

void PreparedImage::launch(const at_pointers& pointers, void* stream, bool overlap) const {
  uint8_t params[AT_MAX_PARAMS];
  write_params(params, pointers);
  launch_with(params, stream, overlap);
}

void PreparedImage::launch_with(const uint8_t* params, void* stream, bool overlap) const {
  cuda::LaunchConfig config{};
  for (int i = 0; i < 3; ++i) config.grid[i] = values_.grid[i];
  config.block[0] = values_.threads;
  config.block[1] = config.block[2] = 1;
  config.shared_bytes = values_.shared_bytes;
  config.stream = stream;
  cuda::LaunchAttribute early{6, {}, 1, {}};
  config.attributes = &early;
  config.attribute_count = overlap && values_.waits;
  void* arguments[] = {const_cast<uint8_t*>(params)};
  check(driver().launch(&config, function_, arguments, nullptr), "launch of a kernel");
}

// A kernel whose parameters, including tensor maps, are written once.
class FrozenImage : public Launch {
 public:
  FrozenImage(const PreparedImage& kernel, const at_pointers& pointers)
      : kernel_(kernel), params_(kernel.values().params_bytes) {
    kernel.write_params(params_.data(), pointers);
  }
  void run(void* stream, bool overlap) const override { kernel_.launch_with(params_.data(), stream, overlap); }

 private:
  const PreparedImage& kernel_;
  std::vector<uint8_t> params_;
};

std::unique_ptr<const Launch> PreparedImage::freeze(const at_pointers& pointers) const {
  ContextScope scope(context());
  return std::make_unique<FrozenImage>(*this, pointers);
}

std::string PreparedImage::describe() const {
  int registers = 0, local_bytes = 0;
  ContextScope scope(context());
  driver().function_get(&registers, cuda::kRegisters, function_);
  driver().function_get(&local_bytes, cuda::kLocalBytes, function_);
  return "grid " + std::to_string(values_.grid[0]) + "x" + std::to_string(values_.grid[1]) + "x" +
         std::to_string(values_.grid[2]) + ", " + std::to_string(values_.threads) + " threads, " +
         std::to_string(values_.shared_bytes) + " B shared, " + std::to_string(registers) + " registers, " +
         std::to_string(local_bytes) + " B local";
}

namespace {

template <typename T>
T read(const std::string& bytes, size_t at) {
  T value{};
  if (at <= bytes.size() && sizeof value <= bytes.size() - at) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Returns whether all sections of an ELF file lie within its bytes. The driver does not know the length of an image and
// crashes on a truncated one.
bool is_whole_elf(const std::string& bytes) {
  constexpr uint32_t kNoBits = 8;
  const uint64_t size = bytes.size(), table = read<uint64_t>(bytes, 0x28);
  const uint64_t entry = read<uint16_t>(bytes, 0x3a), count = read<uint16_t>(bytes, 0x3c);
  if (bytes.compare(0, 5,
                    "\x7f"
                    "ELF\x02") != 0 ||
      entry < 64 || count == 0)
    return false;
  if (table > size || entry * count > size - table) return false;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t header = table + i * entry;
    const uint64_t offset = read<uint64_t>(bytes, header + 0x18), length = read<uint64_t>(bytes, header + 0x20);
    if (read<uint32_t>(bytes, header + 4) != kNoBits && (offset > size || length > size - offset)) return false;
  }
  return true;
}

// Returns the text that a kernel wrote in place of its parameters; see refused() in templates/cuda/kernel.cuh. A binary
// of an older template writes no text there, but may have begun to write parameters.
std::string refusal_reason(const at_prepared& values) {
  const char* const begin = reinterpret_cast<const char*>(values.params);
  const char* const end = std::find(begin, begin + AT_MAX_PARAMS, '\0');
  const bool is_text = begin != end && std::all_of(begin, end, [](char c) { return c >= ' ' && c <= '~'; });
  return is_text ? std::string(begin, end) : "its shape, its dtype or the launch values are not supported";
}

}  // namespace

DeviceImage::DeviceImage(const std::string& bytes, int ordinal) {
  if (!is_whole_elf(bytes)) throw Error("a device image is damaged: it is not a whole ELF file");
  context_ = cuda::primary_context(ordinal);
  ContextScope scope(context_);
  check(driver().module_load(&module_, bytes.data()), "a device image does not load");
}

DeviceImage::~DeviceImage() {
  try {
    ContextScope scope(context_);
    driver().module_unload(module_);
  } catch (const Error&) {
    // The context was destroyed at process exit; a destructor must not throw.
  }
}

std::shared_ptr<Prepared> DeviceImage::prepare(const std::string& symbol, const std::string& problem) {
  ContextScope scope(context_);
  cuda::Function kernel, prepare;
  check(driver().module_function(&kernel, module_, symbol.c_str()), symbol.c_str());
  check(driver().module_function(&prepare, module_, (symbol + "_prepare").c_str()), symbol.c_str());

  cuda::DevicePointer out;
  check(driver().alloc(&out, sizeof(at_prepared)), "memory to prepare a kernel");
  at_prepared values{};
  cuda::LaunchConfig config{{1, 1, 1}, {1, 1, 1}, 0, nullptr, nullptr, 0};
  void* arguments[] = {const_cast<char*>(problem.data()), &out};
  int result = driver().fill(out, 0, sizeof values);  // a kernel that gives no reason for a refusal leaves zeros
  if (result == 0) result = driver().launch(&config, prepare, arguments, nullptr);
  if (result == 0) result = driver().copy_to_host(&values, out, sizeof values);
  driver().free(out);
  check(result, (symbol + "_prepare").c_str());

  if (values.abi_version != AT_ABI_VERSION)
    throw Error(symbol + " has ABI version " + std::to_string(values.abi_version) + "; this engine has " +
                std::to_string(AT_ABI_VERSION));
  if (values.status != AT_OK) throw Refused(symbol + " refuses the problem: " + refusal_reason(values));
  if (values.tensor_map_count > AT_MAX_TENSOR_MAPS) throw Error(symbol + " asks for too many tensor maps");
  // The limit belongs to the kernel, which may be prepared for several problems at once: it is only ever raised.
  int limit = 0;
  check(driver().function_get(&limit, cuda::kMaxDynamicShared, kernel), symbol.c_str());
  if (values.shared_bytes > limit && driver().function_set(kernel, cuda::kMaxDynamicShared, values.shared_bytes) != 0)
    throw Refused(symbol + " needs " + std::to_string(values.shared_bytes) + " bytes of shared memory");
  int most_threads = 0;
  check(driver().function_get(&most_threads, cuda::kMaxThreads, kernel), symbol.c_str());
  if (values.threads > most_threads)
    throw Refused(symbol + " needs too many registers for " + std::to_string(values.threads) + " threads");
  return std::make_shared<PreparedImage>(shared_from_this(), kernel, values);
}

}  // namespace engine
