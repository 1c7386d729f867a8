"""Transports to the nodes of a board that is connected over a serial port.

Packets arrive complete, in order and exactly once, even over a cable that damages or loses bytes. docs/serial.md
describes the protocol; all its timers are on the host.

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
import itertools
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import serial
import serial.tools.list_ports

from hdl.ring.topology import SMALL_RING
from hdl.serial.endpoint import VERSION
from hdl.serial.frame import FrameKind
from hdl.serial.link import COUNTERS
from host.driver.transport import NodeTransport
from host.driver.words import Words
from host.transports.serial_link import (
    BAUD,
    LONGEST,
    WRAP,
    BoardResetError,
    Channel,
    Frame,
    FrameDecoder,
    LinkCounters,
    LinkError,
    LinkLostError,
    Patience,
)

__all__ = ["SerialBoard", "open_port"]

#: Maximum duration of a read in seconds.
_TURN = 0.005


def open_port(device: str, baud: int, *, write_timeout: float) -> serial.Serial:
    """Open a serial port, such as /dev/ttyUSB0 or COM3, exclusively; ``write_timeout`` is in seconds.

    Raises ``LinkError`` if the port cannot be opened.
    """
    try:
        port = serial.Serial(device, baud, timeout=_TURN, write_timeout=write_timeout, exclusive=True)
    except (OSError, ValueError) as error:  # includes SerialException
        raise LinkError(f"{device}: cannot be opened at {baud} baud ({error}); {_advice(device)}") from None
    # In low-latency mode, some USB adapters deliver bytes after 1 ms instead of 16 ms.
    with contextlib.suppress(AttributeError, NotImplementedError, OSError, ValueError):
        port.set_low_latency_mode(True)
    return port


def _advice(device: str) -> str:
    """Return advice for the user about a port that cannot be opened."""
    if device.startswith("/") and not Path(device).exists():
        ports = sorted(port.device for port in serial.tools.list_ports.comports())
        listed = f"; ports found: {', '.join(ports)}" if ports else ""
        return f"there is no such port: check that the board is plugged in{listed}"
    return ("check that no other program has it open, and that you may use it (on Linux, group dialout: "
            "sudo usermod -a -G dialout $USER, and log in again)")


_OPEN_PATIENCE = 5.0  # seconds to wait for a node to finish work started by an earlier program
#: Seconds to wait for a response in addition to the time limit of its request: six requests at the lowest baud rate.
_GRACE = 6 * LONGEST


class SerialBoard:
    """A board at a serial port. Data is transferred only while one of the board's transports is in use.

    Parameters
    ----------
    device : str
        Name of the port, such as /dev/ttyUSB0 or COM3.
    baud : int
        Baud rate that the board was built for.
    nodes : int
        Number of nodes to use, starting with node 0.
    frequency : float
        Clock frequency of the nodes in Hz, used to convert time limits.
    silence : float
        Time in seconds without an answer after which the board is considered lost.
    persistence : float
        Time in seconds to wait for a lost port before an error; if it returns, the board continues where it stopped.
    clock : callable
        Function that returns the time in seconds that has passed for the board. It is used for all other time limits.
    announce : callable
        Function that is called with a line of text when a port is lost and when it returns.
    """

    def __init__(self, device: str, *, baud: int = BAUD, nodes: int = 1, frequency: float = 24e6,
                 silence: float = 1.5, persistence: float = 0.0, clock: Callable[[], float] = time.monotonic,
                 announce: Callable[[str], None] = lambda text: None) -> None:
        if baud < 1:
            raise ValueError(f"Baud rate must be a positive integer, not {baud!r}")
        if not 1 <= nodes <= SMALL_RING:
            raise ValueError(f"Node count must be between 1 and {SMALL_RING}, not {nodes!r}")
        if not frequency > 0:
            raise ValueError(f"Frequency must be above 0, not {frequency!r}")
        self.device = device
        self.counters = LinkCounters()
        self.transports = tuple(NodeTransport(self, node) for node in range(nodes))  # one per node
        self._baud = baud
        self._frequency = frequency
        self._silence = silence
        self._persistence = persistence
        self._announce = announce
        self._clock = clock
        self._channels = [Channel(number, clock) for number in range(nodes)]
        self._status: list[int] | None = None
        self._answered: dict[int, Frame] = {}
        self._lost: str | None = None
        self._port = self._open()
        self._decoder = FrameDecoder()
        self._patience = Patience(clock)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port. The board keeps its state."""
        self._port.close()

    # Packets.

    def send(self, node: int, packet: Words) -> None:
        """Queue a packet for a node, and send the words that fit into the board's buffer."""
        self._require_port()
        channel = self._channels[node]
        if not any(channel.waiting for channel in self._channels):
            self._patience.begin()
        channel.queue(packet)
        with contextlib.suppress(LinkLostError):  # the next `receive` raises the error
            self._guard(self._transmit)

    def receive(self, node: int, timeout_cycles: int) -> Words:
        """Receive the next packet from a node. The time limit restarts whenever the board sends or accepts words.

        Raises ``LinkLostError`` if the port is lost, or if the board does not answer.
        """
        channel = self._channels[node]
        patience = _GRACE + timeout_cycles / self._frequency
        begun = self._clock()
        while not channel.packets:
            self._require_port()
            self._guard(self._turn)
            if self._clock() - max(begun, channel.progressed) > patience and not channel.packets:
                raise TimeoutError(f"Node {node} gave no response within {patience:.1f} s: {self.describe()}")
        return channel.packets.popleft()

    def describe(self) -> str:
        """Describe the link counters and each node's outstanding words and responses."""
        lines = [f"{self.device}: " + ", ".join(
            f"{value} {name.replace('_', ' ')}" for name, value in vars(self.counters).items())]
        for channel in self._channels:
            unsent = channel.queued - channel.acknowledged
            lines.append(f"node {channel.number}: {unsent} words not acknowledged, {channel.owed} responses to come")
        return "\n".join(lines)

    def board_counters(self) -> dict[str, int]:
        """Read the link counters of the board. They count from configuration, have 16 bits, and wrap."""
        self._require_port()
        self._status = None
        self._guard(lambda: self._await(lambda: [Frame(kind=FrameKind.STATUS)], lambda: self._status is not None,
                                        self._silence))
        assert self._status is not None
        return dict(zip(COUNTERS, self._status, strict=True))

    # The serial port.

    def _open(self) -> serial.Serial:
        return open_port(self.device, self._baud, write_timeout=self._silence)

    def _require_port(self) -> None:
        if self._lost is not None:
            raise LinkLostError(self._lost)

    def _guard(self, action: Callable[[], Any]) -> None:
        """Run an action on the port. If the port is lost, wait for it to return, or raise :class:`LinkLostError`."""
        try:
            action()
        except LinkLostError as error:
            reason = str(error)
        except (OSError, TypeError) as error:  # raised by pyserial, also for a closed port
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
        """Reopen a lost port and resume the link; keep trying for ``timeout`` seconds.

        No word is lost unless the board has been reset: words in transit are sent again, and failed calls may be
        repeated.

        Raises ``LinkLostError`` if there is still no port or no answer, and ``BoardResetError`` if the board has lost
        the link: open the board again, and rewrite the nodes' memories and registers.
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

    # Methods that open the link.

    def _begin(self) -> None:
        """Open the link, which resets the board's end of each node's channel."""
        for channel in self._channels:
            channel.nonce = secrets.randbelow(WRAP)
        asked = [Frame(kind=FrameKind.OPEN, node=channel.number, sequence=channel.nonce)
                 for channel in self._channels]
        # Open only the first node; its answer gives the number of nodes.
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
        """Resume the link to a board that should have kept its state."""
        asked = [Frame(kind=FrameKind.OPEN, again=True, node=channel.number) for channel in self._channels]
        for channel, answer in zip(self._channels, self._ask(asked, "check its power"), strict=True):
            if answer.sequence != channel.nonce:
                raise BoardResetError(f"{self.device}: the board has been reset, or opened by someone else; open it "
                                      f"anew, and begin again")
            channel.go_back()
            channel.again = True
            channel.progressed = self._clock()
        self._patience.begin()

    def _ask(self, frames: list[Frame], advice: str) -> list[Frame]:
        """Send OPEN frames, and return the answers."""
        self._answered = {}

        def is_answered(frame: Frame) -> bool:
            answer = self._answered.get(frame.node)
            return answer is not None and (frame.again or answer.sequence == frame.sequence)

        try:
            self._await(lambda: [frame for frame in frames if frame.node not in self._answered],
                        lambda: all(map(is_answered, frames)), max(self._silence, _OPEN_PATIENCE))
        except LinkLostError as error:
            raise LinkLostError(f"{error}; {advice}") from None
        return [self._answered[frame.node] for frame in frames]

    def _await(self, frames: Callable[[], list[Frame]], done: Callable[[], bool], timeout: float) -> None:
        """Send frames repeatedly until all are answered. Meanwhile, other frames from the board are handled."""
        begun = sent = self._clock()
        self._write(frames())
        while not done():
            self._read()
            now = self._clock()
            if now - begun > timeout:
                raise LinkLostError(f"{self.device}: the board gave no answer within {timeout:g} s")
            if now - sent > LONGEST / 2:
                self.counters.timeouts += 1
                sent = now
                self._write(frames())

    # Frames.

    def _turn(self) -> None:
        """Send all frames that are due, then read for a short time."""
        self._patience.look()
        self._transmit()
        self._read()
        self._watch()

    def _read(self) -> None:
        data = self._port.read(self._port.in_waiting or 1)
        if not data:
            return
        before = self._decoder.crc_errors, self._decoder.resyncs
        # A loopback cable returns our own frames, which are not replies.
        frames = [frame for frame in self._decoder.feed(data) if frame.reply]
        self.counters.frames_received += len(frames)
        if frames:
            self._patience.hear()
        for frame in frames:
            if frame.kind is FrameKind.STATUS and len(frame.payload) == 2 * len(COUNTERS):
                self._status = np.frombuffer(frame.payload, "<u2").tolist()
            elif frame.kind is FrameKind.OPEN:
                self._answered[frame.node] = frame
            elif (frame.node < len(self._channels) and self._channels[frame.node].opened
                  and self._channels[frame.node].take(frame, self.counters)):
                self._patience.progress()
        self.counters.crc_errors += self._decoder.crc_errors - before[0]
        self.counters.resyncs += self._decoder.resyncs - before[1]

    def _watch(self) -> None:
        """Send words again if no frame arrives in time; raise ``LinkLostError`` if no frame arrives at all."""
        waiting = [channel for channel in self._channels if channel.waiting]
        if not waiting:
            self._patience.begin()
        elif self._patience.ends():
            timed_out = any(channel.sent for channel in waiting)
            self.counters.timeouts += timed_out
            self.counters.polls += not timed_out
            for channel in waiting:
                channel.again = True
                channel.go_back()
        if self._patience.silence > self._silence:
            raise LinkLostError(f"{self.device}: the board gave no answer within {self._silence:g} s")

    def _transmit(self) -> None:
        """Send the pieces that fit into the board's buffers, and any acknowledgements that are due."""
        frames: list[Frame] = []
        self.counters.requests += sum(channel.again for channel in self._channels)
        # Send the nodes' frames in round-robin order, so that no node runs out of work.
        for pieces in itertools.zip_longest(*(channel.allowed() for channel in self._channels)):
            for channel, piece in zip(self._channels, pieces, strict=True):
                if piece is not None:
                    frames.append(channel.frame(piece))
                    self.counters.retries += piece.start < channel.farthest
                    channel.farthest = max(channel.farthest, piece.end)
                    channel.sent += 1
        frames += [channel.frame(None) for channel in self._channels if channel.answer or channel.again]
        if frames:
            self._write(frames)

    def _write(self, frames: list[Frame]) -> None:
        self._port.write(b"".join(frame.encode() for frame in frames))
        self.counters.frames_sent += len(frames)
