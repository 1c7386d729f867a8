// Codes stored as bit planes, in groups of 32, as in sim/golden/planes.py. Byte p of eight codes holds bit p of each.

#include "blocks.h"

namespace {

constexpr int GROUP = 32;

// Exchange bit 8 * r + c with bit 8 * c + r, for all r and c from 0 to 7.
INLINE std::uint64_t transposed(std::uint64_t x) {
    std::uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aa;
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000cccc0000cccc;
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & 0x00000000f0f0f0f0;
    return x ^ t ^ t << 28;
}

// Store the codes of a group: their low bytes, and the bits above these if codes are wider than eight bits.
INLINE void store_planes(const Byte* low, const Byte* high, int width, Byte* bytes) {
    for (int i = 0; i < GROUP; i += 8, bytes += width) {
        std::uint64_t x;
        std::memcpy(&x, low + i, 8);
        x = transposed(x);
        std::memcpy(bytes, &x, width < 8 ? width : 8);
        if (width <= 8) continue;
        std::memcpy(&x, high + i, 8);
        x = transposed(x);
        std::memcpy(bytes + 8, &x, width - 8);
    }
}

// Load the codes of a group that store_planes has stored.
INLINE void load_planes(const Byte* bytes, int width, Byte* low, Byte* high) {
    for (int i = 0; i < GROUP; i += 8, bytes += width) {
        std::uint64_t x = 0;
        std::memcpy(&x, bytes, width < 8 ? width : 8);
        x = transposed(x);
        std::memcpy(low + i, &x, 8);
        if (width <= 8) continue;
        x = 0;
        std::memcpy(&x, bytes + 8, width - 8);
        x = transposed(x);
        std::memcpy(high + i, &x, 8);
    }
}

}  // namespace
