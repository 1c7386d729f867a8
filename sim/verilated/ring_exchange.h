// Interface between a ring that runs in several processes and the exchange between these processes.
//
// The exchanges are separate libraries (exchange_shared.cpp, exchange_mpi.cpp); a ring calls their functions through
// pointers, and can therefore be built without them.

#ifndef GRADRING_RING_EXCHANGE_H
#define GRADRING_RING_EXCHANGE_H

#include <stdint.h>

// Messages to another process (out) and from it (in); the incoming message is valid until the next exchange.
typedef struct {
    uint32_t process;
    const void* out;
    uint64_t out_bytes;
    const void* in;            // aligned to 8 bytes
    uint64_t in_bytes;
} RingMail;

// Functions return a negative number if another process has ended; error() returns a message that names it.
typedef struct {
    uint32_t process;          // this one
    uint32_t processes;
    const uint32_t* bounds;    // first node of each process, followed by the total number of nodes
    void* context;             // argument of the functions
    int64_t (*mail)(void* context, RingMail* mails, uint32_t count);   // called by all neighbours at the same time
    int64_t (*agree)(void* context, uint64_t* value);                  // called by all: the largest value
    const char* (*error)(void* context);
} RingPart;

#endif
