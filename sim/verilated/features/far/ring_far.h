// Far memory at a node's far port, with configurable rate and latency.
//
// Included by ring.cpp, which is a single translation unit so that the compiler can optimize a cycle as a whole.

#pragma once

#include "ring_queue.h"
#include "ring_state.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace {

template <std::size_t lanes> class FarMemory {
public:
    using Row = std::array<uint32_t, lanes>;

    explicit FarMemory(std::size_t rows) : m_rows(rows) { clear(); }

    // Clears the memory but keeps latency and rate.
    void clear() {
        m_answers.clear();
        std::fill(m_rows.begin(), m_rows.end(), Row{});
        m_credit = row_cost();
        words_read = words_written = 0;
    }

    // A rate of 0 stops the memory from answering.
    void configure(uint32_t cycles, uint32_t numerator, uint32_t denominator) {
        m_latency = cycles;
        m_numerator = numerator;
        m_denominator = denominator;
        m_credit = row_cost();
    }

    // Whether a request is accepted in this cycle, which takes credit for all words of a row.
    bool ready() const { return m_numerator && m_credit >= row_cost(); }

    // Returns the answer that is due in a cycle, or null.
    const Row* answer(uint64_t cycle) const {
        return m_answers.empty() || m_answers.front().cycle > cycle ? nullptr : &m_answers.front().row;
    }

    // Ends a cycle and removes its answer, if any. An idle memory accumulates credit for at most one row.
    void pass(uint64_t cycle) {
        if (answer(cycle)) m_answers.pop();
        if (m_numerator) m_credit = std::min(m_credit + m_numerator, row_cost() + m_numerator - 1);
    }

    void write(std::size_t row, const Row& elements, uint32_t keep) {
        m_credit -= row_cost();
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            if (keep >> lane & 1) {
                m_rows[row][lane] = elements[lane];
                ++words_written;
            }
        }
    }

    void read(uint64_t cycle, std::size_t row) {
        m_credit -= row_cost();
        m_answers.push({cycle + m_latency, m_rows[row]});
        words_read += lanes;
    }

    uint32_t* data() { return m_rows.front().data(); }
    uint64_t bytes() const { return m_rows.size() * sizeof(Row); }

    void save(VerilatedSerialize& os) const {
        m_answers.save(os);
        os.write(m_rows.data(), bytes());
        os << m_credit << m_latency << m_numerator << m_denominator << words_read << words_written;
    }

    void restore(VerilatedDeserialize& is) {
        m_answers.restore(is);
        is.read(m_rows.data(), bytes());
        is >> m_credit >> m_latency >> m_numerator >> m_denominator >> words_read >> words_written;
    }

    uint64_t words_read = 0;
    uint64_t words_written = 0;

private:
    struct Answer {
        uint64_t cycle;
        Row row;
    };

    uint64_t row_cost() const { return lanes * uint64_t{m_denominator}; }

    std::vector<Row> m_rows;
    Queue<Answer> m_answers;
    uint64_t m_credit = 0;
    uint32_t m_latency = 16;
    uint32_t m_numerator = 1;
    uint32_t m_denominator = 1;
};

}  // namespace
