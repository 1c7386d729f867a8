// Codec that packs pairs of bfloat16 elements, rounded to nearest even, as in sim/golden/features/bf16/codec.py.

#include "blocks.h"

namespace {

INLINE Word rounded(Word x) {
    const Word half = (x + 0x7fff + (x >> 16 & 1)) >> 16;
    return (x & MAGNITUDE) > INFINITE ? NAN_BITS >> 16 : half;
}

}  // namespace

extern "C" {

VERSIONS std::int64_t encode(const void*, std::int64_t count, const Word* x, Word* words) {
    const std::int64_t pairs = count / 2;
    for (std::int64_t i = 0; i < pairs; ++i) words[i] = rounded(x[2 * i]) | rounded(x[2 * i + 1]) << 16;
    if (count % 2) words[pairs] = rounded(x[count - 1]);
    return pairs + count % 2;
}

VERSIONS std::int64_t decode(const void*, std::int64_t count, const Word* words, std::int64_t, Word* x) {
    const std::int64_t pairs = count / 2;
    for (std::int64_t i = 0; i < pairs; ++i) {
        x[2 * i] = words[i] << 16;
        x[2 * i + 1] = words[i] & 0xffff0000;
    }
    if (count % 2) x[count - 1] = words[pairs] << 16;
    return pairs + count % 2;
}

}  // extern "C"
