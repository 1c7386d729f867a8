// Both ends of a replay link with faulty wires between them. See faulty_link.py.
//
// A cycle sets inputs, settles combinational logic, reads outputs, and ends with a rising edge. The ends' outputs are
// registers; a circular buffer with one slot per cycle of latency carries their values.

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

namespace {

enum Kind : std::int32_t { FLIP, START, STORM, DROP, DOUBLE, SWAP, CUT, NOISE, CLEAN };

struct Part {
    std::int32_t kind, latency, stalls;
    std::int64_t faults;
    std::uint64_t seed;
};

struct Outcome {
    std::int64_t faults, cycles, words, controls, restarts, repeated, failed;
    std::int64_t lost, most, measured;          // cycles lost after a fault without stalls: sum, maximum, count
    std::int64_t escaped, refused, invented, silent, hanging, overrun;
};

struct Word {
    std::uint32_t data = 0;
    std::uint8_t valid = 0, last = 0, kind = 0, check = 0;
};

struct Random {
    std::uint64_t state;
    std::uint64_t next() {  // splitmix64
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>((next() >> 32) * bound >> 32); }
    bool chance(std::uint32_t of256) { return (next() >> 56) < of256; }
};

std::uint32_t crc32(std::uint32_t crc, std::uint32_t word) {
    static const auto table = [] {
        std::array<std::uint32_t, 256> rows{};
        for (std::uint32_t n = 0; n < 256; ++n) {
            std::uint32_t row = n;
            for (int k = 0; k < 8; ++k) row = row >> 1 ^ (row & 1 ? 0xedb88320u : 0);
            rows[n] = row;
        }
        return rows;
    }();
    for (int k = 0; k < 4; ++k, word >>= 8) crc = table[(crc ^ word) & 255] ^ crc >> 8;
    return crc;
}

constexpr std::int64_t NEVER = INT64_MAX;
constexpr std::int64_t HANGS = 6000;  // cycles without a word, several times as long as any restart takes

class Link {
public:
    Link(const Part& part, Outcome& outcome) : part(part), out(outcome), random{part.seed} {}

    void run() {
        while (out.faults < part.faults && !(out.hanging || out.silent)) {
            restart();
            while (out.faults < part.faults || cycle < settles) {
                step();
                if (over || out.hanging || out.silent) break;
                if (part.kind == START && delivered >= 40) break;
            }
        }
        top.final();
    }

private:
    const Part& part;
    Outcome& out;
    Random random;
    VerilatedContext context;
    Vtop top{&context};

    std::vector<Word> forward;
    std::vector<std::uint8_t> backward;
    std::size_t at = 0, back_at = 0;
    std::deque<std::pair<std::uint32_t, int>> sent;
    std::deque<std::uint32_t> sent_controls;
    std::int64_t cycle = 0, delivered = 0, latest = 0, fault_at = 0, cut_until = 0, settles = 0;
    std::int64_t measured_from = NEVER, delivered_then = 0;
    std::int64_t next_word = 0;               // number of delivered words at which the next fault occurs
    std::uint32_t word = 0, crc = ~0u, received_crc = ~0u, control = 0;
    int left = 0, last = 0;
    bool offering = false, first = true, control_offering = false, wrong = false;
    bool over = false;
    std::uint32_t source_of256 = 256, sink_of256 = 256, control_of256 = 0;

    void restart() {
        const int back = part.stalls ? 1 + random.below(64) : part.latency;
        forward.assign(part.latency, Word{});
        backward.assign(back, 0);
        at = back_at = 0;
        sent.clear();
        sent_controls.clear();
        cycle = delivered = latest = cut_until = settles = 0;
        measured_from = NEVER;
        crc = received_crc = ~0u;
        left = 0;
        offering = control_offering = wrong = over = false;
        first = true;
        fault_at = part.kind == START ? random.below(2 * part.latency + 100) : NEVER;
        next_word = part.kind == START || part.kind == CLEAN ? NEVER : gap();
        if (part.stalls) {
            source_of256 = random.chance(128) ? 256 : 40 + random.below(200);
            sink_of256 = random.chance(128) ? 256 : 60 + random.below(190);
        }
        control_of256 = part.stalls ? 1 + random.below(12) : 0;
        top.t___05Fi___05Fvalid = top.t___05Fcontrol___05Fvalid = 0;
        top.rst = 1;
        top.clk = 0;
        top.eval();
        edge();
        top.rst = 0;
    }

    void edge() {
        top.clk = 1;
        top.eval();
        top.clk = 0;  // evaluated with the next cycle's inputs
    }

    std::size_t following() const { return at + 1 == forward.size() ? 0 : at + 1; }

    // Number of words between faults, large enough for all effects of a fault to occur before the next fault.
    std::int64_t gap() { return 40 + random.below(64); }

    void fault_done() {
        ++out.faults;
        settles = cycle + 2000;
        fault_at = NEVER;
        if (part.kind == STORM) {
            if (out.faults < part.faults) fault_at = cycle + 1 + random.below(100);
            return;
        }
        if (part.kind == START) return;
        if (!part.stalls) {
            measured_from = cycle;
            delivered_then = delivered;
        }
        next_word = delivered + gap();
    }

    void measure() {
        if (measured_from == NEVER) return;
        const std::int64_t lost = cycle - measured_from - (delivered - delivered_then);
        out.lost += lost;
        out.most = std::max(out.most, lost);
        ++out.measured;
        measured_from = NEVER;
    }

