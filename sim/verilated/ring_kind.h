// Nodes of any library: those of a ring may come from several, whose gateware differs. The library whose ring it is steps
// them all, and each evaluates its own.
//
// All libraries are compiled from one harness by one compiler, and so agree on what is declared here and in ring_link.h.
//
// A part of ring.cpp, which is one translation unit, so that the compiler sees all of a cycle at once.

#pragma once

#include "ring.h"
#include "ring_link.h"
#include "verilated.h"
#include "verilated_save.h"

#include <cstdint>
#include <vector>

class VerilatedFstC;

// A node between its links, with the queues of its host port.
//
// Not in an unnamed namespace, where a compiler may take the one class that it sees derived from this for the only one.
class AnyNode {
public:
    virtual ~AnyNode() = default;

    // Empties queues and counters; the node itself is reset by restore_model().
    virtual void clear() = 0;
    // Makes this node's context that of the calling thread, as it must be where gateware stops the simulation.
    virtual void enter() = 0;
    // Everything a cycle shows before its clock edge, and what the links and the host see of it.
    virtual void settle(uint64_t cycle) = 0;
    // The clock edge; a node that is evaluated together with others is only noted for the batch of its kind.
    virtual void clock() = 0;

    // The host port: packets to the node, and whole ones from it; the length of the next one is negative without.
    virtual void send(const uint32_t* words, uint64_t count) = 0;
    virtual int64_t packet_length() const = 0;
    virtual void receive(uint32_t* words) = 0;
    virtual RingNodeStatus status() const = 0;

    // Memories of the gateware, by space, and that of row owners; none in a node without.
    virtual std::vector<RingMemory> memories() = 0;
    virtual std::vector<RingMemory> owners() = 0;
    // Counters of the gateware, in the order of their addresses; none while rows get their first values.
    virtual bool counters(uint32_t* values) const = 0;

    virtual uint32_t far_lanes() const = 0;
    virtual void far_speed(uint32_t latency, uint32_t numerator, uint32_t denominator) = 0;
    virtual void far_memory(RingMemory* memory, uint64_t* words) = 0;

    virtual void save_model(VerilatedSerialize& os) = 0;
    virtual void restore_model(VerilatedDeserialize& is) = 0;
    virtual void save(VerilatedSerialize& os) = 0;
    virtual void restore(VerilatedDeserialize& is) = 0;
    virtual bool finished() const = 0;
    virtual void trace(VerilatedFstC* wave) = 0;
};

namespace {

// The nodes of one library.
struct Kind {
    AnyNode* (*create)(VerilatedContext* context, const char* name, Link* const* from, Link* const* to);
    void (*batch)();  // evaluates the nodes that the calling thread has noted; null where each is evaluated by itself
};

}  // namespace
