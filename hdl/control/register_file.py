"""Register file of a node, built from the table in :mod:`hdl.control.registers`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from hdl.control.registers import (
    COUNTERS,
    IDENTIFIER,
    REGISTERS,
    STALLS,
    TENANT_REGISTERS,
    Access,
    lacking,
    register,
    registers_of,
)
from hdl.feature import features_of

__all__ = ["RegisterBus", "RegisterFile", "queue_status_layout", "version_layout"]

_COUNT = len(REGISTERS)

#: Sources of register values that change while the node is running.
_LIVE = (Access.STATUS, Access.SET, Access.RESTORED)

def version_layout():
    """New value of WEIGHT_VERSION; ``valid`` is high for one cycle."""
    return data.StructLayout({"valid": 1, "value": 32})


def queue_status_layout():
    """STATUS fields that come from the command queue."""
    return data.StructLayout({"running": 1, "waiting": 1, "commands": 8, "events": 8})


class RegisterBus(wiring.Signature):
    """Register file access as seen by the host port, using word addresses.

    ``request``, ``address``, ``write`` and ``write_data`` must be held until ``done``, which follows at most
    :attr:`RegisterFile.latency` cycles later. The next request may follow immediately. In a node with tenants,
    ``write`` comes one cycle after a write request that is permitted.

    Members
    -------
    request : Out(1)
    address : Out(range(count))
    write : Out(1)
        Write ``write_data``; ignored if the register is read-only or does not exist.
    write_data : Out(32)
    done : In(1)
        High for one cycle.
    read_data : In(32)
        Valid from a read's ``done`` until the next one: value of the register :attr:`RegisterFile.age` cycles
        earlier, or zero if there is no register. Reading has no side effects.
    writable : In(1)
        With ``done``: the register is writable.

    Parameters
    ----------
    count : int
        Number of registers of the node.
    """

    def __init__(self, count=_COUNT):
        super().__init__({
            "request": Out(1),
            "address": Out(range(count)),
            "write": Out(1),
            "write_data": Out(32),
            "done": In(1),
            "read_data": In(32),
            "writable": In(1),
        })


class RegisterFile(wiring.Component):
    """All registers of a node, built from :data:`REGISTERS`.

    A memory holds the values that the host reads. Settings and counters that the node itself uses are also kept in
    flip-flops. The memory's rows are visited one after another, for four cycles each: read, compare, subtract, write.
    While the host has a request, visits for the host and for the counters alternate, so neither waits for long.

    Flip-flops hold just enough low bits of a counter to prevent wrapping between two visits. Each visit adds the
    change in these bits since the last visit to the counter's row, so a counter is exact whenever it is read.

    After reset, before any request by the host is served, every row up to the last counter is visited once and gets
    its initial value, which is stored in the upper half of the memory. CONTROL.clear_counters does the same for the
    counters' rows only. Rows after the counters belong to statuses, which are not stored in the memory. In a node
    with tenants, the first rows visited after reset are its tenant registers, and the order wraps around.

    A written value appears on its port with ``bus.done``; a count is added one cycle after its input. In addition to
    ``bus``, the table defines the ports: an output for each setting, and an input for each status.

    Registers that a node lacks (:func:`~hdl.control.registers.lacking`) have no ports, read as zero, and ignore
    writes. The table is followed by the registers of tenants, slots and microbatches, up to the last one that the
    node has (:func:`~hdl.control.registers.registers_of`).

    Parameters
    ----------
    config : Configuration
        Configuration of the node, which determines the constants.

    Members
    -------
    bus : In(RegisterBus())
    link_reset : Out(1)
        CONTROL.link_reset, as a level.
    optimizer : Out(4)
    gradient_scale, clip, weight_factor, learning_rate : Out(32)
    first_decay, first_gain, second_decay, second_gain, epsilon : Out(32)
        Bits of a binary32 number.
    mask_alternative, mask_threshold : Out(32)
        Bits of a binary32 number.
    timeout : Out(32)
    set_flags : Out(16)
        Flags that the host sets; high for one cycle.
    flags : In(16)
    queue_status : In(queue_status_layout())
    weight_version, last_error : In(32)
    set_version : Out(version_layout()), with ``settable_version``
        New value of WEIGHT_VERSION from the host; no update may end in that cycle.
    weight_stride : Out(32)
    program_status, node_time, trace_pointer, link_delay, program_bank, program_set : In(32)
    gradient_stride, quorum, deadline, stale_weights_0 to stale_weights_2, resumed_set : Out
    slot_0, slot_1 : In(19)
    far_silent, far_lost : In(1), in a server
        Bits for STATUS, where ``far_lost`` is sticky.
    throttle_link, throttle_memory, throttle_host : Out(16)
    throttle_compute : Out(32)
    delay_link : Out(8)
    slot_position, time_test : Out(32), time, time_status : In(32), superframes : In(16), in a node with slots
    count : In(struct of one member per counter, in lower case)
        Increment of each counter in this cycle, ``increment`` bits wide. CYCLES has no member; it counts by itself.
    """

    #: Number of cycles that a visit to one row takes.
    _VISIT = 4

    age = 3
    #: Maximum latency of ``done`` in cycles, except after reset: the rest of the current visit, a visit to a counter,
    #: and the visit for the request.
    latency = 3 * _VISIT

    def __init__(self, *, config):
        self._config = config
        self._table = registers_of(config)
        self._lacking = lacking(config)
        self._resets = {name: value for feature in features_of(config) for name, value in feature.resets.items()}
        ports = {"bus": In(RegisterBus(len(self._table))), "link_reset": Out(1), "set_flags": Out(16),
                 "queue_status": In(queue_status_layout())}
        increments = {}
        for entry in self._table:
            if entry.name in ("CONTROL", "STATUS", "CYCLES") or self._lacks(entry):
                continue
            if entry.access is Access.SETTING:
                ports[entry.port] = Out(entry.width, init=self._reset(entry))
            elif entry.access in _LIVE:
                ports[entry.port] = In(entry.width)
            elif entry.access is Access.COUNTER:
                increments[entry.port] = entry.increment
        if config.is_server:
            ports |= {"far_silent": In(1), "far_lost": In(1)}
        if config.has("settable_version"):
            ports["set_version"] = Out(version_layout())
        ports["count"] = In(data.StructLayout(increments))
        super().__init__(ports)

    @property
    def initialisation(self):
        """Number of cycles after reset during which requests by the host must wait."""
        return self._VISIT * (COUNTERS[-1].address + 1 + (-self._first_row) % self._rows)

    @property
    def _rows(self):
        return 1 << bits_for(len(self._table) - 1)

    @property
    def _first_row(self):
        """First row to initialise after a reset. In a node with tenants this is the row of TENANT; after the last
        row, initialisation continues at row 0."""
        return TENANT_REGISTERS[0].address if self._config.has("tenants") else 0

    def _lacks(self, entry):
        return entry.name in self._lacking

    def _takes(self, entry):
        """Whether the register can be written."""
        return entry.access.writable or (entry.access is Access.RESTORED and self._config.has("settable_version"))

    def _reset(self, entry):
        return 0 if self._lacks(entry) else self._resets.get(entry.name, entry.reset)

    def _constants(self):
        config = self._config
        return {
            "ID": IDENTIFIER,
            "CONFIGURATION_HASH": config.hash,
            "LANES": config.lanes,
            "NODES_MAX": config.topology.max_nodes,
            "GRADIENT_WORDS": config.memories.gradient,
            "WEIGHT_WORDS": config.memories.weight,
            "STATE_WORDS": config.memories.state,
            "STATE_PLANES": config.memories.planes,
            "SEGMENT_ELEMENTS": config.segment,
            "QUEUES": config.queues,
            "PROGRAM_DEPTH": config.programs.depth if config.programs else 0,
        }

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        address_bits = len(bus.address)
        rows = self._rows
        constants = self._constants()
        first, last = COUNTERS[0].address, COUNTERS[-1].address
        present = [entry for entry in self._table if not self._lacks(entry)]
        # Longest time between two visits to a counter: all counters are visited once, alternating with as many visits
        # for the host; or, after reset, all rows are initialised.
        longest = max(2 * self._VISIT * len(COUNTERS), self.initialisation)
        spans = {entry.name: bits_for(longest * ((1 << entry.increment) - 1))
                 for entry in COUNTERS if entry in present}

        initial = [constants.get(entry.name, self._reset(entry)) for entry in self._table]
        m.submodules.memory = memory = Memory(
            shape=32, depth=2 * rows, init=[*[0] * rows, *initial], attrs={"no_rw_check": 1})
        read, write = memory.read_port(), memory.write_port()

        index = Signal(address_bits, init=self._first_row)  # row being visited
        of_host, host_next = Signal(), Signal()  # whether the current and the next visit are for the host
        # Row to visit next, unless the host requests a different one.
        turn = Signal(address_bits, init=self._first_row + 1)
        beginning = Signal(init=1)  # the rows are being initialised after reset
        clear_counters = Signal()
        writing = Signal()
        value = Signal(32)
        low = Signal(max(spans.values()))  # low bits of the counter
        moved = Signal.like(low)

        # The increments come from all over the node. This register separates long wires from the carry chains.
        count = Signal.like(self.count)
        m.d.sync += [count.eq(self.count), clear_counters.eq(0), self.set_flags.eq(0), bus.done.eq(0)]

        queue = self.queue_status
        stalls = Cat(count[name] if (name := f"stall_{cause}") in self.count.shape().members else Const(0, 1)
                     for cause in STALLS)
        far = Const(0, 3)
        if self._config.is_server:
            lost = Signal()
            m.d.sync += lost.eq((lost & ~clear_counters) | self.far_lost)
            far = Cat(self.far_silent, lost, Const(0, 1))
        live = {  # values of the registers that are not kept in the memory
            "STATUS": Cat(queue.running, queue.waiting, Const(0, 6), stalls, far, queue.commands, queue.events),
            "CONTROL": self.link_reset,
        }
        counting = {}
        for entry in present:
            if entry.access is Access.COUNTER:
                counting[entry.name] = bits = Signal(spans[entry.name], name=f"low_{entry.port}")
                m.d.sync += bits.eq(bits + (1 if entry.name == "CYCLES" else count[entry.port]))
                with m.If(clear_counters):
                    m.d.sync += bits.eq(0)
            elif entry.name not in live and entry not in TENANT_REGISTERS and (
                    entry.access in _LIVE or entry.width < 32):
                live[entry.name] = getattr(self, entry.port)

        # For these registers, the memory stores only the bits that exist, so a read needs no mask.
        own = {entry.name: (1 << entry.width) - 1 for entry in present if entry in TENANT_REGISTERS}
        masks = {entry.name: own.get(entry.name, (1 << 32) - 1) for entry in self._table}

        ports = {entry.name: getattr(self, entry.port) for entry in present if entry.access is Access.SETTING
                 and entry.name != "CONTROL"}
        ports |= {"CONTROL": self.link_reset, "FLAGS": self.set_flags}
        if self._config.has("settable_version"):
            ports["WEIGHT_VERSION"] = self.set_version.value
            m.d.sync += self.set_version.valid.eq(0)

        def of_index(values):
            """Return the value for the row being visited; ``values`` maps register names to values, 0 by default."""
            return _choose(index, [values.get(entry.name, 0) for entry in self._table])

        writable = of_index({entry.name: 1 for entry in self._table if self._takes(entry)})
        kept = of_index({entry.name: 1 for entry in present if self._takes(entry)})
        m.d.comb += [
            read.addr.eq(Cat(index, beginning)),
            write.addr.eq(index),
            write.data.eq(value + moved),
            writing.eq(of_host & bus.write),
        ]
        with m.FSM():
            with m.State("Read"):
                m.d.comb += read.en.eq(1)
                m.next = "Look"

            with m.State("Look"):
                m.d.sync += [value.eq(read.data), low.eq(of_index(counting))]
                with m.If(writing):
                    m.d.sync += value.eq(bus.write_data & of_index(masks) if own else bus.write_data)
                with m.Elif(of_host & of_index(dict.fromkeys(live, 1))):
                    m.d.sync += value.eq(of_index(live))
                m.next = "Subtract"

            with m.State("Subtract"):
                mask = of_index({name: (1 << span) - 1 for name, span in spans.items()})
                m.d.sync += moved.eq((low - value) & mask)
                m.next = "Write"

            with m.State("Write"):
                m.d.comb += [
                    write.en.eq(~of_host | writing & kept),
                    host_next.eq(bus.request & ~of_host & ~beginning),
                ]
                m.d.sync += of_host.eq(host_next)
                with m.If(host_next):
                    m.d.sync += index.eq(bus.address)
                with m.Else():
                    m.d.sync += [index.eq(turn), turn.eq(Mux(turn == last, first, turn + 1))]
                with m.If(of_host):
                    m.d.sync += [bus.done.eq(1), bus.writable.eq(writable), bus.read_data.eq(write.data)]
                with m.Elif(index == last):
                    m.d.sync += beginning.eq(0)
                m.next = "Read"

                with m.If(writing):
                    with m.Switch(index):
                        for entry in present:
                            if self._takes(entry):
                                with m.Case(entry.address):
                                    m.d.sync += ports[entry.name].eq(bus.write_data)
                                    if entry.access is Access.RESTORED:
                                        m.d.sync += self.set_version.valid.eq(1)
                    with m.If((index == register("CONTROL").address) & bus.write_data[1]):
                        m.d.sync += [clear_counters.eq(1), beginning.eq(1), index.eq(first), turn.eq(first + 1)]

        return m


def _choose(address, values):
    """Return the value at ``address``, or zero after the last one, using a tree of multiplexers, which needs half the
    LUTs of a ``Switch`` and is faster.
    """
    for bit in address:
        values = [*values, 0] if len(values) % 2 else values
        values = [Mux(bit, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return values[0]
