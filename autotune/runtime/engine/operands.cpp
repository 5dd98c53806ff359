#include <algorithm>

#include "kernel.h"

namespace engine {

Operands::Operands(const std::vector<int64_t>& pointers, const Slots& slots) {
  if (pointers.size() > AT_MAX_POINTERS) throw Error("a kernel takes at most 16 pointers");
  for (size_t i = 0; i < pointers.size(); ++i) {
    int64_t address = pointers[i];
    if (address < 0) {
      const size_t slot = -1 - address;
      if (slot >= slots.size() || !slots[slot]) {
        from_slots_.push_back({i, slot});
        continue;
      }
      address = *slots[slot];
    }
    pointers_.p[i] = reinterpret_cast<void*>(address);
  }
}

at_pointers Operands::with(const SlotAddresses& given) const {
  at_pointers pointers = pointers_;
  for (const auto& [place, slot] : from_slots_) {
    if (slot >= given.size())
      throw Error("a run gives " + std::to_string(given.size()) + " addresses, and slot " + std::to_string(slot) +
                  " has none");
    pointers.p[place] = reinterpret_cast<void*>(given[slot]);
  }
  return pointers;
}

bool Operands::differ(const SlotAddresses& one, const SlotAddresses& other) const {
  return std::any_of(from_slots_.begin(), from_slots_.end(), [&](const auto& late) {
    const size_t slot = late.second;
    return slot >= one.size() || slot >= other.size() || one[slot] != other[slot];
  });
}

}  // namespace engine
