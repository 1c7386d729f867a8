// Verilated nodes and the links between them, run without Python.
//
// A link leads from a port of a node to a port of another or the same node, and carries words forward and credits, or the
// level of a line, backward. A quantum is at most as long as the smallest latency of any link, so nothing enters and
// leaves a link in the same quantum: within a quantum, nodes share nothing, and each node may be stepped by its own
// thread. The nodes' outputs are staged, and moved to the links between quanta. Nodes may therefore also be in
// different processes: see ring_part.h.

#include "ring.h"

#include "ring_crew.h"
#include "ring_kind.h"
#include "ring_link.h"
#include "ring_node.h"
#include "ring_part.h"
#include "ring_state.h"
#include "verilated.h"
#include "verilated_save.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#if RING_BATCHED
// Evaluates, on this thread, the nodes that have a rising clock edge: see batch.py.
void ring_batch();
#endif

namespace {

thread_local std::string error;

// The nodes of this library.
#if RING_BATCHED
const Kind own_kind{Node::create, ring_batch};
#else
const Kind own_kind{Node::create, nullptr};
#endif

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The ring
// ---------------------------------------------------------------------------------------------------------------------

struct Ring {
    std::vector<std::unique_ptr<VerilatedContext>> contexts;
    std::vector<std::unique_ptr<Link>> links;
    std::vector<std::unique_ptr<AnyNode>> nodes;  // null for nodes in another process
    Part part;
    std::vector<const Kind*> kinds;  // kind of each node
    bool mixed = false;              // whether some nodes belong to other libraries
    std::unique_ptr<Crew> crew;
    Pace pace;
    std::map<const Kind*, std::vector<uint8_t>> initial;  // for each kind, the state of a node after reset
    std::vector<uint8_t> saved;
    // A run that waits for a packet ends at a multiple of the grid, so that its length does not depend on the quantum,
    // threads or processes.
    uint64_t grid = 16;
    uint64_t quantum = UINT32_MAX;
    uint64_t cycle = 0;
#if VM_TRACE
    std::unique_ptr<VerilatedFstC> wave;
#endif

    // Four numbers per link: the node and port that send its words, and the node and port that receive them.
    Ring(uint32_t count, uint32_t threads, const uint32_t* ends, uint32_t link_count, const void* const* of_nodes,
         const RingPart* given)
        : nodes(count), part(given, count), crew(new Crew{threads}) {
#ifdef NATIVE_ARITHMETIC
        if (const char* rule = native::broken()) {
            throw std::runtime_error(std::string("native arithmetic must ") + rule + ", and as it was compiled it "
                                     "does not; CXX must name a compiler without options such as -ffast-math");
        }
#endif
        std::vector<Links> from(count, Links{}), to(count, Links{});
        for (uint32_t index = 0; index < link_count; ++index, ends += 4) {
            links.emplace_back(new Link);
            to[ends[0]][ends[1]] = links.back().get();
            from[ends[2]][ends[3]] = links.back().get();
            part.add(links.back().get(), ends[0], ends[2]);
        }
        for (uint32_t index = 0; index < count; ++index) {
            const Kind* const kind = static_cast<const Kind*>(of_nodes[index]);
            kinds.push_back(kind);
            if (!part.has(index)) continue;
            // Nodes run ahead of each other, so each has its own time; with a waveform, all nodes share one time.
            if (contexts.empty() || !VM_TRACE) {
                contexts.emplace_back(new VerilatedContext);
                contexts.back()->fatalOnError(false);
                if (VM_TRACE) contexts.back()->traceEverOn(true);
            }
            nodes[index].reset(kind->create(contexts.back().get(), ("node" + std::to_string(index)).c_str(),
                                            from[index].data(), to[index].data()));
            mixed |= kind != &own_kind;
            if (initial.contains(kind)) continue;
            Saver os{initial[kind]};
            nodes[index]->save_model(os);
            os.flush();
        }
    }

    void reset() {
        cycle = 0;
        for (auto& link : links) link->reset();
        for (size_t index = part.first(); index < part.last(); ++index) {
            nodes[index]->clear();
            const std::vector<uint8_t>& bytes = initial[kinds[index]];
            Restorer is{bytes.data(), bytes.size()};
            nodes[index]->restore_model(is);
        }
    }

    uint64_t smallest_latency() const {
        uint64_t smallest = NEVER;
        for (const auto& link : links) {
            smallest = std::min<uint64_t>({smallest, link->settings.data_latency, link->settings.back_latency});
        }
        return smallest;
    }

