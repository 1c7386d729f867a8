// A Verilated board and the other end of its serial port: bytes in and out, with bit-accurate timing on the wires.

#include "board.h"

#include "Vboard.h"
#include "verilated.h"

#include <deque>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// The board is idle after this many cycles without work, which exceeds the delay of a byte in the synchronisers.
constexpr uint64_t REST = 64;

thread_local std::string error;

struct Byte {
    uint64_t due;
    uint8_t value;
};

// Bit rate of the serial port; converts a distance between edges from half bits to cycles.
struct Bits {
    uint64_t numerator;    // bits
    uint64_t denominator;  // in this number of cycles
    uint64_t after(uint64_t half_bits) const { return half_bits * denominator / (2 * numerator); }
};

// Drives the serial wire to the board with queued bytes.
class Sender {
public:
    explicit Sender(const Bits& bits) : m_bits(bits) {}
    bool idle() const { return queue.empty() && !m_active; }

    bool step(uint64_t cycle) {
        if (m_active && cycle >= m_start + m_bits.after(20)) m_active = false;
        if (!m_active && !queue.empty() && queue.front().due <= cycle) {
            // Consecutive bytes keep the exact bit rate, although edges fall on whole cycles.
            m_frame = 0x200u | queue.front().value << 1;
            m_start = cycle;
            m_active = true;
            queue.pop_front();
            m_bit = 0;
        }
        if (!m_active) return true;
        while (cycle >= m_start + m_bits.after(2 * (m_bit + 1))) ++m_bit;
        return m_frame >> m_bit & 1;
    }

    std::deque<Byte> queue;

private:
    const Bits& m_bits;
    bool m_active = false;
    uint64_t m_start = 0;
    uint32_t m_frame = 0;
    uint32_t m_bit = 0;
};

// Samples the serial wire from the board in the middle of each bit.
class Receiver {
public:
    explicit Receiver(const Bits& bits) : m_bits(bits) {}
    bool idle() const { return !m_active; }

    // Whether a byte is complete and available in `value`.
    bool step(uint64_t cycle, bool level) {
        if (!m_active) {
            if (level) return false;
            m_active = true;
            m_start = cycle;
            m_bit = 0;
            value = 0;
        }
        if (cycle < m_start + m_bits.after(2 * m_bit + 1)) return false;
        if (m_bit >= 1 && m_bit <= 8) value |= level << (m_bit - 1);
        if (m_bit++ < 9) return false;
        m_active = false;
        return level;
    }

    uint8_t value = 0;

private:
    const Bits& m_bits;
    bool m_active = false;
    uint64_t m_start = 0;
    uint32_t m_bit = 0;
};

}  // namespace

struct Board {
    VerilatedContext context;
    std::unique_ptr<Vboard> model;
    Bits bits;
    uint64_t delay;
    Sender to_board{bits};
    Receiver from_board{bits};
    std::deque<Byte> given;
    uint64_t cycle = 0;
    uint64_t rested = 0;

    Board(uint32_t numerator, uint32_t denominator, uint64_t delay) : bits{numerator, denominator}, delay(delay) {
        context.fatalOnError(false);
        model.reset(new Vboard{&context, "board"});
        model->rx = 1;
        model->clk = 0;
        model->eval();
    }
    ~Board() { model->final(); }

    bool at_rest() const { return rested >= REST && to_board.idle() && from_board.idle(); }

    uint64_t run(uint64_t cycles) {
        Verilated::threadContextp(&context);
        const uint64_t start = cycle;
        const uint64_t until = start + cycles;
        for (; cycle < until; ++cycle) {
            if (at_rest() && (given.empty() || given.back().due <= cycle)) break;
            model->rx = to_board.step(cycle);
            model->clk = 1;
            model->eval();
            model->clk = 0;
            model->eval();
            if (from_board.step(cycle, model->tx)) given.push_back({cycle + delay, from_board.value});
            rested = model->busy || !to_board.idle() ? 0 : rested + 1;
            if (context.gotFinish()) {
                throw std::runtime_error("an assertion in the gateware failed before cycle " + std::to_string(cycle));
            }
        }
        return cycle - start;
    }
};

extern "C" {

const char* board_error() { return error.c_str(); }

Board* board_create(uint32_t numerator, uint32_t denominator, uint64_t delay) {
    try {
        return new Board{numerator, denominator, delay};
    } catch (const std::exception& exception) {
        error = exception.what();
        return nullptr;
    }
}

void board_destroy(Board* board) { delete board; }
uint64_t board_cycle(const Board* board) { return board->cycle; }
int32_t board_busy(const Board* board) { return !board->at_rest() || !board->given.empty(); }

void board_send(Board* board, const uint8_t* bytes, uint64_t count) {
    for (uint64_t index = 0; index < count; ++index) {
        board->to_board.queue.push_back({board->cycle + board->delay, bytes[index]});
    }
}

int64_t board_run(Board* board, uint64_t cycles) {
    try {
        return static_cast<int64_t>(board->run(cycles));
    } catch (const std::exception& exception) {
        error = exception.what();
        return -1;
    }
}

uint64_t board_waiting(const Board* board) {
    uint64_t count = 0;
    for (const Byte& byte : board->given) count += byte.due <= board->cycle;
    return count;
}

void board_receive(Board* board, uint8_t* bytes, uint64_t count) {
    for (uint64_t index = 0; index < count; ++index) {
        bytes[index] = board->given.front().value;
        board->given.pop_front();
    }
}

}
