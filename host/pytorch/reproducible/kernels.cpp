// Integers, checksums and sums of blocks on a CPU, with the same bits as arithmetic.py. See compiled_blocks.py.
//
// A group has 32 elements and an exponent field. Scaling by a power of two beyond the range of a float takes two
// multiplications. All products are exact or far below one half, so only conversions between integers and floats
// round.

#include <cmath>

#include "common.h"

namespace {

constexpr std::int64_t GROUP = 32;  // elements with the same exponent field
constexpr std::int64_t RUN = 16;    // both halves of a block consist of whole runs
constexpr std::int64_t ADDED = 125;  // an integer of `bits` bits is an element times 2**(bits + ADDED - field)
constexpr std::int64_t EXACT = 24;   // elements cannot round up to the limit of wider integers

struct Scale {
    float first, second;
};

INLINE float power(std::int64_t exponent) { return number(static_cast<std::uint32_t>(exponent + 127) << 23); }

INLINE Scale scale(std::int64_t exponent) {
    const std::int64_t first = exponent < -126 ? -126 : exponent > 127 ? 127 : exponent;
    return {power(first), power(exponent - first)};
}

// Multiply RUN elements by a factor, and round them to the nearest integers of `bits` bits.
INLINE void quantize(const float* x, Scale factor, std::int64_t bits, std::int32_t* result) {
    const float limit = static_cast<float>((std::int64_t{1} << (bits - 1)) - 1);
    float scaled[RUN];
    for (std::int64_t i = 0; i < RUN; ++i) scaled[i] = x[i] * factor.first * factor.second;
    for (std::int64_t i = 0; i < RUN; ++i) scaled[i] = std::rint(scaled[i]);
    if (bits <= EXACT) {
        for (std::int64_t i = 0; i < RUN; ++i) {
            scaled[i] = scaled[i] > limit ? limit : scaled[i];
            scaled[i] = scaled[i] < -limit ? -limit : scaled[i];
        }
    }
    for (std::int64_t i = 0; i < RUN; ++i) result[i] = static_cast<std::int32_t>(scaled[i]);
}

// Convert RUN sums from integers to floats, and multiply them by a factor.
INLINE void round_sums(const std::int32_t* integers, Scale factor, float* result) {
    for (std::int64_t i = 0; i < RUN; ++i) {
        result[i] = static_cast<float>(integers[i]) * factor.first * factor.second;
    }
}

}  // namespace

extern "C" {

// Write the largest bit pattern of each group, without signs. With `merge`, an earlier result is included.
VERSIONS void magnitudes(std::int64_t groups, const float* x, std::int64_t merge, std::int32_t* result) {
    for (std::int64_t group = 0; group < groups; ++group) {
        std::int32_t patterns[GROUP];
        std::memcpy(patterns, x + group * GROUP, sizeof patterns);
        std::int32_t largest = merge ? result[group] : 0;
        for (std::int64_t i = 0; i < GROUP; ++i) {
            const std::int32_t pattern = patterns[i] & 0x7fffffff;
            largest = pattern > largest ? pattern : largest;
        }
        result[group] = largest;
    }
}

// Convert finite elements to integers, and write them to the words or, with `add`, add them.
VERSIONS void integers(std::int64_t groups, const float* x, const std::uint8_t* fields, std::int64_t bits,
                       std::int64_t add, std::uint32_t* words) {
    for (std::int64_t first = 0; first < groups * GROUP; first += RUN) {
        std::int32_t values[RUN];
        quantize(x + first, scale(bits + ADDED - fields[first / GROUP]), bits, values);
        std::uint32_t* to = words + first;
        for (std::int64_t i = 0; i < RUN; ++i) to[i] = (add ? to[i] : 0) + static_cast<std::uint32_t>(values[i]);
    }
}

// Like integers(), for words of two integers, with one from each half of the elements.
VERSIONS void pairs(std::int64_t groups, const float* x, const std::uint8_t* fields, std::int64_t bits,
                    std::int64_t add, std::uint32_t* words) {
    const std::int64_t half = groups * GROUP / 2;
    for (std::int64_t first = 0; first < half; first += RUN) {
        std::int32_t low[RUN], high[RUN];
        quantize(x + first, scale(bits + ADDED - fields[first / GROUP]), bits, low);
        quantize(x + half + first, scale(bits + ADDED - fields[(half + first) / GROUP]), bits, high);
        std::uint32_t* to = words + first;
        for (std::int64_t i = 0; i < RUN; ++i) {
            to[i] = (add ? to[i] : 0) + static_cast<std::uint32_t>(low[i]) + (static_cast<std::uint32_t>(high[i]) << 16);
        }
    }
}

// Write int32 to the words or, with `add`, add them: one integer per word or, with `packed`, one from each half.
VERSIONS void copies(std::int64_t count, const std::int32_t* integers, std::int64_t packed, std::int64_t add,
                     std::uint32_t* words) {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t high = packed ? static_cast<std::uint32_t>(integers[count + i]) << 16 : 0;
        words[i] = (add ? words[i] : 0) + static_cast<std::uint32_t>(integers[i]) + high;
    }
}

// Write two checksums: the sum of the words, and the sum of their prefix sums, modulo 2**32.
VERSIONS void checksums(std::int64_t count, const std::uint32_t* words, std::int64_t* result) {
    std::uint32_t sum = 0, prefix = 0;
    const std::uint32_t length = static_cast<std::uint32_t>(count);
    for (std::uint32_t i = 0; i < length; ++i) {
        sum += words[i];
        prefix += (length - i) * words[i];
    }
    result[0] = sum;
    result[1] = prefix;
}

// Convert words with one sum each to floats.
VERSIONS void sums(std::int64_t groups, const std::int32_t* words, const std::uint8_t* fields, std::int64_t bits,
                   float* result) {
    for (std::int64_t first = 0; first < groups * GROUP; first += RUN) {
        round_sums(words + first, scale(fields[first / GROUP] - ADDED - bits), result + first);
    }
}

// Convert words with two sums each to floats.
VERSIONS void pair_sums(std::int64_t groups, const std::uint32_t* words, const std::uint8_t* fields,
                        std::int64_t bits, float* result) {
    const std::int64_t half = groups * GROUP / 2;
    for (std::int64_t first = 0; first < half; first += RUN) {
        std::int32_t low[RUN], high[RUN];
        for (std::int64_t i = 0; i < RUN; ++i) {
            low[i] = static_cast<std::int32_t>(words[first + i] << 16) >> 16;
            high[i] = static_cast<std::int32_t>(words[first + i] + 0x8000) >> 16;
        }
        round_sums(low, scale(fields[first / GROUP] - ADDED - bits), result + first);
        round_sums(high, scale(fields[(half + first) / GROUP] - ADDED - bits), result + half + first);
    }
}

}  // extern "C"
