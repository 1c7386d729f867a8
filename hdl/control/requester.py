"""Access rights of the requesting tenant, and capacities of the spaces that requests can address."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.protocol import DESCRIPTOR_WORDS, EVENT_WORDS, Opcode, Status
from hdl.control.registers import PRIVILEGED as PRIVILEGED_REGISTERS
from hdl.control.registers import REGISTERS, register, registers_of
from hdl.control.tenancy import MAX_TENANTS, PRIVILEGED, asked_layout, found_layout
from hdl.group import GROUP
from hdl.memory_map import MAX_SPACES

__all__ = ["PATIENCE", "Requester", "capacities"]

#: Maximum number of cycles that a tenant's POP_EVENT waits, so that it cannot block other tenants too long.
PATIENCE = (1 << 16) - 1

_WIDTH = MAX_TENANTS.bit_length()


def capacities(config):
    """Number of words in each memory space, in the register file, and in a queue's program."""
    words = config.memory_map.words
    programs = [DESCRIPTOR_WORDS * config.programs.depth] if config.programs else []
    return [*words, *[0] * (MAX_SPACES - len(words)), len(registers_of(config)), *programs]


class Requester(wiring.Component):
    """Check a request against the access rights of its tenant.

    The first word of a packet is the number of the tenant, or of the privileged host. A tenant may always send PING,
    and read and write its memory windows. All other requests are only for the tenant that the node is executing,
    except for some registers: it may not access :data:`~hdl.control.registers.TENANT_REGISTERS`, nor write
    :data:`~hdl.control.registers.PRIVILEGED`. The privileged host may do everything, except write tenant registers
    while the node is busy. Outputs are combinational, except :attr:`asked`, :attr:`permits` and :attr:`over`.

    :attr:`moved` follows :attr:`found` one cycle later, and :attr:`permits` follows the first cycle of
    :attr:`request`: the register file writes at least two cycles later.

    A server belongs to the model owner: there, a tenant may only send PING. The privileged host sends commands to the
    server on behalf of the tenant being executed.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    word : In(32)
        Word of the packet.
    take : In(1)
        The word is the first one of its packet, and is taken.
    opcode : In(8)
        Opcode of the request.
    place : In(32)
        First word after the header.
    asks : In(1)
        The window in the space given by :attr:`place` is requested.
    address : In(range(registers))
        Address of the register to be written.
    request : In(1)
        A request to the register file, with a stable address. There must be one idle cycle between requests.
    left : In(16)
        Cycles waited for an event, counted down from :data:`~hdl.control.protocol.EVENT_WORDS` past 0.
    running : In(2)
        Tenant that the node is executing.
    busy : In(1)
        The node has a command or a program.
    foreign : Out(1)
        The tenant may not make this request.
    bounded : Out(1)
        The request is from a tenant, for memory or registers, and limited by :attr:`room`.
    room : Out(26)
        Number of words or registers available to the tenant.
    beyond : Out(Status)
        Status of a request beyond :attr:`room`.
    moved : Out(28)
        Address in memory for the address in :attr:`place`, which is relative to the window.
    permits : Out(1)
        The register may be written. Valid from the second cycle of a request until the cycle after it, otherwise low.
    reason : Out(Status)
        Status for a request that is refused.
    over : Out(1)
        A tenant's wait for an event has reached its maximum.
    asked : Out(asked_layout())
    found : In(found_layout())
        Window of the tenant in the space given by :attr:`place`.
    """

    def __init__(self, *, config):
        self._config = config
        count = len(registers_of(config))
        room = found_layout()["size"].width + exact_log2(GROUP)
        super().__init__({
            "word": In(32), "take": In(1), "asks": In(1),
            "opcode": In(8), "place": In(32), "address": In(range(count)),
            "request": In(1), "left": In(16), "running": In(_WIDTH), "busy": In(1),
            "foreign": Out(1), "bounded": Out(1), "room": Out(room), "beyond": Out(Status), "moved": Out(28),
            "permits": Out(1), "reason": Out(Status), "over": Out(1),
            "asked": Out(asked_layout()), "found": In(found_layout()),
        })

    def elaborate(self, platform):
        m = Module()
        tenant = Signal(_WIDTH, init=MAX_TENANTS)
        with m.If(self.take):  # an unassigned number stands for no tenant
            m.d.sync += tenant.eq(Mux(self.word < MAX_TENANTS, self.word, MAX_TENANTS))

        def is_one(*opcodes):
            return Cat(self.opcode == opcode for opcode in opcodes).any()

        is_tenant = tenant != PRIVILEGED
        memory = is_one(Opcode.READ_MEMORY, Opcode.WRITE_MEMORY)
        registers = is_one(Opcode.READ_REGISTER, Opcode.WRITE_REGISTER)
        is_late = self.address >= len(REGISTERS)
        named = Cat(self.address == register(name).address for name in PRIVILEGED_REGISTERS).any()
        requested, right, late = Signal(), Signal(), Signal()
        m.d.sync += [requested.eq(self.request),
                     late.eq(self.left == (EVENT_WORDS - PATIENCE + 1) % (1 << len(self.left)))]
        with m.If(~requested):
            m.d.sync += right.eq(~Mux(is_tenant, is_late | named, is_late & self.busy))
        m.d.comb += [
            self.asked.tenant.eq(tenant),
            self.asked.space.eq(self.place[28:]), self.asked.valid.eq(self.asks),
            self.foreign.eq(is_tenant & ~is_one(Opcode.PING) if self._config.is_server else
                            is_tenant & (tenant != self.running) & ~memory & ~is_one(Opcode.PING)),
            self.bounded.eq(is_tenant & (memory | registers)),
            self.room.eq(Mux(memory, Cat(Const(0, exact_log2(GROUP)), self.found.size),
                             Mux(is_tenant, len(REGISTERS), len(registers_of(self._config))))),
            self.beyond.eq(Mux(memory, Status.OUT_OF_WINDOW, Status.FOREIGN_TENANT)),
            self.permits.eq(requested & right), self.over.eq(is_tenant & late),
            self.reason.eq(Mux(is_tenant, Status.FOREIGN_TENANT, Status.BUSY)),
        ]
        if "trace" in self._config.memory_map:
            trace = self._config.memory_map["trace"]
            with m.If(memory & ~is_tenant & (self.place[28:] == trace.number)):
                m.d.comb += self.room.eq(trace.words)
        group = Signal(28 - exact_log2(GROUP), reset_less=True)
        with m.If(self.asks):
            m.d.sync += group.eq(self.place[exact_log2(GROUP):28] + self.found.base)
        m.d.comb += self.moved.eq(Cat(self.place[:exact_log2(GROUP)], group))
        return m
