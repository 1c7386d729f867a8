// A link that carries words forward and credits or a level backward, each with a latency, plus rate, cuts and faults.
//
// Included by ring.cpp, which is a single translation unit so that the compiler sees all code of a cycle.

#pragma once

#include "ports.h"
#include "ring.h"
#include "ring_faults.h"
#include "ring_queue.h"
#include "ring_state.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr uint64_t NEVER = UINT64_MAX;

// The thread of the node that sends words uses the first part of the structure. The thread of the other node, which
// returns credits or levels, uses the second part.
struct Link {
    struct Settings {
        uint32_t data_latency = 16;
        uint32_t back_latency = 16;
        uint32_t rate_numerator = 1;
        uint32_t rate_denominator = 1;
        uint64_t cut_from = NEVER;
        uint64_t cut_until = NEVER;
        RandomFaults random;
    } settings;

    struct Forward {
        uint64_t sent = 0;     // words that the node has sent
        uint64_t packets = 0;  // complete packets in these words
        uint64_t carried = 0;
        uint64_t dropped = 0;
        uint64_t corrupted = 0;
        uint64_t last = 0;
        uint64_t arrival = 0;
        uint64_t slot = 0;  // arrival of the last word in units of 1/numerator cycles, before rounding up
        RingLinkFaults faults{};
        Word swapped;  // word that waits until the next word has passed
        uint32_t swapping = 0;
        uint32_t packet = 0;         // RING_DROP, RING_DOUBLE or RING_SWAP while that fault applies to a packet
        uint32_t packet_passes = 0;  // a packet overtakes the kept packet
        uint32_t watched = 0;        // a word may be changed
    };
    alignas(64) Forward forward;
    Faults faulty_words, faulty_packets, faulty_cycles;
    std::vector<Word> kept;  // a packet that is doubled or swapped
    std::vector<Word> staged_words;

    struct Backward {
        uint64_t carried = 0;
        uint64_t dropped = 0;
        uint64_t last = 0;
        uint64_t arrival = 0;
        uint64_t faults = 0;
        uint64_t watched = 0;  // nonzero if faults may change a credit or a level
    };
    alignas(64) Backward backward;
    Faults faulty_backs;
    std::vector<uint64_t> staged_credits;
    std::vector<uint8_t> staged_levels;

    alignas(64) Queue<Word> words;        // popped by the receiver of words
    alignas(64) Queue<uint64_t> credits;  // popped by the sender of words
    Queue<uint8_t> levels;                // popped by the sender of words; one entry per cycle of the latency

    // Recorded control words and first and last words of messages.
    std::vector<RingTapped> tapped;
    struct Tap {
        bool on = false, inside = false, message = false;
    } tap;

    Link() { reset(); }

    bool is_cut(uint64_t cycle) const { return settings.cut_from <= cycle && cycle < settings.cut_until; }

    // Drives the wires with the sender's outputs in a cycle.
    void put(uint64_t cycle, bool valid, Word word) {
        if (!forward.watched) {
            if (!valid) return;
            ++forward.sent;
            forward.packets += word.last;
            carry(cycle, word);
        } else {
            put_watched(cycle, valid, word);
        }
    }

    // Drives the backward wire in a cycle, including any faults.
    void put_back(uint64_t cycle, bool level) {
        if (backward.watched) {
            uint64_t wires = settings.random.wire(cycle) >> BACK;
            faulty_backs.take(cycle, [&](const Fault&) { wires ^= 1; });
            level ^= wires;
            backward.faults += wires;
        }
#if RING_REPLAY
        staged_levels.push_back(level && !is_cut(cycle));
#else
        if (!level) return;
        backward.last = cycle;
        if (is_cut(cycle)) {
            ++backward.dropped;
            return;
        }
        ++backward.carried;
        backward.arrival = std::max(cycle + settings.back_latency, backward.arrival + 1);
        staged_credits.push_back(backward.arrival);
#endif
    }

