"""Packets sent in time slots of a common clock; see docs/ring/slots.md."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from host.feature import Feature

if TYPE_CHECKING:
    from host.driver.devices import Devices
    from host.driver.transport import Transport
    from host.run.schedule import Schedule

__all__ = ["FEATURE", "SlotsFeature"]


class SlotsFeature(Feature):
    """Feature for slots: node positions, a common time, messages to nodes, and concurrent jobs."""

    def in_reset(self, devices: "Devices") -> None:
        from host.features.slots.rings import place_in_ring

        place_in_ring(devices)

    def after_reset(self, devices: "Devices") -> None:
        from host.features.slots.rings import wait_for_time

        if len(devices) > 1:
            wait_for_time(devices)

    def reach(self, transport: "Transport", nodes: int) -> "Sequence[Transport]":
        from host.features.slots.messages import MessageHub

        return MessageHub(transport, nodes=nodes).transports

    def schedules(self) -> "Iterable[type[Schedule]]":
        from host.features.slots.schedule_section import SideBySide

        return (SideBySide,)


FEATURE = SlotsFeature()
