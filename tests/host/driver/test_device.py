"""What the host driver expects of a node, on every transport in conftest.py and with faulty transports."""


import numpy as np
import pytest

import host.driver.device
from hdl.control.protocol import EventStatus, Opcode, Operation, Space, Status
from hdl.control.registers import IDENTIFIER, REGISTERS, Access, Kind, register
from host.driver.command import CollectiveError, Command
from host.driver.device import Device
from host.driver.errors import BadAddressError, ConfigurationError, QueueFullError, ReadOnlyError
from tests.words import random_words, words

PATIENCE = 10_000


def spaces(config):
    return [
        (Space.GRADIENT, config.memories.gradient), (Space.WEIGHT, config.memories.weight),
        *((Space.STATE + plane, config.memories.state) for plane in range(config.memories.planes)),
    ]


def trip(device):
    """Cycles of a round trip to the node when no wait is requested: fewer than 100 except over a serial line."""
    first = device.read_register("CYCLES")
    return 2 * (device.read_register("CYCLES") - first)


def exchange(device, *packet):
    """Send a raw packet and return the raw response."""
    device.transport.send(words(*packet))
    return device.transport.receive(PATIENCE).tolist()


# Tests of ping and register access.


def test_ping_echoes(device):
    for count in (0, 1, 2, 63, 64):
        payload = random_words(count)
        assert np.array_equal(device.ping(payload), payload)
    with pytest.raises(ValueError, match=r"Ping must be of at most 64 words, not 65"):
        device.ping(random_words(65))


def test_constants_are_those_of_the_configuration(device):
    config = device.config
    expected = {
        "ID": IDENTIFIER, "CONFIGURATION_HASH": config.hash, "LANES": config.lanes,
        "NODES_MAX": config.topology.max_nodes,
        "GRADIENT_WORDS": config.memories.gradient, "WEIGHT_WORDS": config.memories.weight,
        "STATE_WORDS": config.memories.state, "STATE_PLANES": config.memories.planes,
        "SEGMENT_ELEMENTS": config.segment,
        "QUEUES": config.queues, "PROGRAM_DEPTH": config.programs.depth if config.programs else 0,
    }
    assert {name: device.read_register(name) for name in expected} == expected
    assert set(expected) == {entry.name for entry in REGISTERS if entry.access is Access.CONSTANT}


def test_another_configuration_is_refused(device):
    other = device.config.replace(segment=512)
    with pytest.raises(ConfigurationError) as caught:
        Device(device.transport, other, name="node 7").connect()
    message = str(caught.value)
    assert message.startswith(f"node 7: configuration hash must be 0x{other.hash:08x}")
    assert f"0x{device.config.hash:08x}" in message
    device.connect()


#: Registers that exist only on nodes with quorum updates.
ROUNDS = ("GRADIENT_STRIDE", "QUORUM", "DEADLINE", "STALE_WEIGHTS_0", "STALE_WEIGHTS_1", "STALE_WEIGHTS_2",
          "RESUMED_SET")
#: Registers that exist only on nodes with throttles.
THROTTLES = ("THROTTLE_LINK", "THROTTLE_MEMORY", "THROTTLE_COMPUTE", "THROTTLE_HOST", "DELAY_LINK")


def test_settings(device):
    settings = [entry for entry in REGISTERS if entry.access is Access.SETTING]
    assert {entry.kind for entry in settings} == set(Kind)
    for entry in settings:
        name = entry.name
        if entry.kind is Kind.FLOAT32:
            assert device.read_register(name) == float(words(entry.reset).view(np.float32)[0])
            for value in (0.1, -2.5, float("inf")):
                device.write_register(name, value)
                assert device.read_register(name) == float(np.float32(value))
        else:
            assert device.read_register(name) == entry.reset
            device.write_register(name, 1)
            there = {"WEIGHT_STRIDE": device.config.queues > 1, **dict.fromkeys(ROUNDS, device.config.has_quorum),
                     **dict.fromkeys(THROTTLES, device.config.has("throttles"))}
            assert device.read_register(name) == there.get(name, True)
            with pytest.raises(ValueError, match=f"must be a number of {entry.width} bits, not {1 << entry.width}"):
                device.write_register(name, 1 << entry.width)
            with pytest.raises(TypeError, match=r"must be an integer, not 0\.5"):
                device.write_register(name, 0.5)


