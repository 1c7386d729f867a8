"""Macros for the simulation harness that list the ring and far-memory ports of a Verilated node."""

import re
from collections.abc import Mapping

__all__ = ["HEADER", "describe_ports"]

#: Name of the header included by the harness.
HEADER = "ports.h"

#: Name of a wire of a port that sends words.
_WIRE = re.compile(r"(?P<port>ring(?:_[1-9]\d*)?)_o__(?P<wire>\w+)")


def describe_ports(names: Mapping[str, int]) -> str:
    """Generate ``ports.h`` for a node.

    ``RING_PORTS`` is the number of its ports, ``RING_EACH_PORT(f)`` expands to ``f(number, in, out)`` for each port,
    and ``RING_REPLAY`` is whether its links have the wires of :class:`~hdl.features.replay.ReplayLinkSignature`.
    ``RING_FAR_LANES`` is the number of lanes of its far memory, or 0, ``RING_EACH_FAR_LANE(f)`` expands to
    ``f(lane)`` for each lane, and ``RING_FAR_ROW_BITS`` is the width of a row number.

    Parameters
    ----------
    names : mapping of str to int
        Ports of the node's Verilog, and their widths. ``ring_i`` and ``ring_o`` are the first ring port, ``ring_1_i``
        and ``ring_1_o`` the second ring port, and ``far`` is the port of
        :func:`~hdl.features.far.port.far_signature`.
    """
    wires: dict[str, set[str]] = {}
    for name in names:
        if match := _WIRE.fullmatch(name):
            wires.setdefault(match["port"], set()).add(match["wire"])
    kinds = {"check" in port_wires for port_wires in wires.values()}
    ports = [("ring" if number == 0 else f"ring_{number}") for number in range(len(wires))]
    if wires.keys() != set(ports) or len(kinds) != 1:
        raise ValueError(f"Ports of a node must be ring_i, ring_o, ring_1_i, ring_1_o and so on, with links of one "
                         f"kind, not {', '.join(sorted(wires)) or 'none'}")
    uses = " ".join(f"f({number}, {port}_i, {port}_o)" for number, port in enumerate(ports))
    lanes = sum(name.startswith("far__answer__") for name in names)
    far = f"#define RING_FAR_LANES {lanes}\n"
    if lanes:
        far += (f"#define RING_FAR_ROW_BITS {names['far__row']}\n"
                f"#define RING_EACH_FAR_LANE(f) {' '.join(f'f({lane})' for lane in range(lanes))}\n")
    return (f"#pragma once\n#define RING_PORTS {len(ports)}\n#define RING_REPLAY {int(*kinds)}\n"
            f"#define RING_EACH_PORT(f) {uses}\n{far}")