    // Steps a range of nodes from this library only, so that the compiler knows their functions.
    void step_own(size_t first, size_t last, uint64_t until) {
        const auto own = [this](size_t index) -> Node& { return static_cast<Node&>(*nodes[index]); };
#if RING_BATCHED
        for (uint64_t now = cycle; now < until; ++now) {
            for (size_t index = first; index < last; ++index) {
                Node& node = own(index);
                node.enter();
                node.settle(now);
                node.clock();
            }
            ring_batch();
        }
#else
        for (size_t index = first; index < last; ++index) {
            Node& node = own(index);
            node.enter();
            for (uint64_t now = cycle; now < until; ++now) {
                node.settle(now);
                node.clock();
            }
        }
#endif
    }

    // Steps some nodes from any libraries: all nodes of a library through all cycles, then all nodes of the next
    // library, so that the code of a library stays in the caches.
    void step_mixed(size_t first, size_t last, uint64_t until) {
        std::map<const Kind*, std::vector<AnyNode*>> groups;
        for (size_t index = first; index < last; ++index) groups[kinds[index]].push_back(nodes[index].get());
        for (const auto& [kind, members] : groups) {
            for (uint64_t now = cycle; now < until; ++now) {
                for (AnyNode* const node : members) {
                    node->enter();
                    node->settle(now);
                    node->clock();
                }
                if (kind->batch) kind->batch();
            }
        }
    }

    void step(uint64_t until) {
        const size_t count = part.last() - part.first();
        const size_t threads = pace.alone() ? 1 : crew->size();
        const auto begun = Clock::now();
        const auto job = [=, this](uint32_t thread) {
#ifdef NATIVE_ARITHMETIC
            const native::Environment environment;
#endif
            const size_t first = part.first() + count * thread / threads;
            const size_t last = part.first() + count * (thread + 1) / threads;
            if (mixed) {
                step_mixed(first, last, until);
            } else {
                step_own(first, last, until);
            }
        };
        if (threads == 1) {
            job(0);
        } else {
            crew->run(job);
        }
        if (crew->size() > 1) pace.add(until - cycle, Clock::now() - begun);
        part.move_on();
        cycle = until;
    }

#if VM_TRACE
    // Steps all nodes cycle by cycle, because they share the time of the waveform.
    void step_traced() {
#ifdef NATIVE_ARITHMETIC
        const native::Environment environment;
#endif
        for (auto& node : nodes) {
            node->enter();
            node->settle(cycle);
        }
        wave->dump(10 * cycle);
        for (auto& node : nodes) node->clock();
        wave->dump(10 * cycle + 5);
        part.move_on();
        ++cycle;
    }
#endif

    // Whether the awaited packet of a node is complete, in any process; throws if a gateware assertion has failed.
    bool has_ended(int32_t until_packet_at, bool stepped) {
        uint64_t found = until_packet_at >= 0 && part.has(until_packet_at) && nodes[until_packet_at]->packet_length() >= 0;
        for (uint32_t index = part.first(); stepped && index < part.last(); ++index) {
            if (!nodes[index]->finished()) continue;
            found = 2 * (nodes.size() - index);  // the first node has the largest value
            break;
        }
        found = part.agree(found);
        if (found < 2) return found;
        throw std::runtime_error("an assertion in the gateware of node " + std::to_string(nodes.size() - found / 2)
                                 + " failed before cycle " + std::to_string(cycle));
    }

    uint64_t run(uint64_t cycles, int32_t until_packet_at) {
        const uint64_t start = cycle;
        const uint64_t limit = start + cycles;
        const uint64_t ahead = std::min(quantum, smallest_latency());
        bool ended = until_packet_at >= 0 && has_ended(until_packet_at, false);
        while (cycle < limit && !ended) {
            const uint64_t block = std::min(limit, (cycle / grid + 1) * grid);
            while (cycle < block) {
#if VM_TRACE
                if (wave) {
                    step_traced();
                    continue;
                }
#endif
                step(std::min(block, cycle + ahead));
            }
            ended = has_ended(until_packet_at, true);
        }
        return cycle - start;
    }

    void save() {
        saved.clear();
        Saver os{saved};
        os << cycle;
        for (auto& link : links) link->save(os);
        for (uint32_t index = part.first(); index < part.last(); ++index) nodes[index]->save(os);
        os.flush();
    }