def test_bits(device):
    """Several consecutive registers are read or written in one request, as raw bit patterns."""
    values = [0x3F80_0000, 7]
    device.submit_write_bits("GRADIENT_SCALE", values[:1]).result()
    device.submit_write_bits("TIMEOUT", values[1:]).result()
    registers = device.submit_read_bits("ID", "TIMEOUT").result()
    assert list(registers) == [entry.name for entry in REGISTERS[:register("TIMEOUT").address + 1]]
    assert [registers[name] for name in ("ID", "LANES", "GRADIENT_SCALE", "TIMEOUT")] == [
        IDENTIFIER, device.config.lanes, *values]


def test_unknown_register(device):
    with pytest.raises(KeyError, match=r"Register must be one of ID, .*, not 'SPEED'"):
        device.read_register("SPEED")


def test_read_only(device):
    for entry in REGISTERS:
        if entry.access.writable or (entry.access is Access.RESTORED and device.config.has("settable_version")):
            continue
        before = device.read_register(entry.name)
        with pytest.raises(ReadOnlyError, match=f"a write of 1 to register {entry.name} was refused with READ_ONLY"):
            device.write_register(entry.name, 1)
        if entry.name != "CYCLES":
            assert device.read_register(entry.name) == before


def test_counters(device):
    counters = device.counters()
    assert set(counters) == {entry.name for entry in REGISTERS if entry.access is Access.COUNTER}
    assert device.counters()["CYCLES"] > counters["CYCLES"]
    device.write_register("CONTROL", 0b10)
    assert device.read_register("CONTROL") == 0
    assert device.counters()["CYCLES"] < counters["CYCLES"] + 100 + trip(device)


def test_read_fields(device):
    assert device.read_fields("STATUS")["commands"] == 0
    with pytest.raises(ValueError, match="must be of kind bitfield, not LANES of kind uint"):
        device.read_fields("LANES")


# Tests of memory access.


def test_memories_keep_what_is_written(device):
    contents = {}
    for space, size in spaces(device.config):
        contents[space] = random_words(size, seed=space)
        device.write_memory(space, 0, contents[space])
    for space, size in spaces(device.config):
        assert np.array_equal(device.read_memory(space, 0, size), contents[space])


def test_any_range_can_be_written_and_read(device):
    generator = np.random.default_rng(5)
    for space, size in spaces(device.config):
        expected = random_words(size, seed=9)
        device.write_memory(space, 0, expected)
        for _ in range(8):
            start, stop = sorted(generator.integers(0, size + 1, 2).tolist())
            expected[start:stop] = random_words(stop - start, seed=start)
            device.write_memory(space, start, expected[start:stop])
            start, stop = sorted(generator.integers(0, size + 1, 2).tolist())
            assert np.array_equal(device.read_memory(space, start, stop - start), expected[start:stop])
        assert np.array_equal(device.read_memory(space, 0, size), expected)


def test_floats_are_written_as_bits(device):
    device.write_memory(Space.WEIGHT, 3, np.array([1.0, -0.0], np.float32))
    assert device.read_memory(Space.WEIGHT, 3, 2).tolist() == [0x3F800000, 0x80000000]
    message = r"Elements must be one row of uint32 or float32, not float64 of shape \(2,\)"
    with pytest.raises(TypeError, match=message):
        device.write_memory(Space.WEIGHT, 0, np.zeros(2))


def test_ranges_beyond_a_memory_are_refused_and_nothing_is_written(device):
    for space, size in spaces(device.config):
        device.write_memory(space, size - 2, words(11, 12))
        message = (rf"node 0: a write to 3 elements of .* memory from {size - 2} on was refused with BAD_ADDRESS "
                   r"after 0 words were written")
        with pytest.raises(BadAddressError, match=message):
            device.write_memory(space, size - 2, words(1, 2, 3))
        with pytest.raises(BadAddressError):
            device.read_memory(space, size - 2, 3)
        with pytest.raises(BadAddressError):
            device.read_memory(space, (1 << 28) - 1, 1)
        assert device.read_memory(space, size - 2, 2).tolist() == [11, 12]


