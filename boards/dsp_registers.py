"""Use the registers of ECP5 DSP blocks by moving flip-flops around a product into its block.

A MULT18X18D has registers for its operands and its product, which Yosys leaves unused. A design's flip-flops are
placed in the fabric, often far from the DSP columns, so a path includes a wire, the block's 3.9 ns and another wire.
If the block's registers are used, each of these three delays has a cycle of its own. Neither latency nor results
change; docs/synthesis.md explains the rules.
"""

import collections
import json
import re
from pathlib import Path

from sim import json_files

__all__ = ["SOURCE", "absorb", "rewrite"]

#: Source of this file, which is included in the digest of a netlist together with the design and the tool versions.
SOURCE = Path(__file__).read_text()

BLOCK, FLIP_FLOP = "MULT18X18D", "TRELLIS_FF"
_OPERANDS = [f"{operand}{place}" for operand in "AB" for place in range(18)]
_PRODUCT = [f"P{place}" for place in range(36)]

#: Settings of flip-flops that may be moved into a DSP block: no enable, no reset, initially zero.
_PLAIN = {"CLKMUX": ("CLK", "CLK"), "CEMUX": ("CE", "1"), "REGSET": ("SET", "RESET")}


class _Netlist:
    """A module in Yosys's JSON format, with the driver and readers of each net."""

    def __init__(self, module: dict, stays: re.Pattern | None):
        self.cells = module["cells"]
        self.stays = stays
        self.ports = {bit for port in module["ports"].values() for bit in port["bits"]}
        self.driver: dict[int, str] = {}
        self.readers: dict[int, set[tuple[str, str]]] = collections.defaultdict(set)
        for name, cell in self.cells.items():
            for port, bits in cell["connections"].items():
                for bit in bits:
                    if cell["port_directions"][port] == "output":
                        self.driver[bit] = name
                    else:
                        self.readers[bit].add((name, port))

    def net(self, name: str, port: str):
        """Return the net number, or constant, at a one-bit port."""
        return self.cells[name]["connections"].get(port, ["x"])[0]

    def clock(self, name: str) -> tuple | None:
        """Return clock and global reset of a flip-flop that may be moved, else None."""
        cell = self.cells.get(name, {"type": ""})
        if cell["type"] != FLIP_FLOP or (self.stays is not None and self.stays.fullmatch(name)):
            return None
        settings = {key: text.strip() for key, text in cell["parameters"].items()}
        if any(settings.get(key, default) != want for key, (default, want) in _PLAIN.items()):
            return None
        if self.net(name, "LSR") not in ("0", "x"):
            return None
        return self.net(name, "CLK"), settings.get("GSR", "ENABLED")

    def operands(self, block: str) -> dict[str, str] | None:
        """Return the flip-flops that drive the nonzero operand bits, or None if some bit has no flip-flop."""
        flip_flops = {}
        for port in _OPERANDS:
            net = self.net(block, port)
            if net != "0":
                flip_flops[port] = self.driver.get(net, "")
        return flip_flops if all(self.clock(name) for name in flip_flops.values()) else None

    def product(self, block: str) -> dict[str, str] | None:
        """Return the flip-flops that read the product bits in use, or None if a bit has any other reader."""
        flip_flops = {}
        for port in _PRODUCT:
            net = self.net(block, port)
            readers = self.readers[net] if isinstance(net, int) else ()
            if net in self.ports or len(readers) > 1:
                return None
            for name, sink in readers:
                if sink != "DI":
                    return None
                flip_flops[port] = name
        return flip_flops if all(self.clock(name) for name in flip_flops.values()) else None

    def connect(self, name: str, port: str, net) -> None:
        """Connect an input port of a cell to a net."""
        self.readers[self.net(name, port)].discard((name, port))
        self.readers[net].add((name, port))
        self.cells[name]["connections"][port] = [net]

    def remove(self, name: str) -> None:
        """Remove a flip-flop from the module."""
        self.readers[self.net(name, "DI")].discard((name, "DI"))
        del self.cells[name]


def absorb(module: dict, *, stays: re.Pattern | None = None) -> tuple[int, int]:
    """Move flip-flops around multipliers into the multipliers' registers.

    A multiplier's registers are used if flip-flops drive all operand bits that are not constant zero, and only
    flip-flops read the product bits. All these flip-flops must have the same clock, no enable, no reset, and an
    initial value of zero. An operand flip-flop that has other readers is kept.

    Parameters
    ----------
    module : dict
        Flattened module in Yosys's JSON format; changed in place.
    stays : re.Pattern or None
        Names of flip-flops that may not move.

    Returns
    -------
    blocks, flip_flops : int
        Number of multipliers that now use their registers, and number of flip-flops removed.
    """
    netlist = _Netlist(module, stays)
    before = len(netlist.cells)
    blocks = 0
    for block in [name for name, cell in netlist.cells.items() if cell["type"] == BLOCK]:
        operands, product = netlist.operands(block), netlist.product(block)
        if not operands or not product:
            continue
        clocks = {netlist.clock(name) for name in (*operands.values(), *product.values())}
        if len(clocks) != 1:
            continue
        (clock, reset), = clocks
        for port, name in operands.items():
            netlist.connect(block, port, netlist.net(name, "DI"))
        for name in set(operands.values()):
            kept = netlist.net(name, "Q")
            if not netlist.readers[kept] and kept not in netlist.ports:
                netlist.remove(name)
        cell = netlist.cells[block]
        for port, name in product.items():
            kept = netlist.net(name, "Q")
            netlist.remove(name)
            cell["connections"][port] = [kept]
            netlist.driver[kept] = block
        for port, net in (("CLK0", clock), ("CE0", "1"), ("RST0", "0")):
            cell["port_directions"][port] = "input"
            cell["connections"][port] = [net]
        for register in ("INPUTA", "INPUTB", "OUTPUT"):
            cell["parameters"] |= {f"REG_{register}_CLK": "CLK0", f"REG_{register}_CE": "CE0",
                                   f"REG_{register}_RST": "RST0"}
        cell["parameters"]["GSR"] = reset
        blocks += 1
    return blocks, before - len(netlist.cells)


def rewrite(netlist: Path, top: str, statistic: Path, *, stays: re.Pattern | None = None) -> None:
    """Move flip-flops into the multipliers of a netlist file and update its statistics.

    Parameters
    ----------
    netlist : Path
        Flattened design in Yosys's JSON format.
    top : str
        Top module of the design.
    statistic : Path
        Yosys's statistics of the design, in JSON.
    stays : re.Pattern or None
        Names of flip-flops that may not move.
    """
    design, counts = (json_files.read_product(path) for path in (netlist, statistic))
    _, gone = absorb(design["modules"][top], stays=stays)
    counts["design"]["num_cells_by_type"][FLIP_FLOP] -= gone
    netlist.write_text(json.dumps(design))
    statistic.write_text(json.dumps(counts))
