// Drives sparsifier.sv with vectors from standard input, one per line as hexadecimal words, and prints its output for
// each vector in the same form. Both sides pause at random. The last line contains the module's counters and the
// number of cycles.

#include "Vsparsifier.h"
#include "verilated.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fputs("usage: sparsifier THRESHOLD, as the bits of a float in hexadecimal\n", stderr);
        return 2;
    }
    std::vector<std::vector<uint32_t>> vectors;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream text(line);
        text >> std::hex;
        vectors.emplace_back();
        for (uint32_t word; text >> word;) vectors.back().push_back(word);
    }

    VerilatedContext context;
    Vsparsifier dut(&context);
    std::mt19937 random(1);
    uint64_t cycle = 0;
    const auto edge = [&] {
        dut.aclk = 1;
        dut.eval();
        dut.aclk = 0;
        dut.eval();
        ++cycle;
    };

    dut.threshold = std::strtoul(argv[1], nullptr, 16);
    dut.aresetn = 0;
    edge();
    dut.aresetn = 1;

    size_t sent = 0, first = 0, received = 0;  // vectors sent, elements of the current vector sent, packets received
    while (received < vectors.size()) {
        if (cycle > 1'000'000) {
            std::fprintf(stderr, "nothing has come out for vector %zu\n", received);
            return 1;
        }
        // An offered beat stays until it is accepted.
        if (!dut.s_axis_tvalid && sent < vectors.size() && random() % 4) {
            const auto& vector = vectors[sent];
            uint32_t keep = 0;
            for (size_t lane = 0; lane < 4; ++lane) {
                const bool there = first + lane < vector.size();
                dut.s_axis_tdata[lane] = there ? vector[first + lane] : random();
                if (there) keep |= 0xFu << 4 * lane;
            }
            dut.s_axis_tkeep = keep;
            dut.s_axis_tlast = first + 4 >= vector.size();
            dut.s_axis_tvalid = 1;
        }
        dut.m_axis_tready = random() % 4 != 0;
        dut.eval();
        const bool taken = dut.s_axis_tvalid && dut.s_axis_tready;
        if (dut.m_axis_tvalid && dut.m_axis_tready) {
            std::printf("%x%c", dut.m_axis_tdata, dut.m_axis_tlast ? '\n' : ' ');
            received += dut.m_axis_tlast;
        }
        edge();
        if (taken) {
            first += 4;
            if (dut.s_axis_tlast) {
                first = 0;
                ++sent;
            }
            dut.s_axis_tvalid = 0;
        }
    }
    std::printf("%u %u %llu\n", dut.elements, dut.words, static_cast<unsigned long long>(cycle));
}
