"""The way to the nodes of a board over a serial port.

Whatever the cable does to bytes, the packets of :class:`~host.driver.transport.Transport` come through whole, in
order and once: docs/serial.md has the protocol. All its clocks are on this side.

Example
-------
::

    with SerialBoard("/dev/ttyUSB0", nodes=2) as board:
        devices = [Device(transport, config, name=f"node {n}") for n, transport in enumerate(board.transports)]
        ring = Ring(devices)
        ring.connect()
        print(board.counters, board.board_counters())
"""

import contextlib
import dataclasses
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import serial
import serial.tools.list_ports

from hdl.ring.topology import MOST_NODES
from hdl.serial.endpoint import VERSION
from hdl.serial.frame import FrameKind
from hdl.serial.link import COUNTERS
from host.driver.errors import DeviceError
from host.driver.words import Words
from host.transports.serial_frame import Frame, FrameDecoder
from host.transports.session import BAUD

__all__ = ["BoardResetError", "LinkCounters", "LinkError", "LinkLostError", "SerialBoard", "SerialTransport"]

#: Payload words of the longest frame that is sent.
FRAME_WORDS = 64

_WRAP = 1 << 16  # numbers of words in headers
_TURN = 0.005  # seconds that a read waits at most
_FIRST_PATIENCE = 0.25  # seconds without an answer after which things are sent again, until it is known better
_LEAST_PATIENCE, _MOST_PATIENCE = 0.05, 0.5
_OPEN_PATIENCE = 5.0  # seconds for a node to end what it was doing for someone before
_AWAY = 0.1  # seconds between two looks at the port that nobody can blame the board for

_FEWEST, _MOST_FRAMES = 2.0, 32.0  # on the way to a node


class LinkError(DeviceError):
    """The link to the board does not work."""


class LinkLostError(LinkError):
    """The serial port is gone, or the board behind it says nothing any more."""


class BoardResetError(LinkError):
    """The board does not know this link any more: it has been reset, or someone else has opened it."""


@dataclasses.dataclass(kw_only=True)
class LinkCounters:
    """What the host's end of a link has seen.

    Members
    -------
    frames_sent, frames_received : int
        With right CRCs, those that were sent again included.
    retries : int
        Frames that were sent again, since the board did not get them.
    requests : int
        Times that the board was asked to send again.
    timeouts : int
        Times that nothing came for too long, and was sent again.
    polls : int
        Times that a response took long, and the board was asked if it is still there.
    crc_errors, resyncs : int
        Damaged frames, as :class:`~host.transports.serial_frame.FrameDecoder` counts them.
    gaps, repeats : int
        Frames that came too early, since one in front of them was lost; and frames that came again.
    reconnects : int
    """

    frames_sent: int = 0
    frames_received: int = 0
    retries: int = 0
    requests: int = 0
    timeouts: int = 0
    polls: int = 0
    crc_errors: int = 0
    resyncs: int = 0
    gaps: int = 0
    repeats: int = 0
    reconnects: int = 0


@dataclasses.dataclass
class _Piece:
    """Words of a request packet that go into one frame; ``start`` is the number of the first one."""

    start: int
    payload: bytes
    last: bool

    @property
    def end(self) -> int:
        return self.start + len(self.payload) // 4


class _Channel:
    """One node's packets in both directions. Numbers of words go on without end here."""

    def __init__(self, number: int, clock: Callable[[], float]):
        self.number = number
        self.clock = clock
        self.packets: deque[Words] = deque()
        self.nonce = 0
        self.opened = False
        self.begin(0)

    def begin(self, limit: int) -> None:
        """As after OPEN."""
        self.pieces: deque[_Piece] = deque()  # not acknowledged
        self.sent = 0  # of those, how many were sent
        self.queued = 0  # words of all requests
        self.acknowledged = 0
        self.limit = limit
        self.frames = _MOST_FRAMES  # that may be on the way
        self.farthest = 0  # word up to which pieces were sent at least once
        self.expected = 0
        self.partial: list[bytes] = []
        self.owed = 0  # responses
        self.asked = False  # for a gap to be closed
        self.answer = False  # the board is to be told how far it has come
        self.again = False  # and to send the rest again
        self.progressed = self.clock()

    def queue(self, packet: Words) -> None:
        data = packet.astype("<u4").tobytes()
        for start in range(0, len(data), 4 * FRAME_WORDS):
            payload = data[start:start + 4 * FRAME_WORDS]
            self.pieces.append(_Piece(self.queued, payload, start + len(payload) == len(data)))
            self.queued += len(payload) // 4
        self.owed += 1

    @property
    def waiting(self) -> bool:
        """Something is to come from the board."""
        return self.sent > 0 or self.owed > 0


