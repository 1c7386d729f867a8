"""Random programs for two queues, and a golden model of the order and dependencies of their commands."""

import dataclasses

from hdl.control.protocol import DESCRIPTOR_WORDS, Operation, command_layout
from hdl.engines import operations
from sim.payload import to_int
from tests.hdl.control.commands import CONFIG, random_command

#: Operations of the computing queue. All other operations belong to the communicating queue; QUIESCE may be in both.
LOCAL = (Operation.MASK, Operation.SPARSIFY)
OPERATIONS = tuple(
    dataclasses.replace(operation, queue=None if operation.code == Operation.QUIESCE else int(
        operation.code not in LOCAL)) for operation in operations(CONFIG))


@dataclasses.dataclass(frozen=True)
class Issued:
    """A started command, and the number of commands of the second queue that must complete before it."""

    command: dict
    needs: int


def load_words(queue, commands, *, slot=0, model=0):
    """Words to write to the stream ``program`` to load commands into a queue."""
    words = [{"data": slot | queue << 16 | model << 24, "first": 1}]
    for command in commands:
        bits = to_int(command_layout(), command)
        words += [{"data": bits >> 32 * n & 0xFFFFFFFF, "first": 0} for n in range(DESCRIPTOR_WORDS)]
    return words


def random_program(generator, queue, length, *, tag=0):
    """Draw valid commands for one queue, without waits, with consecutive tags starting at ``tag``."""
    result = []
    for index in range(length):
        operation = generator.choice([Operation.QUIESCE, LOCAL[index % 2] if queue == 0 else Operation.ALL_GATHER])
        result.append(random_command(
            generator, tag + index, operation=operation, rank=0, size=2, port=0, length=32, gradient_base=0,
            weight_base=generator.randrange(0, 97, 32), state_base=0, after_0=0, lag_0=0, after_1=0, block_offset=0,
            stride=1,
            alternate=generator.getrandbits(1), region=0))
    return result


def issued(programs, run, stride):
    """Return all commands of a run, in order, for each queue.

    Parameters
    ----------
    programs : list of list of dict
    run : dict
        Fields of :func:`~hdl.control.sequencer.run_layout`.
    stride : int
        WEIGHT_STRIDE.
    """
    result = []
    for queue, program in enumerate(programs):
        other = len(programs[1 - queue])
        commands = []
        for number in range(run["passes"]):
            for command in program:
                odd = command["alternate"] & (number ^ run["parity"]) & 1
                # Only the last queue executes collectives.
                ahead = run["collective"] + number * run["collectives"] if queue == len(programs) - 1 else 0
                changed = {
                    "collective": (command["collective"] + ahead) & 0xFFFF,
                    "weight_base": (command["weight_base"] + stride * odd) & 0xFFFFFFFF,
                }
                early = number - command["lag_0"]
                needs = early * other + command["after_0"] if command["after_0"] and early >= 0 else 0
                commands.append(Issued({**command, **changed}, needs))
        result.append(commands)
    return result
