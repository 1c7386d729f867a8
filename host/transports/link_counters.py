"""Counters of the host's end of a serial link."""

import dataclasses

__all__ = ["LinkCounters"]


@dataclasses.dataclass(kw_only=True)
class LinkCounters:
    """Events that the host's end of a link has counted.

    Members
    -------
    frames_sent, frames_received : int
        Frames with right CRCs, repeated ones included.
    retries : int
        Frames sent again because the board did not get them.
    requests : int
        Times that the board was asked to send again.
    timeouts : int
        Times that nothing came for too long, so that frames were sent again.
    polls : int
        Times that a response took long, so that the board was asked whether it is still there.
    crc_errors, resyncs : int
        Damaged frames, as :class:`~host.transports.serial_frame.FrameDecoder` counts them.
    gaps, repeats : int
        Frames that came too early because one in front of them was lost, and frames that came again.
    reconnects : int
        Times that a lost port was opened again.
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
