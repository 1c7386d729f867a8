"""Board wiring. The nodes are configured in hdl/board.py, which the host also reads.

To add a board, add an entry here and an entry of the same name in :data:`hdl.board.BOARDS`.
"""

import dataclasses

from amaranth.build import Attrs, Platform, Resource
from amaranth_boards.colorlight_5a75b_r7_0 import Colorlight_5A75B_R70Platform
from amaranth_boards.icebreaker import ICEBreakerPlatform
from amaranth_boards.orangecrab_r0_2 import OrangeCrabR0_2_25FPlatform
from amaranth_boards.resources import UARTResource
from amaranth_boards.ulx3s import ULX3S_25F_Platform, ULX3S_85F_Platform

from boards.tools import ECP5, ICE40, Family, SynthesisError
from hdl.board import BOARDS as CONFIGS
from hdl.choices import choice_error

__all__ = ["BOARDS", "Board", "board"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Board:
    """Wiring of a board.

    Parameters
    ----------
    platform : type
        Class from amaranth-boards.
    family : Family
        FPGA family, which determines the tools.
    resources : tuple of Resource
        Resources that the platform does not define.
    lights : dict
        Bits of :class:`~hdl.board.BoardTop`'s ``lights`` that each light on the board shows, keyed by the light's
        resource and its number or the name of its part.
    button : str or None
        Resource of a button that resets all nodes while pressed.
    loader : str
        Name of the board in openFPGALoader.
    cable : str or None
        Name of the adapter in openFPGALoader, if the board does not include one.
    dsp_registers : bool
        Whether to move flip-flops around multipliers into the DSP blocks; see :mod:`boards.dsp_registers`.
    """

    platform: type[Platform]
    family: Family
    resources: tuple[Resource, ...] = ()
    lights: dict[tuple[str, int | str], tuple[int, ...]] = dataclasses.field(default_factory=dict)
    button: str | None = None
    loader: str
    cable: str | None = None
    dsp_registers: bool = False

    @property
    def part(self):
        """Part name of the chip, including speed grade and package."""
        return "-".join(str(value) for value in (self.platform.device, getattr(self.platform, "speed", None),
                                                 self.platform.package) if value is not None)


def _ulx3s(platform, *, dsp_registers=False):
    return Board(platform=platform, family=ECP5, lights={("led", n): (n,) for n in range(4)}, button="button_fire",
                 loader="ulx3s", dsp_registers=dsp_registers)


BOARDS = {
    "ulx3s-85f": _ulx3s(ULX3S_85F_Platform),
    "ulx3s-85f-tenants": _ulx3s(ULX3S_85F_Platform),
    "ulx3s-85f-compute": _ulx3s(ULX3S_85F_Platform, dsp_registers=True),
    "ulx3s-25f": _ulx3s(ULX3S_25F_Platform),
    "orangecrab-25f": Board(
        platform=OrangeCrabR0_2_25FPlatform, family=ECP5,
        # Serial port pins on a Feather board.
        resources=(UARTResource(0, rx="0", tx="1", conn=("io", 0), attrs=Attrs(IO_TYPE="LVCMOS33", PULLMODE="UP")),),
        lights={("rgb_led", "r"): (0,), ("rgb_led", "g"): (1, 2), ("rgb_led", "b"): (3,)}, button="button",
        loader="orangeCrab"),
    # Only two wires can be inputs, and the link needs both, although the only light and button are on them.
    "colorlight-5a-75b": Board(
        platform=Colorlight_5A75B_R70Platform, family=ECP5, loader="colorlight", cable="ft232"),
    "icebreaker": Board(
        platform=ICEBreakerPlatform, family=ICE40, lights={("led", 0): (0, 3), ("led", 1): (1, 2)}, button="button",
        loader="ice40_generic"),
}


def board(name):
    """Return the board with the given name and its configuration."""
    if name not in BOARDS:
        raise SynthesisError(choice_error("Board", BOARDS, name))
    return BOARDS[name], CONFIGS[name]
