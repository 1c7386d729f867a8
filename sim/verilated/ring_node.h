// A Verilated node between its links, with the queues of its host port.
//
// A part of ring.cpp, which is one translation unit, so that the compiler sees all of a cycle at once.

#pragma once

#include "ring.h"
#include "ring_far.h"
#include "ring_link.h"
#include "ring_queue.h"
#include "Vnode.h"
#include "Vnode___024root.h"
#include "members.h"
#include "ports.h"
#include "verilated.h"
#include "verilated_save.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace {

// One direction of the host port: words, and where packets end in the count of all words ever put in.
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

// Rows lie one after the other, and so do the elements of a row, the first one lowest.
static_assert(std::endian::native == std::endian::little);

template <typename Row, std::size_t rows> RingMemory memory_of(VlUnpacked<Row, rows>& memory) {
    return {memory.m_storage, sizeof(Row) * rows, std::min<uint32_t>(sizeof(Row), 4)};
}

// The wires of one way in or out. `back` leads against the words.
struct Wires {
    CData& valid;
    IData& data;
    CData& last;
    CData& back;
#if RING_REPLAY
    CData& kind;
    CData& check;
#endif

    // Shows the word that arrives in a cycle, if there is one.
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

// The link at each port of a node; null where there is none.
using Links = std::array<Link*, RING_PORTS>;

class alignas(64) Node {
public:
    Node(VerilatedContext* context, const std::string& name, const Links& from, const Links& to)
        : m_model(new Vnode{context, name.c_str()}), m_from(from), m_to(to) {
        m_model->eval();
    }
    ~Node() { m_model->final(); }

    // Empties queues and counters; the node itself is reset by restore_model().
    void clear() {
        input = {};
        output = {};
        waits = last_taken = last_given = 0;
#if RING_FAR_LANES
        far.clear();
#endif
    }

    // Makes this node's context that of the calling thread, as it must be where gateware stops the simulation.
    void enter() { Verilated::threadContextp(m_model->contextp()); }

    // Everything a cycle shows before its clock edge, and what the links and the host see of it.
    void settle(uint64_t cycle) {
        each_port([&](uint32_t port, const Wires& in, const Wires& out) {
            if (Link* const from = m_from[port]) in.take_word(cycle, from->words);
            if (Link* const to = m_to[port]) out.back = to->take_back(cycle);
        });
        m_model->host_i___05Fvalid = !input.words.empty();
        if (m_model->host_i___05Fvalid) {
            const uint64_t last = input.taken + 1 == input.ends.front();
            m_model->host_i___05Fpayload = last << 32 | input.words.front();
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
                last_taken = cycle;
                input.words.pop();
                if (++input.taken == input.ends.front()) input.ends.pop();
            } else {
                ++waits;
            }
        }
        if (m_model->host_o___05Fvalid) {
            last_given = cycle;
            const uint64_t payload = m_model->host_o___05Fpayload;
            output.words.push(static_cast<uint32_t>(payload));
            ++output.put;
            if (payload >> 32) output.ends.push(output.put);
        }
    }

    void clock() {
        m_model->clk = 1;
        m_model->eval();
    }

    Vnode& model() { return *m_model; }

    // Memories of the gateware, by space.
    std::vector<RingMemory> memories() {
#define RING_MEMORY(name) memory_of(m_model->rootp->name),
        return {RING_MEMORIES(RING_MEMORY)};
    }

    // Memory of row owners; none in a node without.
    std::vector<RingMemory> owners() {
        return {RING_OWNERS(RING_MEMORY)};
#undef RING_MEMORY
    }

    // Counters of the gateware, in the order of their addresses; none while rows get their first values.
    bool counters([[maybe_unused]] uint32_t* values) const {
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

    void save_model(VerilatedSerialize& os) { os << *m_model; }
    void restore_model(VerilatedDeserialize& is) { is >> *m_model; }
    bool finished() const { return m_model->contextp()->gotFinish(); }

    void save(VerilatedSerialize& os) {
        input.save(os);
        output.save(os);
        os << waits << last_taken << last_given;
#if RING_FAR_LANES
        far.save(os);
#endif
        save_model(os);
    }

    void restore(VerilatedDeserialize& is) {
        input.restore(is);
        output.restore(is);
        is >> waits >> last_taken >> last_given;
#if RING_FAR_LANES
        far.restore(is);
#endif
        restore_model(is);
    }

    HostQueue input;
    HostQueue output;
    uint64_t waits = 0;
    uint64_t last_taken = 0;
    uint64_t last_given = 0;
#if RING_FAR_LANES
    FarMemory<RING_FAR_LANES> far{std::size_t{1} << RING_FAR_ROW_BITS};
#endif

private:
    // The far memory's side of its port before the evaluation of a cycle.
    void show_far([[maybe_unused]] uint64_t cycle) {
#if RING_FAR_LANES
        m_model->far___05Fready = far.ready();
        const auto* const answer = far.answer(cycle);
        m_model->far___05Fresponse = answer != nullptr;
        if (answer) {
#define RING_LANE(lane) m_model->far___05Fanswer___05F##lane = (*answer)[lane];
            RING_EACH_FAR_LANE(RING_LANE)
#undef RING_LANE
        }
#endif
    }

    // What the node asks of it.
    void see_far([[maybe_unused]] uint64_t cycle) {
#if RING_FAR_LANES
        const bool taken = m_model->far___05Fvalid && m_model->far___05Fready;
        if (taken && m_model->far___05Fwrite) {
#define RING_LANE(lane) m_model->far___05Felements___05F##lane,
            far.write(m_model->far___05Frow, {RING_EACH_FAR_LANE(RING_LANE)}, m_model->far___05Fkeep);
#undef RING_LANE
        } else if (taken) {
            far.read(cycle, m_model->far___05Frow);
        }
        far.pass(cycle);
#endif
    }

    // Calls a function with the number of each port, its wires in and its wires out.
    template <typename Call> void each_port(const Call& call) {
#define RING_PORT(number, in, out) call(number, RING_WIRES(in), RING_WIRES(out));
        RING_EACH_PORT(RING_PORT)
#undef RING_PORT
    }

    std::unique_ptr<Vnode> m_model;
    Links m_from;
    Links m_to;
};

}  // namespace
