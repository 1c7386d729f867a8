// Codec that sends elements unchanged, one per word.

#include "blocks.h"

namespace {

struct Raw {
    static constexpr int BLOCK = 1, BYTES = 4;

    INLINE void encode(const Word* x, Byte* bytes) { std::memcpy(bytes, x, sizeof *x); }
    INLINE void decode(const Byte* bytes, Word* x) { std::memcpy(x, bytes, sizeof *x); }
};

}  // namespace

ENTRIES(Raw)
