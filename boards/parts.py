"""Count the cells in each part of a design, from its flattened netlist."""

from pathlib import Path

from boards.tools import Family
from sim import json_files

__all__ = ["count_parts", "part_lines"]


def count_parts(netlist: Path, top: str, family: Family) -> dict[str, dict[str, int]]:
    """Count the cells in each part of a design, including its subparts; the result is keyed by path.

    A cell belongs to the part that names the signal driven by the cell, or to the innermost part if there are
    several. A cell that drives no named signal belongs to the part of the cell that it drives. Therefore a LUT
    between two parts is counted once, and the counts of all parts add up to the whole.

    Parameters
    ----------
    netlist : Path
        Netlist in Yosys's JSON format, with a cell ``$scopeinfo`` for each part.
    top : str
        Name of the module that the design was flattened into.
    family : Family
    """
    module = json_files.read_product(netlist)["modules"][top]
    cells = module["cells"]
    scopes = {name for name, cell in cells.items() if cell["type"] == "$scopeinfo"}
    kinds = {name: kind for name, cell in sorted(cells.items()) if (kind := family.kind(cell["type"]))}

    def innermost(name: str) -> str:
        while name and name not in scopes:
            name = name.rpartition(".")[0]
        return name

    def nets(name: str, direction: str) -> list[int]:
        cell = cells[name]
        return [bit for port, bits in sorted(cell["connections"].items())
                if cell["port_directions"][port] == direction for bit in bits]

    named: dict[int, str] = {}  # path of the part that each net belongs to
    for name, net in sorted(module["netnames"].items()):
        if not net["hide_name"]:
            scope = innermost(name)
            for bit in net["bits"]:
                if named.get(bit, "").count(".") <= scope.count(".") and (scope or bit not in named):
                    named[bit] = scope
    drives = {name: nets(name, "output") for name in kinds}
    drivers = {bit: name for name, bits in drives.items() for bit in bits}
    owners = {name: max(parts, key=lambda scope: scope.count("."))
             for name, bits in drives.items() if (parts := [named[bit] for bit in bits if bit in named])}
    # Breadth-first, from cells with a known part to their drivers, so that drivers are also assigned to a part.
    known = list(owners)
    for name in known:
        for bit in nets(name, "input"):
            driver = drivers.get(bit)
            if driver is not None and driver not in owners:
                owners[driver] = owners[name]
                known.append(driver)
    counts = {scope: dict.fromkeys(family.cells, 0) for scope in
              ["", *sorted(scopes, key=lambda scope: scope.split("."))]}
    for name, kind in kinds.items():
        counts[""][kind] += 1
        scope = owners.get(name, "")
        while scope:
            counts[scope][kind] += 1
            scope = innermost(scope.rpartition(".")[0])
    return {scope: {**own, "lut4_occupied": family.occupy(own)} for scope, own in counts.items()}


def part_lines(parts: dict[str, dict[str, int]], resource: str, *, whole: str = "", least: float = 0.01) -> list[str]:
    """Format lines for the parts that use most of a resource: count, share and name, indented by nesting.

    Parameters
    ----------
    parts : dict
        Counts from :func:`count_parts`.
    resource : str
        Name of the resource.
    whole : str
        Path of the part that counts as 100%.
    least : float
        Minimum share for a part to be shown.
    """
    most = parts[whole][resource]
    return [f"  {counts[resource]:7,}  {counts[resource] / most:6.1%}  {'  ' * path.count('.')}"
            f"{path.rpartition('.')[2]}"
            for path, counts in parts.items()
            if path and (path + ".").startswith(whole and whole + ".") and counts[resource] >= least * most > 0]
