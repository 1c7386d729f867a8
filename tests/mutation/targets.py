"""What is mutated, and which tests see it: for each file of hdl/ its units, and tests in the order in which they run.

The order decides the cost: what kills most mutants in the shortest time comes first, then all the rest of the file.
Units are small ones in which every line of the file takes part: a mutant that elaborates to the very same gateware in
all of them is no mutant.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["TARGETS", "Target"]


@dataclasses.dataclass(frozen=True)
class Target:
    """A file of hdl/.

    Members
    -------
    file : str
        Path from the root of the tree.
    units : callable
        Makes components of the file; it imports what it needs.
    tests : tuple of str
        Arguments of pytest, in order.
    """

    file: str
    units: Callable[[], Iterable[Any]]
    tests: tuple[str, ...]


def _packet() -> Iterable[Any]:
    from hdl.compression.codecs import WEIGHT_CODECS
    from hdl.ring.packet import Codec, Depacketizer, Packetizer

    return (Packetizer(), Depacketizer(), Depacketizer(codec=WEIGHT_CODECS["mx9"]),
            Depacketizer(codec=WEIGHT_CODECS["table32"], second=(Codec.MX9, WEIGHT_CODECS["mx9"])))


def _link() -> Iterable[Any]:
    from hdl.ring.link import LinkReceiver, LinkTransmitter

    return (LinkReceiver(segments=3, packet_words=13), LinkTransmitter(segments=3, egress_words=13))


def _schedule() -> Iterable[Any]:
    from hdl.ring.schedule import Planner, Walk

    return (Planner(elements=4096, segment=64), Walk(elements=4096, segment=64))


def _command_queue() -> Iterable[Any]:
    from hdl.config import NodeConfig
    from hdl.control.command_queue import CommandChecker, CommandQueue

    config = {"gradient_words": 320, "weight_words": 256, "state_words": 96, "nodes_max": 12}
    return (CommandQueue(config=NodeConfig(**config), depth=3), CommandQueue(config=NodeConfig(**config), depth=1),
            CommandChecker(config=NodeConfig(**config, quantization=True, weight_codec="mx9")))


def _host_port() -> Iterable[Any]:
    from hdl.config import NodeConfig
    from hdl.control.host_port import HostPort

    return (HostPort(config=NodeConfig(lanes=2, gradient_words=320, weight_words=64, state_words=32)),)


def _registers() -> Iterable[Any]:
    from hdl.config import NodeConfig
    from hdl.control.registers import RegisterFile

    return (RegisterFile(config=NodeConfig(lanes=8, gradient_words=320, weight_words=64, state_words=32, segment=64)),)


def _runner() -> Iterable[Any]:
    from hdl.control.protocol import EventStatus
    from hdl.control.runner import CommandRunner

    return (CommandRunner(failure=EventStatus.BAD_MASK, most=4), CommandRunner(failure=EventStatus.BAD_MASK))


def _zero_value() -> Iterable[Any]:
    from hdl.compression.zero_value import Adder, Decoder, Encoder

    return (Encoder(lanes=1), Encoder(lanes=4), Decoder(lanes=1), Decoder(lanes=8), Adder())


def _burst() -> Iterable[Any]:
    from hdl.optimizer.burst import StreamedOptimizer
    from hdl.optimizer.fixed_point import INT16
    from hdl.optimizer.rules import Rule

    return (StreamedOptimizer(workers=2, lanes=4, depth=64, update_lanes=2, rules=tuple(Rule)),
            StreamedOptimizer(workers=4, lanes=2, depth=8, update_lanes=1, broadcasts=4, rules=tuple(Rule)),
            StreamedOptimizer(workers=2, lanes=1, depth=16, update_interval=2, rules=tuple(Rule)),
            StreamedOptimizer(workers=2, lanes=2, depth=16, format=INT16, rules=(Rule.SGD, Rule.MOMENTUM)))


def _gradient_buffer() -> Iterable[Any]:
    from hdl.optimizer.gradient_buffer import GradientBuffer

    return (GradientBuffer(lanes=4, read_lanes=2, depth=8), GradientBuffer(lanes=4, depth=12, banks=3),
            GradientBuffer(lanes=1, depth=2, width=2))


def _reducer() -> Iterable[Any]:
    from hdl.optimizer.reducer import Reducer

    return tuple(Reducer(workers=workers) for workers in (1, 6, 7))


def _generator() -> Iterable[Any]:
    from hdl.masking.generator import MaskGenerator

    return tuple(MaskGenerator(lanes=lanes, index_bits=8) for lanes in (1, 2, 8))


def _multiplexer() -> Iterable[Any]:
    from hdl.masking.multiplexer import MaskMultiplexer

    return tuple(MaskMultiplexer(lanes=lanes, width=8) for lanes in (1, 4))


_PACKET, _LINK = "tests/hdl/ring/test_packet.py", "tests/hdl/ring/test_link.py"
_QUEUE, _ZERO = "tests/hdl/control/test_command_queue.py", "tests/hdl/compression/test_zero_value.py"
_BURST = "tests/hdl/optimizer/test_burst.py"

_ALL = (
    Target("hdl/ring/packet.py", _packet, (f"{_PACKET}::test_packetizer_timing", _PACKET)),
    Target("hdl/ring/link.py", _link, (_LINK,)),
    Target("hdl/ring/schedule.py", _schedule, ("tests/hdl/ring/test_schedule.py",)),
    Target("hdl/control/command_queue.py", _command_queue, (_QUEUE,)),
    Target("hdl/control/host_port.py", _host_port, ("tests/hdl/control/test_host_port.py",)),
    Target("hdl/control/registers.py", _registers, ("tests/hdl/control/test_registers.py",)),
    Target("hdl/control/runner.py", _runner, ("tests/hdl/control/test_runner.py",)),
    Target("hdl/compression/zero_value.py", _zero_value, (_ZERO,)),
    Target("hdl/optimizer/burst.py", _burst, (_BURST,)),
    Target("hdl/optimizer/gradient_buffer.py", _gradient_buffer, ("tests/hdl/optimizer/test_gradient_buffer.py",
                                                                  _BURST)),
    Target("hdl/optimizer/reducer.py", _reducer, ("tests/hdl/optimizer/test_reducer.py",)),
    Target("hdl/masking/generator.py", _generator, ("tests/hdl/masking/test_generator.py",)),
    Target("hdl/masking/multiplexer.py", _multiplexer, ("tests/hdl/masking/test_multiplexer.py",)),
)

TARGETS = {target.file: target for target in _ALL}
