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
from hdl.group import GROUP
from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.rules import RULES
from hdl.ring.setup import longest_vector
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.rows import RowAssembler, RowSerializer, SegmentBuffer
from hdl.streams.stream import SkidBuffer

__all__ = ["BEHIND", "COMMAND", "HOP", "Timing", "timing_of"]

#: Fitted: cycles of a payload word that is passed on, from one node's packetizer to the next one's, beside the wire.
HOP = 15
#: Fitted: cycles of a command before its first packet and after its last row, beside planning and reading.
COMMAND = 2

#: Cycles of a queue in block memory, such as the one behind the ingress of what is passed on.
BEHIND = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Latencies, rates and rooms of a node."""

    #: Elements of a row, elements of a segment, and packets of the ingress.
    lanes: int
    segment: int
    credits: int
    #: Whether gradients are added in zero-value form, group by group; whether weights go through no codec.
    grouped: bool
    raw: bool
    #: Cycles that a word of a sum is later than one that is passed on.
    summed: int
    #: Cycles from the start of a command to the first word of a gradient, and of a weight that a gather alone reads.
    loaded: int
    given: int
    #: Cycles from the last word of a packet to its last element, of gradients and of weights.
    decoded: int
    landed: int
    #: Cycles of the landing buffer.
    stored: int
    #: Cycles from the first beat that the optimizer takes to the first of its results, and from there to a word.
    updated: int
    first: int
    #: Cycles from the last of its results to the last word.
    kept: int
    #: Elements that enter the optimizer every so many cycles.
    update_lanes: int
    interval: int
    #: Bits of the number of a group.
    address: int

    def planning(self, *, length: int, nodes: int) -> int:
        """Cycles in which a command is planned, as :class:`hdl.ring.order.Planner` does."""
        return int(max(self.address, (length // GROUP).bit_length()) + nodes + 3)

    def alone(self, *, length: int) -> int:
        """Cycles in which a node updates so many elements by itself."""
        rows = -(-min(length, self.segment) // self.lanes)
        beats = -(-length // self.update_lanes) * self.interval
        around = int(RowReader.latency + RowWriter.latency + 1)
        return self.planning(length=length, nodes=1) + COMMAND + around + rows + self.updated + beats


@dataclasses.dataclass(frozen=True)
class _Coding:
    """Cycles of a codec on words, and elements and beats of a block."""

    name: str
    lanes: int

    @property
    def block(self) -> int:
        return max(int(getattr(CODECS[self.name], "block", 1)), self.lanes)

    @property
    def beats(self) -> int:
        return self.block // self.lanes

    @property
    def encode(self) -> int:
        """From the last beat of a block to its first word."""
        codec = CODECS[self.name]
        return int(create_unit(codec.encoder, codec, self.lanes).latency + RowSerializer.latency)

    @property
    def decode(self) -> int:
        codec = CODECS[self.name]
        return int(create_unit(codec.decoder, codec, self.lanes).latency + RowAssembler.latency)


def _optimizer(config: NodeConfig) -> StreamedOptimizer:
    return StreamedOptimizer(
        workers=2, lanes=config.lanes if config.optimizer.interval == 1 else config.optimizer.lanes,
        update_lanes=config.optimizer.lanes, update_interval=config.optimizer.interval, depth=config.segment,
        broadcasts=1,
        rules=tuple(rule for rule, traits in RULES.items() if traits.planes <= config.memories.planes),
        dsps=config.optimizer.dsps)


@functools.cache
def timing_of(config: NodeConfig) -> Timing:
    """Latencies of a node.

    Raises ``ValueError``: the node is reduced, or its codec of weights has a codebook, whose reading the walk does
    not have.
    """
    if config.is_int16:
        raise ValueError("Node must have collectives to be predicted, not be reduced")
    if config.codebook_words:
        raise ValueError(f"Codec of weights must have no codebook to be predicted, not be {config.weights.codec}")
    lanes, grouped, raw = config.lanes, config.gradients == ZERO_VALUE, config.weights.codec == RAW
    if grouped:
        summed, decoded = Adder().latency + 1, Decoder.latency + 1
        loaded = RowReader.latency + GROUP // lanes + Encoder.latency
    else:
        coding = _Coding(config.gradients, lanes)
        path = PacketAdder.latency + 2 * coding.beats + coding.encode
        summed, decoded = BEHIND + coding.decode + path, BEHIND + coding.decode
        loaded = RowReader.latency + path + (PacketAdder.latency if config.has_residual else 0)
    if raw:
        landed, first = RowAssembler.latency, RowSerializer.latency + SkidBuffer.latency
        given, kept = RowReader.latency + first, first
    else:
        coding = _Coding(config.weights.codec, lanes)
        landed, kept = BEHIND + coding.decode, coding.encode
        given = RowReader.latency + coding.beats + kept
        first = kept + coding.beats
    return Timing(lanes=lanes, segment=config.segment, credits=config.link.ingress, grouped=grouped, raw=raw,
                  summed=summed, loaded=loaded, given=given, decoded=decoded, landed=landed,
                  stored=SegmentBuffer.latency, updated=_optimizer(config).latency, first=first, kept=kept,
                  update_lanes=config.optimizer.lanes, interval=config.optimizer.interval,
                  address=int(longest_vector(config) // GROUP).bit_length())
