// Codec that sends the index of the nearest centroid of each element, as in sim/golden/features/codebook/codec.py.
// constants.h defines the number of centroids.

#include "constants.h"
#include "planes.h"

namespace {

// Codebook of a codec: bounds as integers that sort like the numbers, with one unused entry, and the centroids.
struct Codebook {
    std::int32_t bounds[CENTROIDS];
    Word centroids[CENTROIDS];
};

// Index of the nearest centroid of each element of a group: the number of bounds less than or equal to the element.
INLINE void nearest(const Codebook& book, const Word* x, Byte* indices) {
    std::int32_t ordered[GROUP], counts[GROUP] = {};
    VECTORIZE for (int i = 0; i < GROUP; ++i) {
        const std::int32_t bits = static_cast<std::int32_t>(x[i]);
        ordered[i] = bits < 0 ? bits ^ 0x7fffffff : bits;
    }
    for (int k = 0; k < CENTROIDS - 1; ++k) {
        VECTORIZE for (int i = 0; i < GROUP; ++i) counts[i] += ordered[i] >= book.bounds[k];
    }
    VECTORIZE for (int i = 0; i < GROUP; ++i) indices[i] = static_cast<Byte>(counts[i]);
}

}  // namespace

extern "C" {

VERSIONS std::int64_t encode(const void* table, std::int64_t count, const Word* x, Word* words) {
    const Codebook& book = *static_cast<const Codebook*>(table);
    Byte* bytes = reinterpret_cast<Byte*>(words);
    for (; count > 0; count -= GROUP, x += GROUP, bytes += 4 * INDEX_BITS) {
        Byte indices[GROUP];
        if (count >= GROUP) {
            nearest(book, x, indices);
        } else {
            Word padded[GROUP] = {};
            std::memcpy(padded, x, count * sizeof(Word));
            nearest(book, padded, indices);
            std::memset(indices + count, 0, GROUP - count);
        }
        store_planes(indices, nullptr, INDEX_BITS, bytes);
    }
    return (bytes - reinterpret_cast<Byte*>(words)) / 4;
}

VERSIONS std::int64_t decode(const void* table, std::int64_t count, const Word* words, std::int64_t length,
                             Word* x) {
    const Codebook& book = *static_cast<const Codebook*>(table);
    const Byte* bytes = reinterpret_cast<const Byte*>(words);
    for (; count > 0; count -= GROUP, x += GROUP, bytes += 4 * INDEX_BITS) {
        Byte indices[GROUP];
        load_planes(bytes, INDEX_BITS, indices, nullptr);
        const int size = static_cast<int>(count < GROUP ? count : GROUP);
        for (int i = 0; i < size; ++i) x[i] = book.centroids[indices[i]];
    }
    return length;
}

}  // extern "C"
