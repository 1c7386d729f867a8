"""Rings of nodes with slots: positions, common time, and alternating jobs (docs/ring/slots.md)."""

from collections.abc import Sequence

from hdl.features.slots.job_table import JobFrame
from hdl.features.slots.link import PERIOD
from host.driver.device import Device
from host.driver.devices import TIMEOUT, Devices
from host.driver.diagnosis import RingError
from host.driver.ring import Ring

__all__ = ["place_in_ring", "place_nodes", "rings_of_jobs", "wait_for_time"]

_SYNCS = 8  # number of SYNC periods within which all nodes should have received the time


def place_in_ring(devices: Devices) -> None:
    """Write the positions of the nodes of a ring. If two jobs share the ring, wait instead until packets of this job
    have left the nodes of the other job."""
    if devices.config.link.jobs > 1:
        devices[0].submit_pop_event(JobFrame.of(devices.config).cycles).result()
    else:
        devices.ask(lambda rank, device: device.submit_write_register("SLOT_POSITION", rank | len(devices) << 4))


def wait_for_time(devices: Devices) -> None:
    """Wait until all nodes have a valid TIME, which slots require in rings of more than one node.

    Raises ``RingError`` if a node still has no valid TIME after several SYNCs of rank 0.
    """
    for _ in range(_SYNCS):
        lacks = [rank for rank, device in enumerate(devices) if not device.read_fields("TIME_STATUS")["valid"]]
        if not lacks:
            return
        devices[0].submit_pop_event(PERIOD).result()  # waits for PERIOD cycles, since there is no event
    raise RingError(f"nodes without valid TIME after {_SYNCS * PERIOD:,} cycles: "
                    f"{', '.join(devices[rank].name for rank in lacks)}; check the links of the ring",
                    cause=lacks[0], events=[None] * len(devices))


def place_nodes(devices: Sequence[Device]) -> None:
    """Write to each node its position on the ring shared by jobs, in the order of ``devices``.

    Ends all work in slots. Raises ``ValueError`` if the jobs cannot use alternate nodes of the ring.
    """
    jobs = devices[0].config.link.jobs
    if jobs < 2 or len(devices) % jobs or len(devices) < 2 * jobs:
        raise ValueError(f"Nodes of a ring of jobs must have 2 jobs, and 2 nodes or more be of each, not {jobs} and "
                         f"{len(devices)} nodes")
    # All old positions are cleared before the first node is given a new position.
    for size in (0, len(devices)):
        for pending in [device.submit_write_register("SLOT_POSITION", (rank | size << 4) if size else 0)
                        for rank, device in enumerate(devices)]:
            pending.result()


def rings_of_jobs(devices: Sequence[Device], *, timeout: int = TIMEOUT) -> list[Ring]:
    """Connect and return the ring of each job, which consists of alternate nodes on the ring of links.

    From then on the driver of each job can run on a different host; it does not affect the other job's ring, nodes or
    packets. Raises ``RingError`` if nodes have no valid TIME, or no slots.
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
    """Raise RingError unless all nodes have slots in each superframe."""
    frame, counts = JobFrame.of(devices[0].config), []
    for _ in range(2):
        counts.append([device.read_register("SUPERFRAMES") for device in devices])
        devices[0].submit_pop_event(2 * frame.cycles).result()  # waits for these cycles, as no event is expected
    lacks = [rank for rank, (before, after) in enumerate(zip(*counts, strict=True)) if after == before]
    if lacks:
        names = ", ".join(devices[rank].name for rank in lacks)
        raise RingError(f"nodes without slots: {names}; links must be short enough for two laps of the ring in a "
                        f"window of {frame.window} cycles", cause=lacks[0], events=[None] * len(devices))
