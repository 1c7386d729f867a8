// Serialization of state to and from a vector of bytes.
//
// Included by ring.cpp, which is a single translation unit so that the compiler sees all code of a cycle.

#pragma once

#include "verilated.h"
#include "verilated_save.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

class Saver final : public VerilatedSerialize {
public:
    explicit Saver(std::vector<uint8_t>& bytes) : m_bytes(bytes) { m_isOpen = true; }
    void flush() override {
        m_bytes.insert(m_bytes.end(), m_bufp, m_cp);
        m_cp = m_bufp;
    }

private:
    std::vector<uint8_t>& m_bytes;
};

class Restorer final : public VerilatedDeserialize {
public:
    Restorer(const uint8_t* bytes, size_t count) : m_next(bytes), m_left(count) {
        m_isOpen = true;
        m_endp = m_cp;
    }

private:
    void fill() override {
        const size_t kept = m_endp - m_cp;
        std::memmove(m_bufp, m_cp, kept);
        const size_t more = std::min(m_left, bufferSize() - kept);
        std::memcpy(m_bufp + kept, m_next, more);
        m_next += more;
        m_left -= more;
        m_cp = m_bufp;
        m_endp = m_bufp + kept + more;
        // Reads look ahead, so the last read needs zeros after the state.
        std::memset(m_endp, 0, m_bufp + bufferSize() - m_endp);
        if (!m_left) m_endp = m_bufp + bufferSize();
    }

    const uint8_t* m_next;
    size_t m_left;
};

template <typename Item> void save_items(VerilatedSerialize& os, const std::vector<Item>& items) {
    os << uint64_t{items.size()};
    os.write(items.data(), items.size() * sizeof(Item));
}

template <typename Item> void restore_items(VerilatedDeserialize& is, std::vector<Item>& items) {
    uint64_t count = 0;
    is >> count;
    items.resize(count);
    is.read(items.data(), count * sizeof(Item));
}

}  // namespace
