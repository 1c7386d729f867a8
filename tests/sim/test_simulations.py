# amaranth: UnusedElaboratable=no
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import cocotb
import pytest

from hdl.streams.stream import SkidBuffer
from sim import regression, simulations
from sim.streams import cycles, start
from sim.verilated import toolchain
from sim.verilated.vectors import Unit

#: State that an earlier simulation in the same process would leave.
_left = []


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def finds_all_as_at_first(dut):
    """At the start of a simulation, the design's buffer and ``_left`` are empty. After this test, both are full."""
    assert not _left
    assert not dut.o__valid.value
    assert cocotb.simtime.get_sim_time("ns") == 0
    await start(dut)
    dut.i__payload.value = 7
    dut.i__valid.value = 1
    await cycles(dut, 3)
    assert dut.o__valid.value
    _left.append(os.getpid())


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def makes_a_unit_as_well(dut):
    """Two Verilated designs in the same process have separate runtimes, and do not share ports."""
    unit = Unit(SkidBuffer(shape=8))
    await start(dut)
    dut.o__ready.value = 1
    dut.i__payload.value = 0x5a
    dut.i__valid.value = 1
    await cycles(dut, 2)
    assert int(dut.o__payload.value) == 0x5a
    trace = unit.run({"i__payload": [1, 2], "i__valid": 1, "o__ready": 1}, drain=1)
    assert trace["o__payload"][1:].tolist() == [1, 2]
    await cycles(dut, 1)
    assert int(dut.o__payload.value) == 0x5a


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def is_killed(dut):
    await start(dut)
    os.kill(os.getpid(), signal.SIGKILL)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def waits_for_long(dut):
    print("begun", flush=True)
    select.select([], [], [], 600)


def run(testcase):
    regression.run(SkidBuffer(shape=8), module=__name__, testcase=testcase)


def test_each_simulation_is_the_first():
    run("finds_all_as_at_first")
    server = simulations._server.pid
    run("finds_all_as_at_first")
    assert simulations._server.pid == server


def test_two_designs_in_one_process():
    Unit(SkidBuffer(shape=8))  # builds the unit
    run("makes_a_unit_as_well")


def test_a_simulation_that_a_signal_ends():
    with pytest.raises(AssertionError, match=r"(?s)^The simulation ended with status -9 .*running .*is_killed"):
        run("is_killed")
    run("finds_all_as_at_first")


def test_a_module_that_cannot_be_loaded(tmp_path, monkeypatch):
    (tmp_path / "broken_bench.py").write_text("import cocotb\nraise ValueError('no bench')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    simulations._stop()  # a new process uses the changed path
    with pytest.raises(AssertionError, match=r"(?s)broken_bench on SkidBuffer.*ValueError: no bench"):
        regression.run(SkidBuffer(shape=8), module="broken_bench")
    simulations._stop()


def test_a_server_that_ends_is_followed_by_another():
    run("finds_all_as_at_first")
    os.kill(simulations._server.pid, signal.SIGKILL)
    simulations._server.wait(10)
    run("finds_all_as_at_first")


def test_processor_time_is_known():
    before = simulations.seconds()
    run("finds_all_as_at_first")
    assert 0 < simulations.seconds() - before < 60


def _begun():
    """Folders of the simulations in which :func:`waits_for_long` has begun. This is read from their logs."""
    logs = toolchain.BUILD.glob("regression/SkidBuffer-*/simulation.log")
    return {log.parent for log in logs if re.search(r"^begun$", log.read_text(), flags=re.MULTILINE)}


def test_nothing_runs_on_when_the_side_that_asks_is_killed():
    """If the process that requests a simulation is killed, the simulation also ends, long before its ten minutes are
    over."""
    regression.run(SkidBuffer(shape=8), module=__name__, testcase="finds_all_as_at_first")  # builds the unit
    earlier = _begun()
    watched, held = os.pipe()
    script = textwrap.dedent(f"""\
        import os, sys
        sys.path[:0] = {sys.path!r}
        from sim import regression
        regression.OPTIMIZATION = {regression.OPTIMIZATION!r}
        from hdl.streams.stream import SkidBuffer
        popen = regression.simulations.subprocess.Popen
        regression.simulations.subprocess.Popen = lambda *a, **k: popen(*a, **k, pass_fds=[{held}])
        print("asks", flush=True)
        regression.run(SkidBuffer(shape=8), module={__name__!r}, testcase="waits_for_long")
    """)
    asks = subprocess.Popen([sys.executable, "-c", script], pass_fds=[held], stdout=subprocess.PIPE, text=True,
                            cwd=Path(toolchain.__file__).parents[2])
    os.close(held)
    assert asks.stdout.readline() == "asks\n"
    for _ in range(600):  # until the simulation begins
        if _begun() - earlier:
            break
        assert not select.select([watched], [], [], 0.1)[0], "it has ended"
    else:
        pytest.fail("The simulation has not begun within a minute")
    asks.kill()
    asks.wait(10)
    asks.stdout.close()
    assert select.select([watched], [], [], 30)[0], "something still runs"
    assert os.read(watched, 1) == b""
    os.close(watched)
    for folder in _begun() - earlier:
        shutil.rmtree(folder)


def test_the_header_is_read_compiled():
    """The precompiled header is used. (If flags differed, the compiler would parse the header again, without
    notice.)"""
    unit = Unit(SkidBuffer(shape=8))
    simulator = regression._build(regression.convert(SkidBuffer(shape=8), name="SkidBuffer"), waves=False)
    for folder in (Path(unit._library._name).parent, simulator):
        assert (folder / "compiler.log").read_text() == ""
