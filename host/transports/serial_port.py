"""Opening of a serial port, with advice where that fails."""

import contextlib
from pathlib import Path

import serial
import serial.tools.list_ports

from host.transports.link_errors import LinkError

__all__ = ["open_port"]

#: Longest wait of a read, in seconds.
_TURN = 0.005


def open_port(device: str, baud: int, *, write_timeout: float) -> serial.Serial:
    """Open a serial port for this program alone.

    Parameters
    ----------
    device : str
        Name of the port, as /dev/ttyUSB0 or COM3.
    baud : int
        Bits per second.
    write_timeout : float
        Longest wait of a write, in seconds.

    Raises
    ------
    LinkError
        The port cannot be opened.
    """
    try:
        port = serial.Serial(device, baud, timeout=_TURN, write_timeout=write_timeout, exclusive=True)
    except (OSError, ValueError) as error:  # a SerialException is an OSError
        raise LinkError(f"{device}: cannot be opened at {baud} baud ({error}); {_advice(device)}") from None
    # A USB adapter then gives what it has after 1 ms in place of 16, if it can.
    with contextlib.suppress(AttributeError, NotImplementedError, OSError, ValueError):
        port.set_low_latency_mode(True)
    return port


def _advice(device: str) -> str:
    """Advice for the user of a port that cannot be opened."""
    if device.startswith("/") and not Path(device).exists():
        ports = sorted(port.device for port in serial.tools.list_ports.comports())
        found = f"; ports found: {', '.join(ports)}" if ports else ""
        return f"there is no such port: check that the board is plugged in{found}"
    return ("check that no other program has it open, and that you may use it (on Linux, group dialout: "
            "sudo usermod -a -G dialout $USER, and log in again)")
