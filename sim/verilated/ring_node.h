// A Verilated node between its links, with the queues of its host port.
//
// Included by ring.cpp, which is a single translation unit so that the compiler sees all code of a cycle.

#pragma once

#include "ring.h"
#include "ring_kind.h"
#include "ring_link.h"
#include "ring_queue.h"
#include "Vnode.h"
#include "Vnode___024root.h"
#include "members.h"
#include "ports.h"
#if RING_FAR_LANES
#include "ring_far.h"
#endif
#include "verilated.h"
#include "verilated_save.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

// One direction of the host port: queued words and, for each packet end, the number of words queued so far.
struct HostQueue {
    Queue<uint32_t> words;
    Queue<uint64_t> ends;
    uint64_t put = 0;
    uint64_t taken = 0;

    void save(VerilatedSerialize& os) const {
        words.save(os);
        ends.save(os);
        os << put << taken;
    }

    void restore(VerilatedDeserialize& is) {
        words.restore(is);
        ends.restore(is);
        is >> put >> taken;
    }
};

// Rows are contiguous, and so are the elements of a row, with the first element in the lowest bits.
static_assert(std::endian::native == std::endian::little);

template <typename Row, std::size_t rows> RingMemory memory_of(VlUnpacked<Row, rows>& memory) {
    return {memory.m_storage, sizeof(Row) * rows, std::min<uint32_t>(sizeof(Row), 4)};
}

// The wires of one input or output port. `back` runs opposite to the words.
struct Wires {
    CData& valid;
    IData& data;
    CData& last;
    CData& back;
#if RING_REPLAY
    CData& kind;
    CData& check;
#endif

    // Drives the wires with the word that arrives in this cycle, if any.
    void take_word(uint64_t cycle, Queue<Word>& words) const {
        valid = !words.empty() && words.front().arrival == cycle;
        if (!valid) return;
        data = words.front().data;
        last = words.front().last;
#if RING_REPLAY
        kind = words.front().kind;
        check = words.front().check;
#endif
        words.pop();
    }

    Word word() const {
        Word result;
        result.data = data;
        result.last = last;
#if RING_REPLAY
        result.kind = kind;
        result.check = check;
#endif
        return result;
    }
};

