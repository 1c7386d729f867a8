"""Check commands before any engine receives them."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.engine import BASES, FAR, Reach
from hdl.control.protocol import EventStatus, command_layout
from hdl.control.registers import RULE, checked_layout
from hdl.control.sequencer import place_layout
from hdl.control.tenancy import PRIVILEGED, tenancy_layout, windowed
from hdl.group import GROUP

__all__ = ["CommandChecker", "verdict_layout"]


def verdict_layout():
    """Layout of a check's result: an :class:`~hdl.control.protocol.EventStatus`, and the invalid value as detail."""
    return data.StructLayout({"status": 8, "detail": 32})


class _Flags:
    """Registers for the properties of the current operation. Properties share registers, so that few are needed.

    Two properties share a register unless some operation has only one of them. A property that does not apply to an
    operation may have either value.
    """

    def __init__(self):
        self._registers = []

    def of(self, column):
        """Return the value of a property for the current operation, as a constant if it is the same for all
        operations. ``column`` maps operation codes to values."""
        if len(set(column.values())) < 2:
            return Const(any(column.values()), 1)
        for flag, known in self._registers:
            if all(known.get(code, value) == value for code, value in column.items()):
                known.update(column)
                return flag
        flag = Signal(name=f"flag_{len(self._registers)}")
        self._registers.append((flag, dict(column)))
        return flag

    def set(self, code):
        """Return statements that set all registers for the operation with this code."""
        return [flag.eq(known.get(code, False)) for flag, known in self._registers]


