// Arithmetic of a ring on arrays of binary32 bit patterns: sim/golden/ring.py and floating.py. See formats.py.

#include "blocks.h"
#include "constants.h"

namespace {

typedef std::int64_t Encode(const void* table, std::int64_t count, const Word* x, Word* words);
typedef std::int64_t Decode(const void* table, std::int64_t count, const Word* words, std::int64_t length, Word* x);

INLINE Word sum(Word a, Word b) { return static_cast<Word>(pattern(canonical(number(a) + number(b)))); }

// A gradient as a node reads it: -0 becomes +0, and a NaN the canonical one.
INLINE Word gradient_of(Word bits) {
    const Word magnitude = bits & MAGNITUDE;
    return magnitude > INFINITE ? NAN_BITS : magnitude == 0 ? 0 : bits;
}

}  // namespace

extern "C" {

VERSIONS void add(std::int64_t count, const Word* a, const Word* b, Word* sums) {
    for (std::int64_t i = 0; i < count; ++i) sums[i] = sum(a[i], b[i]);
}

// x[i] = gradient[i] as it is read, plus residual[i] unless that is null.
VERSIONS void addends(std::int64_t count, const Word* gradient, const Word* residual, Word* x) {
    if (residual) {
        for (std::int64_t i = 0; i < count; ++i) x[i] = sum(gradient_of(gradient[i]), residual[i]);
    } else {
        for (std::int64_t i = 0; i < count; ++i) x[i] = gradient_of(gradient[i]);
    }
}

// residual[i] = x[i] - decoded[i], or +0 if that is not finite.
VERSIONS void errors(std::int64_t count, const Word* x, const Word* decoded, Word* residual) {
    for (std::int64_t i = 0; i < count; ++i) {
        const Word lost = sum(x[i], decoded[i] ^ 0x80000000);
        residual[i] = (lost & INFINITE) == INFINITE ? 0 : lost;
    }
}

// Number of elements of each segment that are not zero; the last segment may be short.
VERSIONS void nonzeros(std::int64_t count, const Word* x, std::int64_t segment, std::int64_t* counts) {
    for (std::int64_t first = 0; first < count; first += segment) {
        const std::int64_t size = count - first < segment ? count - first : segment;
        std::int64_t total = 0;
        for (std::int64_t i = 0; i < size; ++i) total += (x[first + i] & MAGNITUDE) != 0;
        *counts++ = total;
    }
}

// What one rank does to one block: add its gradient to the sum in `received`, and encode the new sum in `words`.
//
// It works on PIECE elements at a time, which stay in the processor's first cache; `piece_words` is the number of
// their words. For the first rank of a block, received is null. If words is null, the sum is not encoded, and
// residual is left unchanged. Unless they are null, residual gets the coding errors, and `result` the decoded words,
// or the sum if it is not encoded. Words may be received, and result may be gradient.
void hop(Encode* encode, Decode* decode, std::int64_t piece_words, std::int64_t count, const Word* received,
         const Word* gradient, Word* residual, Word* words, Word* result) {
    for (std::int64_t first = 0, word = 0; first < count; first += PIECE, word += piece_words) {
        const std::int64_t size = count - first < PIECE ? count - first : PIECE;
        Word own[PIECE], summed[PIECE], decoded[PIECE];
        addends(size, gradient + first, words && residual ? residual + first : nullptr, own);
        const Word* from = own;
        if (received) {
            decode(nullptr, size, received + word, piece_words, decoded);
            add(size, decoded, own, summed);
            from = summed;
        }
        if (words) {
            encode(nullptr, size, from, words + word);
            if (residual || result) decode(nullptr, size, words + word, piece_words, decoded);
            if (residual) errors(size, from, decoded, residual + first);
            from = decoded;
        }
        if (result) std::memcpy(result + first, from, size * sizeof(Word));
    }
}

}  // extern "C"
