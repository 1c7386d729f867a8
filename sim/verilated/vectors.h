// Ports of a Verilated unit as memory: the generated ports.h fills the two tables.
#pragma once

#include <cstddef>

struct Port {
    unsigned char* member;  // Verilator's variable
    std::size_t bytes;      // its size, which is also the size of one row of the caller's array
};
