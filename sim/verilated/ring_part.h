// The nodes of a ring in this process, and the data exchange with the processes of the other nodes.
//
// Every process has all links. The process of a link's source uses the sending half of the link, and the process of
// its target uses the receiving half; staged items are passed between the two halves at quantum boundaries.
//
// Included by ring.cpp, which is a single translation unit so that the compiler sees all code of a cycle.

#pragma once

#include "ring_exchange.h"
#include "ring_link.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace {

// A sequence of items of several kinds, aligned to 8 bytes; each run of items is preceded by its count.
class Writer {
public:
    void clear() { m_words.clear(); }
    const void* data() const { return m_words.data(); }
    uint64_t bytes() const { return m_words.size() * sizeof(uint64_t); }

    template <typename Item> void put(std::vector<Item>& items) {
        const size_t at = m_words.size(), bytes = items.size() * sizeof(Item);
        m_words.resize(at + 1 + (bytes + 7) / 8);
        m_words[at] = items.size();
        if (bytes) std::memcpy(&m_words[at + 1], items.data(), bytes);
        items.clear();
    }

private:
    std::vector<uint64_t> m_words;
};

class Reader {
public:
    Reader(const void* data, uint64_t bytes) : m_next(static_cast<const uint64_t*>(data)), m_end(m_next + bytes / 8) {}

    template <typename Item> void take(Queue<Item>& items) {
        const uint64_t count = m_next < m_end ? *m_next++ : 0;
        const uint64_t words = (count * sizeof(Item) + 7) / 8;
        if (words > static_cast<uint64_t>(m_end - m_next)) throw std::runtime_error("a message between processes is short");
        items.push(reinterpret_cast<const Item*>(m_next), count);
        m_next += words;
    }

private:
    const uint64_t* m_next;
    const uint64_t* m_end;
};

class Part {
public:
    // Creates the part described by `given`; if `given` is null, all nodes are in this process.
    Part(const RingPart* given, uint32_t nodes) : m_last(nodes) {
        if (!given) return;
        m_given = *given;
        m_bounds.assign(given->bounds, given->bounds + given->processes + 1);
        m_first = m_bounds[given->process];
        m_last = m_bounds[given->process + 1];
    }

    uint32_t first() const { return m_first; }
    uint32_t last() const { return m_last; }
    bool has(uint32_t node) const { return m_first <= node && node < m_last; }

    void add(Link* link, uint32_t source, uint32_t target) {
        const uint32_t from = process_of(source), to = process_of(target);
        if (from == to) {
            if (has(source)) m_inner.push_back(link);
        } else if (has(source)) {
            neighbour(to).halves.push_back({link, true});
        } else if (has(target)) {
            neighbour(from).halves.push_back({link, false});
        }
    }

    // Moves staged items to the links, and exchanges them with other processes, between quanta.
    void move_on() {
        for (Link* const link : m_inner) link->move_on();
        if (m_neighbours.empty()) return;
        for (size_t index = 0; index < m_neighbours.size(); ++index) {
            Neighbour& to = m_neighbours[index];
            to.out.clear();
            for (const Half& half : to.halves) {
                if (half.sends) {
                    to.out.put(half.link->staged_words);
                } else {
                    to.out.put(half.link->staged_credits);
                    to.out.put(half.link->staged_levels);
                }
            }
            m_mails[index] = {to.process, to.out.data(), to.out.bytes(), nullptr, 0};
        }
        check(m_given.mail(m_given.context, m_mails.data(), static_cast<uint32_t>(m_mails.size())));
        for (size_t index = 0; index < m_neighbours.size(); ++index) {
            Reader in{m_mails[index].in, m_mails[index].in_bytes};
            for (const Half& half : m_neighbours[index].halves) {
                if (half.sends) {
                    in.take(half.link->credits);
                    in.take(half.link->levels);
                } else {
                    in.take(half.link->words);
                }
                half.link->watch();
            }
        }
    }

    // Returns the largest value that any process passes.
    uint64_t agree(uint64_t value) {
        if (m_given.agree) check(m_given.agree(m_given.context, &value));
        return value;
    }

private:
    struct Half {
        Link* link;
        bool sends;
    };

    struct Neighbour {
        uint32_t process;
        std::vector<Half> halves;  // ordered by link, as in the neighbour's process
        Writer out;
    };

    uint32_t process_of(uint32_t node) const {
        if (m_bounds.empty()) return 0;
        return static_cast<uint32_t>(std::upper_bound(m_bounds.begin(), m_bounds.end(), node) - m_bounds.begin()) - 1;
    }

    Neighbour& neighbour(uint32_t process) {
        for (Neighbour& one : m_neighbours) {
            if (one.process == process) return one;
        }
        m_neighbours.push_back({process, {}, {}});
        m_mails.resize(m_neighbours.size());
        return m_neighbours.back();
    }

    void check(int64_t result) const {
        if (result < 0) throw std::runtime_error(m_given.error(m_given.context));
    }

    RingPart m_given{};
    std::vector<uint32_t> m_bounds;
    uint32_t m_first = 0;
    uint32_t m_last;
    std::vector<Link*> m_inner;  // both ends are in this process
    std::vector<Neighbour> m_neighbours;
    std::vector<RingMail> m_mails;
};

}  // namespace
