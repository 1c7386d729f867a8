// Packets that consist of blocks with a fixed number of elements, each with a header and packed codes. A format is a
// class with BLOCK, the number of elements in a block, HEADER, the number of bytes of the header, CODE_BITS, the number
// of bits of a code, and two functions for one block: encode writes the header and the codes, and decode reads them.

#include "common.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are stored with their lowest byte first");

// GCC vectorizes a loop over the few elements of a block only if it does not unroll it first.
#define VECTORIZE _Pragma("GCC unroll 1")

namespace {

typedef std::uint32_t Word;
typedef std::uint8_t Byte;

constexpr Word INFINITE = 0x7f800000, NAN_BITS = 0x7fc00000, MAGNITUDE = 0x7fffffff;

// Pack eight codes of WIDTH bits each, given in one byte each, without gaps between them.
template <int WIDTH>
INLINE std::uint64_t squeeze(std::uint64_t x) {
    if (WIDTH == 8) return x;
    constexpr int w = WIDTH;
    x = (x & 0x00ff00ff00ff00ff) | (x >> 8 & 0x00ff00ff00ff00ff) << w;
    x = (x & 0x0000ffff0000ffff) | (x >> 16 & 0x0000ffff0000ffff) << 2 * w;
    return (x & 0x00000000ffffffff) | x >> 32 << 4 * w;
}

// Load a number of WIDTH bytes, lowest byte first. Copying into all eight bytes of x at once would go through memory.
template <int WIDTH>
INLINE std::uint64_t load_bytes(const Byte* bytes) {
    std::uint64_t x = 0;
    if (WIDTH == 8) {
        std::memcpy(&x, bytes, 8);
        return x;
    }
    if (WIDTH & 4) {
        std::uint32_t four;
        std::memcpy(&four, bytes, 4);
        x = four;
    }
    if (WIDTH & 2) {
        std::uint16_t two;
        std::memcpy(&two, bytes + (WIDTH & 4), 2);
        x |= static_cast<std::uint64_t>(two) << 8 * (WIDTH & 4);
    }
    if (WIDTH & 1) x |= static_cast<std::uint64_t>(bytes[WIDTH - 1]) << 8 * (WIDTH - 1);
    return x;
}

// Store COUNT codes, given in one byte each, as COUNT * WIDTH bits.
template <int WIDTH, int COUNT>
INLINE void store_codes(const Byte* codes, Byte* bytes) {
    static_assert(COUNT % 8 == 0, "eight codes are stored at a time");
    if (WIDTH == 8) {
        std::memcpy(bytes, codes, COUNT);
        return;
    }
    for (int i = 0; i < COUNT / 8; ++i) {
        std::uint64_t x;
        std::memcpy(&x, codes + 8 * i, 8);
        x = squeeze<WIDTH>(x);
        std::memcpy(bytes + WIDTH * i, &x, WIDTH);
    }
}

// Load COUNT codes that store_codes has stored.
template <int WIDTH, int COUNT>
INLINE void load_codes(const Byte* bytes, int* codes) {
    static_assert(COUNT % 8 == 0, "eight codes are loaded at a time");
    for (int i = 0; i < COUNT / 8; ++i) {
        const std::uint64_t x = load_bytes<WIDTH>(bytes + WIDTH * i);
        VECTORIZE for (int k = 0; k < 8; ++k) codes[8 * i + k] = x >> WIDTH * k & ((1 << WIDTH) - 1);
    }
}

// Number of bytes of a block: a header, and codes of the same width.
template <class Format>
constexpr int block_bytes() { return Format::HEADER + Format::CODE_BITS * Format::BLOCK / 8; }

// Number of blocks that are processed together, step by step. A vector that is loaded right after its parts have been
// stored would wait for the stores.
constexpr int BATCH = 16;

// Encode up to BATCH whole blocks.
template <class Format>
INLINE void encode_batch(int blocks, const Word* x, Byte* bytes) {
    constexpr int block = Format::BLOCK, size = block_bytes<Format>();
    int wide[BATCH * block];
    Byte codes[BATCH * block];
    for (int b = 0; b < blocks; ++b) Format::encode(x + b * block, bytes + b * size, wide + b * block);
    for (int i = 0; i < blocks * block; ++i) codes[i] = static_cast<Byte>(wide[i]);
    for (int b = 0; b < blocks; ++b) {
        store_codes<Format::CODE_BITS, block>(codes + b * block, bytes + b * size + Format::HEADER);
    }
}

// Decode up to BATCH whole blocks.
template <class Format>
INLINE void decode_batch(int blocks, const Byte* bytes, Word* x) {
    constexpr int block = Format::BLOCK, size = block_bytes<Format>();
    int codes[BATCH * block];
    for (int b = 0; b < blocks; ++b) {
        load_codes<Format::CODE_BITS, block>(bytes + b * size + Format::HEADER, codes + b * block);
    }
    for (int b = 0; b < blocks; ++b) Format::decode(bytes + b * size, codes + b * block, x + b * block);
}

// Encode a packet: the last block is padded with +0, and the last word with zero bits. Returns the number of words.
template <class Format>
INLINE std::int64_t encode_blocks(std::int64_t count, const Word* x, Word* words) {
    constexpr std::int64_t block = Format::BLOCK, size = block_bytes<Format>();
    Byte* bytes = reinterpret_cast<Byte*>(words);
    const std::int64_t whole = count / block, rest = count % block, blocks = whole + (rest > 0);
    const std::int64_t length = (blocks * size + 3) / 4;
    for (std::int64_t b = 0; b < whole; b += BATCH) {
        encode_batch<Format>(whole - b < BATCH ? whole - b : BATCH, x + b * block, bytes + b * size);
    }
    if (rest) {
        Word padded[block] = {};
        std::memcpy(padded, x + whole * block, rest * sizeof(Word));
        encode_batch<Format>(1, padded, bytes + whole * size);
    }
    std::memset(bytes + blocks * size, 0, 4 * length - blocks * size);
    return length;
}

// Decode a packet. Returns the number of words.
template <class Format>
INLINE std::int64_t decode_blocks(std::int64_t count, const Word* words, Word* x) {
    constexpr std::int64_t block = Format::BLOCK, size = block_bytes<Format>();
    const Byte* bytes = reinterpret_cast<const Byte*>(words);
    const std::int64_t whole = count / block, rest = count % block;
    for (std::int64_t b = 0; b < whole; b += BATCH) {
        decode_batch<Format>(whole - b < BATCH ? whole - b : BATCH, bytes + b * size, x + b * block);
    }
    if (rest) {
        Word padded[block];
        decode_batch<Format>(1, bytes + whole * size, padded);
        std::memcpy(x + whole * block, padded, rest * sizeof(Word));
    }
    return ((whole + (rest > 0)) * size + 3) / 4;
}

}  // namespace

// Functions that a format's library exports, with the signatures that hop in formats.cpp calls. The first argument is
// the codebook or null, and the result is the number of words in the packet.
#define ENTRIES(Format)                                                                                       \
    extern "C" {                                                                                              \
    VERSIONS std::int64_t encode(const void*, std::int64_t count, const Word* x, Word* words) {               \
        return encode_blocks<Format>(count, x, words);                                                        \
    }                                                                                                         \
    VERSIONS std::int64_t decode(const void*, std::int64_t count, const Word* words, std::int64_t, Word* x) { \
        return decode_blocks<Format>(count, words, x);                                                        \
    }                                                                                                         \
    }
