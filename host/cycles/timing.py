# amaranth: UnusedElaboratable=no
"""Latencies of a node: some are derived from its units, the rest are fitted constants."""

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
from host.cycles.costs import check_gradients
from sim.golden.constants import constant

__all__ = ["BEHIND", "COMMAND", "COMPARED", "HOP", "Timing", "timing_of"]

_FITTED = "fitted to 16 points of `make predict-points`"
HOP = constant("collectives", 15, "latency of a payload word between two packetizers, without the wires", _FITTED)
COMMAND = constant("collectives", 2, "overhead of a command, without planning, reading and its packets", _FITTED)
COMPARED = "not fitted; compared by `make predict VALIDATE=1`"
BEHIND = constant("collectives", 3, "latency of a queue in block memory, such as the queue after the ingress",
                  COMPARED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Latencies, rates and capacities of a node."""

    #: Number of elements in a memory row and in a segment, and number of packets that fit into the ingress.
    lanes: int
    segment: int
    credits: int
    #: Whether gradients are summed in zero-value form, group by group; whether weights have no codec.
    grouped: bool
    raw: bool
    #: Additional latency in cycles of a word that is summed instead of only forwarded.
    summed: int
    #: Latency in cycles from a command's start to the first gradient word, or weight word of a separate all-gather.
    loaded: int
    given: int
    #: Latency in cycles from the last word of a packet to its last element, for gradients and for weights.
    decoded: int
    landed: int
    #: Latency of the write-back buffer in cycles.
    stored: int
    #: Latency in cycles from the optimizer's first input beat to its first result, and from there to a word.
    updated: int
    first: int
    #: Latency in cycles from the optimizer's last result to the last word.
    kept: int
    #: Number of elements per input beat of the optimizer, and interval between these beats in cycles.
    update_lanes: int
    interval: int
    #: Number of bits of a group number.
    address: int

    def planning(self, *, length: int, nodes: int) -> int:
        """Number of cycles that :class:`hdl.ring.order.Planner` needs to plan a command."""
        return int(max(self.address, (length // GROUP).bit_length()) + nodes + 3)

    def alone(self, *, length: int) -> int:
        """Number of cycles to update ``length`` elements on a single node."""
        rows = -(-min(length, self.segment) // self.lanes)
        beats = -(-length // self.update_lanes) * self.interval
        around = int(RowReader.latency + RowWriter.latency + 1)
        return self.planning(length=length, nodes=1) + COMMAND + around + rows + self.updated + beats


def _coding(name: str, lanes: int) -> tuple[int, int, int]:
    """Return three properties of a codec: its beats per block, its latency from the last beat to the first word, and
    its latency from words to elements."""
    codec = CODECS[name]
    beats = max(int(getattr(codec, "block", 1)), lanes) // lanes
    encode, decode = (int(create_unit(unit, codec, lanes).latency + words.latency)
                      for unit, words in ((codec.encoder, RowSerializer), (codec.decoder, RowAssembler)))
    return beats, encode, decode


def _optimizer(config: NodeConfig) -> StreamedOptimizer:
    return StreamedOptimizer(
        workers=2, lanes=config.lanes if config.optimizer.interval == 1 else config.optimizer.lanes,
        update_lanes=config.optimizer.lanes, update_interval=config.optimizer.interval, depth=config.segment,
        broadcasts=1,
        rules=tuple(rule for rule, traits in RULES.items() if traits.planes <= config.memories.planes),
        dsps=config.optimizer.dsps)


@functools.cache
def timing_of(config: NodeConfig) -> Timing:
    """Return the latencies of a node with this configuration.

    Raises ``ValueError`` for an int16 node, for gradients that are added as integers, or for a weight codec with a
    codebook, since the model does not include reading the codebook.
    """
    if not config.has_ring:
        raise ValueError("Node must have collectives to be predicted, not be an int16 node")
    check_gradients(config.gradients)
    if config.codebook_words:
        raise ValueError(f"Codec of weights must have no codebook to be predicted, not be {config.weights.codec}")
    lanes, grouped, raw = config.lanes, config.gradients == ZERO_VALUE, config.weights.codec == RAW
    if grouped:
        summed, decoded = Adder().latency + 1, Decoder.latency + 1
        loaded = RowReader.latency + GROUP // lanes + Encoder.latency
    else:
        beats, encode, decode = _coding(config.gradients, lanes)
        path = PacketAdder.latency + 2 * beats + encode
        summed, decoded = BEHIND + decode + path, BEHIND + decode
        loaded = RowReader.latency + path + (PacketAdder.latency if config.has_residual else 0)
    if raw:
        landed, first = RowAssembler.latency, RowSerializer.latency + SkidBuffer.latency
        gathered, kept = RowReader.latency + first, first
    else:
        beats, encode, decode = _coding(config.weights.codec, lanes)
        landed, kept = BEHIND + decode, encode
        gathered = RowReader.latency + beats + kept
        first = kept + beats
    return Timing(lanes=lanes, segment=config.segment, credits=config.link.ingress, grouped=grouped, raw=raw,
                  summed=summed, loaded=loaded, given=gathered, decoded=decoded, landed=landed,
                  stored=SegmentBuffer.latency, updated=_optimizer(config).latency, first=first, kept=kept,
                  update_lanes=config.optimizer.lanes, interval=config.optimizer.interval,
                  address=int(longest_vector(config) // GROUP).bit_length())
