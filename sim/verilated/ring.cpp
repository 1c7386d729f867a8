// A ring of Verilated nodes and the links between them, stepped without Python.
//
// Link k leads from node k to node k + 1 and carries words forward and credits backward. Nothing that enters a link comes
// out of it in the same quantum, a quantum being at most the smallest latency of any link; within one, nodes share nothing
// and each may be stepped by its own thread. What they put on the links is staged, and moved on between quanta.

#include "ring.h"

#include "Vnode.h"
#include "Vnode___024root.h"
#include "memories.h"
#include "verilated.h"
#include "verilated_save.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if RING_BATCHED
// Evaluates the nodes whose clock has risen on this thread: see batch.py.
void ring_batch();
#endif

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t NEVER = UINT64_MAX;

// A run that waits for a packet ends at a multiple of this many cycles, so that its length depends neither on the quantum
// nor on the number of threads.
constexpr uint64_t GRID = 16;

thread_local std::string error;

// ---------------------------------------------------------------------------------------------------------------------
// State as bytes
// ---------------------------------------------------------------------------------------------------------------------

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
        // Reads look ahead: the last of them finds zeros behind the state.
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

// ---------------------------------------------------------------------------------------------------------------------
// First in, first out, in one block of memory
// ---------------------------------------------------------------------------------------------------------------------

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
        // Moving the rest to the front costs no more than the pops that went before.
        if (m_first * 2 >= m_items.size()) {
            m_items.erase(m_items.begin(), m_items.begin() + m_first);
            m_first = 0;
        }
    }

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

// ---------------------------------------------------------------------------------------------------------------------
// Links
// ---------------------------------------------------------------------------------------------------------------------

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

// ---------------------------------------------------------------------------------------------------------------------
// Nodes
// ---------------------------------------------------------------------------------------------------------------------

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

class alignas(64) Node {
public:
    Node(VerilatedContext* context, const std::string& name, Link& from, Link& to)
        : m_model(new Vnode{context, name.c_str()}), m_from(from), m_to(to) {
        m_model->eval();
    }
    ~Node() { m_model->final(); }

    // Empties queues and counters; the node itself is reset by restore_model().
    void clear() {
        input = {};
        output = {};
        waits = last_taken = last_given = 0;
    }

    // Makes this node's context that of the calling thread, as it must be where gateware stops the simulation.
    void enter() { Verilated::threadContextp(m_model->contextp()); }

    // Everything a cycle shows before its clock edge, and what the links and the host see of it.
    void settle(uint64_t cycle) {
        Queue<Word>& words = m_from.words;
        m_model->ring_i___05Fvalid = !words.empty() && words.front().arrival == cycle;
        if (m_model->ring_i___05Fvalid) {
            m_model->ring_i___05Fdata = words.front().data;
            m_model->ring_i___05Flast = words.front().last;
            words.pop();
        }
        Queue<uint64_t>& credits = m_to.credits;
        m_model->ring_o___05Fcredit = !credits.empty() && credits.front() == cycle;
        if (m_model->ring_o___05Fcredit) credits.pop();
        m_model->host_i___05Fvalid = !input.words.empty();
        if (m_model->host_i___05Fvalid) {
            const uint64_t last = input.taken + 1 == input.ends.front();
            m_model->host_i___05Fpayload = last << 32 | input.words.front();
        }

        m_model->clk = 0;
        m_model->eval();

        if (m_model->ring_o___05Fvalid) m_to.put_word(cycle, m_model->ring_o___05Fdata, m_model->ring_o___05Flast);
        if (m_model->ring_i___05Fcredit) m_from.put_credit(cycle);
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
#undef RING_MEMORY
    }

    void save_model(VerilatedSerialize& os) { os << *m_model; }
    void restore_model(VerilatedDeserialize& is) { is >> *m_model; }
    bool finished() const { return m_model->contextp()->gotFinish(); }

    void save(VerilatedSerialize& os) {
        input.save(os);
        output.save(os);
        os << waits << last_taken << last_given;
        save_model(os);
    }

    void restore(VerilatedDeserialize& is) {
        input.restore(is);
        output.restore(is);
        is >> waits >> last_taken >> last_given;
        restore_model(is);
    }

    HostQueue input;
    HostQueue output;
    uint64_t waits = 0;
    uint64_t last_taken = 0;
    uint64_t last_given = 0;

private:
    std::unique_ptr<Vnode> m_model;
    Link& m_from;
    Link& m_to;
};

// ---------------------------------------------------------------------------------------------------------------------
// Threads
// ---------------------------------------------------------------------------------------------------------------------