def test_a_space_that_is_not_there(device):
    for space in (Space.STATE + device.config.memories.planes, 15):
        with pytest.raises(BadAddressError, match=f"state plane {space - 2} memory"):
            device.read_memory(space, 0, 1)
        with pytest.raises(BadAddressError):
            device.write_memory(space, 0, words(1))
    with pytest.raises(ValueError, match="Memory space must be between 0 and 15, not 16"):
        device.read_memory(16, 0, 1)


def test_long_transfers_take_several_packets(device, monkeypatch):
    monkeypatch.setattr(host.driver.device, "PACKET_WORDS", 7)
    payload = random_words(30)
    device.write_memory(Space.GRADIENT, 1, payload)
    assert np.array_equal(device.read_memory(Space.GRADIENT, 1, 30), payload)
    with pytest.raises(BadAddressError, match="a write to 7 elements"):
        device.write_memory(Space.GRADIENT, device.config.memories.gradient - 10, payload)
    assert np.array_equal(device.read_memory(Space.GRADIENT, 1, 30), payload)


# Calls that are split into a request and a later result.


def test_answers_can_be_asked_for_in_any_order(device):
    device.write_memory(Space.GRADIENT, 0, random_words(32))
    pending = [device.submit_read_memory(Space.GRADIENT, n, 1) for n in range(20)]
    later = device.submit_ping(words(5))
    assert later.result().tolist() == [5]
    assert [p.result()[0] for p in reversed(pending)] == random_words(32)[19::-1].tolist()
    assert later.result().tolist() == [5]


def test_a_refusal_concerns_its_own_request_only(device):
    bad = device.submit_read_memory(Space.GRADIENT, device.config.memories.gradient, 1)
    good = device.submit_ping(words(1, 2))
    assert good.result().tolist() == [1, 2]
    for _ in range(2):
        with pytest.raises(BadAddressError):
            bad.result()


def test_nodes_work_at_the_same_time(devices):
    waits = [device.submit_pop_event(2_000) for device in devices]
    assert [wait.result() for wait in waits] == [None, None]
    for n, device in enumerate(devices):
        device.write_memory(Space.WEIGHT, 0, words(n))
    assert [device.read_memory(Space.WEIGHT, 0, 1)[0] for device in devices] == [0, 1]
    # Both waits of 2,000 cycles expire at the same time, not one after another.
    ended = [device.read_register("CYCLES") for device in devices]
    assert [cycles < 3_500 + 8 * trip(device) for cycles, device in zip(ended, devices, strict=True)] == [True, True]


# Tests of commands and events.


def quiesce(tag=0, **options):
    return Command(operation=Operation.QUIESCE, tag=tag, **options)


def test_no_event(device):
    before = device.read_register("CYCLES")
    assert device.pop_event(0) is None
    assert device.pop_event(1_000) is None
    assert 1_000 <= device.read_register("CYCLES") - before < 1_500 + 3 * trip(device)
    with pytest.raises(ValueError, match="Timeout must be a number of 32 bits, not -1"):
        device.pop_event(-1)


def test_commands_end_in_order(device):
    for tag in range(20):
        device.push(quiesce(tag))
        if tag >= 3:
            event = device.pop_event(PATIENCE)
            assert (event.tag, event.status) == (tag - 3, EventStatus.OK)
    assert [device.pop_event(PATIENCE).check().tag for _ in range(3)] == [17, 18, 19]
    assert device.pop_event(0) is None


BAD_COMMANDS = [
    ({"operation": 77}, EventStatus.UNKNOWN_OPERATION, "there is no operation 77"),
    ({"gradient_base": 33}, EventStatus.BAD_BASE, "base 33 is not a multiple of 32"),
    ({"length": 1 << 20}, EventStatus.BAD_LENGTH, "elements there is room for"),
    ({"size": 0}, EventStatus.BAD_RANK, "do not name a place in a ring"),
    ({"rank": 1}, EventStatus.BAD_RANK, "do not name a place in a ring"),
    ({"size": 17}, EventStatus.BAD_RANK, "do not name a place in a ring"),
    ({"port": 1}, EventStatus.BAD_RANK, "do not name a place in a ring"),
]


