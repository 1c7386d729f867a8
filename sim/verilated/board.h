// C interface of a Verilated board with a serial port. Used only by sim/verilated/board.py, which documents it.
//
// Functions that can fail return a negative number; board_error() then gives the reason.

#ifndef GRADRING_BOARD_H
#define GRADRING_BOARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct Board Board;

const char* board_error(void);
Board* board_create(uint32_t numerator, uint32_t denominator, uint64_t delay);
void board_destroy(Board* board);
uint64_t board_cycle(const Board* board);
int32_t board_busy(const Board* board);
void board_send(Board* board, const uint8_t* bytes, uint64_t count);
int64_t board_run(Board* board, uint64_t cycles);
uint64_t board_waiting(const Board* board);
void board_receive(Board* board, uint8_t* bytes, uint64_t count);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
