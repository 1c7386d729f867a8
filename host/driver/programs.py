"""Runs of programs on the nodes of a ring, and the events of their commands."""

from collections.abc import Sequence

from host.driver.command import Event
from host.driver.device import Device
from host.driver.errors import DeviceTimeoutError

__all__ = ["run_programs"]


def run_programs(devices: Sequence[Device], passes: int, *, commands: Sequence[int], patience: int, model: int = 0,
                 parity: int = 0, collective: int = 0, collectives: int = 0) -> list[list[list[Event]]]:
    """Run the programs that nodes have loaded, and take their events.

    Events are taken of all nodes in turn, since a node that has no place for another event makes the others wait.

    Parameters
    ----------
    devices : sequence of Device
    passes, model, parity, collective, collectives
        Parameters of :meth:`host.driver.device.Device.run`.
    commands : sequence of int
        Commands in the program of each queue.
    patience : int
        Cycles that each look for an event takes at most; longer than any command.

    Returns
    -------
    list of list of list of Event
        Events of each node, by queue, in order. A run that a failed command has ended has fewer of them.

    Raises
    ------
    DeviceTimeoutError
        A node still runs its programs, but has ended no command for ``patience`` cycles.
    """
    for pending in [device.submit_run(passes, model=model, parity=parity, collective=collective,
                                      collectives=collectives) for device in devices]:
        pending.result()
    events: list[list[list[Event]]] = [[[] for _ in commands] for _ in devices]
    missing = {number: passes * sum(commands) for number in range(len(devices))} if passes * sum(commands) else {}
    while missing:
        looks = {number: devices[number].submit_pop_event(patience) for number in missing}
        found = {number: look.result() for number, look in looks.items()}
        for number, event in found.items():
            if event is not None:
                events[number][event.queue].append(event)
                missing[number] -= 1
            elif devices[number].read_fields("PROGRAM_STATUS")["running"]:
                if not any(found.values()):
                    raise DeviceTimeoutError(f"{devices[number].name}: no command of the program has ended in "
                                             f"{patience} cycles, and {missing[number]} events are missing")
            else:
                missing[number] = 0  # the run was ended by a command that failed
        missing = {number: count for number, count in missing.items() if count}
    return events