def test_bad_commands_are_refused_and_the_next_one_runs(device):
    for fields, status, meaning in BAD_COMMANDS:
        device.push(Command(**{"operation": Operation.ALL_REDUCE, "tag": 5, **fields}))
        device.push(quiesce(6))
        event = device.pop_event(PATIENCE)
        assert (event.tag, event.status) == (5, status)
        message = f"node 0: command with tag 5 ended with {status.name}: .*{meaning}"
        with pytest.raises(CollectiveError, match=message):
            event.check("node 0")
        assert device.pop_event(PATIENCE).check().tag == 6
        assert device.read_register("LAST_ERROR") == 5 | status << 16


def test_full_queue(device):
    for tag in range(8):
        device.push(quiesce(tag, wait=1, signal=1))
    for _ in range(2):
        with pytest.raises(QueueFullError, match="pop events until a command has ended"):
            device.push(quiesce(99))
    assert device.read_fields("STATUS")["commands"] == 8
    assert device.pop_event(200) is None
    assert device.read_fields("STATUS")["waiting"] == 1
    device.write_register("FLAGS", 1)
    assert [device.pop_event(PATIENCE).check().tag for _ in range(8)] == list(range(8))
    assert device.read_register("FLAGS") == 1


def test_flags_hold_a_command_back(device):
    device.push(quiesce(1, wait=0b011, signal=0b100))
    device.push(quiesce(2, wait=0b100, signal=0x8000))
    device.write_register("FLAGS", 0b001)
    assert device.pop_event(200) is None
    device.write_register("FLAGS", 0b010)
    assert [device.pop_event(PATIENCE).check().tag for _ in range(2)] == [1, 2]
    assert device.read_register("FLAGS") == 0x8000


def test_flags_that_do_not_come(device):
    device.write_register("TIMEOUT", 300)
    device.write_register("FLAGS", 0b001)
    device.push(quiesce(1, wait=0b111))
    event = device.pop_event(1_000)
    assert (event.tag, event.status, event.detail) == (1, EventStatus.WAIT_TIMEOUT, 0b110)
    assert device.read_register("FLAGS") == 0b001
    with pytest.raises(CollectiveError, match="flags 0x0006 were not set within 300 cycles"):
        event.check()
    device.push(quiesce(2, wait=0b001))
    assert device.pop_event(PATIENCE).check().tag == 2


def test_link_reset_empties_the_queue(device):
    for tag in range(3):
        device.push(quiesce(tag, wait=1))
    device.write_register("CONTROL", 0b01)
    events = [device.pop_event(PATIENCE) for _ in range(3)]
    assert [(event.tag, event.status) for event in events] == [(tag, EventStatus.LINK_RESET) for tag in range(3)]
    device.write_register("CONTROL", 0b00)
    device.push(quiesce(3))
    assert device.pop_event(PATIENCE).check().tag == 3


# Tests of malformed packets. `header` returns the first word of a request with tag 0x5A.


def header(opcode, count):
    return opcode << 24 | 0x5A << 16 | count


def refused(opcode, status, *payload):
    return [(opcode | 0x80) << 24 | 0x5A << 16 | len(payload), status, *payload]


