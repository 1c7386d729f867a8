"""Test the host port of a node with tenants and two program banks: responses to operator and tenants."""

import numpy as np
import pytest

from hdl.control.host_port import HostPort
from hdl.control.protocol import DESCRIPTOR_WORDS, EVENT_WORDS, Opcode, Status
from hdl.control.registers import REGISTERS, TENANT_REGISTERS, register
from hdl.control.requester import PATIENCE
from hdl.control.sequencer import run_layout
from hdl.group import GROUP
from sim.payload import from_int, unpack
from sim.verilated.vectors import Feed, Unit
from tests.hdl.control.test_requester import CONFIG as ONE_BANK

CONFIG = ONE_BANK.replace(programs={"banks": 2})
RUNNING, IDLE = 1, 1 << 23  # flags: a program runs; words are for the idle bank
GROUPS = CONFIG.memories.gradient // GROUP

#: Output streams of the host port, which are always ready in this test.
TAKEN = "o", "commands", "program", "run", "memory_write__request", "memory_write__data"


@pytest.fixture(scope="module")
def unit():
    return Unit(HostPort(config=CONFIG))


def ask(unit, who, opcode, *words, count=None, cycles=200, running=1, **inputs):
    """Send a request as tenant ``who``; return the trace of all ports and the response words."""
    unit.reset()
    count = len(words) if count is None else count
    packet = np.array([who, opcode << 24 | count, *words], np.uint64)
    packet[-1] |= np.uint64(1 << 32)
    trace = unit.lockstep(sources={"i": Feed(packet)}, sinks=dict.fromkeys(TAKEN, True), cycles=cycles,
                          inputs={"running": running, **inputs})
    answer = [int(word) & 0xFFFFFFFF for word in trace["o__payload"][trace["o__valid"] == 1]]
    return trace, answer


def status(unit, who, opcode, *words, **options):
    return ask(unit, who, opcode, *words, **options)[1][1]


def test_beyond(unit):
    """A tenant gets the same status for any address outside its window, whether or not the address exists."""
    window, everything = {"found": 1 << 20}, {"found": GROUPS << 20}
    assert status(unit, 1, Opcode.READ_MEMORY, GROUP - 1, count=2, **window) == Status.OUT_OF_WINDOW
    assert status(unit, 2, Opcode.READ_MEMORY, GROUP - 1, count=2, **window) == Status.OUT_OF_WINDOW
    last = CONFIG.memories.gradient - 1
    assert status(unit, 0, Opcode.READ_MEMORY, last, count=2, **everything) == Status.BAD_ADDRESS
    assert status(unit, 1, Opcode.READ_REGISTER, len(REGISTERS), count=1) == Status.FOREIGN_TENANT
    every = len(REGISTERS) + len(TENANT_REGISTERS)
    assert status(unit, 0, Opcode.READ_REGISTER, every, count=1) == Status.BAD_ADDRESS


@pytest.mark.parametrize("who", [0, 1])
def test_loads(unit, who):
    """A program can always be loaded into the idle bank, but into the current bank only while none runs."""
    command, last = range(1, 1 + DESCRIPTOR_WORDS), CONFIG.programs.depth - 1

    def load(slot, running):
        trace, answer = ask(unit, who, Opcode.LOAD_PROGRAM, slot, *command, count=DESCRIPTOR_WORDS,
                            program_status=running)
        taken = trace["program__payload"][trace["program__valid"] == 1].tolist()
        assert taken == ([slot | 1 << 32, *command] if answer[1] == Status.OK else [])
        return answer[1]

    assert load(last, 0) == load(last | IDLE, 0) == load(last | IDLE, RUNNING) == Status.OK
    assert load(last, RUNNING) == Status.BUSY
    assert load(last + 1, 0) == load(last + 1 | IDLE, RUNNING) == Status.TOO_LONG


def test_edits(unit):
    words = 0x12345678, 0x9ABCDEF0
    for verdict in (Status.OK, Status.OLD_EDIT):
        trace, answer = ask(unit, 1, Opcode.EDIT, *words, banks__verdict=verdict)
        assert answer[1:] == [verdict]
        assert trace["banks__edit"][trace["banks__ask"] == 1].tolist() == [words[0] | words[1] << 32]
    for wrong in (words[:1], (*words, 3)):
        trace, answer = ask(unit, 1, Opcode.EDIT, *wrong)
        assert answer[1] == Status.BAD_LENGTH
        assert not trace["banks__ask"].any()


def test_runs(unit):
    words = 0x00000001, 0x00050002, 0x00000007
    for loaded in (0, 1):
        trace, answer = ask(unit, 1, Opcode.RUN, *words, banks__loaded=loaded)
        assert answer[1:] == [Status.OK if loaded else Status.NOT_LOADED]
        run = from_int(run_layout(), sum(word << 32 * n for n, word in enumerate(words)))
        for port, when in (("run__payload", "run__valid"), ("banks__run", "banks__turn")):
            begun = trace[port][trace[when] == 1]
            fields = unpack(run_layout(), begun)
            assert {name: values.tolist() for name, values in fields.items()} == {
                name: [value] * loaded for name, value in run.items()}


@pytest.mark.parametrize(("who", "address", "busy", "expected"), [
    (1, register("TIMEOUT").address, 1, Status.OK),
    (1, register("CONTROL").address, 0, Status.FOREIGN_TENANT),
    (0, register("CONTROL").address, 1, Status.OK),
    (0, len(REGISTERS), 0, Status.OK),
    (0, len(REGISTERS), 1, Status.BUSY),
    (1, register("STATUS").address, 0, Status.READ_ONLY),
    (0, register("STATUS").address, 1, Status.READ_ONLY),
])
def test_register_writes(unit, who, address, busy, expected):
    """Whether a write is rejected depends on ``busy`` in its first cycle; the write starts one cycle later."""
    words, cycles = (address, 5), 200
    ones = np.ones(cycles, np.uint8)
    trace, _ = ask(unit, who, Opcode.WRITE_REGISTER, *words, count=1)
    first = int(np.flatnonzero(trace["bus__request"])[0])
    done, was_busy = np.zeros(cycles, np.uint8), (1 - busy) * ones
    done[first + 4], was_busy[first] = 1, busy
    trace, answer = ask(unit, who, Opcode.WRITE_REGISTER, *words, count=1, cycles=cycles, busy=was_busy,
                        bus__done=done, bus__writable=ones * (expected != Status.READ_ONLY))
    assert trace["bus__request"][first - 1:first + 6].tolist() == [0, 1, 1, 1, 1, 0, 0]
    writes = expected in (Status.OK, Status.READ_ONLY)
    assert trace["bus__write"][first:first + 4].tolist() == [0, *[int(writes)] * 3]
    assert answer[1:] == [expected, int(expected == Status.OK)]


def test_patience(unit):
    """A POP_EVENT waits for the requested number of cycles, but for at most ``PATIENCE`` if sent by a tenant."""
    offered = {}
    for who, wait in ((1, 0), (1, 40), (1, PATIENCE), (1, PATIENCE + 1), (1, 2**32 - 1), (0, PATIENCE + 9)):
        trace, answer = ask(unit, who, Opcode.POP_EVENT, wait, count=EVENT_WORDS, cycles=PATIENCE + 60, running=who)
        assert answer[1:] == [Status.EMPTY]
        offered[who, wait] = int(np.flatnonzero(trace["o__valid"])[0])
    waits = {(who, wait): cycle - offered[1, 0] for (who, wait), cycle in offered.items()}
    assert waits == {(who, wait): min(wait, PATIENCE) if who else wait for who, wait in offered}