class _Patience:
    """How long to wait for the board before things are sent again.

    The board acknowledges every frame, so what counts is the time since anything came from it, however much is on the
    way: mean and deviation of that, as TCP has it (RFC 6298). Time in which nobody looked at the port does not count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mean: float | None = None
        self._deviation = 0.0
        self._usual = _FIRST_PATIENCE
        self._longer = 1.0
        self._heard = self._asked = self._looked = self._clock()

    def look(self) -> None:
        """The port is looked at."""
        now = self._clock()
        away = now - self._looked
        self._looked = now
        if away > _AWAY:
            self._heard += away
            self._asked += away

    def begin(self) -> None:
        """From here on there is something to wait for."""
        self._heard = self._asked = self._looked = self._clock()

    def hear(self) -> None:
        """A frame has come."""
        now = self._clock()
        if self._longer == 1:
            seconds = now - self._heard
            if self._mean is None:
                self._mean, self._deviation = seconds, seconds / 2
            self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
            self._mean += (seconds - self._mean) / 8
            self._usual = min(max(2 * self._mean + 4 * self._deviation, _LEAST_PATIENCE), _MOST_PATIENCE)
        self._heard = self._asked = now

    def progress(self) -> None:
        """Words have come through."""
        self._longer = 1.0

    def ends(self) -> bool:
        """Whether it is time to ask again; if so, the next time is later."""
        now = self._clock()
        if now - self._asked <= self._usual * self._longer:
            return False
        self._asked = now
        self._longer = min(2 * self._longer, _MOST_PATIENCE / self._usual)
        return True

    @property
    def silence(self) -> float:
        """Seconds since anything came."""
        return self._clock() - self._heard


class SerialTransport:
    """The way to one node of a :class:`SerialBoard`. Bytes move only while some transport of the board is used.

    Parameters
    ----------
    board : SerialBoard
    node : int
    """

    def __init__(self, board: "SerialBoard", node: int) -> None:
        self._board = board
        self._node = node

    def send(self, packet: Words) -> None:
        """See :class:`~host.driver.transport.Transport`."""
        self._board.send(self._node, packet)

    def receive(self, timeout_cycles: int) -> Words:
        """See :class:`~host.driver.transport.Transport`. The time begins anew when the board has sent or taken words.

        Raises
        ------
        LinkLostError
            The port is gone, or the board silent.
        """
        return self._board.receive(self._node, timeout_cycles)

    def close(self) -> None:
        """Nothing: the port belongs to all its transports, and is closed on its own."""


class SerialBoard:
    """A board behind a serial port.

    Parameters
    ----------
    device : str
        The port, as /dev/ttyUSB0 or COM3.
    baud : int
        Bits per second, which the board must have been built for.
    nodes : int
        How many of the board's nodes to use, from number 0 on.
    frequency : float
        Cycles of the nodes' clock per second, by which limits of time are reckoned.
    silence : float
        Seconds without any answer after which the board is taken to be gone.
    persistence : float
        Seconds for which a port that is lost is waited for, before that is an error. The board goes on where it was.
    clock : callable
        Seconds as they pass for the board, by which everything else that is in seconds is measured.
    announce : callable
        Told when a port is lost and waited for, and when it is back.

    Members
    -------
    transports : tuple of SerialTransport
        One per node.
    counters : LinkCounters
    """

    def __init__(self, device: str, *, baud: int = BAUD, nodes: int = 1, frequency: float = 24e6,
                 silence: float = 1.5, persistence: float = 0.0, clock: Callable[[], float] = time.monotonic,
                 announce: Callable[[str], None] = lambda text: None) -> None:
        if baud < 1:
            raise ValueError(f"Baud rate must be a positive integer, not {baud!r}")
        if not 1 <= nodes <= MOST_NODES:
            raise ValueError(f"Node count must be between 1 and {MOST_NODES}, not {nodes!r}")
        if not frequency > 0:
            raise ValueError(f"Frequency must be above 0, not {frequency!r}")
        self.device = device
        self.counters = LinkCounters()
        self.transports = tuple(SerialTransport(self, node) for node in range(nodes))
        self._baud = baud
        self._frequency = frequency
        self._silence = silence
        self._persistence = persistence
        self._announce = announce
        self._clock = clock
        self._channels = [_Channel(number, clock) for number in range(nodes)]
        self._status: list[int] | None = None
        self._answered: dict[int, Frame] = {}
        self._lost: str | None = None
        self._port = self._open()
        self._decoder = FrameDecoder()
        self._patience = _Patience(clock)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the port. The board keeps what it has."""
        self._port.close()

    # Packets.

    def send(self, node: int, packet: Words) -> None:
        """Queue a packet for a node, and send of it what the board has room for."""
        self._require_port()
        channel = self._channels[node]
        if not any(channel.waiting for channel in self._channels):
            self._patience.begin()
        channel.queue(packet)
        with contextlib.suppress(LinkLostError):  # said when the response is asked for
            self._guard(self._transmit)

    def receive(self, node: int, timeout_cycles: int) -> Words:
        """The next packet from a node."""
        channel = self._channels[node]
        patience = 1.0 + timeout_cycles / self._frequency
        begun = self._clock()
        while not channel.packets:
            self._require_port()
            self._guard(self._turn)
            if self._clock() - max(begun, channel.progressed) > patience and not channel.packets:
                raise TimeoutError(f"Node {node} gave no response within {patience:.1f} s: {self.describe()}")
        return channel.packets.popleft()

    def describe(self) -> str:
        """What is on its way, and what went wrong so far."""
        lines = [f"{self.device}: " + ", ".join(
            f"{value} {name.replace('_', ' ')}" for name, value in vars(self.counters).items())]
        for channel in self._channels:
            unsent = channel.queued - channel.acknowledged
            lines.append(f"node {channel.number}: {unsent} words not acknowledged, {channel.owed} responses to come")
        return "\n".join(lines)

    def board_counters(self) -> dict[str, int]:
        """What the board's end of the link has seen since it was configured; counters have 16 bits and wrap."""
        self._require_port()
        self._status = None

        def ask() -> bool:
            self._write([Frame(kind=FrameKind.STATUS)])
            return True

        self._guard(lambda: self._await(ask, lambda: self._status is not None, self._silence))
        assert self._status is not None
        return dict(zip(COUNTERS, self._status, strict=True))

    # The port.

    def _open(self) -> serial.Serial:
        try:
            port = serial.Serial(self.device, self._baud, timeout=_TURN, write_timeout=self._silence, exclusive=True)
        except (OSError, ValueError) as error:  # a SerialException is an OSError
            raise LinkError(f"{self.device}: cannot be opened at {self._baud} baud ({error}); {_advice(self.device)}"
                            ) from None
        # A USB adapter then gives what it has after 1 ms in place of 16, if it can.
        with contextlib.suppress(AttributeError, NotImplementedError, OSError, ValueError):
            port.set_low_latency_mode(True)
        return port

    def _require_port(self) -> None:
        if self._lost is not None:
            raise LinkLostError(self._lost)

    def _guard(self, action: Callable[[], Any]) -> None:
        """Do something with the port; if that is gone, wait for it, or say so."""
        try:
            action()
        except LinkLostError as error:
            reason = str(error)
        except (OSError, TypeError) as error:  # pyserial's own type, and what a closed port leads to in it
            reason = f"{self.device}: the connection is lost ({error})"
        else:
            return
        self._port.close()
        self._lost = f"{reason}; plug the board in and connect again"
        if self._persistence <= 0:
            raise LinkLostError(self._lost)
        self._announce(f"{reason}; waiting {self._persistence:g} s for it to come back")
        self.reconnect(self._persistence)
        self._announce(f"{self.device}: connected again")

    def reconnect(self, timeout: float = 5.0) -> None:
        """Open a port that was lost, and go on where that was.

        Nothing is lost if the board has not been reset: what was on its way is sent again, and calls that had failed
        may be made again.

        Parameters
        ----------
        timeout : float
            Seconds to try for.

        Raises
        ------
        LinkLostError
            There is still no port, or no answer.
        BoardResetError
            The board has forgotten the link: open it anew, and write what the nodes have to have.
        """
        self._port.close()
        until = time.monotonic() + timeout
        while True:
            try:
                self._port = self._open()
                self._decoder = FrameDecoder()
                self._resume()
                break
            except BoardResetError:
                self._port.close()
                raise
            except (LinkError, OSError, TypeError) as error:
                self._port.close()
                if time.monotonic() > until:
                    self._lost = f"{self.device}: did not come back within {timeout:g} s ({error})"
                    raise LinkLostError(self._lost) from None
                time.sleep(0.05)
        self._lost = None
        self.counters.reconnects += 1

    # Opening.

    def _begin(self) -> None:
        """Bring the board's end of each node's channel to its beginning."""
        for channel in self._channels:
            channel.nonce = secrets.randbelow(_WRAP)
        asked = [Frame(kind=FrameKind.OPEN, node=channel.number, sequence=channel.nonce)
                 for channel in self._channels]
        # The first node alone, since it says how many there are.
        first = self._ask(asked[:1], f"check that it is a board of gradring, configured, and built for {self._baud} "
                                     f"baud")[0]
        version, nodes = divmod(first.acknowledged, 256)
        if version != VERSION:
            raise LinkError(f"{self.device}: version of the link must be {VERSION}, not {version}: take driver and "
                            f"bitstream of the same release")
        if nodes < len(self._channels):
            raise LinkError(f"{self.device}: nodes must be at most the {nodes} of the board, not "
                            f"{len(self._channels)}")
        answers = [first, *self._ask(asked[1:], "reset the board")]
        for channel, answer in zip(self._channels, answers, strict=True):
            channel.begin(answer.limit)
            channel.opened = True

    def _resume(self) -> None:
        """Go on with a board that should be as it was."""
        asked = [Frame(kind=FrameKind.OPEN, again=True, node=channel.number) for channel in self._channels]
        for channel, answer in zip(self._channels, self._ask(asked, "check its power"), strict=True):
            if answer.sequence != channel.nonce:
                raise BoardResetError(f"{self.device}: the board has been reset, or opened by someone else; open it "
                                      f"anew, and begin again")
            self._go_back(channel)
            channel.again = True
            channel.progressed = self._clock()
        self._patience.begin()

    def _ask(self, frames: list[Frame], advice: str) -> list[Frame]:
        """The answers to frames of kind OPEN."""
        self._answered = {}

        def ask() -> bool:
            self._write([frame for frame in frames if frame.node not in self._answered])
            return True

        def answered() -> bool:
            return all(self._right(frame) for frame in frames)

        try:
            self._await(ask, answered, max(self._silence, _OPEN_PATIENCE))
        except LinkLostError as error:
            raise LinkLostError(f"{error}; {advice}") from None
        return [self._answered[frame.node] for frame in frames]

    def _right(self, asked: Frame) -> bool:
        answer = self._answered.get(asked.node)
        return answer is not None and (asked.again or answer.sequence == asked.sequence)

    def _await(self, ask: Callable[[], bool], done: Callable[[], bool], timeout: float) -> None:
        """Ask until there is an answer; other frames are served meanwhile."""
        begun = asked = self._clock()
        ask()
        while not done():
            self._read()
            now = self._clock()
            if now - begun > timeout:
                raise LinkLostError(f"{self.device}: the board gave no answer within {timeout:g} s")
            if now - asked > _MOST_PATIENCE / 2:
                self.counters.timeouts += 1
                asked = now
                ask()

    # Frames.

    def _turn(self) -> None:
        """Read what there is, waiting a little, and send what there is to send."""
        self._patience.look()
        self._transmit()
        self._read()
        self._watch()

    def _read(self) -> None:
        data = self._port.read(self._port.in_waiting or 1)
        if not data:
            return
        before = self._decoder.crc_errors, self._decoder.resyncs
        # A cable whose ends are joined gives back what was sent.
        frames = [frame for frame in self._decoder.feed(data) if frame.reply]
        self.counters.frames_received += len(frames)
        if frames:
            self._patience.hear()
        for frame in frames:
            if frame.kind is FrameKind.STATUS and len(frame.payload) == 2 * len(COUNTERS):
                self._status = np.frombuffer(frame.payload, "<u2").tolist()
            elif frame.kind is FrameKind.OPEN:
                self._answered[frame.node] = frame
            elif frame.node < len(self._channels) and self._channels[frame.node].opened:
                self._take(self._channels[frame.node], frame)
        self.counters.crc_errors += self._decoder.crc_errors - before[0]
        self.counters.resyncs += self._decoder.resyncs - before[1]

    def _take(self, channel: _Channel, frame: Frame) -> None:
        """A frame of kind DATA."""
        gone = (frame.acknowledged - channel.acknowledged) % _WRAP
        if 0 < gone <= channel.farthest - channel.acknowledged:
            channel.acknowledged += gone
            self._progress(channel)
            while channel.pieces and channel.pieces[0].end <= channel.acknowledged:
                channel.pieces.popleft()
                channel.sent = max(channel.sent - 1, 0)
                channel.frames = min(channel.frames + 1 / channel.frames, _MOST_FRAMES)
        room = (frame.limit - channel.acknowledged) % _WRAP
        if room < _WRAP // 2:
            channel.limit = max(channel.limit, channel.acknowledged + room)
        if frame.again:
            self._go_back(channel)
        if frame.payload:
            ahead = (frame.sequence - channel.expected) % _WRAP
            channel.answer = True
            if ahead == 0:
                self._deliver(channel, frame)
                self._progress(channel)
            elif ahead >= _WRAP // 2:
                self.counters.repeats += 1
            else:
                self.counters.gaps += 1
                channel.again |= not channel.asked
                channel.asked = True

    def _deliver(self, channel: _Channel, frame: Frame) -> None:
        channel.expected += len(frame.payload) // 4
        channel.asked = False
        channel.partial.append(frame.payload)
        if frame.last:
            channel.packets.append(np.frombuffer(b"".join(channel.partial), "<u4").astype(np.uint32))
            channel.partial = []
            channel.owed -= 1

    def _progress(self, channel: _Channel) -> None:
        channel.progressed = self._clock()
        self._patience.progress()

    def _go_back(self, channel: _Channel) -> None:
        """Send everything again that is not acknowledged; and, if something was lost, less at a time from here on."""
        if channel.sent:
            channel.frames = max(channel.frames / 2, _FEWEST)
        channel.sent = 0

    def _watch(self) -> None:
        """Where nothing has come for too long, begin again; where nothing comes at all, give up."""
        waiting = [channel for channel in self._channels if channel.waiting]
        if not waiting:
            self._patience.begin()
        elif self._patience.ends():
            if any(channel.sent for channel in waiting):
                self.counters.timeouts += 1
            else:
                self.counters.polls += 1
            for channel in waiting:
                channel.again = True
                self._go_back(channel)
        if self._patience.silence > self._silence:
            raise LinkLostError(f"{self.device}: the board gave no answer within {self._silence:g} s")

    def _transmit(self) -> None:
        """Send what the board has room for, of all nodes in turn, and what it has to be told."""
        frames: list[Frame] = []
        for channel in self._channels:
            self.counters.requests += channel.again
        # A frame of each node in turn, so that all of them have something to do.
        for pieces in itertools.zip_longest(*(self._allowed(channel) for channel in self._channels)):
            for channel, piece in zip(self._channels, pieces, strict=True):
                if piece is not None:
                    frames.append(self._frame(channel, piece))
                    self.counters.retries += piece.start < channel.farthest
                    channel.farthest = max(channel.farthest, piece.end)
                    channel.sent += 1
        frames += [self._frame(channel, None) for channel in self._channels if channel.answer or channel.again]
        if frames:
            self._write(frames)

    @staticmethod
    def _allowed(channel: _Channel) -> list[_Piece]:
        """What is to be sent, and the board has room for.

        After a loss everything behind it comes in vain, so on a bad line less is sent ahead.
        """
        rest = itertools.islice(channel.pieces, channel.sent, max(channel.sent, int(channel.frames)))
        return list(itertools.takewhile(lambda piece: piece.end <= channel.limit, rest))

    @staticmethod
    def _frame(channel: _Channel, piece: _Piece | None) -> Frame:
        again = channel.again
        channel.answer = channel.again = False
        return Frame(node=channel.number, again=again, last=piece is not None and piece.last,
                     sequence=(channel.farthest if piece is None else piece.start) % _WRAP,
                     acknowledged=channel.expected % _WRAP, payload=b"" if piece is None else piece.payload)

    def _write(self, frames: list[Frame]) -> None:
        self._port.write(b"".join(frame.encode() for frame in frames))
        self.counters.frames_sent += len(frames)


def _advice(device: str) -> str:
    """What to do where a port cannot be opened."""
    if device.startswith("/") and not Path(device).exists():
        ports = sorted(port.device for port in serial.tools.list_ports.comports())
        found = f"; ports found: {', '.join(ports)}" if ports else ""
        return f"there is no such port: check that the board is plugged in{found}"
    return ("check that no other program has it open, and that you may use it (on Linux, group dialout: "
            "sudo usermod -a -G dialout $USER, and log in again)")
