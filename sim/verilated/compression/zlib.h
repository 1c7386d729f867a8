// The two zlib functions that Verilator's FST writer calls, so that waveforms do not require zlib to be installed.
//
// Nothing is compressed: a zlib stream may consist of stored blocks. The writer keeps the smaller of output and input.

#ifndef GRADRING_ZLIB_H
#define GRADRING_ZLIB_H

#include <algorithm>
#include <cstdint>
#include <cstring>

using Bytef = unsigned char;
using uLong = unsigned long;
using uLongf = unsigned long;

constexpr int Z_OK = 0;

constexpr uLong ZLIB_BLOCK = 65535;

inline uLong compressBound(uLong length) { return length + 5 * (length / ZLIB_BLOCK + 1) + 6; }

inline int compress2(Bytef* to, uLongf* to_length, const Bytef* from, uLong length, int) {
    Bytef* next = to;
    *next++ = 0x78;  // deflate, 32 KiB window
    *next++ = 0x01;  // check bits of the header
    uLong done = 0;
    do {
        const uLong block = std::min(length - done, ZLIB_BLOCK);
        *next++ = done + block == length;  // final, and of type stored
        *next++ = static_cast<Bytef>(block);
        *next++ = static_cast<Bytef>(block >> 8);
        *next++ = static_cast<Bytef>(~block);
        *next++ = static_cast<Bytef>(~block >> 8);
        std::memcpy(next, from + done, block);
        next += block;
        done += block;
    } while (done < length);
    std::uint32_t a = 1;
    std::uint32_t b = 0;
    for (uLong index = 0; index < length; ++index) {
        a = (a + from[index]) % 65521;
        b = (b + a) % 65521;
    }
    for (const std::uint32_t half : {b, a}) {
        *next++ = static_cast<Bytef>(half >> 8);
        *next++ = static_cast<Bytef>(half);
    }
    *to_length = next - to;
    return Z_OK;
}

#endif
