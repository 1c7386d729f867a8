# amaranth: UnusedElaboratable=no
"""Nodes that are evaluated together (sim/verilated/batch.py) take the same cycles as nodes evaluated one by one."""

import pytest

from sim.verilated.batch import batch
from sim.verilated.build import build_ring
from sim.verilated.ring import VerilatedRing
from tests.sim.verilated.probe import Probe
from tests.sim.verilated.test_ring import load, outcome

BEFORE = """\
#include "Vx__pch.h"

void Vx___024root___nba_sequent__TOP__0(Vx___024root* vlSelf) {
    if (vlSelf->a) {
        VL_STOP_MT("node.v", 1, "");
    }
}

void Vx___024root___nba_comb__TOP__1(Vx___024root* vlSelf) {
    vlSelf->a = 1U;
}

void Vx___024root___eval_final(Vx___024root* vlSelf) {
    VL_FINISH_MT("node.v", 2, "");
}

"""
LIST = """\
void Vx___024root___eval_nba(Vx___024root* vlSelf) {
    VL_DEBUG_IF(VL_DBG_MSGF("+    Vx___024root___eval_nba\\n"); );
    Vx__Syms* const __restrict vlSymsp VL_ATTR_UNUSED = vlSelf->vlSymsp;
    auto& vlSelfRef = std::ref(*vlSelf).get();
    // Body
    if ((1ULL & vlSelfRef.__VnbaTriggered[0U])) {
        Vx___024root___nba_sequent__TOP__0(vlSelf);
        Vx___024root___nba_comb__TOP__1(vlSelf);
    }
}
"""
AFTER = "\nbool Vx___024root___eval_phase__act(Vx___024root* vlSelf) {\n}\n"


def write(folder, text):
    path = folder / "Vx___024root__3.cpp"
    path.write_text(text)
    return path


def test_list_of_calls(tmp_path):
    path = write(tmp_path, BEFORE + LIST + AFTER)
    assert batch(tmp_path, "x")
    text = path.read_text()
    assert text.startswith(BEFORE)
    assert text.endswith(AFTER)
    first, second = "ring_evaluate_all<Vx___024root___nba_sequent__TOP__0, true>();", (
        "ring_evaluate_all<Vx___024root___nba_comb__TOP__1, false>();")
    assert 0 < text.index(first) < text.index(second)
    assert text.count("ring_evaluate_all<") == 2
    assert "TOP__0(vlSelf);" not in text


def test_statements_between_calls(tmp_path):
    """Statements between two calls are moved to a function, which is called at the same position."""
    lines = "        if (vlSelfRef.a) {\n            vlSelfRef.b = 1U;\n        }\n"
    call = "        Vx___024root___nba_comb"
    path = write(tmp_path, BEFORE + LIST.replace(call, lines + call) + AFTER)
    assert batch(tmp_path, "x")
    text = path.read_text()
    function = text[text.index("static void Vx___024root___batch_1(Vx___024root* vlSelf) {"):]
    assert function[:function.index("\n}\n")].endswith(lines.rstrip("\n"))
    called = [line.strip() for line in text.splitlines() if line.strip().startswith("ring_evaluate_all<")]
    assert called == [f"ring_evaluate_all<Vx___024root___{name}>();" for name in (
        "nba_sequent__TOP__0, true", "batch_1, true", "nba_comb__TOP__1, false")]


@pytest.mark.parametrize(("old", "new"), [
    ("if ((1ULL &", "if ((2ULL &"),
    ("    }\n}\n", "    }\n    if ((2ULL & vlSelfRef.__VnbaTriggered[0U])) {\n    }\n}\n"),
    ("eval_nba(", "eval_other("),
])
def test_other_code_is_left_alone(tmp_path, old, new):
    text = BEFORE + LIST.replace(old, new) + AFTER
    assert text != BEFORE + LIST + AFTER
    path = write(tmp_path, text)
    assert not batch(tmp_path, "x")
    assert path.read_text() == text


@pytest.mark.parametrize("seed", range(3))
def test_same_cycles(seed):
    """Responses, counters and the entire state do not depend on the number of threads."""
    results = []
    for batched in (False, True):
        library = build_ring(Probe(), batched=batched)
        for threads in (1, 2, 3):
            with VerilatedRing(library, nodes=5, threads=threads) as ring:
                assert ring.batched == batched
                load(ring, seed)
                packets, text, links, state = outcome(ring, 3_000)
                results.append((packets, text, links, state.removeprefix(ring.header)))
    assert all(result == results[0] for result in results), f"seed {seed}"
