// Codec that packs pairs of bfloat16 elements, rounded to nearest even, as in sim/golden/features/bf16/codec.py.

#include "blocks.h"

namespace {

struct BFloat16 {
    static constexpr int BLOCK = 2, BYTES = 4;

    INLINE Word rounded(Word x) {
        const Word half = (x + 0x7fff + (x >> 16 & 1)) >> 16;
        return (x & MAGNITUDE) > INFINITE ? NAN_BITS >> 16 : half;
    }

    INLINE void encode(const Word* x, Byte* bytes) {
        const Word word = rounded(x[0]) | rounded(x[1]) << 16;
        std::memcpy(bytes, &word, sizeof word);
    }

    INLINE void decode(const Byte* bytes, Word* x) {
        Word word;
        std::memcpy(&word, bytes, sizeof word);
        x[0] = word << 16;
        x[1] = word & 0xffff0000;
    }
};

}  // namespace

ENTRIES(BFloat16)
