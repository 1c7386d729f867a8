// Link faults: which wires flip in which cycle, and which words and packets are lost, duplicated or swapped.
//
// Random faults are a function of seed, link and cycle only, so they do not depend on threads or the quantum.
// sim/link_faults.py contains the same function and the wire names.
//
// Included by ring.cpp, which is a single translation unit so that the compiler can optimize a cycle as a whole.

#pragma once

#include "ports.h"
#include "ring.h"
#include "ring_state.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Wire numbers of a link: the 32 data bits, then the wires below; the last one is the backward wire.
constexpr uint32_t LAST = 32, VALID = 33, KIND = 34, CHECK = 35;
constexpr uint32_t BACK = RING_REPLAY ? 43 : 34;
constexpr uint32_t WIRES = BACK + 1;

struct Word {
    uint64_t arrival = 0;
    uint32_t data = 0;
    uint8_t last = 0;
    uint8_t kind = 0;
    uint8_t check = 0;
    uint8_t unused = 0;  // padding, so that every byte of a saved state is initialized

    void flip(uint64_t wires) {
        data ^= static_cast<uint32_t>(wires);
        last ^= wires >> LAST & 1;
#if RING_REPLAY
        kind ^= wires >> KIND & 1;
        check ^= wires >> CHECK & 0xff;
#endif
    }
};

// A requested fault; it applies to the word, packet or cycle with number `at` since reset.
struct Fault {
    uint64_t at;
    uint32_t action;  // RING_FLIP, RING_DROP, RING_DOUBLE, RING_SWAP
    uint32_t wire;
};

// Pending faults, sorted in descending order so that the next one is at the end.
class Faults {
public:
    bool empty() const { return m_faults.empty(); }

    void add(const Fault& fault) {
        const auto later = [](const Fault& one, const Fault& other) { return one.at > other.at; };
        m_faults.insert(std::lower_bound(m_faults.begin(), m_faults.end(), fault, later), fault);
    }

    // Call a function with each fault at `at`, and discard all faults up to `at`.
    template <typename Call> void take(uint64_t at, const Call& call) {
        while (!m_faults.empty() && m_faults.back().at <= at) {
            if (m_faults.back().at == at) call(m_faults.back());
            m_faults.pop_back();
        }
    }

    void clear() { m_faults.clear(); }
    void save(VerilatedSerialize& os) const { save_items(os, m_faults); }
    void restore(VerilatedDeserialize& is) { restore_items(is, m_faults); }

private:
    std::vector<Fault> m_faults;
};

constexpr uint64_t splitmix64(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

// Random faults: at most one wire of a link flips per cycle.
struct RandomFaults {
    uint64_t threshold = 0;  // rate times 2^64
    uint64_t key = 0;        // derived from seed and link

    // Returns the wire that flips in a cycle as a one-hot mask, or 0.
    uint64_t wire(uint64_t cycle) const {
        const uint64_t drawn = splitmix64(key ^ cycle);
        return drawn < threshold ? uint64_t{1} << splitmix64(drawn) % WIRES : 0;
    }
};

}  // namespace
