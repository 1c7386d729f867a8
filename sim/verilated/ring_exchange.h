// The interface between a ring of which each process has a part, and the way between its processes.
//
// The ways are libraries of their own (exchange_shared.cpp, exchange_mpi.cpp): a ring has pointers to their functions, and
// so needs neither of them to be built.

#ifndef GRADRING_RING_EXCHANGE_H
#define GRADRING_RING_EXCHANGE_H

#include <stdint.h>

// What one other process gets, and what came from it; the latter stays where it is until the next exchange.
typedef struct {
    uint32_t process;
    const void* out;
    uint64_t out_bytes;
    const void* in;            // on a multiple of 8
    uint64_t in_bytes;
} RingMail;

// Functions return a negative number if another process has ended, and error() says which.
typedef struct {
    uint32_t process;          // this one
    uint32_t processes;
    const uint32_t* bounds;    // first node of each process, and the number of all nodes at the end
    void* context;             // of the functions
    int64_t (*mail)(void* context, RingMail* mails, uint32_t count);   // at the same time in all that are neighbours
    int64_t (*agree)(void* context, uint64_t* value);                  // in all: the largest value that any one gives
    const char* (*error)(void* context);
} RingPart;

#endif
