// Ports of a Verilated unit as variables in memory; the generated ports.h defines the two tables.
#pragma once

#include <cstddef>

struct Port {
    unsigned char* member;  // Verilator's variable
    std::size_t bytes;      // size of the variable, and of one row of the caller's array
};