    // Returns the level at the end of the backward wire; must be called once per cycle.
    bool take_back([[maybe_unused]] uint64_t cycle) {
#if RING_REPLAY
        const bool level = levels.front();
        levels.pop();
#else
        const bool level = !credits.empty() && credits.front() == cycle;
        if (level) credits.pop();
#endif
        return level;
    }

    void move_on() {
        words.push(staged_words.data(), staged_words.size());
        staged_words.clear();
        credits.push(staged_credits.data(), staged_credits.size());
        staged_credits.clear();
        levels.push(staged_levels.data(), staged_levels.size());
        staged_levels.clear();
        watch();
    }

    // Updates whether words or levels must be watched from now on; called between quanta.
    void watch() {
        const bool random = settings.random.threshold;
        forward.watched = random || !faulty_words.empty() || !faulty_packets.empty() || !faulty_cycles.empty()
                          || forward.swapping || forward.packet || tap.on;
        backward.watched = random || !faulty_backs.empty();
    }

    // A lower latency drops the latest levels of the backward wire; a higher latency inserts low levels after them.
    void set_latency(uint32_t data, uint32_t back) {
        settings.data_latency = data;
        settings.back_latency = back;
        levels.resize(RING_REPLAY ? back : 0, 0);
    }

    // Returns the oldest recorded words; only call while nothing runs.
    uint64_t take_tapped(bool on, RingTapped* to, uint64_t most) {
        tap.on = on;
        watch();
        const auto count = std::min<uint64_t>(most, tapped.size());
        std::copy_n(tapped.begin(), count, to);
        tapped.erase(tapped.begin(), tapped.begin() + count);
        return count;
    }

    void add(const Fault& fault, uint32_t scope) {
        Faults& cycles = fault.wire == BACK ? faulty_backs : faulty_cycles;
        (scope == RING_WORD ? faulty_words : scope == RING_PACKET ? faulty_packets : cycles).add(fault);
        watch();
    }

    void set_random(const RandomFaults& random) {
        settings.random = random;
        watch();
    }

    void reset() {
        for (Faults* faults : {&faulty_words, &faulty_packets, &faulty_cycles, &faulty_backs}) faults->clear();
        forward = {};
        backward = {};
        kept.clear();
        tapped.clear();
        tap = {};
        words.clear();
        credits.clear();
        levels.clear();
        levels.resize(RING_REPLAY ? settings.back_latency : 0, 0);
        watch();
    }

    void save(VerilatedSerialize& os) const {
        os.write(&settings, sizeof settings);
        os.write(&forward, sizeof forward);
        os.write(&backward, sizeof backward);
        for (const Faults* faults : {&faulty_words, &faulty_packets, &faulty_cycles, &faulty_backs}) faults->save(os);
        save_items(os, kept);
        words.save(os);
        credits.save(os);
        levels.save(os);
    }

    void restore(VerilatedDeserialize& is) {
        is.read(&settings, sizeof settings);
        is.read(&forward, sizeof forward);
        is.read(&backward, sizeof backward);
        for (Faults* faults : {&faulty_words, &faulty_packets, &faulty_cycles, &faulty_backs}) faults->restore(is);
        restore_items(is, kept);
        words.restore(is);
        credits.restore(is);
        levels.restore(is);
    }

private:
    // Records the words that a node sends, before any faults. Messages are identified by a type that no packet has.
    void take_down(uint64_t cycle, const Word& word) {
        const bool first = !tap.inside;
        if (!word.kind && first) tap.message = (word.data & 15) == 3;
        if (word.kind || (tap.message && (first || word.last))) {
            tapped.push_back({cycle, word.data, word.last + 2u * word.kind});
        }
        if (!word.kind) tap.inside = !word.last;
    }

