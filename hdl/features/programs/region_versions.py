"""Count the updates of each weight region, and compare with the version that a command requires."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["REGIONS_MAX", "RegionVersions", "region_layout"]

#: Number of regions that a command can name, not counting region 0, which means no region.
REGIONS_MAX = 63


def region_layout():
    """Layout of a command's region and two flags: even and odd passes have separate weights (``apart``), and this
    pass is ``odd``."""
    return data.StructLayout({"region": range(REGIONS_MAX + 1), "apart": 1, "odd": 1})


class RegionVersions(wiring.Component):
    """Count updates of weight regions, and check whether a region has the version required by a command.

    A region has either one copy of its weights, or two copies that are ``apart``, for even and odd passes. An update
    produces the next version of a copy: from the same copy if there is only one, otherwise from the other copy to its
    pass's copy. In a region with one copy, a command of pass p requires version p. With two copies, it requires
    version p - 1 (0 in the first pass) of its pass's copy, so the weights lag by one update.

    ``version``, ``expected`` and ``right`` refer to the command at ``head``, with a latency of :attr:`settling`
    cycles after it changes and :attr:`latency` cycles after an update has ``ended``. For region 0, ``right`` is
    always high.

    Parameters
    ----------
    regions : int
        Number of regions; between 1 and 63.

    Members
    -------
    clear : In(1)
        Set all versions to 0. It takes two cycles for each region, and the unit is ``busy`` meanwhile.
    busy : Out(1)
    head : In(region_layout())
        Region of the next command to start.
    number : In(16)
        Number of passes between the last ``clear`` and the command's pass.
    begun : In(1)
        An update of region ``update`` begins; there is one at a time.
    ended : In(1)
        The update has succeeded, at least two cycles after it began; another may begin two cycles after that.
    update : In(region_layout())
        Region of the update, with ``begun``.
    version : Out(16)
    expected : Out(16)
    right : Out(1)
    """

    settling = 3
    latency = 2

    def __init__(self, *, regions=REGIONS_MAX):
        if isinstance(regions, bool) or not isinstance(regions, int) or not 1 <= regions <= REGIONS_MAX:
            raise ValueError(f"Region count must be between 1 and {REGIONS_MAX}, not {regions!r}")
        self._regions = regions
        super().__init__({
            "clear": In(1),
            "busy": Out(1),
            "head": In(region_layout()),
            "number": In(16),
            "begun": In(1),
            "ended": In(1),
            "update": In(region_layout()),
            "version": Out(16),
            "expected": Out(16),
            "right": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        depth = 2 * (self._regions + 1)
        m.submodules.memory = memory = Memory(shape=16, depth=depth, init=[])
        read, write = memory.read_port(domain="comb"), memory.write_port()
        address = Signal(range(depth))  # address of the version produced by the update
        following = Signal(16)
        swept = Signal(range(depth))

        head, update = self.head, self.update
        own = Cat(head.apart & head.odd, head.region)
        m.d.comb += [
            read.addr.eq(Mux(self.begun, Cat(update.apart & ~update.odd, update.region), own)),
            write.addr.eq(Mux(self.busy, swept, address)),
            write.data.eq(Mux(self.busy, 0, following)),
            write.en.eq(self.busy | self.ended),
        ]
        with m.If(self.begun):
            m.d.sync += [following.eq(read.data + 1), address.eq(Cat(update.apart & update.odd, update.region))]
        with m.Elif(self.ended & (address == own)):
            m.d.sync += self.version.eq(following)
        with m.Else():
            m.d.sync += self.version.eq(read.data)
        m.d.sync += [
            self.expected.eq(Mux(head.apart & (self.number != 0), self.number - 1, self.number)),
            self.right.eq((self.version == self.expected) | (head.region == 0)),
        ]
        with m.If(self.clear):
            m.d.sync += [self.busy.eq(1), swept.eq(0)]
        with m.Elif(self.busy):
            m.d.sync += [swept.eq(swept + 1), self.busy.eq(swept != depth - 1)]
        return m
