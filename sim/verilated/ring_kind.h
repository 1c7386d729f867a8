// Nodes of any library: the nodes of a ring may come from several libraries with different gateware. The library that
// created the ring steps all nodes, but each library evaluates its own nodes.
//
// All libraries are compiled from one harness by one compiler, so declarations here and in ring_link.h agree.
//
// Included by ring.cpp, which is a single translation unit so that the compiler sees all code of a cycle.

#pragma once

#include "ring.h"
#include "ring_link.h"
#include "verilated.h"
#include "verilated_save.h"

#include <cstdint>
#include <vector>

class VerilatedFstC;

// A node between its links, including the queues of its host port.
//
// Not in an unnamed namespace, where a compiler may assume that the only derived class it sees is the only one.
class AnyNode {
public:
    virtual ~AnyNode() = default;

    // Empties queues and counters; the node itself is reset by restore_model().
    virtual void clear() = 0;
    // Makes this node's context the calling thread's context, as required if gateware stops the simulation.
    virtual void enter() = 0;
    // Performs everything in a cycle before the clock edge: evaluation, and transfers to and from links and host.
    virtual void settle(uint64_t cycle) = 0;
    // Performs the clock edge, or only adds the node to a batch if nodes of a kind are evaluated together.
    virtual void clock() = 0;

    // Host port: packets to the node, and complete packets from it; the length is negative if there are none.
    virtual void send(const uint32_t* words, uint64_t count) = 0;
    virtual int64_t packet_length() const = 0;
    virtual void receive(uint32_t* words) = 0;
    virtual RingNodeStatus status() const = 0;

    // Memories of the gateware, indexed by space, and the memory of row owners; empty if the node has none.
    virtual std::vector<RingMemory> memories() = 0;
    virtual std::vector<RingMemory> owners() = 0;
    // Counters of the gateware, in address order; unavailable while rows are being initialized.
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
    void (*batch)();  // evaluates the nodes recorded by the calling thread; null without joint evaluation
};

}  // namespace