#if RING_REPLAY
#define RING_WIRES(name) \
    Wires{m_model->name##___05Fvalid, m_model->name##___05Fdata, m_model->name##___05Flast, \
          m_model->name##___05Fline, m_model->name##___05Fkind, m_model->name##___05Fcheck}
#else
#define RING_WIRES(name) \
    Wires{m_model->name##___05Fvalid, m_model->name##___05Fdata, m_model->name##___05Flast, \
          m_model->name##___05Fcredit}
#endif

// The link at each port of a node; null if the port has none.
using Links = std::array<Link*, RING_PORTS>;

class alignas(64) Node final : public AnyNode {
public:
    Node(VerilatedContext* context, const char* name, Link* const* from, Link* const* to)
        : m_model(new Vnode{context, name}) {
        std::copy_n(from, RING_PORTS, m_from.begin());
        std::copy_n(to, RING_PORTS, m_to.begin());
        m_model->eval();
    }
    ~Node() override { m_model->final(); }

    static AnyNode* create(VerilatedContext* context, const char* name, Link* const* from, Link* const* to) {
        return new Node{context, name, from, to};
    }

    void clear() override {
        m_input = {};
        m_output = {};
        m_waits = m_last_taken = m_last_given = 0;
#if RING_FAR_LANES
        m_far.clear();
#endif
    }

    void enter() override { Verilated::threadContextp(m_model->contextp()); }

    void settle(uint64_t cycle) override {
        each_port([&](uint32_t port, const Wires& in, const Wires& out) {
            if (Link* const from = m_from[port]) in.take_word(cycle, from->words);
            if (Link* const to = m_to[port]) out.back = to->take_back(cycle);
        });
        m_model->host_i___05Fvalid = !m_input.words.empty();
        if (m_model->host_i___05Fvalid) {
            const uint64_t last = m_input.taken + 1 == m_input.ends.front();
            m_model->host_i___05Fpayload = last << 32 | m_input.words.front();
        }

        show_far(cycle);

        m_model->clk = 0;
        m_model->eval();

        see_far(cycle);
        each_port([&](uint32_t port, const Wires& in, const Wires& out) {
            if (Link* const to = m_to[port]) to->put(cycle, out.valid, out.word());
            if (Link* const from = m_from[port]) from->put_back(cycle, in.back);
        });
        if (m_model->host_i___05Fvalid) {
            if (m_model->host_i___05Fready) {
                m_last_taken = cycle;
                m_input.words.pop();
                if (++m_input.taken == m_input.ends.front()) m_input.ends.pop();
            } else {
                ++m_waits;
            }
        }
        if (m_model->host_o___05Fvalid) {
            m_last_given = cycle;
            const uint64_t payload = m_model->host_o___05Fpayload;
            m_output.words.push(static_cast<uint32_t>(payload));
            ++m_output.put;
            if (payload >> 32) m_output.ends.push(m_output.put);
        }
    }

    void clock() override {
        m_model->clk = 1;
        m_model->eval();
    }

    void send(const uint32_t* words, uint64_t count) override {
        m_input.words.push(words, count);
        m_input.put += count;
        m_input.ends.push(m_input.put);
    }

    int64_t packet_length() const override {
        return m_output.ends.empty() ? -1 : static_cast<int64_t>(m_output.ends.front() - m_output.taken);
    }

    void receive(uint32_t* words) override {
        const uint64_t count = m_output.ends.front() - m_output.taken;
        std::copy_n(m_output.words.begin(), count, words);
        m_output.words.pop(count);
        m_output.ends.pop();
        m_output.taken += count;
    }

    RingNodeStatus status() const override {
        return {m_input.words.size(), m_input.ends.size(), m_output.words.size(), m_output.ends.size(),
                m_input.taken, m_output.put, m_waits, m_last_taken, m_last_given};
    }

    std::vector<RingMemory> memories() override {
#define RING_MEMORY(name) memory_of(m_model->rootp->name),
        return {RING_MEMORIES(RING_MEMORY)};
    }

    std::vector<RingMemory> owners() override {
        return {RING_OWNERS(RING_MEMORY)};
#undef RING_MEMORY
    }

    bool counters([[maybe_unused]] uint32_t* values) const override {
#ifdef RING_REGISTERS
        const auto& root = *m_model->rootp;
        if (RING_REGISTERS_BUSY(root)) return false;
#define RING_COUNTER(address, low, mask) \
        *values = root.RING_REGISTERS[address]; \
        *values += (low - *values) & mask; \
        ++values;
        RING_COUNTERS(RING_COUNTER)
#undef RING_COUNTER
        return true;
#else
        return false;
#endif
    }

    uint32_t far_lanes() const override { return RING_FAR_LANES; }

    void far_speed([[maybe_unused]] uint32_t latency, [[maybe_unused]] uint32_t numerator,
                   [[maybe_unused]] uint32_t denominator) override {
#if RING_FAR_LANES
        m_far.configure(latency, numerator, denominator);
#endif
    }

    void far_memory([[maybe_unused]] RingMemory* memory, [[maybe_unused]] uint64_t* words) override {
#if RING_FAR_LANES
        *memory = {m_far.data(), m_far.bytes(), sizeof(uint32_t)};
        words[0] = m_far.words_read;
        words[1] = m_far.words_written;
#endif
    }

    void save_model(VerilatedSerialize& os) override { os << *m_model; }
    void restore_model(VerilatedDeserialize& is) override { is >> *m_model; }
    bool finished() const override { return m_model->contextp()->gotFinish(); }

    void trace([[maybe_unused]] VerilatedFstC* wave) override {
#if VM_TRACE
        m_model->trace(wave, 99);
#endif
    }

    void save(VerilatedSerialize& os) override {
        m_input.save(os);
        m_output.save(os);
        os << m_waits << m_last_taken << m_last_given;
#if RING_FAR_LANES
        m_far.save(os);
#endif
        save_model(os);
    }

    void restore(VerilatedDeserialize& is) override {
        m_input.restore(is);
        m_output.restore(is);
        is >> m_waits >> m_last_taken >> m_last_given;
#if RING_FAR_LANES
        m_far.restore(is);
#endif
        restore_model(is);
    }

private:
    // Drives the far memory's side of its port before a cycle is evaluated.
    void show_far([[maybe_unused]] uint64_t cycle) {
#if RING_FAR_LANES
        m_model->far___05Fready = m_far.ready();
        const auto* const answer = m_far.answer(cycle);
        m_model->far___05Fresponse = answer != nullptr;
        if (answer) {
#define RING_LANE(lane) m_model->far___05Fanswer___05F##lane = (*answer)[lane];
            RING_EACH_FAR_LANE(RING_LANE)
#undef RING_LANE
        }
#endif
    }

    // Reads the node's request to the far memory.
    void see_far([[maybe_unused]] uint64_t cycle) {
#if RING_FAR_LANES
        const bool taken = m_model->far___05Fvalid && m_model->far___05Fready;
        if (taken && m_model->far___05Fwrite) {
#define RING_LANE(lane) m_model->far___05Felements___05F##lane,
            m_far.write(m_model->far___05Frow, {RING_EACH_FAR_LANE(RING_LANE)}, m_model->far___05Fkeep);
#undef RING_LANE
        } else if (taken) {
            m_far.read(cycle, m_model->far___05Frow);
        }
        m_far.pass(cycle);
#endif
    }

    // Calls a function with the number of each port and its input and output wires.
    template <typename Call> void each_port(const Call& call) {
#define RING_PORT(number, in, out) call(number, RING_WIRES(in), RING_WIRES(out));
        RING_EACH_PORT(RING_PORT)
#undef RING_PORT
    }

    HostQueue m_input;
    HostQueue m_output;
    uint64_t m_waits = 0;
    uint64_t m_last_taken = 0;
    uint64_t m_last_given = 0;
#if RING_FAR_LANES
    FarMemory<RING_FAR_LANES> m_far{std::size_t{1} << RING_FAR_ROW_BITS};
#endif
    std::unique_ptr<Vnode> m_model;
    Links m_from;
    Links m_to;
};

}  // namespace
