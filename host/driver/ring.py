"""A ring of nodes as the host sees it: vectors in and out, collectives, and errors that name their cause.

Whatever is asked of all nodes is sent to all of them first and waited for afterwards, so that they work at the same
time. Vectors lie at the start of each memory.

Example
-------
::

    ring = Ring(devices)
    ring.connect()
    ring.write_weights(weights)
    ring.write_gradients([gradients_of_node_0, gradients_of_node_1])
    ring.write_settings(SGD(learning_rate=0.1).settings(1, gradient_scale=0.5))
    ring.fused_update(weights.size)
    weights = ring.read_weights(weights.size)
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventFlag, EventStatus, Operation, Space
from host.driver.codebooks import codebook_words
from host.driver.command import Command, Event
from host.driver.device import Device, Pending
from host.driver.diagnosis import RingError, explain, report
from host.driver.errors import DeviceError
from host.driver.inference import IntegerLayer, Integers, Program, pack_inputs, program, unpack_outputs
from host.driver.masking import MaskJob, Region, plan, unpack
from host.driver.memory import Allocation, block_bounds, errors_base
from host.driver.optimizer_settings import FixedSettings, Rule, Settings
from host.driver.results import InferOutcome, MaskOutcome, Outcome, SparsifyOutcome

__all__ = ["Ring", "Vector"]

T = TypeVar("T")

Vector = npt.NDArray[Any]
"""Elements as they are in a node: float32, or int16 where those are 16-bit integers."""

_SETTLING = 8
"""Times that links are waited for to come to rest."""

TIMEOUT = 1 << 17
"""Cycles that a node waits for the ring before it gives a command up, unless another number is asked for."""


def _words(elements: int, packed_state: bool) -> int:
    """Words that so many elements of state take."""
    return -(-elements // 2) if packed_state else elements


def _pack(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Two bfloat16 numbers to a word, rounded to nearest even, the first one in the low half."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    halves = np.zeros(-(-len(bits) // 2) * 2, dtype="<u2")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    halves[:len(bits)] = np.where((bits & 0x7FFF_FFFF) > 0x7F80_0000, 0x7FC0, rounded)
    return halves.view("<u4").astype(np.uint32)


def _unpack(words: npt.NDArray[np.uint32], elements: int) -> npt.NDArray[np.uint32]:
    """The binary32 numbers of so many packed elements, as bits."""
    halves = words.astype("<u4").view("<u2")[:elements]
    return np.asarray(halves.astype(np.uint32) << 16, dtype=np.uint32)


class Ring:
    """Nodes in a ring, in the order of their ranks.

    Parameters
    ----------
    devices : sequence of Device
        The node at index r is of rank r, and sends to the one at index r + 1.
    timeout : int
        Cycles without a word on a node's links after which it gives a command up.
    """

    def __init__(self, devices: Sequence[Device], *, timeout: int = TIMEOUT):
        if not devices:
            raise ValueError("A ring must have at least one node")
        if not 1 <= timeout < 1 << 30:
            raise ValueError(f"Timeout must be between 1 and {(1 << 30) - 1} cycles, not {timeout!r}")
        self._devices = list(devices)
        self._config = devices[0].config
        self._timeout = timeout
        self._epoch = 0
        self._iteration = 0
        self._settings: dict[str, int | float] = {}  # what registers hold that are settings, as far as that is known
        self._lost = [0] * len(devices)  # words missing behind each link when the ring was last in order

    @property
    def nodes(self) -> int:
        return len(self._devices)

    @property
    def devices(self) -> list[Device]:
        return list(self._devices)

    @property
    def segment(self) -> int:
        """Elements in a segment."""
        return int(self._config.segment)

    @property
    def lanes(self) -> int:
        """Elements in a memory row."""
        return int(self._config.lanes)

    @property
    def reduced(self) -> bool:
        """Whether elements are 16-bit integers."""
        return bool(self._config.reduced)

    @property
    def weight_codec(self) -> str:
        """Name of the codec that new weights go through in a fused update."""
        return str(self._config.weight_codec)

    @property
    def has_codebook(self) -> bool:
        """Whether that codec has centroids, which the host loads."""
        return bool(self._config.codebook_words)

    @property
    def gradient_codec(self) -> str:
        """Name of the codec that gradients and their sums go through."""
        return str(self._config.gradient_codec)

    @property
    def has_residual(self) -> bool:
        """Whether nodes keep what the gradient codec loses."""
        return bool(self._config.has_residual)

    def connect(self) -> None:
        """Make sure that every device is a node of the expected configuration, and bring the ring in order.

        Raises
        ------
        ConfigurationError
            A device is not.
        """
        for device in self._devices:
            device.connect()
        self._write_register("TIMEOUT", self._timeout)
        self.recover()

    def recover(self) -> None:
        """Bring the ring in order after a failure: stop all commands, forget what is on the links, drop all events.

        Memories and settings stay as they are.
        """
        self._settings = {}
        self._write_register("CONTROL", 1)
        # With the links held in reset, whatever was running ends at once, and what is queued ends when it starts.
        self._drain()
        self._write_register("CONTROL", 0)
        self._drain()
        self._lost = _differences(self._moved())
        self._epoch = (self._epoch + 1) % 256

    def _drain(self) -> None:
        """Take events until no node has any, nor a command."""
        waiting = list(self._devices)
        while waiting:
            found = [pending.result() for pending in
                     [device.submit_pop_event(4 * self._timeout if device.read_fields("STATUS")["running"] else 0)
                      for device in waiting]]
            waiting = [device for device, event in zip(waiting, found, strict=True) if event is not None]

    def _all(self, submit: Callable[[int, Device], Pending[T]], ranks: Iterable[int] | None = None) -> list[T]:
        """Ask all nodes, then wait for all."""
        ranks = range(self.nodes) if ranks is None else ranks
        pending = [submit(rank, self._devices[rank]) for rank in ranks]
        return [one.result() for one in pending]

    # Memories and registers.

    def require(self, allocation: Allocation) -> None:
        """Check that there is room for it, and raise ``ValueError`` where there is not."""
        allocation.check(self._config, nodes=self.nodes)

    def write_gradients(self, gradients: Sequence[npt.NDArray[Any]]) -> None:
        """One vector per node, in order of rank."""
        self._write(Space.GRADIENT, gradients)

    def read_gradients(self, length: int) -> Vector:
        """One row per node."""
        return self._read(Space.GRADIENT, length, range(self.nodes))

    def write_weights(self, weights: npt.NDArray[Any]) -> None:
        """The same vector to all nodes; with a weight codec, without the masters of :meth:`distribute`."""
        self.write_weights_of([weights] * self.nodes)

    def write_weights_of(self, weights: Sequence[npt.NDArray[Any]]) -> None:
        """One vector per node, in order of rank."""
        self._write(Space.WEIGHT, weights)

    def read_weights(self, length: int, ranks: Sequence[int] | None = None) -> Vector:
        """One row per node."""
        return self._read(Space.WEIGHT, length, range(self.nodes) if ranks is None else ranks)

    def write_master(self, weights: npt.NDArray[Any]) -> None:
        """Weights as the optimizer has them, of the whole vector, each block to the node that owns it: with a weight
        codec only. Those that nodes compute with stay as they are; see :meth:`distribute`."""
        self._write(self._master_space(), self._to_owners(weights))

    def read_master(self, length: int) -> Vector:
        """Weights as the optimizer has them, of the whole vector, each block from the node that owns it."""
        return np.concatenate(self._from_owners(self._master_space(), length, packed_state=False)).view(np.float32)

    def distribute(self, weights: npt.NDArray[Any]) -> None:
        """The same weights to all nodes, as they have them after a fused update.

        With a weight codec each block becomes the master of the node that owns it, and all nodes have what is decoded
        of it: a fused update of zeros makes that, with settings of its own. Gradients and residuals are zeros
        afterwards.
        """
        if self.has_residual:  # what there is would be added to those zeros
            self.clear_residual(len(weights))
        if not self._config.has_master:
            self.write_weights(weights)
            return
        self.write_master(weights)
        self.write_gradients([np.zeros(len(weights), dtype=np.uint32)] * self.nodes)
        self.write_settings(Settings(rule=Rule.SGD, gradient_scale=0.0, learning_rate=0.0))
        self.fused_update(len(weights))

    def clear_residual(self, length: int) -> None:
        """Zeros as what the gradient codec has lost of a vector of this length, on every node."""
        self.write_residual([np.zeros(length, dtype=np.uint32)] * self.nodes)

    def write_residual(self, residuals: Sequence[npt.NDArray[Any]]) -> None:
        """What the gradient codec has lost, and is added to the next gradients; one vector per node."""
        self._write(self._residual_space(), residuals)

    def read_residual(self, length: int) -> Vector:
        """What the gradient codec has lost, and is added to the next gradients; one row per node."""
        return self._read(self._residual_space(), length, range(self.nodes))

    def _residual_space(self) -> int:
        if not self.has_residual:
            raise ValueError(f"Nodes must have a gradient codec that loses something to have residuals, not "
                             f"{self.gradient_codec}")
        return len(self._config.spaces) - 1

    def write_codebook(self, centroids: npt.NDArray[np.uint32]) -> int:
        """The same centroids to all nodes: with a weight codec of such only.

        Every fused update loads them at its start, so that they count from the next one on; while one runs, they must
        not be written. Until the first time they are all zeros.

        Parameters
        ----------
        centroids : array of uint32
            As :func:`host.driver.codebooks.codebook` gives them.

        Returns
        -------
        int
            Words that all nodes were given.
        """
        if not self.has_codebook:
            raise ValueError(f"Nodes must have a weight codec with a codebook, not {self.weight_codec}")
        words = codebook_words(self.weight_codec, centroids)
        self._write(self._master_space() + 1, [words] * self.nodes)
        return self.nodes * len(words)

    def _master_space(self) -> int:
        if not self._config.has_master:
            raise ValueError("Nodes must have a weight codec to have master weights, not raw weights")
        return int(Space.STATE + self._config.state_planes)

    def _to_owners(self, vector: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Blocks of a vector, in order of the ranks that own them."""
        blocks = [vector[start:stop] for start, stop in block_bounds(len(vector), self.nodes)]
        return [*blocks[1:], blocks[0]]

    def _from_owners(self, space: int, length: int, *, packed_state: bool) -> list[npt.NDArray[np.uint32]]:
        """Blocks of a vector, in order, from the ranks that own them."""
        bounds = block_bounds(length, self.nodes)

        def submit(rank: int, device: Device) -> Pending[npt.NDArray[np.uint32]]:
            start, stop = bounds[(rank + 1) % self.nodes]
            return device.submit_read_memory(space, 0, _words(stop - start, packed_state))

        blocks = self._all(submit)
        return [blocks[-1], *blocks[:-1]]

    def _write(self, space: int, vectors: Sequence[npt.NDArray[Any]], *, base: int = 0) -> None:
        if len(vectors) != self.nodes:
            raise ValueError(f"Vectors must be one per node, {self.nodes}, not {len(vectors)}")
        words = [self._to_words(vector) for vector in vectors]
        self._all(lambda rank, device: device.submit_write_memory(space, base, words[rank]))

    def _write_register(self, name: str, value: float) -> None:
        self._all(lambda rank, device: device.submit_write_register(name, value))

    def _read(self, space: int, length: int, ranks: Iterable[int]) -> Vector:
        rows = self._all(lambda rank, device: device.submit_read_memory(space, 0, length), ranks)
        return self._to_elements(np.stack(rows))

    def _to_words(self, vector: Vector) -> npt.NDArray[Any]:
        """Elements as the host writes them."""
        if not self.reduced or vector.dtype == np.uint32:
            return vector
        if vector.dtype != np.int16:
            raise TypeError(f"Elements of int16 nodes must be int16, not {vector.dtype}")
        return vector.astype(np.int32).view(np.uint32)

    def _to_elements(self, words: npt.NDArray[np.uint32]) -> Vector:
        """What the host has read, as elements."""
        return words.astype(np.uint16).view(np.int16) if self.reduced else words.view(np.float32)

    def clear_state(self, length: int, *, packed_state: bool = False) -> None:
        """Zeros in every state plane, for the optimizer of a vector of this length."""
        block = max(stop - start for start, stop in block_bounds(length, self.nodes))
        zeros = np.zeros(_words(block, packed_state), dtype=np.uint32)
        for plane in range(self._config.state_planes):
            self._write(Space.STATE + plane, [zeros] * self.nodes)

    def write_state(self, state: npt.NDArray[Any], plane: int = 0, *, packed_state: bool = False) -> None:
        """A state plane of the whole vector, each block to the node that owns it.

        Parameters
        ----------
        state : array of float32
            With ``packed_state`` it is rounded to bfloat16, to nearest even.
        plane : int
        packed_state : bool
            Whether state is stored as bfloat16.
        """
        self._write(Space.STATE + plane, [_pack(block) if packed_state else block
                                          for block in self._to_owners(state)])

    def read_state(self, length: int, plane: int = 0, *, packed_state: bool = False) -> Vector:
        """A state plane of the whole vector, each block from the node that owns it."""
        blocks = self._from_owners(Space.STATE + plane, length, packed_state=packed_state)
        if packed_state:
            bounds = block_bounds(length, self.nodes)
            blocks = [_unpack(block, stop - start) for block, (start, stop) in zip(blocks, bounds, strict=True)]
        return np.concatenate(blocks).view(np.float32)

    def clear_errors(self, length: int) -> None:
        """Zeros as errors of a vector of this length; see :meth:`sparsify`."""
        self.write_errors([np.zeros(length, dtype=np.uint32)] * self.nodes)

    def write_errors(self, errors: Sequence[npt.NDArray[Any]]) -> None:
        """Errors of each node, in order of rank; see :meth:`sparsify`."""
        self._write(Space.WEIGHT, errors, base=errors_base(len(errors[0])))

    def read_errors(self, length: int) -> Vector:
        """One row per node; see :meth:`sparsify`."""
        base = errors_base(length)
        rows = self._all(lambda rank, device: device.submit_read_memory(Space.WEIGHT, base, length))
        return self._to_elements(np.stack(rows))

    @property
    def known_settings(self) -> dict[str, int | float]:
        """Values of those registers of settings that this driver has written since the ring was last put in order."""
        return dict(self._settings)

    def restore_settings(self, settings: dict[str, int | float]) -> None:
        """Write the :attr:`known_settings` of another ring."""
        self._write_settings(settings)

    def write_settings(self, settings: Settings | FixedSettings) -> None:
        """What the optimizer does in commands from here on. Only what is new to the nodes is sent."""
        self._write_settings(settings.registers())

    def _write_settings(self, values: dict[str, int | float]) -> None:
        """Values of registers, of which those are sent that are new to the nodes."""
        written = {**self._settings, **values}
        # Text tells -0.0 from 0.0.
        changed = [name for name in values if repr(self._settings.get(name)) != repr(values[name])]
        self._settings = {}  # not known while writes are under way, nor after one that fails
        pending = [device.submit_write_register(name, values[name]) for device in self._devices for name in changed]
        for one in pending:
            one.result()
        self._settings = written

    def counters(self) -> list[dict[str, int]]:
        """All counters of each node."""
        return self._all(lambda rank, device: device.submit_counters())

    def clear_counters(self) -> None:
        """Set all counters of all nodes to zero."""
        self._write_register("CONTROL", 2)
        self._lost = [0] * self.nodes

    # Collectives.

    def fused_update(self, length: int) -> Outcome:
        """Sum gradients, update each block at its owner, and bring the new weights to all nodes."""
        return self._run(Operation.FUSED_UPDATE, length)

    def all_reduce(self, length: int) -> Outcome:
        """Replace the gradients of all nodes by their sum."""
        return self._run(Operation.ALL_REDUCE, length)

    def reduce_scatter(self, length: int) -> Outcome:
        """Replace, on each node, the gradients of its own block by their sum."""
        return self._run(Operation.REDUCE_SCATTER, length)

    def all_gather(self, length: int) -> Outcome:
        """Bring each block of weights from its owner to all nodes."""
        return self._run(Operation.ALL_GATHER, length)

    def broadcast(self, length: int, *, root: int) -> Outcome:
        """Bring the weights of one node to all nodes."""
        return self._run(Operation.BROADCAST, length, root=root)

    def quiesce(self) -> Outcome:
        """Wait until all commands before have ended."""
        return self._run(Operation.QUIESCE, 0)

    def _run(self, operation: Operation, length: int, *, root: int = 0) -> Outcome:
        self._iteration = (self._iteration + 1) % (1 << 16)
        tag = self._iteration
        self._all(lambda rank, device: device.submit_push(Command(
            operation=operation, rank=rank, size=self.nodes, length=length, epoch=self._epoch, root=root,
            iteration=self._iteration, tag=tag)))
        events = self._wait()
        if any(event is None or event.status != EventStatus.OK for event in events):
            missing, rest = self._settle(events)
            error = explain(operation, events, devices=self._devices, missing=missing, rest=rest)
            # What is left of this command on the ring is told from the next one by its epoch.
            self._epoch = (self._epoch + 1) % 256
            raise error
        done = [event for event in events if event is not None]
        return Outcome(
            cycles=max(event.cycles for event in done),
            local_nan=tuple(rank for rank, event in enumerate(done) if EventFlag.LOCAL_NAN in event.flags),
            not_finite=tuple(rank for rank, event in enumerate(done) if EventFlag.NOT_FINITE in event.flags))

    def _wait(self) -> "list[Event | None]":
        """The event of each node. As long as words move on the ring there is no limit to the time that takes."""
        patience = 4 * self._timeout
        events: list[Event | None] = [None] * self.nodes
        moved = -1
        while True:
            missing = [rank for rank, event in enumerate(events) if event is None]
            found = self._all(lambda rank, device: device.submit_pop_event(patience), missing)
            for rank, event in zip(missing, found, strict=True):
                events[rank] = event
            if all(event is not None for event in events):
                return events
            before, moved = moved, sum(counters["WORDS_SENT"] for counters in self.counters())
            if moved == before:
                return events

    # What each node does on its own.

    def _number(self, name: str, value: float, least: int, end: int) -> int | float:
        """A value for a register: binary32, or in nodes of integers one of a range."""
        if not self.reduced:
            return float(np.float32(value))
        if not float(value).is_integer() or not least <= value < end:
            raise ValueError(f"{name} of int16 nodes must be an integer between {least} and {end - 1}, not {value!r}")
        return int(value)

    def mask(self, jobs: Sequence[Sequence[MaskJob]], *, alternative: float, behind: int = 0) -> MaskOutcome:
        """Mask matrices on the nodes, in their gradient memories, of which nothing else stays.

        Where a memory has no room for all jobs of a node, there are several commands, one after the other; those of
        different nodes run at the same time. A node may have no job.

        Parameters
        ----------
        jobs : sequence of sequence of MaskJob
            Those of each node, in order of rank.
        alternative : float
            What takes the place of elements that a mask does not keep; of int16 nodes an integer.
        behind : int
            So many elements of the weight memory stay as they are; job lists are written behind them.

        Raises
        ------
        RingError
            A command failed on at least one node.
        ValueError
            There is no room even for one matrix.
        """
        if len(jobs) != self.nodes:
            raise ValueError(f"Jobs must be one sequence per node, {self.nodes}, not {len(jobs)}")
        config = self._config
        base = min((behind + 31) // 32 * 32, int(config.weight_words))
        regions = [plan(mine, lanes=self.lanes, elements=config.gradient_words, words=config.weight_words - base,
                        element=config.element) for mine in jobs]
        self._write_settings({"MASK_ALTERNATIVE": self._number("Alternative", alternative, -(1 << 15), 1 << 15)})
        data: list[list[npt.NDArray[np.uint32]]] = [[] for _ in jobs]
        replaced, cycles = [0] * self.nodes, 0
        passes = list(itertools.zip_longest(*regions))
        for step in passes:
            events, masked = self._mask(step, base)
            for rank, event in events.items():
                data[rank].append(masked[rank])
                replaced[rank] += event.detail
            cycles += max(event.cycles for event in events.values())
        results = [unpack(mine, planned, found) for mine, planned, found in zip(jobs, regions, data, strict=True)]
        return MaskOutcome(results=results, replaced=replaced, cycles=cycles, commands=len(passes))

    def _mask(self, regions: "Sequence[Region | None]",
              base: int) -> tuple[dict[int, Event], dict[int, npt.NDArray[np.uint32]]]:
        """One command on each node that has a region: events, and what is then in the gradient memories."""
        given = {rank: region for rank, region in enumerate(regions) if region is not None}
        self._all(lambda rank, device: device.submit_write_memory(Space.GRADIENT, 0, given[rank].data), given)
        self._all(lambda rank, device: device.submit_write_memory(Space.WEIGHT, base, given[rank].words), given)
        events = self._run_apart({
            rank: Command(operation=Operation.MASK, weight_base=base, state_base=base + region.externals,
                          length=len(region.data))
            for rank, region in given.items()})
        masked = self._all(
            lambda rank, device: device.submit_read_memory(Space.GRADIENT, 0, len(given[rank].data)), given)
        return events, dict(zip(given, masked, strict=True))

    def sparsify(self, length: int, *, threshold: float) -> SparsifyOutcome:
        """Keep those elements of each node's gradients, with its errors added, that are large; the others become its
        errors, and are added the next time.

        Parameters
        ----------
        length : int
        threshold : float
            Least magnitude of what is kept; of int16 nodes an integer.
        """
        self._write_settings({"MASK_THRESHOLD": self._number("Threshold", threshold, 0, 1 << 16)})
        events = self._run_apart({rank: Command(operation=Operation.SPARSIFY, weight_base=errors_base(length),
                                                length=length) for rank in range(self.nodes)})
        return SparsifyOutcome(dropped=[events[rank].detail for rank in range(self.nodes)],
                               cycles=max(event.cycles for event in events.values()))

    def infer(self, layers: Sequence[IntegerLayer], x: npt.ArrayLike) -> InferOutcome:
        """Run integer layers on samples, which are dealt to the nodes in runs of equal length.

        Layers go to the start of each node's weight memory, and all else to its gradient memory; nothing of what was
        there stays. Where a memory has no room for all samples of a node, there are several commands.

        Parameters
        ----------
        layers : sequence of IntegerLayer
            As those of :class:`sim.golden.quantization.Layer`; the last one, and no other, is ``last``.
        x : array of int
            A row of inputs for each sample: uint8, or int8 where the first layer is ``signed``.

        Raises
        ------
        RingError
            A command failed on at least one node.
        ValueError
            There is no room for the layers and one sample, or they do not follow each other.
        """
        config = self._config
        if not config.quantization:
            raise ValueError("Nodes must have quantization in their configuration, to infer")
        given = program(layers, lanes=self.lanes, gradient_words=config.gradient_words,
                        weight_words=config.weight_words)
        values = np.asarray(x)
        pack_inputs(given, values)  # which checks them, before anything is written
        outputs = np.empty((len(values), given.outputs), np.int64)
        share = -(-len(values) // self.nodes)
        ranks = [rank for rank in range(self.nodes) if rank * share < len(values)]
        self._all(lambda rank, device: device.submit_write_memory(Space.WEIGHT, 0, given.weights), ranks)
        self._all(lambda rank, device: device.submit_write_memory(Space.GRADIENT, 0, given.parameters), ranks)
        cycles = multiplied = commands = 0
        for first in range(0, share, given.samples):
            runs = {}
            for rank in ranks:
                begin, end = rank * share + first, min((rank + 1) * share, len(values))
                if begin < end:
                    runs[rank] = slice(begin, min(begin + given.samples, end))
            events, results = self._infer(given, {rank: values[run] for rank, run in runs.items()})
            for rank, run in runs.items():
                outputs[run] = results[rank]
            cycles += max(event.cycles for event in events.values())
            multiplied += sum(event.detail for event in events.values())
            commands += 1
        return InferOutcome(outputs=outputs, cycles=cycles, multiplied=multiplied, commands=commands)

    def _infer(self, given: Program, x: dict[int, npt.NDArray[Any]]) -> tuple[dict[int, Event], dict[int, Integers]]:
        """One command on each node that has samples: events, and sums."""
        self._all(lambda rank, device: device.submit_write_memory(
            Space.GRADIENT, given.source, pack_inputs(given, x[rank])), x)
        events = self._run_apart({rank: Command(operation=Operation.INFER, length=len(mine))
                                  for rank, mine in x.items()}, patience=2 * given.samples * given.beats)
        words = -(-given.outputs // given.lanes) * given.lanes
        found = self._all(lambda rank, device: device.submit_read_memory(
            Space.GRADIENT, given.target, len(x[rank]) * words), x)
        return events, {rank: unpack_outputs(given, mine) for rank, mine in zip(x, found, strict=True)}

    def _run_apart(self, commands: dict[int, Command], *, patience: int = 0) -> dict[int, Event]:
        """Commands that need no other node, by rank; ``patience`` is for so many cycles more than is usual."""
        self._iteration = (self._iteration + 1) % (1 << 16)
        tag = self._iteration
        self._all(lambda rank, device: device.submit_push(dataclasses.replace(commands[rank], tag=tag)), commands)
        # At most one element and one word of a mask per cycle.
        patience += 4 * self._timeout + 2 * max(command.length for command in commands.values())
        found = self._all(lambda rank, device: device.submit_pop_event(patience), commands)
        events = dict(zip(commands, found, strict=True))
        done = {rank: event for rank, event in events.items() if event is not None and event.status == EventStatus.OK}
        if len(done) < len(events):
            rank = next(rank for rank in events if rank not in done)
            event = events[rank]
            name = commands[rank].operation.name.lower()
            every = [events.get(rank) for rank in range(self.nodes)]
            if event is None:
                raise RingError(f"{name} failed: {report(rank, event, self._devices).strip()}", cause=rank,
                                events=every)
            try:
                event.check(self._devices[rank].name)
            except DeviceError as error:
                raise RingError(f"{name} failed: {error}", cause=rank, events=every) from None
        return done

    # Failures.

    def _settle(self, events: "list[Event | None]") -> tuple[list[int] | None, int]:
        """Wait until no word moves any more, and take late events.

        Returns
        -------
        list of int or None
            Words missing behind each link since the ring was last in order; None where words do not cease to move.
        int
            Cycles for which no word had moved then.
        """
        rest = 2 * self._timeout
        moved = self._moved()
        for _ in range(_SETTLING):
            rank = next((rank for rank, event in enumerate(events) if event is None), 0)
            event = self._devices[rank].submit_pop_event(rest).result()
            if events[rank] is None:
                events[rank] = event
            before, moved = moved, self._moved()
            if moved == before and event is None:
                return [_signed(now - then) for now, then in zip(_differences(moved), self._lost, strict=True)], rest
        return None, rest

    def _moved(self) -> list[tuple[int, int]]:
        """Words that each node has sent, and received."""
        return [(counters["WORDS_SENT"], counters["WORDS_RECEIVED"]) for counters in self.counters()]


def _differences(moved: Sequence[tuple[int, int]]) -> list[int]:
    """Words that each link has been given and that have not arrived, modulo 2**32."""
    return [(sent - moved[(rank + 1) % len(moved)][1]) % (1 << 32) for rank, (sent, _) in enumerate(moved)]


def _signed(difference: int) -> int:
    """A difference of counters, which wrap at 32 bits: below zero where words have come late."""
    return (difference + (1 << 31)) % (1 << 32) - (1 << 31)
