"""Access to the far memories of computing nodes, which host requests cannot reach directly.

The contents are transferred part by part through the activation memory, with move commands: each part is moved in and
read, or written and moved out. The activation memory is restored at the end; its rows then have owner 0, as after any
write by the host. All nodes work in parallel.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hdl.config import Configuration
from hdl.control.protocol import Operation
from host.driver.command import Command, Event
from host.driver.device import Device
from host.driver.devices import Devices
from host.driver.errors import DeviceTimeoutError
from host.driver.words import Words

__all__ = ["clear_far", "far_words_of", "read_far", "write_far"]

#: Cycles to wait in one poll for a move's event; a move always ends, even if its far memory does not respond.
_LOOK = 100_000

#: Windows keyed by rank, each as (first element, a multiple of 32; number of elements).
_Windows = Mapping[int, Sequence[tuple[int, int]]]


def far_words_of(config: Configuration) -> int:
    """Size in words of a computing node's far memory; 0 for a server, which has it as a memory space."""
    return 0 if config.compute is None else int(config.compute.far)


def read_far(devices: Devices, windows: _Windows) -> dict[tuple[int, int], Words]:
    """Read windows of far memories, keyed by (rank, first element); no answer raises ``DeviceError``."""
    contents: dict[tuple[int, int], list[Words]] = {(rank, base): [] for rank, own in windows.items()
                                                    for base, _ in own}
    with _staged(devices, windows):
        for step in _steps(devices, windows):
            _move(devices, Operation.MOVE_IN, step)
            parts = devices.read_space("activations", 0, {rank: count for rank, (_, _, count) in step.items()})
            for rank, (base, _, _) in step.items():
                contents[rank, base].append(parts[rank])
    return {key: np.concatenate([np.empty(0, np.uint32), *parts]) for key, parts in contents.items()}


def write_far(devices: Devices, contents: Mapping[tuple[int, int], Words]) -> None:
    """Write contents, keyed by (rank, first element), to far memories; see :func:`read_far`."""
    windows = {rank: [(base, words.size) for (owner, base), words in contents.items() if owner == rank]
               for rank, _ in contents}
    with _staged(devices, windows):
        for step in _steps(devices, windows):
            devices.write_space("activations", 0, {rank: contents[rank, base][first - base:first - base + count]
                                                   for rank, (base, first, count) in step.items()})
            _move(devices, Operation.MOVE_OUT, step)


def clear_far(devices: Devices, windows: _Windows) -> None:
    """Zero windows of far memories; see :func:`read_far`."""
    with _staged(devices, windows) as used:
        devices.write_space("activations", 0, {rank: np.zeros(count, np.uint32) for rank, count in used.items()})
        for step in _steps(devices, windows):
            _move(devices, Operation.MOVE_OUT, step)


@contextlib.contextmanager
def _staged(devices: Devices, windows: _Windows) -> Iterator[dict[int, int]]:
    """Stage data at the start of the activation memories; yield the number of words available on each rank."""
    used = {rank: min(max((count for _, count in own), default=0), int(devices[rank].config.compute.activations))
            for rank, own in windows.items()}
    before = devices.read_space("activations", 0, used)
    try:
        yield used
    finally:
        devices.write_space("activations", 0, before)


def _steps(devices: Devices, windows: _Windows) -> Iterator[dict[int, tuple[int, int, int]]]:
    """Split windows into parts that fit in the activation memory: (window, first element, length)."""
    parts = {rank: [(base, first, min(int(devices[rank].config.compute.activations), base + count - first))
                    for base, count in own
                    for first in range(base, base + count, int(devices[rank].config.compute.activations))]
             for rank, own in windows.items()}
    for number in range(max(map(len, parts.values()), default=0)):
        yield {rank: own[number] for rank, own in parts.items() if number < len(own)}


def _move(devices: Devices, operation: Operation, step: Mapping[int, tuple[int, int, int]]) -> None:
    """Move data between the start of the activation memory and the far memory, on each node with a part."""
    for rank, (_, first, count) in step.items():
        device = devices[rank]
        device.push(device.named(Command(operation=operation, weight_base=0, state_base=first, length=count)))
    events = {rank: _event(devices[rank]) for rank in step}  # collect all events before checking any
    for rank, event in events.items():
        event.check(devices[rank].name)


def _event(device: Device) -> Event:
    while (event := device.pop_event(_LOOK)) is None:
        if not device.read_fields("STATUS")["running"]:
            raise DeviceTimeoutError(f"{device.name}: a move has given no event")
    return event
