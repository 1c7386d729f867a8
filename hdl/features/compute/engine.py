"""Compute engine of a node, which executes LAYERS: a list of matrix products and row functions."""

from amaranth.hdl import Cat, Const, EnableInserter, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, command_layout, event_layout
from hdl.features.compute.gemm import Gemm
from hdl.features.compute.layer_list import MULTIPLIED_BIT, OWNER_BITS, ROW_BIT, Place
from hdl.features.compute.list_runner import ListRunner
from hdl.features.compute.memory_access import MemoryAccess
from hdl.features.compute.row_owners import RowOwners
from hdl.features.compute.row_unit import RowUnit
from hdl.features.compute.vector import VectorUnit
from hdl.guard import window_layout
from hdl.memory import read_signature, write_signature, written_signature
from hdl.streams.stream import connect_stream
from hdl.throttle import RATE_BITS, Throttle

__all__ = ["BLOCKS", "COLUMNS", "ComputeEngine", "counts_layout", "memory_words"]

BLOCKS = 128
"""Number of blocks of a panel of the array."""

COLUMNS = 64
"""Maximum number of columns of a function of rows."""


def memory_words(config):
    """Sizes in elements of the memories for operands, in the order of
    :class:`~hdl.features.compute.layer_list.Place`."""
    return config.memories.gradient, config.memories.weight, config.compute.activations


def counts_layout():
    """Layout of the per-cycle counter increments, keyed by register name."""
    return data.StructLayout({"command_cycles": 1, "stall_memory": 1, "gemm_cycles": 1, "vector_cycles": 1})


