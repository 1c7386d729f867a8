// A link: words forward and credits backward, each with its latency; rate, cuts and damage.
//
// A part of ring.cpp, which is one translation unit, so that the compiler sees all of a cycle at once.

#pragma once

#include "ring_queue.h"
#include "ring_state.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr uint64_t NEVER = UINT64_MAX;

struct Word {
    uint64_t arrival;
    uint32_t data;
    uint32_t last;
};

struct Corruption {
    uint64_t word;
    uint64_t mask;  // bits 31:0 of data; bit 32 is last
};

// Words come from node k, whose thread uses the first part; credits come from node k + 1, whose thread uses the second.
struct Link {
    struct Settings {
        uint32_t data_latency = 16;
        uint32_t credit_latency = 16;
        uint32_t rate_numerator = 1;
        uint32_t rate_denominator = 1;
        uint64_t cut_from = NEVER;
        uint64_t cut_until = NEVER;
    } settings;
    std::vector<Corruption> corruptions;  // of words to come, ascending

    struct Forward {
        uint64_t carried = 0;
        uint64_t dropped = 0;
        uint64_t corrupted = 0;
        uint64_t last = 0;
        uint64_t arrival = 0;
        uint64_t slot = 0;  // arrival of the last word in units of 1/numerator cycles, before it is rounded up
    };
    alignas(64) Forward forward;
    std::vector<Word> staged_words;

    struct Backward {
        uint64_t carried = 0;
        uint64_t dropped = 0;
        uint64_t last = 0;
        uint64_t arrival = 0;
    };
    alignas(64) Backward backward;
    std::vector<uint64_t> staged_credits;

    alignas(64) Queue<Word> words;        // popped by node k + 1
    alignas(64) Queue<uint64_t> credits;  // popped by node k

    bool is_cut(uint64_t cycle) const { return settings.cut_from <= cycle && cycle < settings.cut_until; }

    void put_word(uint64_t cycle, uint32_t data, uint32_t last) {
        const uint64_t index = forward.carried + forward.dropped;
        forward.last = cycle;
        uint64_t mask = 0;
        while (!corruptions.empty() && corruptions.front().word <= index) {
            if (corruptions.front().word == index) mask ^= corruptions.front().mask;
            corruptions.erase(corruptions.begin());
        }
        if (is_cut(cycle)) {
            ++forward.dropped;
            return;
        }
        ++forward.carried;
        if (mask) {
            ++forward.corrupted;
            data ^= static_cast<uint32_t>(mask);
            last ^= static_cast<uint32_t>(mask >> 32) & 1;
        }
        const uint64_t numerator = settings.rate_numerator;
        forward.slot = std::max((cycle + settings.data_latency) * numerator, forward.slot + settings.rate_denominator);
        forward.arrival = (forward.slot + numerator - 1) / numerator;
        staged_words.push_back({forward.arrival, data, last});
    }

    void put_credit(uint64_t cycle) {
        backward.last = cycle;
        if (is_cut(cycle)) {
            ++backward.dropped;
            return;
        }
        ++backward.carried;
        backward.arrival = std::max(cycle + settings.credit_latency, backward.arrival + 1);
        staged_credits.push_back(backward.arrival);
    }

    void move_on() {
        words.push(staged_words.data(), staged_words.size());
        staged_words.clear();
        credits.push(staged_credits.data(), staged_credits.size());
        staged_credits.clear();
    }

    void reset() {
        corruptions.clear();
        forward = {};
        backward = {};
        words.clear();
        credits.clear();
    }

    void save(VerilatedSerialize& os) const {
        os.write(&settings, sizeof settings);
        os.write(&forward, sizeof forward);
        os.write(&backward, sizeof backward);
        save_items(os, corruptions);
        words.save(os);
        credits.save(os);
    }

    void restore(VerilatedDeserialize& is) {
        is.read(&settings, sizeof settings);
        is.read(&forward, sizeof forward);
        is.read(&backward, sizeof backward);
        restore_items(is, corruptions);
        words.restore(is);
        credits.restore(is);
    }
};

}  // namespace