    void restore(const uint8_t* bytes, uint64_t count) {
        Restorer is{bytes, count};
        is >> cycle;
        for (auto& link : links) link->restore(is);
        for (uint32_t index = part.first(); index < part.last(); ++index) nodes[index]->restore(is);
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// C interface
// ---------------------------------------------------------------------------------------------------------------------

namespace {

// Turns exceptions into error results, since none may leave the library.
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
const void* ring_kind() { return &own_kind; }

uint32_t ring_ports() { return RING_PORTS; }
int32_t ring_replay() { return RING_REPLAY; }

Ring* ring_create(uint32_t nodes, uint32_t threads, const uint32_t* ends, uint32_t links, const void* const* kinds,
                  const RingPart* part) {
    Ring* ring = nullptr;
    guarded([&] {
        ring = new Ring{nodes, threads, ends, links, kinds, part};
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
void ring_set_grid(Ring* ring, uint32_t cycles) { ring->grid = cycles; }
uint64_t ring_cycle(const Ring* ring) { return ring->cycle; }

int64_t ring_run(Ring* ring, uint64_t cycles, int32_t until_packet_at) {
    return guarded([&] { return static_cast<int64_t>(ring->run(cycles, until_packet_at)); });
}

void ring_send(Ring* ring, uint32_t node, const uint32_t* words, uint64_t count) {
    ring->nodes[node]->send(words, count);
}

int64_t ring_packet_length(const Ring* ring, uint32_t node) { return ring->nodes[node]->packet_length(); }

void ring_receive(Ring* ring, uint32_t node, uint32_t* words) { ring->nodes[node]->receive(words); }

void ring_node_status(const Ring* ring, uint32_t node, RingNodeStatus* status) { *status = ring->nodes[node]->status(); }

uint32_t ring_far(const Ring* ring, uint32_t node) { return ring->nodes[node]->far_lanes(); }

void ring_far_speed(Ring* ring, uint32_t node, uint32_t latency, uint32_t numerator, uint32_t denominator) {
    ring->nodes[node]->far_speed(latency, numerator, denominator);
}

void ring_far_memory(const Ring* ring, uint32_t node, RingMemory* memory, uint64_t* words) {
    ring->nodes[node]->far_memory(memory, words);
}

uint32_t ring_memories(const Ring* ring, uint32_t node) {
    return static_cast<uint32_t>(ring->nodes[node]->memories().size());
}

void ring_memory(const Ring* ring, uint32_t node, uint32_t space, RingMemory* memory) {
    *memory = ring->nodes[node]->memories()[space];
}

void ring_owners(const Ring* ring, uint32_t node, RingMemory* memory) {
    const auto owners = ring->nodes[node]->owners();
    *memory = owners.empty() ? RingMemory{} : owners.front();
}

int32_t ring_counters(const Ring* ring, uint32_t node, uint32_t* values) {
    return ring->nodes[node]->counters(values);
}

void ring_link_latency(Ring* ring, uint32_t link, uint32_t data, uint32_t credit) {
    ring->links[link]->set_latency(data, credit);
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

void ring_link_fault(Ring* ring, uint32_t link, uint32_t scope, uint64_t at, uint32_t action, uint32_t wire) {
    ring->links[link]->add({at, action, wire}, scope);
}

void ring_link_random(Ring* ring, uint32_t link, uint64_t threshold, uint64_t seed) {
    ring->links[link]->set_random({threshold, splitmix64(splitmix64(seed) ^ link)});
}

void ring_link_faults(const Ring* ring, uint32_t link, RingLinkFaults* faults) {
    const Link& from = *ring->links[link];
    *faults = from.forward.faults;
    faults->back = from.backward.faults;
}

void ring_link_status(const Ring* ring, uint32_t link, RingLinkStatus* status) {
    const Link& from = *ring->links[link];
    *status = {from.settings.data_latency, from.settings.back_latency,
               from.settings.rate_numerator, from.settings.rate_denominator,
               from.settings.cut_from, from.settings.cut_until,
               from.forward.sent, from.forward.packets,
               from.forward.carried, from.forward.dropped, from.forward.corrupted, from.words.size(),
               from.backward.carried, from.backward.dropped, from.credits.size(),
               from.forward.last, from.backward.last};
}

uint64_t ring_link_tap(Ring* ring, uint32_t link, uint32_t on, RingTapped* words, uint64_t most) {
    return ring->links[link]->take_tapped(on, words, most);
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
        for (auto& node : ring->nodes) node->trace(ring->wave.get());
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
