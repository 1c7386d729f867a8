// A first-in, first-out queue in contiguous memory.
//
// Included by ring.cpp, which is a single translation unit so that the compiler sees all code of a cycle.

#pragma once

#include "ring_state.h"

#include <cstdint>
#include <vector>

namespace {

template <typename Item> class Queue {
public:
    bool empty() const { return m_first == m_items.size(); }
    size_t size() const { return m_items.size() - m_first; }
    const Item& front() const { return m_items[m_first]; }
    const Item* begin() const { return m_items.data() + m_first; }

    void push(const Item& item) { m_items.push_back(item); }
    void push(const Item* items, size_t count) { m_items.insert(m_items.end(), items, items + count); }

    void pop(size_t count = 1) {
        m_first += count;
        // Moving the remaining items to the front costs no more than the previous pops did.
        if (m_first * 2 >= m_items.size()) {
            m_items.erase(m_items.begin(), m_items.begin() + m_first);
            m_first = 0;
        }
    }

    // Removes the newest items, or appends copies of `item`, until there are `count` items.
    void resize(size_t count, const Item& item) { m_items.resize(m_first + count, item); }

    void clear() {
        m_items.clear();
        m_first = 0;
    }

    void save(VerilatedSerialize& os) const {
        os << uint64_t{size()};
        os.write(begin(), size() * sizeof(Item));
    }

    void restore(VerilatedDeserialize& is) {
        m_first = 0;
        restore_items(is, m_items);
    }

private:
    std::vector<Item> m_items;
    size_t m_first = 0;
};

}  // namespace
