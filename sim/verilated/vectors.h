// Ports of a Verilated unit as memory: the generated ports.h fills the two tables.
#pragma once

#include <cstddef>

struct Port {
    unsigned char* member;  // Verilator's variable
    std::size_t bytes;      // size of the variable, and of a row of the caller's array
};