    void put_watched(uint64_t cycle, bool valid, Word word) {
        if (valid && tap.on) take_down(cycle, word);
        uint64_t wires = settings.random.wire(cycle) & ~(uint64_t{1} << BACK);
        faulty_cycles.take(cycle, [&](const Fault& fault) { wires ^= uint64_t{1} << fault.wire; });
        uint32_t action = RING_FLIP, packet = RING_FLIP;
        bool ends = false;
        if (valid) {
            faulty_words.take(forward.sent, [&](const Fault& fault) {
                if (fault.action == RING_FLIP) wires ^= uint64_t{1} << fault.wire;
                else action = fault.action;
            });
            if (!forward.packet) {
                faulty_packets.take(forward.packets, [&](const Fault& fault) { packet = fault.action; });
            }
            ends = word.last;
            ++forward.sent;
            forward.packets += ends;
        }
        const bool sent = valid;
        if (wires) {
            valid ^= wires >> VALID & 1;
            if (sent || valid) count(wires);
            word.flip(wires);
            forward.corrupted += sent && valid && !is_cut(cycle);
            if (sent && !valid) {
                forward.last = cycle;
                ++forward.dropped;
            }
        }
        // A word lost or created on the wires belongs to no packet, but a packet's end counts even if it is lost.
        if (sent) begin_packet(packet);
        if (valid) put_word(cycle, word, sent ? action : RING_FLIP);
        if (sent && ends) end_packet(cycle);
    }

    void put_word(uint64_t cycle, const Word& word, uint32_t action) {
        if (action == RING_DROP) {
            ++forward.faults.words_dropped;
            ++forward.dropped;
            forward.last = cycle;
        } else if (action == RING_SWAP && !forward.swapping) {
            ++forward.faults.words_swapped;
            forward.swapping = 1;
            forward.swapped = word;
        } else {
            in_packet(cycle, word);
            if (forward.swapping) {
                forward.swapping = 0;
                in_packet(cycle, forward.swapped);
            }
            if (action == RING_DOUBLE) {
                ++forward.faults.words_doubled;
                in_packet(cycle, word);
            }
        }
    }

    void begin_packet(uint32_t action) {
        if (action == RING_FLIP) return;
        forward.packet = action;
        forward.packet_passes = 0;
    }

    void in_packet(uint64_t cycle, const Word& word) {
        const bool swapped = forward.packet == RING_SWAP && !forward.packet_passes;
        if (forward.packet == RING_DOUBLE || swapped) kept.push_back(word);
        if (forward.packet == RING_DROP) {
            ++forward.dropped;
            forward.last = cycle;
        } else if (!swapped) {
            carry(cycle, word);
        }
    }

    void end_packet(uint64_t cycle) {
        if (!forward.packet) return;
        if (forward.packet == RING_SWAP && !forward.packet_passes) {
            forward.packet_passes = 1;
            return;
        }
        uint64_t& counter = forward.packet == RING_DROP ? forward.faults.packets_dropped
                          : forward.packet == RING_DOUBLE ? forward.faults.packets_doubled
                                                          : forward.faults.packets_swapped;
        ++counter;
        forward.packet = 0;
        for (const Word& word : kept) carry(cycle, word);
        kept.clear();
    }

    void count(uint64_t wires) {
        const auto add = [wires](uint64_t& counter, uint32_t from, uint32_t bits) {
            counter += __builtin_popcountll(wires >> from & ((uint64_t{1} << bits) - 1));
        };
        add(forward.faults.data, 0, 32);
        add(forward.faults.last, LAST, 1);
        add(forward.faults.valid, VALID, 1);
#if RING_REPLAY
        add(forward.faults.kind, KIND, 1);
        add(forward.faults.check, CHECK, 8);
#endif
    }

    void carry(uint64_t cycle, Word word) {
        forward.last = cycle;
        if (is_cut(cycle)) {
            ++forward.dropped;
            return;
        }
        ++forward.carried;
        const uint64_t numerator = settings.rate_numerator;
        forward.slot = std::max((cycle + settings.data_latency) * numerator, forward.slot + settings.rate_denominator);
        forward.arrival = (forward.slot + numerator - 1) / numerator;
        word.arrival = forward.arrival;
        staged_words.push_back(word);
    }
};

}  // namespace
