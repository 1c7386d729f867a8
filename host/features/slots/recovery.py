"""Slots of nodes whose links begin anew."""

from hdl.features.slots.job_table import JobFrame
from hdl.features.slots.link import PERIOD
from host.driver.devices import Devices
from host.driver.diagnosis import RingError

__all__ = ["place_in_ring", "wait_for_time"]

_SYNCS = 8
"""Periods of SYNCs in which nodes should have a TIME."""


def place_in_ring(devices: Devices) -> None:
    """Give nodes of one job their places on the ring; where there are two, wait until packets of this job have left
    the nodes of the other one."""
    if devices.config.link.jobs > 1:
        devices[0].submit_pop_event(JobFrame.of(devices.config).cycles).result()
    else:
        devices.ask(lambda rank, device: device.submit_write_register("SLOT_PLACE", rank | len(devices) << 4))


def wait_for_time(devices: Devices) -> None:
    """Wait until all nodes have a valid TIME: slots need one, a ring of one node does not.

    Raises ``RingError`` if a node has none after several SYNCs of rank 0.
    """
    for _ in range(_SYNCS):
        lacks = [rank for rank, device in enumerate(devices) if not device.read_fields("TIME_STATUS")["valid"]]
        if not lacks:
            return
        devices[0].submit_pop_event(PERIOD).result()  # there is none: this takes PERIOD cycles
    raise RingError(f"nodes without valid TIME after {_SYNCS * PERIOD:,} cycles: "
                    f"{', '.join(devices[rank].name for rank in lacks)}; check the links of the ring",
                    cause=lacks[0], events=[None] * len(devices))
