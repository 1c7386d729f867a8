// Codec of blocks with a shared exponent, as in sim/golden/features/mx/block_format.py. constants.h defines the
// format's parameters.

#include "blocks.h"
#include "constants.h"

namespace {

constexpr int CODE_BITS = 1 + MAGNITUDE_BITS;
constexpr int SUBSETS = DIFFERENCE_BITS ? BLOCK_ELEMENTS / SUBSET : 0;
constexpr int LARGEST_DIFFERENCE = (1 << DIFFERENCE_BITS) - 1;
constexpr int NAN_EXPONENT = 255;
constexpr int FAR = 26;  // a shift that rounds every significand to zero, even a tie

static_assert(CODE_BITS <= 8 && SUBSETS % 8 == 0, "a code fits a byte, and differences fill bytes");
static_assert(LOWEST >= 0, "blocks have exponents for all finite numbers");

INLINE int larger(int a, int b) { return a > b ? a : b; }
INLINE int smaller(int a, int b) { return a < b ? a : b; }

// Compute the largest exponent of each subset, and store it for each element of the subset.
INLINE void subset_peaks(const int* exponents, int* peaks) {
    VECTORIZE for (int i = 0; i < BLOCK_ELEMENTS; ++i) peaks[i] = exponents[i];
    for (int distance = 1; distance < SUBSET; distance *= 2) {
        int others[BLOCK_ELEMENTS];
        VECTORIZE for (int i = 0; i < BLOCK_ELEMENTS; ++i) others[i] = peaks[i ^ distance];
        VECTORIZE for (int i = 0; i < BLOCK_ELEMENTS; ++i) peaks[i] = larger(peaks[i], others[i]);
    }
}

struct BlockFormat {
    static constexpr int BLOCK = BLOCK_ELEMENTS;
    static constexpr int HEADER = 1 + DIFFERENCE_BITS * SUBSETS / 8;
    static constexpr int BYTES = HEADER + CODE_BITS * BLOCK / 8;

    INLINE void encode(const Word* x, Byte* bytes) {
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
            std::memset(bytes, 0, BYTES);
            bytes[0] = NAN_EXPONENT;
            return;
        }
        const int shared = larger(peak, LOWEST);
        bytes[0] = static_cast<Byte>(shared - LOWEST);
        if (DIFFERENCE_BITS) {
            subset_peaks(exponents, lowered);
            Byte differences[BLOCK];
            VECTORIZE for (int i = 0; i < BLOCK; ++i) lowered[i] = smaller(shared - lowered[i], LARGEST_DIFFERENCE);
            for (int i = 0; i < SUBSETS; ++i) differences[i] = static_cast<Byte>(lowered[i * SUBSET]);
            store_codes<DIFFERENCE_BITS ? DIFFERENCE_BITS : 8, SUBSETS>(differences, bytes + 1);
        }
        Byte codes[BLOCK];
        VECTORIZE for (int i = 0; i < BLOCK; ++i) codes[i] = code(x[i], exponents[i], shared - lowered[i]);
        store_codes<CODE_BITS, BLOCK>(codes, bytes + HEADER);
    }

    // Encode one element of a block or subset with the given largest exponent.
    INLINE Byte code(Word x, int exponent, int largest) {
        const int significand = exponent == 0 ? 0 : (x & 0x7fffff) | 1 << 23;
        const int field = exponent - (largest - TOP_FIELD + 1);
        const int shift = smaller(23 - FRACTION_BITS + larger(-field, 0), FAR);
        const int odd = significand >> shift & 1;
        const int places = (significand + (1 << (shift - 1)) - 1 + odd) >> shift;
        const int magnitude = smaller((significand == 0 ? 0 : larger(field, 0) << FRACTION_BITS) + places, LARGEST);
        const int sign = x >> 31;
        if (COMPLEMENT) return static_cast<Byte>((magnitude ^ -sign) + sign);
        return static_cast<Byte>(sign << MAGNITUDE_BITS | magnitude);
    }

    INLINE void decode(const Byte* bytes, Word* x) {
        Byte codes[BLOCK], differences[BLOCK];
        int shared[BLOCK];
        VECTORIZE for (int i = 0; i < BLOCK; ++i) shared[i] = bytes[0] + LOWEST;
        if (DIFFERENCE_BITS) {
            load_codes<DIFFERENCE_BITS ? DIFFERENCE_BITS : 8, SUBSETS>(bytes + 1, differences);
            VECTORIZE for (int i = 0; i < BLOCK; ++i) shared[i] -= differences[i / SUBSET];
        }
        const bool nan = bytes[0] == NAN_EXPONENT;
        load_codes<CODE_BITS, BLOCK>(bytes + HEADER, codes);
        VECTORIZE for (int i = 0; i < BLOCK; ++i) x[i] = nan ? NAN_BITS : element(codes[i], shared[i]);
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
