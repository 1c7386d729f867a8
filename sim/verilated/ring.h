// C interface to a ring of Verilated nodes. It is used only by sim/verilated/ring.py, which documents the behaviour.
//
// Functions that can fail return a negative number on failure, and ring_error() then returns the reason.

#ifndef GRADRING_RING_H
#define GRADRING_RING_H

#include "ring_exchange.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct Ring Ring;

typedef struct {
    uint64_t input_words;      // words queued by the host but not yet taken by the node
    uint64_t input_packets;    // packets in these words, including a partial packet
    uint64_t output_words;     // words sent by the node but not yet fetched by the host
    uint64_t output_packets;   // complete packets in these words
    uint64_t words_taken;      // words taken by the node since reset
    uint64_t words_given;      // words given by the node since reset
    uint64_t waits;            // cycles since reset in which the node refused a host word
    uint64_t last_taken;       // cycle of the last word taken
    uint64_t last_given;       // cycle of the last word given
} RingNodeStatus;

typedef struct {
    void* data;                // elements in order; valid until the ring is destroyed
    uint64_t bytes;
    uint32_t element;          // bytes of an element
} RingMemory;

typedef struct {
    uint32_t data_latency;
    uint32_t credit_latency;   // latency of the backward wire, which carries credits or a line
    uint32_t rate_numerator;
    uint32_t rate_denominator;
    uint64_t cut_from;         // first cycle that loses words and credits
    uint64_t cut_until;        // first cycle after the cut
    uint64_t words_sent;       // words and packets sent by the node since reset
    uint64_t packets_sent;
    uint64_t words_carried;    // words (below: credits) that entered the link since reset and were not dropped
    uint64_t words_dropped;
    uint64_t words_corrupted;
    uint64_t words_in_flight;
    uint64_t credits_carried;
    uint64_t credits_dropped;
    uint64_t credits_in_flight;
    uint64_t last_word;        // cycle when the last word entered
    uint64_t last_credit;
} RingLinkStatus;

typedef struct {
    uint64_t cycle;            // cycle in which the word was on the sender's wires
    uint32_t data;
    uint32_t place;            // 1: last word of a message, or word of the link itself; 2: control word
} RingTapped;

typedef struct {
    uint64_t data;             // flips since reset, per wire: in words, and in idle cycles that became words
    uint64_t last;
    uint64_t valid;            // words lost and created
    uint64_t kind;
    uint64_t check;
    uint64_t back;             // lost and created credits; with replay, flipped levels of the line
    uint64_t words_dropped;
    uint64_t words_doubled;
    uint64_t words_swapped;    // words swapped with the next word
    uint64_t packets_dropped;
    uint64_t packets_doubled;
    uint64_t packets_swapped;
} RingLinkFaults;

enum { RING_FLIP, RING_DROP, RING_DOUBLE, RING_SWAP };  // kind of fault
enum { RING_WORD, RING_PACKET, RING_CYCLE };            // target of the fault

const char* ring_error(void);
int32_t ring_batched(void);  // whether this library evaluates all nodes of a thread together
uint32_t ring_ports(void);   // number of ports of a node, each with an input and an output
int32_t ring_replay(void);   // whether links have the wires of replay

// Kind of this library's nodes. Any library with the same ports, wires, waveforms and arithmetic can use it in rings.
const void* ring_kind(void);

// Four numbers per link: sending node and port, receiving node and port. One kind per node.
// With a part, only its nodes are in this process: functions of other nodes must not be called, and all processes must
// make the same calls of ring_run and of all functions that change a link, or reset.
Ring* ring_create(uint32_t nodes, uint32_t threads, const uint32_t* ends, uint32_t links, const void* const* kinds,
                  const RingPart* part);
void ring_destroy(Ring* ring);
void ring_reset(Ring* ring);
void ring_set_threads(Ring* ring, uint32_t threads);
void ring_set_quantum(Ring* ring, uint32_t cycles);
void ring_set_grid(Ring* ring, uint32_t cycles);  // a run that waits for a packet ends at a multiple of `cycles`
uint64_t ring_cycle(const Ring* ring);
int64_t ring_run(Ring* ring, uint64_t cycles, int32_t until_packet_at);

void ring_send(Ring* ring, uint32_t node, const uint32_t* words, uint64_t count);
int64_t ring_packet_length(const Ring* ring, uint32_t node);
void ring_receive(Ring* ring, uint32_t node, uint32_t* words);
void ring_node_status(const Ring* ring, uint32_t node, RingNodeStatus* status);

uint32_t ring_far(const Ring* ring, uint32_t node);  // lanes of its far memory; 0 without one
void ring_far_speed(Ring* ring, uint32_t node, uint32_t latency, uint32_t numerator, uint32_t denominator);
void ring_far_memory(const Ring* ring, uint32_t node, RingMemory* memory, uint64_t* words);  // words: read, written

// Number of the node's memories, listed by space; 0 if they can be accessed only through the host port.
uint32_t ring_memories(const Ring* ring, uint32_t node);
void ring_memory(const Ring* ring, uint32_t node, uint32_t space, RingMemory* memory);
void ring_owners(const Ring* ring, uint32_t node, RingMemory* memory);  // buffer tags; 0 bytes without them

// All counters of a node, in register order. Returns 0 while only the host port can read them.
int32_t ring_counters(const Ring* ring, uint32_t node, uint32_t* values);

void ring_link_latency(Ring* ring, uint32_t link, uint32_t data, uint32_t credit);
void ring_link_rate(Ring* ring, uint32_t link, uint32_t numerator, uint32_t denominator);
void ring_link_cut(Ring* ring, uint32_t link, uint64_t from, uint64_t until);
void ring_link_fault(Ring* ring, uint32_t link, uint32_t scope, uint64_t at, uint32_t action, uint32_t wire);
void ring_link_random(Ring* ring, uint32_t link, uint64_t threshold, uint64_t seed);  // threshold: rate times 2^64
void ring_link_faults(const Ring* ring, uint32_t link, RingLinkFaults* faults);
void ring_link_status(const Ring* ring, uint32_t link, RingLinkStatus* status);
uint64_t ring_link_tap(Ring* ring, uint32_t link, uint32_t on, RingTapped* words, uint64_t most);  // words taken

int64_t ring_save(Ring* ring);
void ring_saved(const Ring* ring, uint8_t* bytes);
int64_t ring_restore(Ring* ring, const uint8_t* bytes, uint64_t count);

int64_t ring_wave_open(Ring* ring, const char* path);
int64_t ring_wave_close(Ring* ring);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
