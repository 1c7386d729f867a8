// Faults of a link: which wires change in which cycle, and which words and packets are lost, doubled or swapped.
//
// Random faults are a function of seed, link and cycle, so that they depend neither on threads nor on the quantum.
// sim/link_faults.py contains the same function, and the names of the wires.
//
// A part of ring.cpp, which is one translation unit, so that the compiler sees all code of a cycle.

#pragma once

#include "ports.h"
#include "ring.h"
#include "ring_state.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Numbers of a link's wires: first the 32 bits of data, then the wires below. The last one is the backward wire.
constexpr uint32_t LAST = 32, VALID = 33, KIND = 34, CHECK = 35;
constexpr uint32_t BACK = RING_REPLAY ? 43 : 34;
constexpr uint32_t WIRES = BACK + 1;

struct Word {
    uint64_t arrival = 0;
    uint32_t data = 0;
    uint8_t last = 0;
    uint8_t kind = 0;
    uint8_t check = 0;
    uint8_t unused = 0;  // so that all bytes of a saved state have a value

    void flip(uint64_t wires) {
        data ^= static_cast<uint32_t>(wires);
        last ^= wires >> LAST & 1;
#if RING_REPLAY
        kind ^= wires >> KIND & 1;
        check ^= wires >> CHECK & 0xff;
#endif
    }
};

// A requested fault of a word, a packet or a cycle, given by its number since reset.
struct Fault {
    uint64_t at;
    uint32_t action;  // RING_FLIP, RING_DROP, RING_DOUBLE, RING_SWAP
    uint32_t wire;
};

// Faults in descending order of their numbers: the next one is at the end.
class Faults {
public:
    bool empty() const { return m_faults.empty(); }

    void add(const Fault& fault) {
        const auto later = [](const Fault& one, const Fault& other) { return one.at > other.at; };
        m_faults.insert(std::lower_bound(m_faults.begin(), m_faults.end(), fault, later), fault);
    }

    // Calls a function with each fault at `at`, and removes the faults up to `at`.
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

// Random faults: in each cycle, at most one wire of a link changes.
struct RandomFaults {
    uint64_t threshold = 0;  // rate times 2^64
    uint64_t key = 0;        // derived from seed and link

    // The wire that changes in a cycle, as one bit; 0 if none does.
    uint64_t wire(uint64_t cycle) const {
        const uint64_t drawn = splitmix64(key ^ cycle);
        return drawn < threshold ? uint64_t{1} << splitmix64(drawn) % WIRES : 0;
    }
};

}  // namespace