class ComputeEngine(wiring.Component):
    """Run LAYERS commands on the memories of a node, one at a time.

    The list is checked before anything is written. It is then executed by a unit for products and a unit for row
    functions, one at a time. A node with centroids has another unit for products with centroid indices, and a node
    with sequence functions has another unit for ROWS. docs/protocol.md describes the list.

    A label or row number that is too large is only detected while its function runs, after the preceding instructions
    have been executed. In a node with buffer tags, an instruction that reads overwritten rows of a buffer is still
    executed, but the list ends after it.

    Parameters
    ----------
    config : NodeConfig
        Configuration with ``compute``.

    Members
    -------
    command : In(stream of command_layout())
        LAYERS commands that have already been checked; see :class:`~hdl.control.command_checker.CommandChecker`.
    event : Out(stream of event_layout())
        One event per command. Its detail is the number of executed instructions, or the number of the invalid
        instruction. From bit 8 up, it contains the row for READ_DEAD or, for an executed list in a node with
        centroids, the number of cycles with multiplications in all lanes of the centroid unit.
    link_reset : In(1)
        Abort the running command.
    weight_version : In(32)
        Weight version for the event.
    count : Out(counts_layout())
    gradient_read, weight_read, activation_read, gradient_write, activation_write : memory ports
    activation_written : In(written_signature(rows))
        In a node with buffer tags: each written row of the activation memory.
    window : In(window_layout(activation_words))
        In a node with buffer tags and tenants: the tenant's window in the activation memory.
    throttle : In(16)
        In a node with throttles: number of cycles out of 65,536 when the list and all units advance; the memories
        serve them in every cycle. Native floating-point units cannot pause, so such a node must be simulated as
        gateware.
    """

    def __init__(self, *, config):
        if config.compute is None:
            raise ValueError(f"Node must have rows of multiply-accumulate units, not {config!r}")
        self._config = config
        lanes, compute = config.lanes, config.compute
        rows = {number: words // lanes for number, words in zip(
            (Place.GRADIENTS, Place.WEIGHTS, Place.ACTIVATIONS), memory_words(config), strict=True)}
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "weight_version": In(32),
            "count": Out(counts_layout()),
            "gradient_read": Out(read_signature(rows[Place.GRADIENTS], lanes)),
            "weight_read": Out(read_signature(rows[Place.WEIGHTS], lanes)),
            "activation_read": Out(read_signature(rows[Place.ACTIVATIONS], lanes)),
            "gradient_write": Out(write_signature(rows[Place.GRADIENTS], lanes)),
            "activation_write": Out(write_signature(rows[Place.ACTIVATIONS], lanes)),
            **({"activation_written": In(written_signature(rows[Place.ACTIVATIONS]))} if compute.buffer_tags else {}),
            **({"window": In(window_layout(compute.activations))}
               if compute.buffer_tags and config.has("tenants") else {}),
            **({"throttle": In(RATE_BITS)} if config.has("throttles") else {}),
        })

    def elaborate(self, platform):
        m = Module()
        config, compute = self._config, self._config.compute
        words = memory_words(config)
        m.submodules.runner = runner = CommandRunner(
            failure=EventStatus.BAD_INSTRUCTION, other=EventStatus.READ_DEAD if compute.buffer_tags else None,
            most=1 + (1 << MULTIPLIED_BIT) if compute.codebook else 1)
        owner_bits = OWNER_BITS if compute.buffer_tags else 0
        access = MemoryAccess(rows=tuple(count // config.lanes for count in words), lanes=config.lanes,
                              owner_bits=owner_bits)
        lists = ListRunner(words=words, lanes=config.lanes, rows=compute.rows, blocks=BLOCKS,
                           columns=COLUMNS, scale_mask=compute.scale_mask, operands=compute.operands,
                           centroids=compute.codebook, sequences=compute.sequences, owner_bits=owner_bits)
        memory_rows, dsps = max(words) // config.lanes, config.optimizer.dsps
        gemm = Gemm(rows=compute.rows, lanes=config.lanes, dsps=dsps, blocks=BLOCKS, memory_rows=memory_rows,
                    scale_mask=compute.scale_mask, operands=compute.operands, owner_bits=owner_bits)
        vector = VectorUnit(lanes=config.lanes, memory_rows=memory_rows, columns=COLUMNS, dsps=dsps,
                            sequences=compute.sequences, owner_bits=owner_bits)
        parts = {"access": access, "lists": lists, "gemm": gemm, "vector": vector}
        if compute.codebook:
            from hdl.features.codebook_layers.centroid_layer import CentroidLayer

            parts["centroid"] = centroid = CentroidLayer(
                centroids=compute.codebook, lanes=config.lanes, dsps=dsps, memory_rows=memory_rows,
                owner_bits=owner_bits)
        if compute.sequences:
            parts["rows"] = row_unit = RowUnit(
                lanes=config.lanes, memory_rows=memory_rows, columns=COLUMNS, dsps=dsps, owner_bits=owner_bits)
        if compute.buffer_tags:
            parts["owners"] = owners = RowOwners(
                rows=words[Place.ACTIVATIONS] // config.lanes, lanes=config.lanes if config.has("tenants") else None)
        enable = self._throttle(m, platform)
        for name, unit in parts.items():
            if config.has("throttles") and name not in ("access", "owners"):
                unit = EnableInserter(enable)(unit)
            m.submodules[name] = ResetInserter(runner.reset)(unit)
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        connect_stream(m, lists.gemm, gemm.job)
        connect_stream(m, lists.vector, vector.job)
        for inner, outer in ((access.read_0, self.gradient_read), (access.read_1, self.weight_read),
                             (access.read_2, self.activation_read), (access.write_0, self.gradient_write),
                             (access.write_2, self.activation_write)):
            wiring.connect(m, access=inner, memory=wiring.flipped(outer))

        progress, products = lists.passed, lists.gemm_runs
        done = (lists.gemm_runs & gemm.done) | (lists.vector_runs & vector.done)
        if compute.codebook:
            progress = Cat(progress, Const(0, MULTIPLIED_BIT - 1), centroid.multiplied)
            products, done = products | lists.centroid_runs, done | (lists.centroid_runs & centroid.done)
        functions, bad = lists.vector_runs, (lists.gemm_runs & gemm.bad) | (lists.vector_runs & vector.bad)
        if compute.sequences:
            functions, done = functions | lists.rows_runs, done | (lists.rows_runs & row_unit.done)
            bad = bad | (lists.rows_runs & row_unit.bad)
        fields = self.command.payload
        list_base, state_base, length = Signal.like(lists.list_base), Signal(32), Signal(32)
        with m.If(self.command.ready):
            m.d.sync += [list_base.eq(fields.weight_base), state_base.eq(fields.state_base), length.eq(fields.length)]
        m.d.comb += [
            runner.link_reset.eq(self.link_reset),
            runner.weight_version.eq(self.weight_version),
            runner.progress.eq(Mux(enable, progress, 0)),
            runner.done.eq(lists.done),
            runner.bad.eq(lists.bad),
            runner.number.eq(lists.number),
            lists.start.eq(self._held(m, runner, enable)),
            lists.list_base.eq(list_base),
            lists.state_base.eq(state_base),
            lists.length.eq(length),
            lists.settled.eq(access.settled),
            lists.unit_done.eq(done),
            lists.unit_bad.eq(bad),
            gemm.settled.eq(access.settled),
            vector.settled.eq(access.settled),
            self.count.command_cycles.eq(runner.busy),
            self.count.stall_memory.eq(access.waits),
            self.count.gemm_cycles.eq(products),
            self.count.vector_cycles.eq(functions),
        ]
        clients = [(lists, ~lists.gemm_runs & ~lists.vector_runs), (gemm, lists.gemm_runs),
                   (vector, lists.vector_runs)]
        if compute.codebook:
            connect_stream(m, lists.centroid, centroid.job)
            m.d.comb += centroid.settled.eq(access.settled)
            clients[0] = lists, clients[0][1] & ~lists.centroid_runs
            clients.append((centroid, lists.centroid_runs))
        if compute.sequences:
            connect_stream(m, lists.rows, row_unit.job)
            m.d.comb += row_unit.settled.eq(access.settled)
            clients[0] = lists, clients[0][1] & ~lists.rows_runs
            clients.append((row_unit, lists.rows_runs))
        if compute.buffer_tags:
            self._elaborate_owners(m, owners, access, lists, runner, done)
        # Only one client uses the memories at a time: no response is pending when the next one begins, and idle
        # clients offer nothing, so all can share ``ready``.
        for client, works in clients:
            m.d.comb += [client.response.valid.eq(access.response.valid & works),
                         client.response.payload.eq(access.response.payload),
                         client.request.ready.eq(access.request.ready)]
            with m.If(works):
                m.d.comb += [
                    access.request.valid.eq(client.request.valid & enable),
                    # If a client's ``place`` has no buffer number, it may read the rows of any buffer.
                    *(access.request.p[name].eq(client.request.p[name]) for name in ("place", "row")),
                    access.response.ready.eq(client.response.ready & enable),
                ]
        for client, works in clients[1:]:
            m.d.comb += client.write.ready.eq(access.write.ready)
            with m.If(works):
                m.d.comb += [
                    access.write.valid.eq(client.write.valid & enable),
                    *(access.write.p[name].eq(client.write.p[name]) for name in ("place", "row", "elements", "keep")),
                ]
        return m

    def _throttle(self, m, platform):
        """Create the throttle, if the node has one; return whether units advance in this cycle."""
        if not self._config.has("throttles"):
            return Const(1)
        if hasattr(platform, "get_floating_unit"):
            raise ValueError("Arithmetic of a node with throttles and a compute engine must be gateware, not native")
        m.submodules.throttle = throttle = Throttle()
        m.d.comb += throttle.rate.eq(self.throttle)
        return throttle.enable

    def _held(self, m, runner, enable):
        """Return the list runner's start signal, held high until the throttled runner has seen it."""
        if not self._config.has("throttles"):
            return runner.start
        waits = Signal()
        m.d.sync += waits.eq((runner.start | waits) & ~enable & ~runner.reset)
        return runner.start | waits

    def _elaborate_owners(self, m, owners, access, lists, runner, done):
        """Tag the written rows, and check the tags of the rows that are read. An instruction that has read dead rows
        is reported as invalid in its last cycle, so the list ends with it."""
        wiring.connect(m, owners=owners.written, memory=wiring.flipped(self.activation_written))
        read, write = access.read_2, access.write_2
        m.d.comb += [
            owners.write.eq(write.valid & write.ready), owners.owner.eq(access.write_owner),
            owners.read.valid.eq(read.valid & read.ready), owners.read.row.eq(read.row),
            owners.read.owner.eq(access.read_owner),
            runner.is_other.eq(owners.dead),
            *([owners.window.eq(self.window)] if self._config.has("tenants") else []),
        ]
        with m.If(owners.dead):
            m.d.comb += runner.number.eq(Cat(lists.number, Const(0, ROW_BIT - len(lists.number)), owners.row))
            with m.If(done):
                m.d.comb += lists.unit_bad.eq(1)
