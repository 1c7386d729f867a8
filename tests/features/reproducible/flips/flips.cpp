// A ring with registers and memories that can be changed between two cycles: see library.py.

#include "ring.cpp"

#include "flips.h"

void Vnode___024root___eval_settle(Vnode___024root* vlSelf);

// Flips one bit in a row of a register or memory, and evaluates the logic that depends on it.
extern "C" __attribute__((visibility("default"))) void ring_flip(Ring* ring, uint32_t node, uint32_t item, uint32_t row,
                                                                 uint32_t bit) {
    Vnode___024root* const root = static_cast<Node&>(*ring->nodes[node]).m_model->rootp;
    const struct {
        void* data;
        size_t stride;
    } items[] = {
#define FLIP_ITEM(name, rows) {&root->name, sizeof root->name / rows},
        FLIP_ITEMS(FLIP_ITEM)
#undef FLIP_ITEM
    };
    static_cast<uint8_t*>(items[item].data)[row * items[item].stride + bit / 8] ^= 1 << bit % 8;
    ring->nodes[node]->enter();
    Vnode___024root___eval_settle(root);
}
