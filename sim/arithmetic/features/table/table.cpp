// Codec with a table of exponents in each packet, and fractions rounded to the nearest centroid, as in
// sim/golden/features/table/codec.py. constants.h defines the number of centroids.

#include "constants.h"
#include "planes.h"

namespace {

// Codebook of a codec: the fraction of each centroid, and the index of the centroid that is nearest to the highest 12
// bits of a fraction.
struct Codebook {
    Word fractions[CENTROIDS];
    Byte nearest[1 << 12];
};

// Width in bits of an element's code: sign, centroid index, and index into a table of the given number of exponents.
INLINE int code_width(int exponents) {
    int width = 1 + INDEX_BITS;
    for (int rest = exponents - 1; rest; rest >>= 1) ++width;
    return width;
}

}  // namespace

extern "C" {

// Encode a packet of one or more elements; return its number of words.
std::int64_t encode(const void* table, std::int64_t count, const Word* x, Word* words) {
    const Codebook& book = *static_cast<const Codebook*>(table);
    Byte* bytes = reinterpret_cast<Byte*>(words);
    Byte places[256] = {};
    for (std::int64_t i = 0; i < count; ++i) places[x[i] >> 23 & 255] = 1;
    int exponents = 0;
    for (int exponent = 0; exponent < 256; ++exponent) {
        if (!places[exponent]) continue;
        places[exponent] = static_cast<Byte>(exponents);
        bytes[exponents++] = static_cast<Byte>(exponent);
    }
    bytes[exponents] = bytes[exponents - 1];
    const int start = (exponents + 4) / 4 * 4, width = code_width(exponents);
    std::memset(bytes + exponents + 1, 0, start - exponents - 1);
    Byte* next = bytes + start;
    for (std::int64_t first = 0; first < count; first += GROUP, next += 4 * width) {
        const int size = static_cast<int>(count - first < GROUP ? count - first : GROUP);
        Byte low[GROUP] = {}, high[GROUP] = {};
        for (int i = 0; i < size; ++i) {
            const Word exponent = x[first + i] >> 23 & 255, fraction = x[first + i] & 0x7fffff;
            Word index = book.nearest[fraction >> 11];
            // Zero and infinity are encoded exactly, and no other number is rounded to either of them.
            if (exponent == 0 || exponent == 255) index = fraction == 0 ? 0 : index > 1 ? index : 1;
            const Word code = x[first + i] >> 31 | index << 1 |
                              static_cast<Word>(places[exponent]) << (1 + INDEX_BITS);
            low[i] = static_cast<Byte>(code);
            high[i] = static_cast<Byte>(code >> 8);
        }
        store_planes(low, high, width, next);
    }
    return (next - bytes) / 4;
}

// Decode a packet; return its number of words, or -1 if the `length` words are not a packet of `count` elements.
std::int64_t decode(const void* table, std::int64_t count, const Word* words, std::int64_t length, Word* x) {
    const Codebook& book = *static_cast<const Codebook*>(table);
    const Byte* bytes = reinterpret_cast<const Byte*>(words);
    int exponents = 1;
    while (exponents < 4 * length && bytes[exponents] > bytes[exponents - 1]) ++exponents;
    if (exponents >= 4 * length || bytes[exponents] != bytes[exponents - 1]) return -1;
    const int start = (exponents + 4) / 4 * 4, width = code_width(exponents);
    if (length != start / 4 + (count + GROUP - 1) / GROUP * width) return -1;
    int highest = 0;
    for (std::int64_t first = 0; first < count; first += GROUP) {
        const int size = static_cast<int>(count - first < GROUP ? count - first : GROUP);
        Byte low[GROUP], high[GROUP] = {};
        load_planes(bytes + start + first / GROUP * 4 * width, width, low, high);
        for (int i = 0; i < GROUP; ++i) {
            const int code = low[i] | high[i] << 8, index = code >> 1 & (CENTROIDS - 1);
            const int place = code >> (1 + INDEX_BITS);
            highest = place > highest ? place : highest;
            if (i >= size || place >= exponents) continue;
            const Word exponent = bytes[place];
            const bool zero = (exponent == 0 || exponent == 255) && index == 0;
            x[first + i] = static_cast<Word>(code & 1) << 31 | exponent << 23 | (zero ? 0 : book.fractions[index]);
        }
    }
    return highest < exponents ? length : -1;
}

}  // extern "C"
