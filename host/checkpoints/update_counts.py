"""Counts of updates that nodes reach when they cannot be set: by broadcasts, each of which counts as one.

Nodes with SettableVersion have WEIGHT_VERSION written. Others, as those of bitstreams, count on until they have the
value of a frame; that takes a ring on which all of them lack as many.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hdl.config import SettableVersion
from hdl.group import GROUP
from host.checkpoints.rejections import TooSmallError
from host.driver.device import Device
from host.driver.ring import Ring

__all__ = ["MOST", "catch_up", "missing"]

#: Broadcasts of a restore.
MOST = 1 << 16


def missing(devices: Sequence[Device], nodes: Sequence[Mapping[str, Any]]) -> int:
    """Broadcasts until all nodes have the counts of a frame.

    Raises
    ------
    TooSmallError
        There is no such number.
    """
    found: dict[int, int] = {}
    most = 0 if devices[0].config.is_int16 else MOST  # nodes of integers have no broadcast
    for device, node in zip(devices, nodes, strict=False):
        if node["version"] and not device.config.has(SettableVersion):
            found[node["rank"]] = (node["version"] - int(device.read_register("WEIGHT_VERSION"))) % (1 << 32)
    for rank, count in found.items():
        if count > most or count != next(iter(found.values())):
            raise TooSmallError(f"node {rank} must have a WEIGHT_VERSION that can be written, as nodes with "
                                f"SettableVersion have, or one that is as far from that of the checkpoint as on "
                                f"other nodes, and at most {most:,} below it")
    return next(iter(found.values()), 0)


def catch_up(ring: Ring, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Have nodes count on to what a frame has; memories are what they were, and links are reset."""
    count = missing(ring.devices, nodes)
    if not count:
        return
    spaces = [device.config.memory_map["weights"].number for device in ring.devices]
    before = [device.read_memory(space, 0, GROUP) for device, space in zip(ring.devices, spaces, strict=True)]
    try:
        for _ in range(count):
            ring.collectives.broadcast(GROUP, root=ring.nodes - 1)
    finally:
        ring.recover()
        for device, space, words in zip(ring.devices, spaces, before, strict=True):
            device.write_memory(space, 0, words)
