// Codec of blocks with a shared exponent, as in sim/golden/features/mx/block_format.py. constants.h defines the
// format's parameters.

#include <type_traits>

#include "blocks.h"
#include "constants.h"

namespace {

constexpr int SUBSETS = DIFFERENCE_BITS ? BLOCK_ELEMENTS / SUBSET : 0;
constexpr int LARGEST_DIFFERENCE = (1 << DIFFERENCE_BITS) - 1;
constexpr int NAN_EXPONENT = 255;
constexpr int FAR = 26;  // a shift that rounds every significand to zero, even a tie
constexpr float UNIT = 8388608;  // 2**23: adding it to a smaller number rounds the number to an integer

static_assert(MAGNITUDE_BITS < 8 && SUBSETS % 8 == 0, "a code fits a byte, and differences fill bytes");
static_assert(DIFFERENCE_BITS * SUBSETS <= 64, "the differences of a block fit a number");
static_assert(LOWEST >= 0, "blocks have exponents for all finite numbers");

INLINE int larger(int a, int b) { return a > b ? a : b; }
INLINE int smaller(int a, int b) { return a < b ? a : b; }

// Differences of a block, one after another. Vectors have more of the smaller type.
typedef std::conditional<DIFFERENCE_BITS * SUBSETS <= 32, Word, std::uint64_t>::type Differences;

// Compute the largest exponent of each subset, and store it for each element of the subset.
INLINE void subset_peaks(const int* exponents, int* peaks) {
    VECTORIZE for (int i = 0; i < BLOCK_ELEMENTS; ++i) peaks[i] = exponents[i];
    for (int distance = 1; distance < SUBSET; distance *= 2) {
        int others[BLOCK_ELEMENTS];
        if (distance == 1) {
            // GCC has vector instructions for rotations of numbers, but not for a permutation of elements.
            std::uint64_t pairs[BLOCK_ELEMENTS / 2];
            std::memcpy(pairs, peaks, sizeof pairs);
            VECTORIZE for (int i = 0; i < BLOCK_ELEMENTS / 2; ++i) pairs[i] = pairs[i] >> 32 | pairs[i] << 32;
            std::memcpy(others, pairs, sizeof pairs);
        } else {
            VECTORIZE for (int i = 0; i < BLOCK_ELEMENTS; ++i) others[i] = peaks[i ^ distance];
        }
        VECTORIZE for (int i = 0; i < BLOCK_ELEMENTS; ++i) peaks[i] = larger(peaks[i], others[i]);
    }
}

struct BlockFormat {
    static constexpr int BLOCK = BLOCK_ELEMENTS;
    static constexpr int HEADER = 1 + DIFFERENCE_BITS * SUBSETS / 8;
    static constexpr int CODE_BITS = 1 + MAGNITUDE_BITS;

    INLINE void encode(const Word* x, Byte* header, int* codes) {
        int exponents[BLOCK], lowered[BLOCK] = {};
        int largest = 0, peak = 0;
        VECTORIZE for (int i = 0; i < BLOCK; ++i) {
            const int field = x[i] >> 23 & 255, fraction = x[i] & 0x7fffff;
            const bool raised = ABOVE >= 0 && fraction > ABOVE && field > 0 && field < 254;
            exponents[i] = field;
            largest = larger(largest, field);
            peak = larger(peak, field + raised);
        }
        if (largest == 255) {
            std::memset(header, 0, HEADER);
            std::memset(codes, 0, sizeof(int) * BLOCK);
            header[0] = NAN_EXPONENT;
            return;
        }
        const int shared = larger(peak, LOWEST);
        header[0] = static_cast<Byte>(shared - LOWEST);
        if (DIFFERENCE_BITS) {
            subset_peaks(exponents, lowered);
            Differences differences = 0;
            VECTORIZE for (int i = 0; i < BLOCK; ++i) {
                lowered[i] = smaller(shared - lowered[i], LARGEST_DIFFERENCE);
                differences |= static_cast<Differences>(lowered[i]) << i / SUBSET * DIFFERENCE_BITS;
            }
            std::memcpy(header + 1, &differences, HEADER - 1);
        }
        VECTORIZE for (int i = 0; i < BLOCK; ++i) codes[i] = code(x[i], exponents[i], shared - lowered[i]);
    }