// Runs a job on every thread of a fixed number, the caller's among them. Who waits spins for about as long as a job takes,
// and then sleeps, so that on a busy machine it does not take the core from the thread it waits for.
class Crew {
public:
    explicit Crew(uint32_t threads) {
        for (uint32_t index = 1; index < threads; ++index) m_threads.emplace_back([this, index] { work(index); });
    }

    ~Crew() {
        m_job = nullptr;
        start();
        for (std::thread& thread : m_threads) thread.join();
    }

    uint32_t size() const { return static_cast<uint32_t>(m_threads.size()) + 1; }

    template <typename Job> void run(const Job& job) {
        m_job = [](const void* object, uint32_t index) { (*static_cast<const Job*>(object))(index); };
        m_object = &job;
        m_busy.store(static_cast<uint32_t>(m_threads.size()), std::memory_order_relaxed);
        start();
        job(0);
        while (const uint32_t busy = m_busy.load(std::memory_order_acquire)) wait_for_change(m_busy, busy);
    }

private:
    static constexpr uint32_t SPINS = 2000;

    static void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
        for (uint32_t spin = 0; spin < SPINS; ++spin) {
            if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        value.wait(old, std::memory_order_acquire);
    }

    void start() {
        m_ticket.fetch_add(1, std::memory_order_release);
        m_ticket.notify_all();
    }

    void work(uint32_t index) {
        for (uint32_t seen = 0;; ++seen) {
            wait_for_change(m_ticket, seen);
            if (!m_job) return;
            m_job(m_object, index);
            m_busy.fetch_sub(1, std::memory_order_release);
            m_busy.notify_one();
        }
    }

    void (*m_job)(const void*, uint32_t) = nullptr;
    const void* m_object = nullptr;
    alignas(64) std::atomic<uint32_t> m_ticket{0};
    alignas(64) std::atomic<uint32_t> m_busy{0};
    std::vector<std::thread> m_threads;
};

// Chooses between all threads and the caller's alone, by what either has done lately: where another process has one of the
// cores, threads that wait for each other all the time are slower than one. The choice is tried anew now and then, and
// changes no cycle.
class Pace {
public:
    bool alone() const { return m_alone; }

    void add(uint64_t cycles, Clock::duration time) {
        m_cycles += cycles;
        m_time += time;
        if (m_time < (m_trying ? TRIAL : m_interval)) return;
        const double rate = static_cast<double>(m_cycles) / static_cast<double>(m_time.count());
        m_cycles = 0;
        m_time = {};
        if (!m_trying) {
            m_rate = rate;
        } else if (rate > MARGIN * m_rate) {
            m_interval = SHORTEST;
        } else {
            m_interval = std::min(2 * m_interval, LONGEST);
            m_alone = !m_alone;
        }
        if (!m_trying) m_alone = !m_alone;
        m_trying = !m_trying;
    }

private:
    static constexpr Clock::duration TRIAL = std::chrono::milliseconds{20};
    static constexpr Clock::duration SHORTEST = std::chrono::milliseconds{250};
    static constexpr Clock::duration LONGEST = std::chrono::seconds{4};
    static constexpr double MARGIN = 1.05;

    bool m_alone = false;
    bool m_trying = false;
    uint64_t m_cycles = 0;  // of the present choice
    Clock::duration m_time{};
    Clock::duration m_interval = SHORTEST;
    double m_rate = 0;  // of the choice that is tried against
};

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The ring
// ---------------------------------------------------------------------------------------------------------------------

struct Ring {
    std::vector<std::unique_ptr<VerilatedContext>> contexts;
    std::vector<std::unique_ptr<Link>> links;
    std::vector<std::unique_ptr<Node>> nodes;
    std::unique_ptr<Crew> crew;
    Pace pace;
    std::vector<uint8_t> initial;  // any node, as it is after reset
    std::vector<uint8_t> saved;
    uint64_t quantum = GRID;
    uint64_t cycle = 0;
#if VM_TRACE
    std::unique_ptr<VerilatedFstC> wave;
#endif

    // Link k leads away from node k, and link incoming[k] to it.
    Ring(uint32_t count, uint32_t threads, const uint32_t* incoming) : crew(new Crew{threads}) {
        for (uint32_t index = 0; index < count; ++index) {
            // Nodes run ahead of each other, so each has its own time; a waveform has only one.
            if (contexts.empty() || !VM_TRACE) {
                contexts.emplace_back(new VerilatedContext);
                contexts.back()->fatalOnError(false);
                if (VM_TRACE) contexts.back()->traceEverOn(true);
            }
            links.emplace_back(new Link);
        }
        for (uint32_t index = 0; index < count; ++index) {
            nodes.emplace_back(new Node{contexts[index % contexts.size()].get(), "node" + std::to_string(index),
                                        *links[incoming[index]], *links[index]});
        }
        Saver os{initial};
        nodes.front()->save_model(os);
        os.flush();
    }

