// Drives one Verilated unit from arrays, one row per cycle and port. See vectors.py.
//
// In each cycle, inputs are set, combinational logic settles, outputs are sampled, and the clock rises. The clock
// falls when the inputs of the next cycle are evaluated.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#include "vectors.h"

namespace {

struct Unit {
    VerilatedContext context;
    Vtop top{&context};
    std::vector<Port> inputs;
    std::vector<Port> outputs;

    Unit();
    void settle();
    void edge();
};

#include "ports.h"

void Unit::settle() {
#if CLOCKED
    top.clk = 0;
#endif
    top.eval();
}

void Unit::edge() {
#if CLOCKED
    top.clk = 1;
    top.eval();
#endif
}

// A stream that the harness drives. Indices refer to the port tables.
struct Stream {
    std::int32_t valid, payload, ready;
    std::int32_t source;               // 1: the harness offers beats; 0: the harness accepts them
    const unsigned char* beats;        // source: rows to offer, in order
    std::int64_t count;                // source: number of rows
    const unsigned char* willing;      // per cycle: whether the source may begin to offer, or the sink is ready
    std::int64_t taken;                // beats transferred
    std::int32_t offering;             // source: valid is high and must stay high until accepted
};

}  // namespace

extern "C" {

Unit* unit_create() {
    auto* unit = new Unit;
    unit->settle();
    return unit;
}

void unit_destroy(Unit* unit) {
    unit->top.final();
    delete unit;
}

void unit_reset(Unit* unit) {
    for (const Port& port : unit->inputs) std::memset(port.member, 0, port.bytes);
#if CLOCKED
    unit->top.rst = 1;
    unit->settle();
    unit->edge();
    unit->top.rst = 0;
#endif
    unit->settle();
}

// inputs[p] and outputs[p] are the rows of port p. Ports in `streams` follow the handshake: their input rows are
// not read but written, with the inputs that the unit received. Once a source is willing to send its next beat, it
// offers the beat until it is accepted; the payload is noise while valid is low.
void unit_run(Unit* unit, std::int64_t cycles, unsigned char* const* inputs, unsigned char* const* outputs,
              Stream* streams, std::int64_t count, std::uint64_t noise) {
#ifdef NATIVE_ARITHMETIC
    const native::Environment environment;
#endif
    for (std::int64_t cycle = 0; cycle < cycles; ++cycle) {
        for (std::int64_t s = 0; s < count; ++s) {
            Stream& stream = streams[s];
            if (!stream.source) {
                inputs[stream.ready][cycle] = stream.willing[cycle];
                continue;
            }
            if (!stream.offering) stream.offering = stream.taken < stream.count && stream.willing[cycle];
            const std::size_t bytes = unit->inputs[stream.payload].bytes;
            unsigned char* row = inputs[stream.payload] + cycle * bytes;
            inputs[stream.valid][cycle] = stream.offering;
            if (stream.offering) {
                std::memcpy(row, stream.beats + stream.taken * bytes, bytes);
            } else {
                // The caller has set all bits that the port has in this row, which mask the noise.
                for (std::size_t b = 0; b < bytes; ++b) {
                    noise = noise * 6364136223846793005u + 1442695040888963407u;
                    row[b] &= static_cast<unsigned char>(noise >> 56);
                }
            }
        }
        for (std::size_t p = 0; p < unit->inputs.size(); ++p) {
            const Port& port = unit->inputs[p];
            std::memcpy(port.member, inputs[p] + cycle * port.bytes, port.bytes);
        }
        unit->settle();
        for (std::size_t p = 0; p < unit->outputs.size(); ++p) {
            const Port& port = unit->outputs[p];
            std::memcpy(outputs[p] + cycle * port.bytes, port.member, port.bytes);
        }
        for (std::int64_t s = 0; s < count; ++s) {
            Stream& stream = streams[s];
            const auto& valid = stream.source ? unit->inputs[stream.valid] : unit->outputs[stream.valid];
            const auto& ready = stream.source ? unit->outputs[stream.ready] : unit->inputs[stream.ready];
            if (*valid.member && *ready.member) {
                ++stream.taken;
                stream.offering = 0;
            }
        }
        unit->edge();
    }
}

}  // extern "C"
