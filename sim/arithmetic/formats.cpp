// Arithmetic of a ring on arrays of binary32 bit patterns, as in sim/golden/ring.py and floating.py. See formats.py.

#include "blocks.h"
#include "constants.h"

namespace {

typedef std::int64_t Encode(const void* table, std::int64_t count, const Word* x, Word* words);
typedef std::int64_t Decode(const void* table, std::int64_t count, const Word* words, std::int64_t length, Word* x);

INLINE Word sum(Word a, Word b) { return static_cast<Word>(pattern(canonical(number(a) + number(b)))); }

// Gradient as a node reads it: -0 becomes +0, and every NaN becomes the canonical NaN.
INLINE Word gradient_of(Word bits) {
    const Word magnitude = bits & MAGNITUDE;
    return magnitude > INFINITE ? NAN_BITS : magnitude == 0 ? 0 : bits;
}

}  // namespace

extern "C" {

VERSIONS void add(std::int64_t count, const Word* a, const Word* b, Word* sums) {
    for (std::int64_t i = 0; i < count; ++i) sums[i] = sum(a[i], b[i]);
}

// x[i] = gradient_of(gradient[i]), plus residual[i] unless residual is null. Groups of gradient and residual are
// `stride` groups apart.
VERSIONS void addends(std::int64_t count, std::int64_t stride, const Word* gradient, const Word* residual, Word* x) {
    while (count > 0) {
        const std::int64_t size = stride == 1 || count < GROUP ? count : GROUP;
        if (residual) {
            for (std::int64_t i = 0; i < size; ++i) x[i] = sum(gradient_of(gradient[i]), residual[i]);
            residual += stride * GROUP;
        } else {
            for (std::int64_t i = 0; i < size; ++i) x[i] = gradient_of(gradient[i]);
        }
        gradient += stride * GROUP;
        x += size;
        count -= size;
    }
}

// residual[i] = x[i] - decoded[i], or +0 if the difference is not finite. Groups of residual are `stride` groups apart.
VERSIONS void errors(std::int64_t count, std::int64_t stride, const Word* x, const Word* decoded, Word* residual) {
    while (count > 0) {
        const std::int64_t size = stride == 1 || count < GROUP ? count : GROUP;
        for (std::int64_t i = 0; i < size; ++i) {
            const Word lost = sum(x[i], decoded[i] ^ 0x80000000);
            residual[i] = (lost & INFINITE) == INFINITE ? 0 : lost;
        }
        residual += stride * GROUP;
        x += size;
        decoded += size;
        count -= size;
    }
}

// Count the nonzero elements in each segment; the last segment may be shorter.
VERSIONS void nonzeros(std::int64_t count, const Word* x, std::int64_t segment, std::int64_t* counts) {
    for (std::int64_t first = 0; first < count; first += segment) {
        const std::int64_t size = count - first < segment ? count - first : segment;
        std::int64_t total = 0;
        for (std::int64_t i = 0; i < size; ++i) total += (x[first + i] & MAGNITUDE) != 0;
        *counts++ = total;
    }
}

// Count the elements in each segment that have any bit set in x, where -0 counts, or in the gradient, where -0 does
// not count. The gradient may be null. The last segment may be shorter.
VERSIONS void patterns(std::int64_t count, const Word* x, const Word* gradient, std::int64_t segment,
                       std::int64_t* counts) {
    for (std::int64_t first = 0; first < count; first += segment) {
        const std::int64_t stop = count - first < segment ? count : first + segment;
        std::int64_t total = 0;
        if (gradient) {
            for (std::int64_t i = first; i < stop; ++i) total += (x[i] | (gradient[i] & MAGNITUDE)) != 0;
        } else {
            for (std::int64_t i = first; i < stop; ++i) total += x[i] != 0;
        }
        *counts++ = total;
    }
}

// Copy elements whose groups are `stride` groups apart in memory; the last group may be partial.
void load(std::int64_t count, std::int64_t stride, const Word* memory, Word* x) {
    if (stride == 1) {
        std::memcpy(x, memory, count * sizeof(Word));
        return;
    }
    for (; count >= GROUP; count -= GROUP, memory += stride * GROUP, x += GROUP) {
        std::memcpy(x, memory, GROUP * sizeof(Word));
    }
    if (count > 0) std::memcpy(x, memory, count * sizeof(Word));
}

// The inverse of load: copy x to groups that are `stride` groups apart in memory.
void store(std::int64_t count, std::int64_t stride, const Word* x, Word* memory) {
    if (stride == 1) {
        std::memcpy(memory, x, count * sizeof(Word));
        return;
    }
    for (; count >= GROUP; count -= GROUP, memory += stride * GROUP, x += GROUP) {
        std::memcpy(memory, x, GROUP * sizeof(Word));
    }
    if (count > 0) std::memcpy(memory, x, count * sizeof(Word));
}

// Compute one rank's step for a part of a vector. The part's groups are `stride` groups apart in gradient and
// residual. The result is the decoded sum of `partial` (null for the first rank), the gradient and the residual.
//
// If encode is null, the sum is not encoded. Unless residual is null, the coding errors are stored in it. `result`
// and `partial` may be the same array.
void step(Encode* encode, Decode* decode, std::int64_t count, std::int64_t stride, const Word* partial,
          const Word* gradient, Word* residual, Word* result) {
    for (std::int64_t first = 0; first < count; first += PIECE) {
        const std::int64_t size = count - first < PIECE ? count - first : PIECE;
        Word x[PIECE], words[PIECE];
        addends(size, stride, gradient + first * stride, residual ? residual + first * stride : nullptr, x);
        if (partial) add(size, partial + first, x, x);
        if (encode) {
            const std::int64_t length = encode(nullptr, size, x, words);
            decode(nullptr, size, words, length, result + first);
            if (residual) errors(size, stride, x, result + first, residual + first * stride);
        } else {
            std::memcpy(result + first, x, size * sizeof(Word));
        }
    }
}

// Compute one rank's hop for one block: add its gradient to the sum in `received`, and encode the new sum in `words`.
//
// Groups of gradient, residual and result are `stride` groups apart; words are contiguous. The function processes PIECE
// elements at a time, so that they stay in the L1 cache; they take `piece_words` words. For the first rank of a block,
// received is null. If words is null, the sum is not encoded, and residual is left unchanged. Unless null, residual
// receives the coding errors, and `result` the decoded words, or the sum if it is not encoded. `words` may be the same
// array as `received`, and `result` the same as `gradient`.
void hop(Encode* encode, Decode* decode, std::int64_t piece_words, std::int64_t count, std::int64_t stride,
         const Word* received, const Word* gradient, Word* residual, Word* words, Word* result) {
    if (!words) residual = nullptr;
    for (std::int64_t first = 0, word = 0; first < count; first += PIECE, word += piece_words) {
        const std::int64_t size = count - first < PIECE ? count - first : PIECE;
        Word own[PIECE], summed[PIECE], decoded[PIECE];
        addends(size, stride, gradient + first * stride, residual ? residual + first * stride : nullptr, own);
        const Word* from = own;
        if (received) {
            decode(nullptr, size, received + word, piece_words, decoded);
            add(size, decoded, own, summed);
            from = summed;
        }
        if (words) {
            encode(nullptr, size, from, words + word);
            if (residual || result) decode(nullptr, size, words + word, piece_words, decoded);
            if (residual) errors(size, stride, from, decoded, residual + first * stride);
            from = decoded;
        }
        if (result) store(size, stride, from, result + first * stride);
    }
}

// Encode the elements of a block, whose groups are `stride` groups apart.
void pack(Encode* encode, std::int64_t piece_words, std::int64_t count, std::int64_t stride, const Word* memory,
          Word* words) {
    for (std::int64_t first = 0; first < count; first += PIECE, words += piece_words) {
        const std::int64_t size = count - first < PIECE ? count - first : PIECE;
        Word x[PIECE];
        load(size, stride, memory + first * stride, x);
        encode(nullptr, size, x, words);
    }
}

// The inverse of pack.
void unpack(Decode* decode, std::int64_t piece_words, std::int64_t count, std::int64_t stride, const Word* words,
            Word* memory) {
    for (std::int64_t first = 0; first < count; first += PIECE, words += piece_words) {
        const std::int64_t size = count - first < PIECE ? count - first : PIECE;
        Word x[PIECE];
        decode(nullptr, size, words, piece_words, x);
        store(size, stride, x, memory + first * stride);
    }
}

}  // extern "C"
