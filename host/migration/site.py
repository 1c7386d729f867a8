"""A site for a training job: a ring, a training process, and a folder with a checkpoint that outlives both."""

import contextlib
import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hdl.compression.registry import RAW
from host.checkpoints.archive import unpack_state
from host.checkpoints.checkpoint import Expectation, ProcessFrame, Stamp, admit, examine, given_back, make, restore
from host.checkpoints.device_frame import DeviceFrame, Windows, load, read, scrub, verify, windows_of
from host.checkpoints.rejections import ReadBackError, StaleError
from host.driver.memory import errors_base, packed_words
from host.driver.ring import Ring
from host.output import write_bytes
from host.training.checkpoint import NAME
from host.training.record import HOST, TrainingConfig
from host.training.trainer import Trainer, make_trainer
from host.training.updates import UpdateExecutor
from host.training.workloads import Workload
from sim.golden.ring import largest_block

__all__ = ["FRESH", "WORD_BITS", "Fabric", "Keys", "Site", "SiteError", "live_windows"]

#: Bits per word on a serial line: 4 bytes, each with a start bit, 8 data bits and a stop bit.
WORD_BITS = 40

#: Maximum age in seconds of a checkpoint that a target accepts.
FRESH = 60


class SiteError(RuntimeError):
    """Raised if a site cannot carry out a call in its current state."""


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of a migration: one for the manifest, and one for the watermark of the model's owner."""

    manifest: bytes = dataclasses.field(repr=False)
    owner: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Fabric:
    """An open ring, and a clock that counts its cycles."""

    ring: Ring
    clock: Callable[[], int]  # function that returns the number of cycles so far
    line: tuple[int, int] | None = None  # clock cycles per second, and bits per second of the serial line

    def pass_cycles(self, words: int) -> int:
        """Return the cycles that the serial line needs for ``words`` words from each node; 0 without a line."""
        if self.line is None:
            return 0
        clock, baud = self.line
        return words * self.ring.nodes * WORD_BITS * clock // baud


def live_windows(ring: Ring, config: TrainingConfig, length: int) -> Windows:
    """Return the memory ranges that a run's next step reads before it writes them, except gradients."""
    node = ring.devices[0].config
    block = largest_block(length, ring.nodes)
    windows: dict[str, list[tuple[int, int]]] = {"weights": [(0, length)]}
    if config.density is not None:
        windows["weights"].append((errors_base(length), length))
    for plane in range(config.optimizer.planes):
        windows[f"state_{plane}"] = [(0, packed_words(block, config.packed_state))]
    if node.weights.has_master:
        windows["masters"] = [(0, block)]
    if node.weights.codec != RAW and node.codebook_words:
        windows["codebook"] = [(0, node.codebook_words)]
    if node.has_residual:
        windows["residuals"] = [(0, length)]
    return windows


@dataclasses.dataclass(frozen=True)
class _Loaded:
    """A checkpoint that is loaded on the nodes."""

    state: Any  # state of the training process
    frame: DeviceFrame
    sequence: int
    digest: bytes  # SHA-256 of the checkpoint file's contents


