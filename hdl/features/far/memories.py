"""Server memories stored in the far memory, with their ports connected to one far port."""

import functools
from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.far.port import far_signature
from hdl.group import GROUP
from hdl.guard import Guard, window_layout
from hdl.memory import chosen, read_signature, take_turns, write_signature
from hdl.streams.stream import Queue

__all__ = ["OUTSTANDING", "FarMemories"]

OUTSTANDING = 65
"""Maximum number of rows requested from the far memory and not yet answered."""


class FarMemories(wiring.Component):
    """Connect the ports of several memories to one far memory that contains them consecutively.

    Read ports are served round-robin and write ports by priority; if both request, reads and writes alternate. The
    far memory takes requests in the order of their grants, so a read granted after a write sees its data. A read is
    answered :attr:`latency` cycles later than the far memory answers, in order, so readers must accept late answers
    (:class:`~hdl.row_transfer.RowReader`). At most :data:`OUTSTANDING` rows are pending. ``ready`` depends
    combinationally on ``valid`` of other ports, and on ``far.ready``.

    Readers form groups, one per engine. If a group's bit of ``abandon`` is high, answers it has requested before are
    dropped on arrival, and its next read waits for this: no reader gets an answer that it requested before it was
    reset.

    The far memory is considered silent after it has not accepted a waiting request or given a pending answer for
    ``timeout`` cycles, until it responds. Meanwhile the host does not wait: its reads are answered with zeros, in
    order, and its writes are dropped. Engines wait, and have their own time-outs. During silence, ``link_reset``
    drops the pending rows and withdraws a read; a granted write remains.

    With ``owners`` the memories are guarded: an engine's row is relative to the window of its memory. A row outside
    reads as zeros, once no answer of the far memory is pending, and is never written. Pending rows are then never
    dropped: the far memory is not aware of tenants, and rows requested by one tenant must not reach the next.

    Parameters
    ----------
    config : NodeConfig
        Configuration of a server, which defines the memories as its far spaces.
    readers : mapping of str to tuple of int
        Group of each of the engines' read ports, keyed by memory name; groups are counted from 0.
    writers : mapping of str to int
        Number of engine write ports, keyed by memory name.
    owners : mapping of str to pair of tuples of int, optional
        Queue served by each of the engines' read ports and write ports, keyed by memory name.

    Members
    -------
    <memory>_read : array of In(read_signature(rows, lanes))
        The engines' ports, followed by the host's port, which reads one memory at a time.
    <memory>_write : array of In(write_signature(rows, lanes))
        Likewise; the host's ports have the lowest priority, after engines' ports at all memories.
    far : Out(far_signature(rows, lanes))
        ``valid`` and the request signals are registers.
    abandon : In(groups)
    link_reset : In(1)
    timeout : In(32)
    silent : Out(1)
    lost : Out(1)
        High while the host gets zeros or loses words.
    <memory>_window : In(window_layout(words))
        Only if guarded.
    strays : Out(queues)
        Only if guarded: queues with a command that read or wrote outside its window in the previous cycle.
    """

    latency = 2

    def __init__(self, *, config, readers, writers, owners=None):
        bases = config.far_bases
        if not bases:
            raise ValueError(f"Node must be a server, not {config!r}")
        for title, ports in (("Readers", readers), ("Writers", writers)):
            if ports.keys() != bases.keys():
                raise ValueError(f"{title} must be of {', '.join(bases)}, not of {', '.join(ports) or 'none'}")
        groups = {group for name in bases for group in readers[name]}
        if groups != set(range(len(groups))) or not groups:
            raise ValueError(f"Groups of readers must be counted from 0, not {sorted(groups)!r}")
        self._config, self._readers, self._writers, self._groups = config, readers, writers, len(groups)
        self._owners = owners
        lanes, members = config.lanes, {}
        for name in bases:
            rows = config.memory_map[name].words // lanes
            members[f"{name}_read"] = In(read_signature(rows, lanes)).array(len(readers[name]) + 1)
            members[f"{name}_write"] = In(write_signature(rows, lanes)).array(writers[name] + 1)
        if owners is not None:
            #: For formal specifications: whether the request at the far port comes from the host, and its memory.
            self.request = Signal(data.StructLayout({"by_host": 1, "memory": range(len(bases))}))
            queues = [queue for kinds in owners.values() for kind in kinds for queue in kind]
            members |= {f"{name}_window": In(window_layout(config.memory_map[name].words)) for name in bases}
            members["strays"] = Out(1 + max(queues))
        super().__init__({
            **members,
            "far": Out(far_signature(config.far_words // lanes, lanes)),
            "abandon": In(self._groups), "link_reset": In(1), "timeout": In(32), "silent": Out(1), "lost": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        far, groups, host = self.far, self._groups + 1, self._groups
        readers = [SimpleNamespace(port=port, base=base, group=group, **tenancy) for name, base in self._bases()
                   for port, group, tenancy in zip(getattr(self, f"{name}_read"), (*self._readers[name], host),
                                                   self._tenancy(name, 0, len(self._readers[name])), strict=True)]
        free, speaks, forget, came = Signal(), Signal(), Signal(), Signal()
        answers, guarded, outside = far.response, self._owners is not None, Signal()
        if guarded:
            self._outside = [[] for _ in range(len(self.strays))]
            # The answer for a row outside the window is the only pending one, and comes one cycle after the grant.
            answers |= outside
        m.submodules.owners = owners = ResetInserter(forget)(
            Queue(shape=range(len(readers)), depth=OUTSTANDING, block=False))
        m.d.comb += [
            free.eq(~far.valid | far.ready), speaks.eq((far.valid & far.ready) | answers),
            forget.eq(Const(0) if guarded else self.link_reset & self.silent & ~speaks),
            owners.o.ready.eq(answers), came.eq(answers & owners.o.valid),
        ]
        self._watch(m, speaks, far.valid | owners.o.valid)

        # For each group of readers: whether it is blocked, and its pending answers, granted reads and answered reads.
        away = [*self.abandon, self.silent]
        stale = [Signal(range(OUTSTANDING + 1), name=f"stale_{n}") for n in range(groups)]
        owed = [Signal.like(stale[0], name=f"owed_{n}") for n in range(groups)]
        zeros = Signal.like(stale[0])  # number of zero answers still to be sent to the host
        asking = Signal(len(readers))
        for n, reader in enumerate(readers):
            waits = away[reader.group] | (stale[reader.group] != 0)
            if reader.group == host:
                waits |= zeros != 0
            m.d.comb += asking[n].eq(reader.port.valid & ~waits & owners.i.ready & ~forget)
        turn, served = take_turns(m, asking)
        if guarded:
            guard = self._guard(m, "read", readers, functools.partial(chosen, turn))
            read_goes = self._request(m, free, forget, asking.any() & (guard.allowed | ~owners.o.valid), guard.place,
                                      inside=guard.allowed, request=chosen(turn, [item.request for item in readers]))
            m.d.sync += outside.eq(read_goes & ~guard.allowed)
            self._tell([(turn[n] & read_goes & ~guard.allowed, reader.queue) for n, reader in enumerate(readers)])
            for queue, accesses in enumerate(self._outside):
                m.d.sync += self.strays[queue].eq(Cat(accesses).any())
        else:
            read_goes = self._request(m, free, forget, asking.any(), chosen(
                turn, [reader.port.row + reader.base for reader in readers]))
        granted = Signal(len(readers))
        m.d.comb += [
            granted.eq(Mux(read_goes, turn, 0)), owners.i.valid.eq(read_goes),
            owners.i.payload.eq(chosen(turn, range(len(readers)))),
        ]
        for group in range(groups):
            indices = [n for n, reader in enumerate(readers) if reader.group == group]
            answered = came & Cat(owners.o.payload == n for n in indices).any()
            following = owed[group] + Cat(granted[n] for n in indices).any() - answered
            m.d.sync += [
                owed[group].eq(Mux(forget, 0, following)),
                stale[group].eq(Mux(forget, 0, Mux(away[group], following,
                                                   stale[group] - (answered & (stale[group] != 0))))),
            ]

        elements = Signal(len(Cat(far.answer)))
        m.d.sync += elements.eq(Mux(far.response & ~outside if guarded else far.response, Cat(far.answer), 0))
        of_host, zero = Signal.like(owners.o.payload), Signal()  # the host port that was granted last
        m.d.comb += zero.eq((zeros != 0) & ~far.response)
        asks = []
        for n, reader in enumerate(readers):
            port, group = reader.port, reader.group
            response = came & (owners.o.payload == n) & ~away[group] & (stale[group] == 0)
            ready = granted[n]
            if group == host:
                asks.append(port.valid)
                response |= zero & (of_host == n)
                ready |= self.silent
                with m.If(port.valid & ready):
                    m.d.sync += of_host.eq(n)
            m.d.comb += [port.ready.eq(ready), Value.cast(port.elements).eq(elements)]
            m.d.sync += port.response.eq(response)
            with m.If(granted[n]):
                m.d.sync += served.eq(n)
        zero_granted = self.silent & Cat(asks).any()
        left = Mux(self.silent, owed[host] - stale[host], 0)
        m.d.sync += zeros.eq(zeros + zero_granted + left - zero)
        drops = self.silent & Cat(getattr(self, f"{name}_write")[-1].valid for name, _ in self._bases()).any()
        m.d.comb += self.lost.eq(zero_granted | (left != 0) | drops)
        return m

    def _bases(self):
        """Return the memories' names and first rows in the far memory."""
        return [(name, base // self._config.lanes) for name, base in self._config.far_bases.items()]

    def _watch(self, m, speaks, waits):
        """Detect whether the far memory is silent."""
        idle, late = Signal(32), Signal()
        m.d.comb += late.eq(idle >= self.timeout)
        m.d.sync += [
            idle.eq(Mux(speaks | ~waits, 0, idle + ~late)),
            self.silent.eq(waits & ~speaks & late),
        ]

    def _tenancy(self, name, kind, engines):
        """Return the window in the far memory, the queue and the request code of each port of a memory. The host's
        port comes last; its window is the whole memory, and it has no queue. The result is empty in an unguarded
        node.
        """
        if self._owners is None:
            return [{}] * (engines + 1)
        config, layout, ours = self._config, window_layout(self._config.far_words), getattr(self, f"{name}_window")
        first, number = config.far_bases[name] // GROUP, list(config.far_bases).index(name)
        sizes = layout["size"].width
        whole = Cat(Const(first, layout["base"].width), Const(config.memory_map[name].words // GROUP, sizes))
        window = Cat((ours.base + first)[:layout["base"].width], (ours.size | Const(0, sizes))[:sizes])
        return [*({"window": window, "queue": queue, "request": number << 1}
                  for queue in self._owners[name][kind]),
                {"window": whole, "queue": None, "request": number << 1 | 1}]

    def _guard(self, m, kind, ports, choose):
        """Create the guard for the port selected by ``choose``."""
        m.submodules[f"{kind}_guard"] = guard = Guard(
            rows=self._config.far_words // self._config.lanes, lanes=self._config.lanes)
        m.d.comb += [guard.row.eq(choose([item.port.row for item in ports])),
                     Value.cast(guard.window).eq(choose([item.window for item in ports]))]
        return guard

    def _tell(self, accesses):
        """For each queue, record its accesses outside the window."""
        for queue in range(len(self.strays)):
            self._outside[queue] += [access for access, owner in accesses if owner == queue]

    def _request(self, m, free, forget, reads, read_row, inside=None, request=None):
        """Make the next request, a row write or read; return whether it is a read. In guarded memories, only rows
        that are ``inside`` are requested."""
        far, latest, read_goes, write_goes = self.far, Signal(), Signal(), Signal()  # latest: a write
        writers = []
        for name, base in self._bases():
            *engine_ports, last = getattr(self, f"{name}_write")
            *theirs, tenancy = self._tenancy(name, 1, len(engine_ports))
            writers += [SimpleNamespace(dropped=0, port=port, valid=port.valid, base=base, **item)
                        for port, item in zip(engine_ports, theirs, strict=True)]
            writers.append(SimpleNamespace(dropped=self.silent, port=last, valid=last.valid & ~self.silent, base=base,
                                           **tenancy))
        writers.sort(key=lambda writer: writer.dropped is self.silent)
        writes = Const(0, 1)
        for writer in writers:
            m.d.comb += writer.port.ready.eq((write_goes & ~writes) | writer.dropped)
            writes = writes | writer.valid
        first = functools.partial(_first, [writer.valid for writer in writers])
        keep, elements = (first([Value.cast(getattr(item.port, name)) for item in writers])
                          for name in ("keep", "elements"))
        goes = read_goes | write_goes
        if inside is None:
            row = first([writer.port.row + writer.base for writer in writers])
        else:
            guard = self._guard(m, "write", writers, first)
            row, goes = guard.place, (read_goes & inside) | (write_goes & guard.allowed)
            self._tell([(write_goes & writer.port.valid & writer.port.ready & ~guard.allowed, writer.queue)
                        for writer in writers])
            with m.If(free):
                m.d.sync += Value.cast(self.request).eq(
                    Mux(write_goes, first([item.request for item in writers]), request))
        m.d.comb += [
            read_goes.eq(free & reads & (latest | ~writes)),
            write_goes.eq(free & writes & ~(reads & latest)),
        ]
        with m.If(free):
            m.d.sync += [
                far.valid.eq(goes), far.write.eq(write_goes), far.row.eq(
                    Mux(write_goes, row, read_row)), far.keep.eq(keep), Cat(far.elements).eq(elements)]
        with m.If(read_goes | write_goes):
            m.d.sync += latest.eq(write_goes)
        with m.If(forget & far.valid & ~far.write):
            m.d.sync += far.valid.eq(0)
        return read_goes


def _first(valids, values):
    """Return the value of the first valid port, or zero."""
    result = 0
    for valid, value in reversed(list(zip(valids, values, strict=True))):
        result = Mux(valid, value, result)
    return result
