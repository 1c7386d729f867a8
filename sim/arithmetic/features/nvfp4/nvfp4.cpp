// Codec of blocks of 16 E2M1 numbers with an E4M3 scale, as in sim/golden/features/nvfp4/nvfp4.py. constants.h
// defines the thresholds.

#include "blocks.h"
#include "constants.h"

namespace {

constexpr int LARGEST_SCALE = 126, NAN_SCALE = 127;

struct NVFP4 {
    static constexpr int BLOCK = 16, HEADER = 1, CODE_BITS = 4;

    // Code of a block's scale: the number of thresholds that its largest magnitude reaches, but at least 1.
    INLINE int scale(int largest) {
        int low = 0;
        for (int step = 64; step; step /= 2) {
            low += low + step <= LARGEST_SCALE && SCALES[low + step - 1] <= largest ? step : 0;
        }
        return low > 1 ? low : 1;
    }

    INLINE void encode(const Word* x, Byte* header, int* codes) {
        int magnitudes[BLOCK], largest = 0;
        VECTORIZE for (int i = 0; i < BLOCK; ++i) {
            magnitudes[i] = x[i] & MAGNITUDE;
            largest = magnitudes[i] > largest ? magnitudes[i] : largest;
        }
        if (largest >= static_cast<int>(INFINITE)) {
            std::memset(codes, 0, sizeof(int) * BLOCK);
            header[0] = NAN_SCALE;
            return;
        }
        const int chosen = scale(largest);
        const int* thresholds = ELEMENTS[chosen];
        VECTORIZE for (int i = 0; i < BLOCK; ++i) {
            int reached = 0;
            for (int k = 0; k < 7; ++k) reached += magnitudes[i] >= thresholds[k];
            codes[i] = x[i] >> 31 << 3 | reached;
        }
        header[0] = static_cast<Byte>(chosen);
    }

    INLINE void decode(const Byte* header, const int* codes, Word* x) {
        const int code = header[0] & 127;
        // Half of the scale; products with elements in units of 0.5 are exact.
        const float half = number(HALF_SCALES[code]);
        VECTORIZE for (int i = 0; i < BLOCK; ++i) {
            const int magnitude = codes[i] & 7, field = magnitude >> 1;
            const int integer = field ? (2 | (magnitude & 1)) << (field - 1) : magnitude;
            const Word product = pattern(static_cast<float>(integer) * half);
            x[i] = code == NAN_SCALE ? NAN_BITS : static_cast<Word>(codes[i] >> 3) << 31 | product;
        }
    }
};

}  // namespace

ENTRIES(NVFP4)