#: Malformed requests (opcode, count and words), and the expected responses (status and words).
MALFORMED = [
    (0, 0, [], Status.UNKNOWN_OPCODE),
    (99, 3, [1, 2, 3], Status.UNKNOWN_OPCODE),
    (0x81, 1, [1], Status.UNKNOWN_OPCODE),
    (Opcode.PING, 2, [1], Status.BAD_LENGTH),
    (Opcode.PING, 0, [1], Status.BAD_LENGTH),
    (Opcode.PING, 1, [1, 2, 3], Status.BAD_LENGTH),
    (Opcode.PING, 65, [*range(65)], Status.BAD_LENGTH),
    (Opcode.READ_REGISTER, 1, [], Status.BAD_LENGTH),
    (Opcode.READ_REGISTER, 0, [0], Status.BAD_LENGTH),
    (Opcode.READ_REGISTER, 1, [0, 0], Status.BAD_LENGTH),
    (Opcode.READ_REGISTER, 1, [len(REGISTERS)], Status.BAD_ADDRESS),
    (Opcode.READ_REGISTER, 2, [len(REGISTERS) - 1], Status.BAD_ADDRESS),
    (Opcode.READ_REGISTER, 1, [1 << 28], Status.BAD_ADDRESS),
    (Opcode.READ_REGISTER, 1, [0xFFFFFFFF], Status.BAD_ADDRESS),
    (Opcode.WRITE_REGISTER, 1, [register("TIMEOUT").address], Status.BAD_LENGTH, 0),
    (Opcode.WRITE_REGISTER, 0, [register("TIMEOUT").address], Status.BAD_LENGTH, 0),
    (Opcode.WRITE_REGISTER, 2, [register("OPTIMIZER").address, 1], Status.BAD_LENGTH, 1),
    (Opcode.WRITE_REGISTER, 1, [register("OPTIMIZER").address, 1, 2, 3], Status.BAD_LENGTH, 1),
    (Opcode.WRITE_REGISTER, 3, [register("TIMEOUT").address - 1, 1, 77, 1], Status.OK, 3),
    (Opcode.WRITE_REGISTER, 1, [len(REGISTERS), 1], Status.BAD_ADDRESS, 0),
    (Opcode.READ_MEMORY, 1, [], Status.BAD_LENGTH),
    (Opcode.READ_MEMORY, 0, [0], Status.BAD_LENGTH),
    (Opcode.READ_MEMORY, 1, [0, 0], Status.BAD_LENGTH),
    (Opcode.READ_MEMORY, 0xFFFF, [0], Status.BAD_ADDRESS),
    (Opcode.WRITE_MEMORY, 2, [], Status.BAD_LENGTH, 0),
    (Opcode.WRITE_MEMORY, 2, [0], Status.BAD_LENGTH, 0),
    (Opcode.WRITE_MEMORY, 0, [0, 1], Status.BAD_LENGTH, 0),
    (Opcode.WRITE_MEMORY, 3, [0, 1, 2], Status.BAD_LENGTH, 2),
    (Opcode.WRITE_MEMORY, 3, [0, 1, 2, 3, 4], Status.BAD_LENGTH, 3),
    (Opcode.WRITE_MEMORY, 1, [0xF0000000, 1], Status.BAD_ADDRESS, 0),
    (Opcode.PUSH_COMMAND, 8, [0] * 8, Status.BAD_LENGTH),
    (Opcode.PUSH_COMMAND, 16, [0] * 15, Status.BAD_LENGTH),
    (Opcode.PUSH_COMMAND, 16, [0] * 17, Status.BAD_LENGTH),
    (Opcode.PUSH_COMMAND, 16, [], Status.BAD_LENGTH),
    (Opcode.POP_EVENT, 4, [], Status.BAD_LENGTH),
    (Opcode.POP_EVENT, 0, [0], Status.BAD_LENGTH),
    (Opcode.POP_EVENT, 4, [0, 0], Status.BAD_LENGTH),
    (Opcode.POP_EVENT, 4, [0], Status.EMPTY),
]


def test_malformed_packets(device):
    for opcode, count, packet, status, *written in MALFORMED:
        assert exchange(device, header(opcode, count), *packet) == refused(opcode, status, *written), packet
        assert device.ping(words(1, 2, 3)).tolist() == [1, 2, 3]
        assert device.pop_event(0) is None


def test_a_write_ends_at_a_register_that_is_read_only(device):
    """A write stops at the next read-only register: WEIGHT_VERSION, or LAST_ERROR if WEIGHT_VERSION is settable."""
    written = 3 if device.config.has("settable_version") else 2
    assert exchange(device, header(Opcode.WRITE_REGISTER, 4), register("DELAY_LINK").address, 77, 0, 0, 1) == refused(
        Opcode.WRITE_REGISTER, Status.READ_ONLY, written)


def test_a_short_write_says_how_much_was_written(device):
    device.write_memory(Space.GRADIENT, 0, words(9, 9, 9, 9))
    assert exchange(device, header(Opcode.WRITE_MEMORY, 4), 1, 5, 6) == refused(
        Opcode.WRITE_MEMORY, Status.BAD_LENGTH, 2)
    assert device.read_memory(Space.GRADIENT, 0, 4).tolist() == [9, 5, 6, 9]