    // Applies the faults to the word and the line bit that arrive in this cycle.
    void damage(Word& w, std::uint8_t& line) {
        if (cycle < cut_until) {
            w.valid = line = 0;
            return;
        }
        if (cycle < fault_at) return;
        switch (part.kind) {
        case FLIP: case START: case STORM: {
            const std::uint32_t wire = random.below(44);
            if (wire < 32) w.data ^= 1u << wire;
            else if (wire < 40) w.check ^= 1u << (wire - 32);
            else if (wire == 40) w.valid ^= 1;
            else if (wire == 41) w.last ^= 1;
            else if (wire == 42) w.kind ^= 1;
            else line ^= 1;
            fault_done();
            break;
        }
        case CUT:
            cut_until = cycle + 1 + random.below(200);
            w.valid = line = 0;
            fault_done();
            break;
        case DROP:
            if (w.valid) {
                w.valid = 0;
                fault_done();
            }
            break;
        case DOUBLE:  // the word stays for one more cycle and replaces the next word, if any
            if (w.valid) {
                forward[following()] = w;
                fault_done();
            }
            break;
        case SWAP:
            if (w.valid && forward[following()].valid) {
                std::swap(w, forward[following()]);
                fault_done();
            }
            break;
        case NOISE:
            if (w.valid) {
                const std::uint64_t bits = random.next();
                w.data = static_cast<std::uint32_t>(bits);
                w.last = bits >> 32 & 1;
                w.kind = bits >> 33 & 1;
                w.check = static_cast<std::uint8_t>(bits >> 34);
                fault_done();
            }
            break;
        default:
            break;
        }
    }

    void offer() {
        if (!offering && (!first || top.t___05Fmay_start) && (source_of256 == 256 || random.chance(source_of256))) {
            if (first) {
                left = part.stalls ? 2 + random.below(267) : 128 + random.below(141);
                crc = ~0u;
            }
            last = --left == 0;
            word = last ? ~crc : static_cast<std::uint32_t>(random.next());
            crc = crc32(crc, word);
            offering = true;
        }
        if (!control_offering && control_of256 && random.chance(control_of256)) {
            control = static_cast<std::uint32_t>(random.next());
            control_offering = true;
        }
        top.t___05Fi___05Fvalid = offering;
        top.t___05Fi___05Fpayload = static_cast<std::uint64_t>(last) << 32 | word;
        top.t___05Fcontrol___05Fvalid = control_offering;
        top.t___05Fcontrol___05Fpayload = control;
        top.r___05Fo___05Fready = sink_of256 == 256 || random.chance(sink_of256);
        top.r___05Fcontrol___05Fready = 1;
    }

    void take(std::uint32_t data, int end) {
        ++delivered;
        ++out.words;
        latest = cycle;
        if (sent.empty() || sent.front().first != data || sent.front().second != end) {
            if (!wrong) ++out.escaped;
            wrong = true;
        }
        if (!sent.empty()) sent.pop_front();
        if (end) {
            // The last word is correct if it is the inverted CRC-32 of all preceding words.
            const bool good = data == static_cast<std::uint32_t>(~received_crc);
            if (wrong) {
                good ? ++out.silent : ++out.refused;
                over = true;  // end the run, just as a node would end its command
            }
            received_crc = ~0u;
            return;
        }
        received_crc = crc32(received_crc, data);
    }

    void step() {
        Word w = forward[at];
        std::uint8_t line = backward[back_at];
        if (delivered >= next_word && fault_at == NEVER) {
            measure();
            fault_at = out.faults < part.faults ? cycle + random.below(64) : NEVER;
            next_word = NEVER;
        }
        damage(w, line);
        offer();
        top.r___05Fring_i___05Fvalid = w.valid;
        top.r___05Fring_i___05Fdata = w.data;
        top.r___05Fring_i___05Flast = w.last;
        top.r___05Fring_i___05Fkind = w.kind;
        top.r___05Fring_i___05Fcheck = w.check;
        top.t___05Fring_o___05Fline = line;
        top.eval();
        // Words and line bits entering the wires in this cycle.
        Word& put = forward[at];
        put.valid = top.t___05Fring_o___05Fvalid;
        put.data = top.t___05Fring_o___05Fdata;
        put.last = top.t___05Fring_o___05Flast;
        put.kind = top.t___05Fring_o___05Fkind;
        put.check = top.t___05Fring_o___05Fcheck;
        backward[back_at] = top.r___05Fring_i___05Fline;
        at = following();
        back_at = back_at + 1 == backward.size() ? 0 : back_at + 1;
        out.restarts += top.t___05Frestarted;
        out.repeated += top.t___05Frepeated;
        out.failed += top.r___05Ffailed;
        if (offering && top.t___05Fi___05Fready) {
            sent.emplace_back(word, last);
            offering = false;
            first = last;
        }
        if (control_offering && top.t___05Fcontrol___05Fready) {
            sent_controls.push_back(control);
            control_offering = false;
        }
        if (top.r___05Fo___05Fvalid && top.r___05Fo___05Fready) {
            const std::uint64_t payload = top.r___05Fo___05Fpayload;
            take(static_cast<std::uint32_t>(payload), static_cast<int>(payload >> 32));
        }
        if (top.r___05Fcontrol___05Fvalid) {
            ++out.controls;
            // A control word is protected only by its check.
            if (sent_controls.empty() || sent_controls.front() != top.r___05Fcontrol___05Fpayload) {
                ++out.invented;
                over = true;
            } else {
                sent_controls.pop_front();
            }
        }
        if (top.r___05Foverrun && !over) {
            over = true;
            // A corrupted end of a packet creates an extra packet; any other overrun is a link error.
            if (!wrong) ++out.overrun;
            else ++out.refused;
        }
        if (cycle - latest > HANGS) ++out.hanging;
        edge();
        ++cycle;
        ++out.cycles;
    }
};

}  // namespace

extern "C" void replay_run(const Part* part, Outcome* outcome) {
    *outcome = Outcome{};
    auto link = std::make_unique<Link>(*part, *outcome);
    link->run();
}
