"""Rings of nodes with slots: positions, common time, and jobs on alternate nodes (docs/ring/slots.md)."""

from collections.abc import Sequence

from hdl.features.slots.job_table import JobFrame
from hdl.features.slots.link import PERIOD
from host.driver.device import Device
from host.driver.devices import TIMEOUT, Devices
from host.driver.diagnosis import RingError
from host.driver.ring import Ring

__all__ = ["place_in_ring", "place_nodes", "rings_of_jobs", "wait_for_time"]

_SYNCS = 8  # number of SYNC periods within which every node should have received the time


def place_in_ring(devices: Devices) -> None:
    """Write the nodes' positions in the ring; in a ring shared by jobs, only wait until old packets have left."""
    if devices.config.link.jobs > 1:
        devices[0].submit_pop_event(JobFrame.of(devices.config).cycles).result()
    else:
        devices.ask(lambda rank, device: device.submit_write_register("SLOT_POSITION", rank | len(devices) << 4))


def wait_for_time(devices: Devices) -> None:
    """Wait until all nodes have a valid TIME, which slots require on rings of two or more nodes.

    Raises ``RingError`` if a node still has no valid TIME after several SYNCs from rank 0.
    """
    for _ in range(_SYNCS):
        lacks = [rank for rank, device in enumerate(devices) if not device.read_fields("TIME_STATUS")["valid"]]
        if not lacks:
            return
        devices[0].submit_pop_event(PERIOD).result()  # just a wait of PERIOD cycles: no event arrives
    raise RingError(f"nodes without valid TIME after {_SYNCS * PERIOD:,} cycles: "
                    f"{', '.join(devices[rank].name for rank in lacks)}; check the links of the ring",
                    cause=lacks[0], events=[None] * len(devices))


def place_nodes(devices: Sequence[Device]) -> None:
    """Write each node's position on the ring shared by several jobs, in the order of ``devices``.

    All work in slots stops. Raises ``ValueError`` if the jobs cannot be assigned to alternate nodes of the ring.
    """
    jobs = devices[0].config.link.jobs
    if jobs < 2 or len(devices) % jobs or len(devices) < 2 * jobs:
        raise ValueError(f"Nodes of a ring of jobs must have 2 jobs, and 2 nodes or more be of each, not {jobs} and "
                         f"{len(devices)} nodes")
    # Clear all old positions before giving any node a new one.
    for size in (0, len(devices)):
        for pending in [device.submit_write_register("SLOT_POSITION", (rank | size << 4) if size else 0)
                        for rank, device in enumerate(devices)]:
            pending.result()


def rings_of_jobs(devices: Sequence[Device], *, timeout: int = TIMEOUT) -> list[Ring]:
    """Connect the nodes and return one ring per job, each made of alternate nodes on the ring of links.

    Afterwards each job's driver can run on its own host, without affecting the other jobs' rings, nodes or packets.
    Raises ``RingError`` if nodes have no valid TIME, or no slots.
    """
    for device in devices:
        device.connect()
    place_nodes(devices)
    jobs = devices[0].config.link.jobs
    rings = [Ring(devices[job::jobs], timeout=timeout) for job in range(jobs)]
    for ring in rings:
        ring.connect()
    _check_slots(devices)
    return rings


def _check_slots(devices: Sequence[Device]) -> None:
    """Raise ``RingError`` unless the superframe counter of every node advances, which means it has slots."""
    frame, counts = JobFrame.of(devices[0].config), []
    for _ in range(2):
        counts.append([device.read_register("SUPERFRAMES") for device in devices])
        devices[0].submit_pop_event(2 * frame.cycles).result()  # just a wait of this length: no event arrives
    lacks = [rank for rank, (before, after) in enumerate(zip(*counts, strict=True)) if after == before]
    if lacks:
        names = ", ".join(devices[rank].name for rank in lacks)
        raise RingError(f"nodes without slots: {names}; links must be short enough for two laps of the ring in a "
                        f"window of {frame.window} cycles", cause=lacks[0], events=[None] * len(devices))
