"""Ports of an engine for local commands, which a test drives and compares with a model in every cycle."""

from hdl.control.protocol import command_layout, event_layout
from sim.payload import from_int, to_int
from tests.hdl.engines import command


class LocalPorts:
    """An engine's ports for commands, events and counts, and for one memory that it reads and writes.

    A row is returned two cycles after its read is granted. The engine's model has these fields for a cycle's inputs:
    ``command``, ``event_ready``, ``read_ready``, ``write_ready`` and ``link_reset``; and for the outputs:
    ``command_ready``, ``event``, ``read``, ``write`` and ``busy``.

    Parameters
    ----------
    dut
    memory : str
        Prefix of the memory's port names.
    lanes : int
    counts : StructLayout
        Layout of the counts: busy cycles, and cycles when a memory port waits.
    read, written : callable
        Functions that map a row number to the row's elements, for rows read and rows written.

    Members
    -------
    ended : list of dict
        Accepted events.
    """

    def __init__(self, dut, memory, *, lanes, counts, read, written):
        self._dut, self._lanes, self._counts = dut, lanes, counts
        self._ports = {name: getattr(dut, f"{memory}_{name}") for name in (
            *(f"read__{port}" for port in ("valid", "ready", "row", "response", "elements")),
            *(f"write__{port}" for port in ("valid", "ready", "row", "keep", "elements")))}
        self._read, self._written = read, written
        self._coming = [None, None]
        self._version = 0
        self.ended = []

    def drive(self, generator, inputs):
        """Drive the inputs of a cycle, with random values on unused inputs."""
        dut, ports = self._dut, self._ports
        self._version = generator.getrandbits(32)
        dut.command__valid.value = inputs.command is not None
        dut.command__payload.value = to_int(
            command_layout(), inputs.command or command(length=generator.getrandbits(10)))
        dut.event__ready.value, dut.link_reset.value = inputs.event_ready, inputs.link_reset
        dut.weight_version.value = self._version
        ports["read__ready"].value, ports["write__ready"].value = inputs.read_ready, inputs.write_ready
        row = self._coming[0]
        ports["read__response"].value = row is not None
        elements = self._read(row) if row is not None else [generator.getrandbits(32)] * self._lanes
        ports["read__elements"].value = sum(element << 32 * n for n, element in enumerate(elements))

    def compare(self, expected, inputs, where):
        """Compare the unit's outputs in a cycle with the model's outputs."""
        dut, ports = self._dut, self._ports
        assert dut.command__ready.value == expected.command_ready, where
        assert dut.event__valid.value == (expected.event is not None), where
        assert ports["read__valid"].value == (expected.read is not None), where
        assert ports["write__valid"].value == (expected.write is not None), where
        if expected.event is not None:
            event = from_int(event_layout(), int(dut.event__payload.value))
            assert {**expected.event, "flags": 0, "queue": 0, "weight_version": self._version} == event, where
            if inputs.event_ready:
                self.ended.append(expected.event)
        if expected.read is not None:
            assert ports["read__row"].value == expected.read, where
        if expected.write is not None:
            row, source, kept = expected.write
            assert (ports["write__row"].value, ports["write__keep"].value) == (row, (1 << kept) - 1), where
            elements = int(ports["write__elements"].value)
            assert [elements >> 32 * n & 0xFFFFFFFF for n in range(kept)] == self._written(source)[:kept], where
        waits = (expected.read is not None and not inputs.read_ready) or (
            expected.write is not None and not inputs.write_ready)
        assert from_int(self._counts, int(dut.count.value)) == {
            "command_cycles": expected.busy, "stall_memory": waits}, where
        granted = expected.read if expected.read is not None and inputs.read_ready else None
        self._coming = [self._coming[1], granted]