    // Encode one element of a block or subset with the given largest exponent.
    INLINE int code(Word x, int exponent, int largest) {
        return with_sign(TOP_FIELD == 1 ? integer(x, exponent, largest) : small_float(x, exponent, largest), x >> 31);
    }

    INLINE int with_sign(int magnitude, int sign) {
        if (COMPLEMENT) return (magnitude ^ -sign) + sign;
        return sign << MAGNITUDE_BITS | magnitude;
    }

    // Magnitude of an element's code in a format of integers: the element is scaled, and rounded to an integer.
    INLINE int integer(Word x, int exponent, int largest) {
        const int field = exponent - largest + FRACTION_BITS + 127;
        const Word scaled = exponent == 0 || field <= 0 ? 0 : static_cast<Word>(field) << 23 | (x & 0x7fffff);
        return smaller(pattern(number(scaled) + UNIT) - pattern(UNIT), LARGEST);
    }

    // Magnitude of an element's code in a format of floating-point numbers.
    INLINE int small_float(Word x, int exponent, int largest) {
        const int significand = exponent == 0 ? 0 : (x & 0x7fffff) | 1 << 23;
        const int field = exponent - (largest - TOP_FIELD + 1);
        const int shift = smaller(23 - FRACTION_BITS + larger(-field, 0), FAR);
        const int odd = significand >> shift & 1;
        const int places = (significand + (1 << (shift - 1)) - 1 + odd) >> shift;
        return smaller((significand == 0 ? 0 : larger(field, 0) << FRACTION_BITS) + places, LARGEST);
    }

    INLINE void decode(const Byte* header, const int* codes, Word* x) {
        Differences differences = 0;
        std::memcpy(&differences, header + 1, HEADER - 1);
        const int shared = header[0] + LOWEST;
        const bool nan = header[0] == NAN_EXPONENT;
        VECTORIZE for (int i = 0; i < BLOCK; ++i) {
            const int difference = differences >> i / SUBSET * DIFFERENCE_BITS & LARGEST_DIFFERENCE;
            x[i] = nan ? NAN_BITS : element(codes[i], shared - difference);
        }
    }

    // Decode one element of a block or subset with the given exponent.
    INLINE Word element(int code, int shared) {
        constexpr int hidden = 1 << FRACTION_BITS, ones = (1 << MAGNITUDE_BITS) - 1;
        const int sign = code >> MAGNITUDE_BITS;
        // The magnitude of a negative number in two's complement may be ones + 1.
        const int magnitude = COMPLEMENT ? ((code ^ -sign) & ones) + sign : code & ones;
        const int field = magnitude >> FRACTION_BITS;
        int integer = magnitude, power = 1;
        if (TOP_FIELD > 1) {
            integer = (magnitude & (hidden - 1)) | (field ? hidden : 0);
            power = larger(field, 1);
        }
        // The binary32 form of the integer has the element's fraction, and an exponent with a bias of 127.
        const int bits = pattern(static_cast<float>(integer));
        const int exponent = (bits >> 23) + shared - TOP_FIELD - FRACTION_BITS + power - 127;
        const bool top = INFINITIES && field > TOP_FIELD;
        Word result = static_cast<Word>(exponent) << 23 | (bits & 0x7fffff);
        result = exponent >= 255 || top ? INFINITE : result;
        result = integer == 0 || exponent <= 0 ? 0 : result;
        const bool nan = magnitude == NAN_MAGNITUDE || (INFINITIES && magnitude > (TOP_FIELD + 1) << FRACTION_BITS);
        return nan ? NAN_BITS : static_cast<Word>(sign) << 31 | result;
    }
};

}  // namespace

ENTRIES(BlockFormat)