    void reset() {
        cycle = 0;
        for (auto& link : links) link->reset();
        for (auto& node : nodes) {
            node->clear();
            Restorer is{initial.data(), initial.size()};
            node->restore_model(is);
        }
    }

    uint64_t smallest_latency() const {
        uint64_t smallest = NEVER;
        for (const auto& link : links) {
            smallest = std::min<uint64_t>({smallest, link->settings.data_latency, link->settings.credit_latency});
        }
        return smallest;
    }

    void step(uint64_t until) {
        const size_t count = nodes.size();
        const size_t threads = pace.alone() ? 1 : crew->size();
        const auto begun = Clock::now();
        const auto job = [=, this](uint32_t thread) {
            const auto first = nodes.begin() + count * thread / threads;
            const auto last = nodes.begin() + count * (thread + 1) / threads;
#if RING_BATCHED
            for (uint64_t now = cycle; now < until; ++now) {
                for (auto node = first; node != last; ++node) {
                    (*node)->enter();
                    (*node)->settle(now);
                    (*node)->clock();
                }
                ring_batch();
            }
#else
            for (auto node = first; node != last; ++node) {
                (*node)->enter();
                for (uint64_t now = cycle; now < until; ++now) {
                    (*node)->settle(now);
                    (*node)->clock();
                }
            }
#endif
        };
        if (threads == 1) {
            job(0);
        } else {
            crew->run(job);
        }
        for (auto& link : links) link->move_on();
        if (crew->size() > 1) pace.add(until - cycle, Clock::now() - begun);
        cycle = until;
    }

#if VM_TRACE
    // All nodes in one cycle, so that they share the time of the waveform.
    void step_traced() {
        nodes.front()->enter();
        for (auto& node : nodes) node->settle(cycle);
        wave->dump(10 * cycle);
        for (auto& node : nodes) node->clock();
        wave->dump(10 * cycle + 5);
        for (auto& link : links) link->move_on();
        ++cycle;
    }
#endif

    void check_finished() const {
        for (size_t index = 0; index < nodes.size(); ++index) {
            if (nodes[index]->finished()) {
                throw std::runtime_error("an assertion in the gateware of node " + std::to_string(index)
                                         + " failed before cycle " + std::to_string(cycle));
            }
        }
    }

    uint64_t run(uint64_t cycles, int32_t until_packet_at) {
        const uint64_t start = cycle;
        const uint64_t limit = start + cycles;
        const uint64_t ahead = std::min(quantum, smallest_latency());
        while (cycle < limit) {
            if (until_packet_at >= 0 && !nodes[until_packet_at]->output.ends.empty()) break;
            const uint64_t block = std::min(limit, (cycle / GRID + 1) * GRID);
            while (cycle < block) {
#if VM_TRACE
                if (wave) {
                    step_traced();
                    continue;
                }
#endif
                step(std::min(block, cycle + ahead));
            }
            check_finished();
        }
        return cycle - start;
    }

    void save() {
        saved.clear();
        Saver os{saved};
        os << cycle;
        for (auto& link : links) link->save(os);
        for (auto& node : nodes) node->save(os);
        os.flush();
    }

