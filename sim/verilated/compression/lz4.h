// The two LZ4 functions that Verilator's FST writer calls, so that waveforms do not require LZ4 to be installed.
//
// A greedy compressor for the LZ4 block format, with one table of earlier positions; it is slower than the original.

#ifndef GRADRING_LZ4_H
#define GRADRING_LZ4_H

#include <cstdint>
#include <cstring>
#include <vector>

inline int LZ4_compressBound(int length) { return length + length / 255 + 16; }

inline int LZ4_compress_default(const char* from, char* to, int length, int) {
    constexpr int SHORTEST = 4;      // shortest match
    constexpr int TAIL = 12;         // no match begins in the last 12 bytes, as the format demands,
    constexpr int LITERAL_TAIL = 5;  // or covers any of the last 5
    constexpr int REACH = 65535;     // longest distance
    constexpr int TABLE_BITS = 14;

    char* next = to;
    const auto put_length = [&](int rest) {
        for (; rest >= 255; rest -= 255) *next++ = static_cast<char>(255);
        *next++ = static_cast<char>(rest);
    };
    const auto put_literals = [&](int start, int stop, int match) {
        const int literals = stop - start;
        const int extra = match ? match - SHORTEST : 0;
        *next++ = static_cast<char>((literals < 15 ? literals : 15) << 4 | (extra < 15 ? extra : 15));
        if (literals >= 15) put_length(literals - 15);
        if (literals) std::memcpy(next, from + start, literals);
        next += literals;
    };

    std::vector<int> seen(1 << TABLE_BITS, -1);
    int literal = 0;
    int position = 0;
    while (position < length - TAIL) {
        std::uint32_t head;
        std::memcpy(&head, from + position, sizeof head);
        int& earlier = seen[head * 2654435761u >> (32 - TABLE_BITS)];
        const int candidate = earlier;
        earlier = position;
        if (candidate < 0 || position - candidate > REACH || std::memcmp(from + candidate, &head, sizeof head)) {
            ++position;
            continue;
        }
        int match = SHORTEST;
        while (position + match < length - LITERAL_TAIL && from[candidate + match] == from[position + match]) ++match;
        put_literals(literal, position, match);
        *next++ = static_cast<char>(position - candidate);
        *next++ = static_cast<char>((position - candidate) >> 8);
        if (match - SHORTEST >= 15) put_length(match - SHORTEST - 15);
        position += match;
        literal = position;
    }
    put_literals(literal, length, 0);
    return static_cast<int>(next - to);
}

#endif
