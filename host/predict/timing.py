# amaranth: UnusedElaboratable=no
"""Latencies of a node, from the units that it is made of, and the two constants that were fitted."""

import dataclasses
import functools

from hdl.compression.codec import create_unit
from hdl.compression.feedback import PacketAdder
from hdl.compression.registry import CODECS, RAW, ZERO_VALUE
from hdl.compression.zero_value.adder import Adder
from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.config import NodeConfig
from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.rules import RULES
from hdl.row_transfer import RowReader
from hdl.streams.rows import SegmentBuffer

__all__ = ["COMMAND", "HOP", "Timing", "timing_of"]

#: Fitted constants: see docs/predict.md. Cycles from a payload word at a packetizer to the same word at the next one,
#: on a link without latency; and cycles of a command that are no packet's: before the first and after the last.
HOP = 15
COMMAND = 11

#: Cycles of a queue in block memory, of an assembler or serializer of words, and of a hop behind the ingress.
_QUEUE, _WORDS, _BEHIND = 3, 1, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Latencies, rates and rooms of a node.

    Members
    -------
    lanes, segment, credits : int
        Elements of a row, elements of a segment, and packets of the ingress.
    grouped : bool
        Whether sums are formed in zero-value form, group by group.
    summed : int
        Cycles that a word of a sum is later than one that is passed on.
    loaded : int
        Cycles from the start of a command to the first word of a gradient.
    decoded, landed : int
        Cycles from the last word of a packet to its last element, of sums and of weights.
    updated : int
        Cycles from the last element of a sum to the first word of the new weights.
    pace : int
        Cycles of the optimizer for each element, times ``update_lanes``.
    """

    lanes: int
    segment: int
    credits: int
    grouped: bool
    summed: int
    loaded: int
    decoded: int
    landed: int
    stored: int
    updated: int
    interval: int
    update_lanes: int


def _coding(name: str, lanes: int) -> tuple[int, int, int]:
    """Cycles of an encoder behind a block, and of a decoder, and beats of a block."""
    codec = CODECS[name]
    encoder, decoder = (create_unit(kind, codec, lanes) for kind in (codec.encoder, codec.decoder))
    beats = max(1, getattr(codec, "block", 1) // lanes)
    return encoder.latency + _WORDS, decoder.latency + _WORDS, beats


@functools.cache
def timing_of(config: NodeConfig) -> Timing:
    """Latencies of a node."""
    lanes = config.lanes
    optimizer = StreamedOptimizer(
        workers=2, lanes=lanes if config.update_interval == 1 else config.update_lanes,
        update_lanes=config.update_lanes, update_interval=config.update_interval, depth=config.segment, broadcasts=1,
        rules=tuple(rule for rule, traits in RULES.items() if traits.planes <= config.state_planes),
        dsps=config.multiplier_dsps)
    grouped = config.gradient_codec == ZERO_VALUE
    if grouped:
        summed, decoded = Adder().latency + 1, Decoder.latency + 1
        loaded = RowReader.latency + 32 // lanes + Encoder.latency
    else:
        encode, decode, beats = _coding(config.gradient_codec, lanes)
        summed = _QUEUE + decode + PacketAdder.latency + 2 * beats + encode
        loaded = RowReader.latency + PacketAdder.latency + 2 * beats + encode
        decoded = _QUEUE + decode
    landed = _WORDS
    kept = _QUEUE + 2 * _WORDS
    if config.weight_codec != RAW:
        encode, decode, beats = _coding(config.weight_codec, lanes)
        kept, landed = beats + encode + _QUEUE, _QUEUE + decode
    return Timing(lanes=lanes, segment=config.segment, credits=config.ingress_segments, grouped=grouped,
                  summed=summed, loaded=loaded, decoded=decoded, landed=landed, stored=SegmentBuffer.latency,
                  updated=optimizer.latency + kept, interval=config.update_interval,
                  update_lanes=config.update_lanes)