    void restore(const uint8_t* bytes, uint64_t count) {
        Restorer is{bytes, count};
        is >> cycle;
        for (auto& link : links) link->restore(is);
        for (auto& node : nodes) node->restore(is);
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// C interface
// ---------------------------------------------------------------------------------------------------------------------

namespace {

// No exception leaves the library.
template <typename Call> int64_t guarded(const Call& call) {
    try {
        return call();
    } catch (const std::exception& exception) {
        error = exception.what();
        return -1;
    }
}

}  // namespace

extern "C" {

const char* ring_error() { return error.c_str(); }
int32_t ring_batched() { return RING_BATCHED; }

Ring* ring_create(uint32_t nodes, uint32_t threads, const uint32_t* incoming) {
    Ring* ring = nullptr;
    guarded([&] {
        ring = new Ring{nodes, threads, incoming};
        return 0;
    });
    return ring;
}

void ring_destroy(Ring* ring) {
    ring_wave_close(ring);
    delete ring;
}

void ring_reset(Ring* ring) { ring->reset(); }
void ring_set_threads(Ring* ring, uint32_t threads) {
    ring->crew.reset(new Crew{threads});
    ring->pace = {};
}
void ring_set_quantum(Ring* ring, uint32_t cycles) { ring->quantum = cycles; }
uint64_t ring_cycle(const Ring* ring) { return ring->cycle; }

int64_t ring_run(Ring* ring, uint64_t cycles, int32_t until_packet_at) {
    return guarded([&] { return static_cast<int64_t>(ring->run(cycles, until_packet_at)); });
}

void ring_send(Ring* ring, uint32_t node, const uint32_t* words, uint64_t count) {
    HostQueue& input = ring->nodes[node]->input;
    input.words.push(words, count);
    input.put += count;
    input.ends.push(input.put);
}

int64_t ring_packet_length(const Ring* ring, uint32_t node) {
    const HostQueue& output = ring->nodes[node]->output;
    return output.ends.empty() ? -1 : static_cast<int64_t>(output.ends.front() - output.taken);
}

void ring_receive(Ring* ring, uint32_t node, uint32_t* words) {
    HostQueue& output = ring->nodes[node]->output;
    const uint64_t count = output.ends.front() - output.taken;
    std::copy_n(output.words.begin(), count, words);
    output.words.pop(count);
    output.ends.pop();
    output.taken += count;
}

void ring_node_status(const Ring* ring, uint32_t node, RingNodeStatus* status) {
    const Node& from = *ring->nodes[node];
    *status = {from.input.words.size(), from.input.ends.size(), from.output.words.size(), from.output.ends.size(),
               from.input.taken, from.output.put, from.waits, from.last_taken, from.last_given};
}

uint32_t ring_memories(const Ring* ring) { return static_cast<uint32_t>(ring->nodes.front()->memories().size()); }

void ring_memory(const Ring* ring, uint32_t node, uint32_t space, RingMemory* memory) {
    *memory = ring->nodes[node]->memories()[space];
}

void ring_link_latency(Ring* ring, uint32_t link, uint32_t data, uint32_t credit) {
    ring->links[link]->settings.data_latency = data;
    ring->links[link]->settings.credit_latency = credit;
}

void ring_link_rate(Ring* ring, uint32_t link, uint32_t numerator, uint32_t denominator) {
    Link& to = *ring->links[link];
    to.settings.rate_numerator = numerator;
    to.settings.rate_denominator = denominator;
    to.forward.slot = to.forward.arrival * numerator;
}

void ring_link_cut(Ring* ring, uint32_t link, uint64_t from, uint64_t until) {
    ring->links[link]->settings.cut_from = from;
    ring->links[link]->settings.cut_until = until;
}

void ring_link_corrupt(Ring* ring, uint32_t link, uint64_t word, uint64_t mask) {
    std::vector<Corruption>& corruptions = ring->links[link]->corruptions;
    const auto later = [](uint64_t index, const Corruption& corruption) { return index < corruption.word; };
    corruptions.insert(std::upper_bound(corruptions.begin(), corruptions.end(), word, later), {word, mask});
}

void ring_link_status(const Ring* ring, uint32_t link, RingLinkStatus* status) {
    const Link& from = *ring->links[link];
    *status = {from.settings.data_latency, from.settings.credit_latency,
               from.settings.rate_numerator, from.settings.rate_denominator,
               from.settings.cut_from, from.settings.cut_until,
               from.forward.carried, from.forward.dropped, from.forward.corrupted, from.words.size(),
               from.backward.carried, from.backward.dropped, from.credits.size(),
               from.forward.last, from.backward.last};
}

int64_t ring_save(Ring* ring) {
    return guarded([&] {
        ring->save();
        return static_cast<int64_t>(ring->saved.size());
    });
}

void ring_saved(const Ring* ring, uint8_t* bytes) { std::copy(ring->saved.begin(), ring->saved.end(), bytes); }

int64_t ring_restore(Ring* ring, const uint8_t* bytes, uint64_t count) {
    return guarded([&] {
        ring->restore(bytes, count);
        return 0;
    });
}

int64_t ring_wave_open(Ring* ring, const char* path) {
    return guarded([&] {
#if VM_TRACE
        ring->wave.reset(new VerilatedFstC);
        for (auto& node : ring->nodes) node->model().trace(ring->wave.get(), 99);
        ring->wave->open(path);
        return 0;
#else
        (void)ring;
        throw std::runtime_error(std::string("this library was built without waveforms, so it cannot write ") + path);
        return 0;
#endif
    });
}

int64_t ring_wave_close(Ring* ring) {
    return guarded([&] {
#if VM_TRACE
        if (ring->wave) ring->wave->close();
        ring->wave.reset();
#else
        (void)ring;
#endif
        return 0;
    });
}

}