class CommandChecker(wiring.Component):
    """Check whether the node can execute a command.

    All properties of an operation come from its description. The first violated condition determines the verdict;
    fields that the operation does not use are ignored.

    - The node has the operation, in the queue of the command (``UNKNOWN_OPERATION``; the detail is the operation).
      Operations without extents that are not on the ring, such as QUIESCE, are not checked further.
    - In a node with tenants, the command's ``tenant`` is the one that the node is executing (``FOREIGN_TENANT``; the
      detail is the command's tenant), and a tenant's operation is not ``privileged`` (same status; the detail is the
      operation). This includes QUIESCE; a foreign QUIESCE gets its verdict one cycle later.
    - The operation is not ``refused`` under the optimizer's settings (FUSED_UPDATE: ``BAD_RULE``, unless the node has
      the planes that the rule needs; the detail is the rule) or for its fields (BROADCAST in a node with formats:
      ``BAD_FORMAT``, if the format does not exist, or has blocks and the root is not a server; the detail is the
      format).
    - ``length`` is at least the operation's ``least`` (``BAD_LENGTH``; the detail is ``least``).
    - If a command of a program waits for a ``remote`` node, this node has control words, ``unit`` is a different node
      of its ring, and ``unit_queue`` is one of its queues (``BAD_UNIT``; the detail is unit, unit_queue and the
      number of nodes in the ring, from the lowest byte on). This includes QUIESCE.
    - If it is ``on_ring``: ``port`` < ``ring_ports``, 1 ≤ ``size`` ≤ ``nodes_max`` and ``rank`` < ``size``. If it
      ``has_root``: ``root`` < ``size``. Depending on ``is_root``, ``root`` is this node's rank and ``size`` > 1, or
      it is another rank (``BAD_RANK``; the detail is rank, size, port and root, from the lowest byte on). Then
      ``block_offset`` < ``size`` and ``stride`` ≥ 1 (``BAD_STRIDE``; the detail is both, from the lowest byte on).
    - For each of its extents, in the order of :data:`~hdl.control.engine.BASES`, the base is a multiple of 32 and not
      beyond the end of the memory (``BAD_BASE``; the detail is the base), and ``length`` fits after it
      (``BAD_LENGTH``; the detail is the maximum length). For an extent that is only a start, only the base is
      checked. For a tenant, the memory is its window, and both statuses are ``OUT_OF_WINDOW``, unless the base is not
      a multiple of 32.

    For an operation ``on_ring``, groups of 32 elements are ``stride`` groups apart: room for R groups holds ceil(R /
    ``stride``) of them. Packed state starts at a multiple of 16 words, the size of a group.

    A node stores the state of only one block, of at most ceil(ceil(length / 32) / size) groups of 32 elements. The
    room R after the base, with two elements per word if state is packed and the extent ``packs``, is also a whole
    number of groups, so it is sufficient if and only if ``length`` ≤ R · ``size``: every node of a ring reaches the
    same verdict without a division. With ``root_reduce`` and an operation that may be ``owned``, ``root`` must be
    below ``size``, and every node must have room for the state of all groups, so that verdicts agree again.

    A verdict takes at most :attr:`latency` cycles, from the first cycle with the command at ``i`` to the cycle when
    command and verdict are both taken; ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    config : NodeConfig
        Configuration of the node, with memory sizes and the maximum ring size.
    operations : tuple of OperationDescription
        Operations of the node.
    queues : int
        Number of command queues in the node.

    Members
    -------
    i : In(stream of command_layout())
    asking : In(range(queues)), if there is more than one
        Queue of the command on ``i``.
    from_program : In(1), if there is more than one
        The command belongs to a program.
    place : In(place_layout()), if there is more than one
        The node's position on the ring of its control words.
    o : Out(stream of verdict_layout())
    rule : In(RULE)
        Update rule selected in the optimizer.
    packed_state : In(1)
        A word of state holds two elements.
    tenancy : In(tenancy_layout(config)), in a node with tenants
    checked : Out(checked_layout())
        Update rule and state format used for the verdict; stable until the first cycle of the next command.
    """

    def __init__(self, *, config, operations, queues=1):
        self._config = config
        self._operations = tuple(operations)
        self._queues = queues
        super().__init__({
            "i": In(stream.Signature(command_layout())),
            **({"asking": In(range(queues)), "from_program": In(1), "place": In(place_layout())}
               if queues > 1 else {}),
            "o": Out(stream.Signature(verdict_layout())),
            "rule": In(RULE),
            "packed_state": In(1),
            **({"tenancy": In(tenancy_layout(config))} if config.has("tenants") else {}),
            "checked": Out(checked_layout()),
        })

    @property
    def latency(self):
        # For up to two memories, the capacity is divided by the stride. The check of such a memory takes one cycle
        # per bit of the quotient and one for rounding, instead of two cycles.
        return 16 + self._config.topology.max_nodes.bit_length() + 2 * (self._quotient_bits - 1)

    @property
    def _words(self):
        return {**{space.name: space.words for space in self._config.memory_map}, FAR: self._config.far_words}

    @property
    def _room_bits(self):
        """Number of bits needed for the size of the largest memory that any operation uses."""
        return max([self._words[extent.memory] for operation in self._operations for extent in operation.extents],
                   default=1).bit_length()

    @property
    def _quotient_bits(self):
        """Width in bits of the number of groups in a memory."""
        return max(self._room_bits - 5, 1)

    def _strays(self, command):
        """Whether a command waits for a node or queue from which no command counts can arrive."""
        outside = Const(1, 1)
        if self._config.has_signals:
            outside = ((command.unit >= self.place.size) | (command.unit == self.place.rank)
                       | (command.unit_queue >= self._queues))
        return self.from_program & command.remote & (command.after_1 != 0) & outside

    def elaborate(self, platform):
        m = Module()
        config, operations = self._config, self._operations
        command = self.i.payload
        verdict = self.o.payload
        settings = Signal(checked_layout())
        m.d.comb += [settings.rule.eq(self.rule), settings.packed_state.eq(self.packed_state)]

        # The memories are checked one after another, in the order of the bases, with the same registers.
        flags = _Flags()
        extents = [{operation.code: extent for operation in operations if (extent := operation.extent(base))}
                   for base in BASES]
        words, room_bits = self._words, self._room_bits
        tenants = config.has("tenants")
        if tenants:  # a tenant's memory is its window
            is_tenant = self.tenancy.tenant != PRIVILEGED
            foreign = command.tenant != self.tenancy.tenant
            reserved = is_tenant & Cat(command.operation == operation.code for operation in operations
                                       if operation.privileged).any()
            words = {space.name: Cat(Const(0, exact_log2(GROUP)), self.tenancy.windows[space.name].size)
                     for space in windowed(config)}

        def trait(index, holds, *, measured=False):
            """Whether the operation's extent at base ``BASES[index]`` satisfies ``holds``; ``measured`` ignores
            extents whose length is not checked."""
            return flags.of({code: holds(extent) for code, extent in extents[index].items()
                             if not measured or extent.reach is not Reach.START})

        def capacity_at(index):
            """Return the size, in elements, of the memory that the operation accesses at base address
            ``BASES[index]``."""
            memories = list(dict.fromkeys(extent.memory for extent in extents[index].values()))
            first = words[memories[0]] if memories else 0
            value = Const(first, room_bits) if isinstance(first, int) else first
            for memory in memories[1:]:
                value = Mux(trait(index, lambda extent, memory=memory: extent.memory == memory), words[memory], value)
            return value

        indices = range(len(BASES))
        capacities = Array([capacity_at(index) for index in indices])
        bases = Array([command[base] for base in BASES])
        starts = Array([trait(index, lambda extent: extent.reach is Reach.START) for index in indices])
        # A single node may own all groups of a command.
        may_be_owned = Cat(command.operation == operation.code for operation in operations if operation.owned)
        owned = [may_be_owned.any() & command.root_reduce] if len(may_be_owned) else []
        shared = Array([trait(index, lambda extent: extent.reach is Reach.BLOCK, measured=True) for index in indices])
        packed = Array([trait(index, lambda extent: extent.packs, measured=True) for index in indices])
        strided = Array([flags.of({operation.code: operation.on_ring and extent.reach is Reach.LENGTH
                                   for operation in operations if (extent := operation.extent(base))})
                         for base in BASES])
        memory = Signal(range(len(BASES)))
        used = Signal(len(BASES))
        base = Signal(32)
        capacity = Signal(room_bits)
        factor = Signal(range(config.topology.max_nodes + 1))
        addend = Signal(room_bits + len(factor) + 1)
        fitting = Signal(room_bits + len(factor) + 1)
        left = Signal.like(command.stride)  # remainder of a division

        def conclude(status, detail=0):
            m.d.sync += [self.o.valid.eq(1), verdict.status.eq(status), verdict.detail.eq(detail)]
            m.next = "Verdict"

        def proceed():
            """Continue with the next memory."""
            with m.If(memory == len(BASES) - 1):
                conclude(EventStatus.OK)
            with m.Else():
                m.d.sync += memory.eq(memory + 1)
                m.next = "Fetch"

        def uses(extent):
            if extent is None or extent.used is None:
                return Const(extent is not None, 1)
            return extent.used(settings)

        with m.FSM():
            with m.State("Operation"):
                m.d.sync += memory.eq(0)
                with m.If(self.i.valid):
                    m.d.sync += self.checked.eq(settings)
                    with m.Switch(command.operation):
                        for operation in operations:
                            with m.Case(operation.code):
                                if not operation.extents and not operation.on_ring:
                                    conclude(EventStatus.OK)
                                else:
                                    m.next = "Ring" if operation.on_ring else "Fetch"
                                m.d.sync += [used.eq(Cat(uses(operation.extent(base)) for base in BASES)),
                                             *flags.set(operation.code)]
                                if self._queues > 1:
                                    with m.If(self._strays(command)):
                                        conclude(EventStatus.BAD_UNIT, Cat(
                                            command.unit, command.unit_queue, Const(0, 6), self.place.size))
                                for refused, subject in ((operation.refused_fields, command),
                                                       (operation.refused, settings)):
                                    if refused is not None:
                                        condition, status, detail = refused(subject)
                                        with m.If(condition):
                                            conclude(status, detail)
                                if operation.least:
                                    with m.If(command.length < operation.least):
                                        conclude(EventStatus.BAD_LENGTH, operation.least)
                                if self._queues > 1 and operation.queue is not None:
                                    with m.If(self.asking != operation.queue):
                                        conclude(EventStatus.UNKNOWN_OPERATION, command.operation)
                        with m.Default():
                            conclude(EventStatus.UNKNOWN_OPERATION, command.operation)
                    if tenants:
                        with m.If(foreign | reserved):
                            m.d.sync += self.o.valid.eq(0)
                            m.next = "Foreign"

            if tenants:
                with m.State("Foreign"):
                    conclude(EventStatus.FOREIGN_TENANT, Mux(foreign, command.tenant, command.operation))

            with m.State("Ring"):
                rooted = Cat(*(command.operation == operation.code for operation in operations if operation.has_root),
                             *owned)
                outside = (
                    (command.port >= config.topology.ports) | (command.size > config.topology.max_nodes)
                    | (command.rank >= command.size) | (rooted.any() & (command.root >= command.size))
                )
                # Operations that require the root to be this node, or to be a different node.
                for here in (True, False):
                    seated = [command.operation == operation.code for operation in operations
                              if operation.is_root is here]
                    if seated:
                        own_root = command.root == command.rank
                        outside |= Cat(seated).any() & ((~own_root | (command.size == 1)) if here else own_root)
                m.next = "Fetch"
                with m.If(outside):
                    conclude(EventStatus.BAD_RANK, Cat(command.rank, command.size, command.port, command.root))
                with m.Elif((command.block_offset >= command.size) | (command.stride == 0)):
                    conclude(EventStatus.BAD_STRIDE, Cat(command.block_offset, command.stride))

            with m.State("Fetch"):
                partitioned = shared[memory]
                for flag in owned:
                    partitioned &= ~flag
                m.d.sync += [
                    base.eq(bases[memory]),
                    capacity.eq(capacities[memory]),
                    factor.eq(Mux(partitioned, command.size, 1)),
                    fitting.eq(0),
                ]
                with m.If((used >> memory)[0]):
                    m.next = "Base"
                with m.Else():
                    proceed()

            with m.State("Base"):
                room = (capacity - base[:room_bits])[:room_bits]
                m.d.sync += addend.eq(Mux(packed[memory] & self.checked.packed_state, room.shift_left(1), room))
                m.next = "Multiply"
                halves = packed[memory] & self.checked.packed_state
                with m.If((base[:4] != 0) | (base[4] & ~halves) | (base > capacity)):
                    conclude(EventStatus.BAD_BASE, base)
                    if tenants:
                        with m.If((base[:4] == 0) & (~base[4] | halves) & is_tenant):
                            m.d.sync += verdict.status.eq(EventStatus.OUT_OF_WINDOW)
                with m.Elif(starts[memory]):
                    proceed()
                with m.Elif(strided[memory] & (command.stride != 1)):
                    m.d.sync += [left.eq(0), addend.eq(room >> 5), fitting.eq(1)]
                    m.next = "Divide"

            with m.State("Divide"):
                # Each cycle shifts in one bit of the quotient. A marker shifted ahead of them ends at the top.
                bits = self._quotient_bits
                partial = Cat(addend[bits - 1], left)
                with m.If(fitting[bits]):
                    m.d.sync += fitting.eq((fitting[:bits] + (left != 0)) << 5)
                    m.next = "Length"
                with m.Else():
                    holds = partial >= command.stride
                    m.d.sync += [
                        left.eq(Mux(holds, partial - command.stride, partial)),
                        fitting.eq(Cat(holds, fitting)),
                        addend.eq(addend << 1),
                    ]

            with m.State("Multiply"):
                m.d.sync += [addend.eq(addend << 1), factor.eq(factor >> 1)]
                with m.If(factor[0]):
                    m.d.sync += fitting.eq(fitting + addend)
                with m.If(factor == 0):
                    m.next = "Length"

            with m.State("Length"):
                with m.If(command.length > fitting):
                    conclude(EventStatus.BAD_LENGTH, fitting)
                    if tenants:
                        with m.If(is_tenant):
                            m.d.sync += verdict.status.eq(EventStatus.OUT_OF_WINDOW)
                with m.Else():
                    proceed()

            with m.State("Verdict"):
                m.d.comb += self.i.ready.eq(self.o.ready)
                with m.If(self.o.ready):
                    m.d.sync += self.o.valid.eq(0)
                    m.next = "Operation"

        return m