class Site:
    """A site of a training job, identified by its name in the ledger.

    Parameters
    ----------
    folder : Path
        Folder for the latest checkpoint made or accepted by this site.
    fabric : callable
        Function that opens the fabric.
    workload : callable
        Function that creates the model and its data.
    config : TrainingConfig
        Training configuration, without schedule, grid or computing nodes.
    clock : callable
        Function that returns seconds since 1970.
    """

    # methods and properties that tenants may access
    calls = frozenset({"running", "cycles", "live_words", "freeze", "capture", "reserve", "load", "read_back", "keep",
                       "start", "go_on", "scrub"})

    def __init__(self, name: str, folder: Path, *, fabric: Callable[[], contextlib.AbstractContextManager[Fabric]],
                 workload: Callable[[], Workload], config: TrainingConfig, keys: Keys,
                 clock: Callable[[], float] = time.time):
        if config.overlap is not None or config.compute != HOST:
            raise ValueError("Job to be migrated must have no schedule, and a host that computes")
        self.name = name
        self.path = folder / NAME  # path of the checkpoint file
        self._fabric, self._workload, self._config, self._keys, self._clock = fabric, workload, config, keys, clock
        self._forget()

    def _forget(self) -> None:
        self._stack = contextlib.ExitStack()
        self._open: Fabric | None = None
        self.run: Trainer[UpdateExecutor] | None = None
        self.running = False  # whether the run may execute training steps
        self._used = False  # whether the nodes contain data of the job
        self._nonce = ""
        self._before: DeviceFrame | None = None
        self._loaded: _Loaded | None = None
        self._sequence = 0  # number of the checkpoint that the run continues from

    @property
    def cycles(self) -> int:
        """Number of cycles of the fabric so far; 0 while the fabric is closed."""
        return 0 if self._open is None else self._open.clock()

    def pass_cycles(self, words: int) -> int:
        """Return the result of :meth:`Fabric.pass_cycles`, or 0 while the fabric is closed."""
        return 0 if self._open is None else self._open.pass_cycles(words)

    def open(self) -> Ring:
        """Open the fabric unless it is already open, and return its ring."""
        if self._open is None:
            self._open = self._stack.enter_context(self._fabric())
        return self._open.ring

    def close(self) -> None:
        """Discard the training run and close the fabric; only the folder with the checkpoint remains."""
        self._stack.close()
        self._forget()

    @property
    def live_words(self) -> int:
        """Number of words per node that the last load wrote; 0 before a load."""
        return 0 if self._loaded is None else self._loaded.frame.live_words

    # Methods that the source of a migration needs.

    def begin(self) -> None:
        """Start the job at its first step."""
        run = make_trainer(self.open(), self._workload(), self._config)
        self._used = True
        run.begin()
        self.run, self._sequence, self.running = run, 0, True

    def freeze(self) -> None:
        """Stop the job: no further training step is executed."""
        self.running = False

    def capture(self, *, nonce: str, sequence: int) -> bytes:
        """Make a checkpoint of the frozen job and store it.

        Raises ``SiteError`` if no job is frozen, or if the job continued from a checkpoint with the same or a larger
        number.
        """
        if self.run is None or self.running:
            raise SiteError(f"{self.name} must have a job that is frozen, to make a checkpoint of it")
        if sequence <= self._sequence:
            raise SiteError(f"Checkpoint must have a larger number than {self._sequence}, from which the job "
                            f"continues, not {sequence}")
        ring, state = self.open(), self.run.state()
        batches = state["batches"]
        windows = live_windows(ring, self._config, len(state["parameters"]))
        frame = read(ring, windows)
        process = ProcessFrame(
            state=state, step=batches["number"], epoch=self.run.executor.training.steps[-1].epoch
            if self.run.number else 0, order=batches, nodes=ring.nodes,
            words={space: max(base + count for base, count in ranges) for space, ranges in windows.items()})
        data = make(process, frame, key=self._keys.manifest, owner=self._keys.owner,
                    stamp=Stamp(sequence=sequence, nonce=nonce, time=int(self._clock())))
        write_bytes(self.path, data)
        return data

    def go_on(self, *, sequence: int) -> None:
        """Continue the job from its current state, the checkpoint in the folder, or the beginning.

        The folder must contain the checkpoint with the ledger's number, or the next checkpoint, which the owner
        itself made and from which no other site has continued. Raises ``StaleError`` if it contains a different
        checkpoint, and ``SiteError`` if it contains none and the job is not at its beginning.
        """
        if self.run is not None and self._sequence == sequence:
            self.running = True
            return
        if self._loaded is None or self._loaded.sequence != sequence:
            self.run, self._loaded = None, None
            if not self.path.exists():
                if sequence:
                    raise SiteError(f"{self.path} must be checkpoint {sequence}, from which the job continues, not "
                                    f"missing")
                self.begin()
                return
            self._restore(sequence)
        self.start()

    def _restore(self, sequence: int) -> None:
        """Load the checkpoint in the folder."""
        data = self.path.read_bytes()
        number = examine(data, key=self._keys.manifest).manifest["sequence"]
        if not sequence <= number <= sequence + 1:
            raise StaleError(f"checkpoint in the folder must have number {sequence}, of the ledger, or the next one, "
                             f"not {number}: the job was continued from another one")
        self._used = True
        state, frame = restore(data, self.open(), key=self._keys.manifest, owner=self._keys.owner)
        self._loaded = _Loaded(state, frame, sequence, hashlib.sha256(data).digest())

    def scrub(self) -> None:
        """Remove all data of the job from the nodes, from this process and from the folder. Nodes that never held
        data of the job are not changed, and a fabric that cannot be scrubbed is closed."""
        self.running, self.run, self._loaded = False, None, None
        try:
            if self._open is not None and self._used:
                scrub(self._open.ring)
                self._used = False
        except Exception:  # close the fabric: nodes without power hold no data
            self.close()
        finally:
            self.path.unlink(missing_ok=True)

    # Methods that the target of a migration needs.

    def reserve(self) -> str:
        """Prepare the fabric while the job runs elsewhere; return the nonce for the next checkpoint."""
        ring = self.open()
        self._before = read(ring, live_windows(ring, self._config, self._workload().parameters.size))
        self._nonce = secrets.token_hex(16)
        return self._nonce

    def load(self, data: bytes, *, seen: int) -> None:
        """Check a checkpoint and write it to the nodes; see :func:`host.checkpoints.checkpoint.restore`."""
        if self.running:
            raise SiteError(f"{self.name} must not run a job, to load another one")
        expected = Expectation(now=int(self._clock()), oldest=FRESH, seen=seen, nonce=self._nonce)
        self._nonce = ""  # a nonce is valid for one checkpoint only
        archive = examine(data, key=self._keys.manifest, expected=expected)
        frame = admit(archive, self.open(), owner=self._keys.owner)
        state = unpack_state(archive.regions)
        self.run = self._loaded = None  # loading overwrites the data of an earlier run
        if self._before is None or windows_of(self._before) != windows_of(frame):
            self._before = read(self.open(), windows_of(frame))
        with self._given_back(self._before):
            load(self.open(), frame)
        self._loaded = _Loaded(state, frame, archive.manifest["sequence"], hashlib.sha256(data).digest())

    def read_back(self) -> None:
        """Compare the nodes' memories with the loaded checkpoint."""
        loaded = self._checked()
        assert self._before is not None
        with self._given_back(self._before):
            verify(self.open(), loaded.frame)

    def _checked(self) -> _Loaded:
        """Return the checkpoint that is loaded on the nodes."""
        if self._loaded is None:
            raise SiteError(f"{self.name} must have loaded a checkpoint")
        return self._loaded

    @contextlib.contextmanager
    def _given_back(self, before: DeviceFrame) -> Iterator[None]:
        """Context manager that restores the nodes' previous contents if its block raises a ``ReadBackError``."""
        self._used = True
        try:
            with given_back(self.open(), before):
                yield
        except ReadBackError:
            self._loaded, self._used = None, False
            raise

    def keep(self, data: bytes) -> None:
        """Store the loaded checkpoint so that the job can start here even if this process ends. Raises ``SiteError``
        if ``data`` is a different checkpoint."""
        if hashlib.sha256(data).digest() != self._checked().digest:
            raise SiteError(f"{self.name} must keep the checkpoint that it has loaded, not another one")
        write_bytes(self.path, data)

    def start(self) -> None:
        """Continue the job from the loaded checkpoint."""
        loaded = self._checked()
        run = make_trainer(self.open(), self._workload(), self._config)
        run.resume(loaded.state, restored=True)
        self.run, self._sequence, self._loaded, self.running = run, loaded.sequence, None, True
