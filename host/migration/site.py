"""A site of a job: a fabric and the process that trains on it, and a folder for what must outlive both."""

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hdl.compression.registry import RAW
from host.checkpoints.checkpoint import Expectation, ProcessFrame, Stamp, admit, examine, given_back, make, restore
from host.checkpoints.contents import unpack_state
from host.checkpoints.device_frame import DeviceFrame, Windows, load, read, scrub, verify, windows_of
from host.checkpoints.rejections import ReadBackError
from host.checkpoints.watermark import check_watermark
from host.driver.buffers import errors_base
from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.driver.ring import Ring
from host.output import write_bytes
from host.training.checkpoint import NAME
from host.training.record import HOST, TrainingConfig
from host.training.trainer import Run
from host.training.workloads import Workload
from sim.golden.ring import largest_block

__all__ = ["FRESH", "WORD_BITS", "Fabric", "Keys", "Site", "live_windows"]

#: Bits of a word on a serial line: 4 bytes, of a start bit, 8 bits and a stop bit.
WORD_BITS = 40

#: Seconds that a checkpoint may be old when it comes to a target.
FRESH = 60


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of a migration: that of the manifest, and the one with which the owner of the model marks it."""

    manifest: bytes = dataclasses.field(repr=False)
    owner: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Fabric:
    """A ring that is open.

    Members
    -------
    ring : Ring
    clock : callable
        Cycles that it has done.
    line : tuple of int, optional
        Cycles and bits in a second of the serial line that its nodes share.
    """

    ring: Ring
    clock: Callable[[], int]
    line: tuple[int, int] | None = None

    def pass_cycles(self, words: int) -> int:
        """Cycles that the bits of so many words of each node take on the serial line; 0 without one."""
        if self.line is None:
            return 0
        clock, baud = self.line
        return words * self.ring.nodes * WORD_BITS * clock // baud


def live_windows(ring: Ring, config: TrainingConfig, length: int) -> Windows:
    """Ranges of the nodes' memories that the next step of a run reads before it writes them.

    Gradients are not among them: a step begins with new ones.
    """
    node = ring.devices[0].config
    block = largest_block(length, ring.nodes)
    windows: dict[str, list[tuple[int, int]]] = {"weights": [(0, length)]}
    if config.density is not None:
        windows["weights"].append((errors_base(length), length))
    for plane in range(config.optimizer.planes):
        windows[f"state_{plane}"] = [(0, -(-block // 2) if config.packed_state else block)]
    if node.has_master:
        windows["masters"] = [(0, block)]
    if node.weight_codec != RAW and node.codebook_words:
        windows["codebook"] = [(0, node.codebook_words)]
    if node.has_residual:
        windows["residuals"] = [(0, length)]
    return windows


class Site:
    """A site of a training job.

    Parameters
    ----------
    name : str
        Name in the ledger.
    folder : Path
        Folder of the last checkpoint that this site has made or accepted.
    fabric : callable
        Opens the fabric: a context manager of a :class:`Fabric`.
    workload : callable
        Makes the model and its data.
    config : TrainingConfig
        Training without schedule, grid or nodes that compute.
    keys : Keys
    clock : callable
        Seconds since 1970.

    Members
    -------
    run : Run, optional
        The run, on the site that has one.
    running : bool
        Whether it may take steps.
    calls : frozenset of str
        Calls that tenants may make.
    """

    calls = frozenset({"running", "cycles", "live_words", "freeze", "capture", "reserve", "load", "read_back", "keep",
                       "start", "go_on", "scrub"})

    def __init__(self, name: str, folder: Path, *, fabric: Callable[[], contextlib.AbstractContextManager[Fabric]],
                 workload: Callable[[], Workload], config: TrainingConfig, keys: Keys,
                 clock: Callable[[], float] = time.time):
        if config.overlap is not None or config.compute != HOST:
            raise ValueError("Job to be migrated must have no schedule, and a host that computes")
        self.name, self._folder = name, folder
        self._fabric, self._workload, self._config, self._keys, self._clock = fabric, workload, config, keys, clock
        self._forget()

    def _forget(self) -> None:
        self._stack = contextlib.ExitStack()
        self._open: Fabric | None = None
        self.run: Run | None = None
        self.running = False
        self._used = False  # the nodes hold something of the job
        self._nonce = ""
        self._before: DeviceFrame | None = None
        self._loaded: tuple[Any, DeviceFrame] | None = None

    @property
    def path(self) -> Path:
        """File of the checkpoint."""
        return self._folder / NAME

    @property
    def cycles(self) -> int:
        """Cycles of the fabric; 0 while it is closed."""
        return 0 if self._open is None else self._open.clock()

    def pass_cycles(self, words: int) -> int:
        """See :meth:`Fabric.pass_cycles`; 0 while the fabric is closed."""
        return 0 if self._open is None else self._open.pass_cycles(words)

    def open(self) -> Ring:
        """The ring of the fabric, which is opened if it is not."""
        if self._open is None:
            self._open = self._stack.enter_context(self._fabric())
        return self._open.ring

    def close(self) -> None:
        """End the process and the fabric: what is not in the folder is lost."""
        self._stack.close()
        self._forget()

    @property
    def live_words(self) -> int:
        """Words of a node that were loaded; 0 if nothing was."""
        return 0 if self._loaded is None else self._loaded[1].live_words

    # The source.

    def begin(self) -> None:
        """Begin the job at its first step."""
        self.run = Run(self.open(), self._workload(), self._config)
        self._used = True
        self.run.begin()
        self.running = True

    def freeze(self) -> None:
        """Take no further step."""
        self.running = False

    def capture(self, *, nonce: str, sequence: int) -> bytes:
        """Make a checkpoint of the frozen job, and keep it."""
        assert self.run is not None
        assert not self.running
        ring, state = self.open(), self.run.state()
        batches = state["batches"]
        windows = live_windows(ring, self._config, len(state["parameters"]))
        frame = read(ring, windows)
        process = ProcessFrame(
            state=state, step=batches["number"], epoch=self.run.training.steps[-1].epoch
            if self.run.training.steps else 0, order=batches, nodes=ring.nodes,
            words={space: max(base + count for base, count in found) for space, found in windows.items()})
        data = make(process, frame, key=self._keys.manifest, owner=self._keys.owner,
                    stamp=Stamp(sequence=sequence, nonce=nonce, time=int(self._clock())))
        write_bytes(self.path, data)
        return data

    def go_on(self) -> None:
        """Go on with the job: where it is, from the checkpoint of the folder, or from the beginning."""
        if self.run is not None:
            self.running = True
        elif self._loaded is not None:
            self.start()
        elif self.path.exists():
            self._used = True
            self._loaded = restore(self.path.read_bytes(), self.open(), key=self._keys.manifest,
                                   owner=self._keys.owner)
            self.start()
        else:
            self.begin()

    def scrub(self) -> None:
        """Leave nothing of the job: neither on the nodes, nor in the process, nor in the folder. Nodes that have had
        nothing of it stay as they are, and a fabric that does not answer is closed."""
        self.running, self.run, self._loaded = False, None, None
        self.path.unlink(missing_ok=True)
        if self._open is not None and self._used:
            try:
                scrub(self._open.ring)
                self._used = False
            except (DeviceError, RingError):
                self.close()

    # The target.

    def reserve(self) -> str:
        """Make the fabric ready, while the job still runs elsewhere; returns the nonce of the checkpoint to come."""
        ring = self.open()
        self._before = read(ring, live_windows(ring, self._config, self._workload().parameters.size))
        self._nonce = secrets.token_hex(16)
        return self._nonce

    def load(self, data: bytes, *, seen: int) -> None:
        """Check a checkpoint and write it to the nodes; see :func:`host.checkpoints.checkpoint.restore`."""
        expected = Expectation(now=int(self._clock()), oldest=FRESH, seen=seen, nonce=self._nonce)
        self._nonce = ""  # it is good for one
        archive = examine(data, key=self._keys.manifest, expected=expected)
        frame = admit(archive, self.open(), watermarked=lambda manifest: check_watermark(manifest, self._keys.owner))
        state = unpack_state(archive.regions)
        assert self._before is not None
        if windows_of(self._before) != windows_of(frame):
            self._before = read(self.open(), windows_of(frame))
        with self._given_back():
            load(self.open(), frame)
        self._loaded = state, frame

    def read_back(self) -> None:
        """Compare the nodes with what was written."""
        assert self._loaded is not None
        with self._given_back():
            verify(self.open(), self._loaded[1])

    @contextlib.contextmanager
    def _given_back(self) -> Iterator[None]:
        """Nodes that do not hold what was written get back what they held."""
        assert self._before is not None
        self._used = True
        try:
            with given_back(self.open(), self._before):
                yield
        except ReadBackError:
            self._loaded, self._used = None, False
            raise

    def keep(self, data: bytes) -> None:
        """Keep the checkpoint, so that the job can start here whatever happens to this process."""
        write_bytes(self.path, data)

    def start(self) -> None:
        """Go on with the job that was loaded."""
        assert self._loaded is not None
        state, self._loaded = self._loaded[0], None
        self.run = Run(self.open(), self._workload(), self._config)
        self.run.resume(state, restored=True)
        self.running = True
