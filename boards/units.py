# amaranth: UnusedElaboratable=no
"""Units that can be placed on their own or exported as Verilog, keyed by name."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from boards.tools import SynthesisError
from hdl.choices import choice_error
from hdl.compression.feedback import FeedbackEncoder, PacketAdder
from hdl.compression.registry import CODECS, GRADIENT_CODECS, RAW, WEIGHT_CODECS
from hdl.compression.words import WordDecoder, WordEncoder
from hdl.compression.zero_value import adder, decoder, encoder
from hdl.config import NodeConfig, Peer, RootReduce
from hdl.config.forms import with_options
from hdl.registry import FEATURES, format_names, section
from hdl.ring.link import LinkSignature

__all__ = ["UNITS", "Together", "Unit", "gradient_codec", "weight_codec", "zero_value_codec"]


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit that can be placed on its own: a component class with default parameters, or a factory function.

    If a unit takes the configuration of a node, ``config`` is the only parameter, and options are passed to
    :func:`hdl.config.forms.with_options`. ``features`` lists any features needed other than the one in ``target``.
    """

    target: str
    parameters: dict | Callable
    features: tuple = ()

    @property
    def _missing(self):
        needed = (*re.findall(r"\.features\.(\w+)\.", self.target), *self.features)
        return [feature for feature in needed if feature not in FEATURES]

    @property
    def present(self):
        """Whether this copy of the repository contains all features that the unit needs."""
        return not self._missing

    def call(self, options):
        """Return the component class and its constructor arguments; ``options`` override defaults."""
        if self._missing:
            raise SynthesisError(f"Unit {self.target} needs feature {self._missing[0]}, which is not in this copy")
        own = self.parameters() if callable(self.parameters) else self.parameters
        module_name, class_name = self.target.split(":")
        try:
            factory = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise SynthesisError(f"{self.target} is not there: {error}") from error
        if "config" in inspect.signature(factory).parameters:
            from hdl.engines import operations
            arguments = {"config": with_options(own.get("config", NodeConfig()), options)}
            if "operations" in inspect.signature(factory).parameters:
                arguments["operations"] = operations(arguments["config"])
            return factory, arguments
        parameters = {**own, **options}
        unknown = parameters.keys() - inspect.signature(factory).parameters.keys()
        if unknown:
            raise SynthesisError(choice_error(f"Option of {class_name}", inspect.signature(factory).parameters,
                                              sorted(unknown)[0]))
        return factory, parameters

    def component(self, options):
        """Create the component; ``options`` override parameters."""
        factory, arguments = self.call(options)
        return factory(**arguments)


class Together(wiring.Component):
    """Several independent components, placed as one unit.

    Members
    -------
    <name> : Out(the component's signature)
        All ports of the component with that name.
    """

    def __init__(self, **components):
        self._components = components
        super().__init__({name: Out(component.signature) for name, component in components.items()})

    def elaborate(self, platform):
        m = Module()
        for name, component in self._components.items():
            m.submodules[name] = component
            wiring.connect(m, wiring.flipped(getattr(self, name)), component)
        return m


def _codec(name):
    if name not in CODECS or CODECS[name].agreed:  # integer codecs have no separate encoder and decoder
        names = [known for known, codec in CODECS.items() if not codec.agreed]
        raise ValueError(choice_error("Codec", names, str(name)))
    return CODECS[name]


def weight_codec(*, codec, lanes):
    """A node's encoder (memory rows to link words) and decoder for the named weight codec."""
    chosen = _codec(codec)
    return Together(encoder=WordEncoder(codec=chosen, lanes=lanes), decoder=WordDecoder(codec=chosen, lanes=lanes))


def zero_value_codec(*, lanes):
    """Zero-value gradient compression: encoder, adder for compressed packets, and decoder."""
    return Together(encoder=encoder.Encoder(lanes=lanes), adder=adder.Adder(),
                    decoder=decoder.Decoder(lanes=lanes))


def gradient_codec(*, codec, lanes):
    """Units of a node for a gradient codec: a decoder, adders for the incoming packet and for the residual, and an
    encoder that outputs its errors."""
    chosen = _codec(codec)
    lost = {} if chosen.exact else {"residual_adder": PacketAdder(lanes=lanes)}
    return Together(decoder=WordDecoder(codec=chosen, lanes=lanes), adder=PacketAdder(lanes=lanes, choice=True),
                    encoder=FeedbackEncoder(codec=chosen, lanes=lanes), **lost)


def integer_sum(*, width, lanes):
    """Units that a node needs to sum integers: exponents, hashes, row widths, quantizing and rounding."""
    from hdl.features.reproducible import exponents, field_hash, prefix, rows
    from hdl.features.reproducible.integer_adder import IntegerAdder
    from hdl.features.reproducible.quantizer import Quantizer
    from hdl.features.reproducible.rounder import Rounder
    from hdl.streams.stream import beat_layout
    slices = {"lanes": lanes, "slice_lanes": 32 // width}
    return Together(
        scan=exponents.ExponentScan(lanes=lanes), maximum=exponents.FieldMaximum(),
        cutter=prefix.PrefixCutter(), joiner=prefix.PrefixJoiner(), summed_fields=exponents.FieldReader(),
        rounded_fields=exponents.FieldReader(), field_hash=field_hash.SingleFieldHash(depth=8),
        rounded_field_hash=field_hash.SingleFieldHash(depth=2, folds=True),
        rounded_hash=field_hash.SumHash(depth=2, width=width),
        arrived_hash=field_hash.SumHash(depth=2), kept_hash=field_hash.SumHash(depth=2),
        gate=field_hash.HashGate(shape=beat_layout(32 // width)),
        narrower=rows.RowNarrower(**slices), widener=rows.RowWidener(**slices), quantizer=Quantizer(width=width),
        adder=IntegerAdder(width=width), rounder=Rounder(width=width))


def addends(*, width, lanes):
    """Units that a node needs in addition to :func:`integer_sum` to sum several gradients as integers."""
    from hdl.features.microbatches.addend_adder import AddendAdder
    from hdl.features.microbatches.fields import AddendMaximum, FieldRepeater
    from hdl.features.microbatches.group_jobs import GroupJobs
    jobs = {"rows": NodeConfig().memories.gradient // lanes, "lanes": lanes, "elements": NodeConfig().segment}
    return Together(scan_jobs=GroupJobs(**jobs), sum_jobs=GroupJobs(**jobs), maximum=AddendMaximum(),
                    repeater=FieldRepeater(), adder=AddendAdder(width=width))


def control_hub():
    """Dispatcher of control words in a node."""
    from hdl.features.replay.control_hub import ControlHub
    from hdl.features.replay.control_words import units
    return ControlHub(takes=[unit.takes for unit in units(_node(link="replay:Replay", programs="programs:Programs"))])


def command_queues(*, queues, replay=False, banks=1):
    """Command queue of a node with several queues; with ``replay``, commands can wait for other nodes."""
    from hdl.control.command_queue import CommandQueue
    from hdl.engines import operations
    config = _node(**{"link": "replay:Replay"} if replay else {},
                   programs=("programs:Programs", {"banks": banks, "move_queue": queues == 3}))
    return CommandQueue(config=config, operations=operations(config))


def command_checkers(*, queues):
    """Command checker of a node with several queues."""
    from hdl.control.command_checker import CommandChecker
    from hdl.engines import operations
    config = _node(programs=("programs:Programs", {"move_queue": queues == 3}))
    return CommandChecker(config=config, queues=queues, operations=operations(config))


class SlotsWithMessages(wiring.Component):
    """Slot link together with message access: all units that a node needs for time slots.

    The members are all members of :class:`~hdl.features.slots.link.SlotLink` and
    :class:`~hdl.features.slots.access.MessageAccess`, except for the streams between the two.
    """

    def __init__(self, *, config):
        from hdl.features.slots.access import MessageAccess
        from hdl.features.slots.link import SlotLink
        self._link, self._access = SlotLink(config=config), MessageAccess()
        link, access = self._link.signature.members, self._access.signature.members
        super().__init__({name: link[name] for name in link
                          if name not in ("message_i", "message", "heard", "rank", "forget")}
                         | {name: access[name] for name in ("host_i", "host_o")}
                         | {f"to_{name}": access[name] for name in ("i", "o")})

    def elaborate(self, platform):
        m = Module()
        m.submodules.link, m.submodules.access = link, access = self._link, self._access
        for name, member in self.signature.members.items():
            own = getattr(self, name)
            part = getattr(access, name.removeprefix("to_")) if name in ("to_i", "to_o", "host_i", "host_o") else \
                getattr(link, name)
            if member.is_port:
                m.d.comb += own.eq(part) if member.flow == Out else part.eq(own)
            else:
                wiring.connect(m, wiring.flipped(own), part)
        wiring.connect(m, access.ring.i, link.message_i)
        m.d.comb += [access.ring.rank.eq(link.rank), access.ring.word.eq(link.message),
                     access.ring.heard.eq(link.heard), access.ring.forget.eq(link.forget)]
        return m


def far_memories(*, config):
    """Server's far memory for weights and state, with the ports used by its collective engine."""
    from hdl.features.far.memories import FarMemories
    writers = {name: 2 if name == "weights" else 1 for name in config.far_bases}
    owners = {name: ((0,), (0,) * count) for name, count in writers.items()} if config.has("tenants") else None
    return FarMemories(config=config, readers=dict.fromkeys(config.far_bases, (0,)), writers=writers, owners=owners)


def _words(**parameters):
    from hdl.streams.stream import word_layout
    return {"shape": word_layout(), **parameters}


def _optimizer(*rules, width=None):
    from hdl.optimizer.fixed_point import FixedFormat
    from hdl.optimizer.rules import Rule
    format = {} if width is None else {"format": FixedFormat(width=width), "primitive": True}
    return Unit("hdl.optimizer.burst:StreamedOptimizer", {
        "lanes": 1, "rules": tuple(Rule[rule] for rule in rules), **format})


def _shared_lane(*rules):
    from hdl.optimizer.rules import Rule
    return Unit("hdl.optimizer.shared_lane:SharedLane", {
        "interval": 4, "workers": 2, "dsps": 2, "rules": tuple(Rule[rule] for rule in rules)})


def _lookup_table(unit, format="FP32", **parameters):
    def made():
        from hdl.features.table.format import LookupTable
        from hdl.floating import format as formats
        return {"table": LookupTable(format=getattr(formats, format), **parameters), "lanes": 4}

    targets = {"Encoder": "hdl.features.table.encoder:Encoder", "Decoder": "hdl.features.table.decoder:Decoder"}
    return Unit(targets[unit], made)


def _centroid_table(unit, centroids=16):
    def made():
        from hdl.features.codebook.format import CentroidTable
        return {"table": CentroidTable(centroids=centroids), "lanes": 4}

    targets = {"Encoder": "hdl.features.codebook.format:Encoder",
               "Decoder": "hdl.features.codebook.format:Decoder",
               "MatrixVector": "hdl.features.codebook.gather_reduce:MatrixVector",
               "CentroidProduct": "hdl.features.codebook_layers.centroid_product:CentroidProduct"}
    return Unit(targets[unit], made)


def _formats(source, target):
    from hdl.floating import format
    return {"source": getattr(format, source), "target": getattr(format, target)}


def _block_codec(unit, codec, lanes=4, format="FP32"):
    def made():
        from hdl.features.mx import microscaling, shared_exponent
        from hdl.floating import format as formats
        parameters = {"codec": getattr(shared_exponent, codec, None) or getattr(microscaling, codec), "lanes": lanes}
        if unit not in ("Packer", "Unpacker"):
            parameters["format"] = getattr(formats, format)
        return parameters

    targets = {"Encoder": "hdl.features.mx.coding:Encoder",
               "Decoder": "hdl.features.mx.coding:Decoder",
               "Quantizer": "hdl.features.mx.quantizer:Quantizer",
               "Packer": "hdl.features.mx.packing:Packer",
               "Unpacker": "hdl.features.mx.packing:Unpacker"}
    return Unit(targets[unit], made)


def _made(part):
    """Build a feature's section from a name like ``replay:Replay``, with or without options; a list gives a tuple of
    sections, and all other values are returned unchanged."""
    if isinstance(part, list):
        return tuple(map(_made, part))
    name, options = part if isinstance(part, tuple) else (part, {})
    return section(name.partition(":")[2])(**options) if isinstance(name, str) else part


def _needed(part):
    """Names of the features that define the given sections."""
    if isinstance(part, list):
        return [name for entry in part for name in _needed(entry)]
    name = part[0] if isinstance(part, tuple) else part
    return [name.partition(":")[0]] if isinstance(name, str) else []


def _node(**sections):
    """Node configuration with feature sections given by name."""
    return NodeConfig(**{field: _made(part) for field, part in sections.items()})


def _of_node(target, **sections):
    needed = tuple(dict.fromkeys(name for part in sections.values() for name in _needed(part)))
    return Unit(target, lambda: {"config": _node(**sections)}, needed)


def _job_frame(**parameters):
    def made():
        from hdl.features.slots.job_table import JobFrame
        return {**parameters, "frame": JobFrame(longest=268)}

    return made


def _server():
    return {"config": section("ServerConfig")(memories=section("ServerMemories")(far=1 << 20))}


def _int16():
    return {"config": section("Int16Config")()}


_SERIAL = {"clock": 50_000_000, "baud": 3_000_000}

#: Configurations with slots, with messages in slots, and with quorum updates.
_SLOTS = {"link": "slots:Slots", "programs": "programs:Programs"}
_MESSAGES = {"link": ("slots:Slots", {"messages": True}), "programs": "programs:Programs"}
_ROUNDS = {"link": "replay:Replay", "programs": "programs:Programs",
           "stub": ("compute_stub:ComputeStub", {"quorum": True})}

UNITS = {
    "stream.skid_buffer": Unit("hdl.streams.stream:SkidBuffer", _words()),
    "stream.queue": Unit("hdl.streams.stream:Queue", _words(depth=17)),
    "floating.add": Unit("hdl.floating.add:FloatAdder", {}),
    "floating.multiply": Unit("hdl.floating.multiply:FloatMultiplier", {"dsps": 4}),
    "floating.divide": Unit("hdl.floating.divide:FloatDivider", {}),
    "floating.square_root": Unit("hdl.floating.square_root:FloatSquareRoot", {}),
    "floating.comparator": Unit("hdl.floating.compare:FloatComparator", {}),
    "floating.limiter": Unit("hdl.floating.compare:MagnitudeLimiter", {}),
    "floating.widen": Unit("hdl.floating.convert:FloatConverter", _formats("BF16", "FP32")),
    "floating.narrow": Unit("hdl.floating.convert:FloatConverter", _formats("FP32", "BF16")),
    "floating.to_integer": Unit("hdl.floating.convert:FloatToInteger", {}),
    "floating.from_integer": Unit("hdl.floating.convert:IntegerToFloat", {}),
    "compute.multiply_accumulate": Unit("hdl.features.compute.multiply_accumulate:MultiplyAccumulate", {}),
    "compute.centroid_product": _centroid_table("CentroidProduct"),
    "compute.array": Unit("hdl.features.compute.array:MacArray", {"rows": 1, "columns": 4}),
    # One unit per operand format; ``gradring lab sweep`` shows the results.
    **{f"compute.operands_{name}": Unit("hdl.features.compute.arrays:make_array", {
        "operands": name, "rows": 4, "columns": 4, "dsps": 4}) for name in ("fp32", *format_names("operands"))},
    "compute.panel": Unit("hdl.features.compute.panel:PanelBuffer", {"lanes": 4}),
    "compute.product": Unit("hdl.features.compute.product:MatrixProduct", {"rows": 4, "columns": 4}),
    "compute.vector": Unit("hdl.features.compute.vector:VectorUnit", {"lanes": 4, "memory_rows": 4096}),
    "compute.program_lane": Unit("hdl.features.compute.program_lane:ProgramLane", {}),
    "compute.row_unit": Unit("hdl.features.compute.row_unit:RowUnit", {"lanes": 4, "memory_rows": 4096}),
    "compute.vector_lane": Unit("hdl.features.compute.vector_lane:VectorLane", {}),
    "compute.gemm": Unit("hdl.features.compute.gemm:Gemm", {"rows": 4, "lanes": 4, "memory_rows": 4096}),
    "compute.centroid_layer": Unit("hdl.features.codebook_layers.centroid_layer:CentroidLayer", {
        "lanes": 4, "memory_rows": 4096}),
    "compute.scale_mask": Unit("hdl.features.compute.scale_mask:ScaleMask", {"rows": 4, "lanes": 4}),
    "compute.loop_nest": Unit("hdl.features.compute.loop_nest:LoopNest", {"rows": 4, "lanes": 4}),
    "compression.zero_value.encoder": Unit("hdl.compression.zero_value.encoder:Encoder", {"lanes": 4}),
    "compression.zero_value.adder": Unit("hdl.compression.zero_value.adder:Adder", {}),
    "compression.zero_value.decoder": Unit("hdl.compression.zero_value.decoder:Decoder", {"lanes": 4}),
    **{f"compression.shared_exponent.{unit.lower()}_{codec.lower()}": _block_codec(unit, codec)
       for unit in ("Encoder", "Decoder") for codec in (
           "MX9", "MX6", "MX4", "MXINT8", "MXFP8_E4M3", "MXFP8_E5M2", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP4_E2M1",
           *(["MXFP8_E4M3_UP", "MXFP4_E2M1_UP"] if unit == "Encoder" else []))},
    "compression.shared_exponent.encoder_mxint8_bf16": _block_codec("Encoder", "MXINT8", 32, "BF16"),
    "compression.shared_exponent.quantizer_mxint8_bf16": _block_codec("Quantizer", "MXINT8", 32, "BF16"),
    "compression.shared_exponent.quantizer_mxint8": _block_codec("Quantizer", "MXINT8", 32),
    "compression.shared_exponent.quantizer_mx9_bf16": _block_codec("Quantizer", "MX9", 16, "BF16"),
    "compression.lookup_table.encoder": _lookup_table("Encoder"),
    "compression.lookup_table.decoder": _lookup_table("Decoder"),
    "compression.lookup_table.centroid_encoder": _lookup_table("Encoder", centroids=True),
    "compression.lookup_table.centroid_decoder": _lookup_table("Decoder", centroids=True),
    "compression.lookup_table.bf16_centroid_encoder": _lookup_table("Encoder", "BF16", centroids=True),
    "compression.lookup_table.bf16_encoder": _lookup_table("Encoder", "BF16"),
    "compression.lookup_table.bf16_decoder": _lookup_table("Decoder", "BF16"),
    "compression.lookup_table.bf16_centroid_decoder": _lookup_table("Decoder", "BF16", centroids=True),
    "compression.lookup_table.small_decoder": _lookup_table("Decoder", exponents=32),
    # One unit per format; ``gradring lab sweep`` shows the results for the formats available in this copy.
    **{f"compression.weight_codec.{name}": Unit("boards.units:weight_codec", {"codec": name, "lanes": 4})
       for name in WEIGHT_CODECS if name != RAW},
    "compression.gradient_codec.zero_value": Unit("boards.units:zero_value_codec", {"lanes": 4}),
    **{f"compression.gradient_codec.{name}": Unit("boards.units:gradient_codec", {"codec": name, "lanes": 4})
       for name, codec in GRADIENT_CODECS.items() if not codec.sums_coded and not codec.agreed},
    **{f"compression.gradient_codec.{name}": Unit("boards.units:integer_sum", {"width": codec.width, "lanes": 4})
       for name, codec in GRADIENT_CODECS.items() if codec.agreed},
    **{f"compression.addends.{name}": Unit("boards.units:addends", {"width": codec.width, "lanes": 4},
                                           ("microbatches",))
       for name, codec in GRADIENT_CODECS.items() if codec.agreed},
    "compression.prefix_code.encoder": Unit("hdl.features.table.prefix_encoder:Encoder", {}),
    "compression.prefix_code.decoder": Unit("hdl.features.table.prefix_decoder:Decoder", {}),
    "compression.centroid.nearest": Unit("hdl.features.codebook.nearest:NearestCentroid",
                                         {"centroids": 16, "lanes": 4}),
    "compression.centroid.encoder": _centroid_table("Encoder"),
    "compression.centroid.decoder": _centroid_table("Decoder"),
    "compression.centroid.decoder_64": _centroid_table("Decoder", 64),
    "compression.centroid.matrix_vector": _centroid_table("MatrixVector"),
    "compression.centroid.matrix_vector_64": _centroid_table("MatrixVector", 64),
    "optimizer": Unit("hdl.optimizer.burst:StreamedOptimizer", {"lanes": 4}),
    "optimizer.sgd": _optimizer("SGD"),
    "optimizer.momentum": _optimizer("SGD", "MOMENTUM"),
    "optimizer.adam": _optimizer("ADAM"),
    "optimizer.adamw": _optimizer("ADAMW"),
    "optimizer.all": _optimizer("SGD", "MOMENTUM", "ADAM", "ADAMW"),
    "optimizer.momentum_int16": _optimizer("SGD", "MOMENTUM", width=16),
    "optimizer.momentum_int18": _optimizer("SGD", "MOMENTUM", width=18),
    "optimizer.gradient_buffer": Unit("hdl.optimizer.gradient_buffer:GradientBuffer", {"lanes": 4, "depth": 256}),
    "optimizer.update_lane": Unit("hdl.optimizer.rules:UpdateLane", {}),
    "optimizer.shared_lane": _shared_lane("SGD", "MOMENTUM", "ADAM", "ADAMW"),
    "optimizer.shared_lane_adam": _shared_lane("ADAM"),
    "optimizer.fixed_lane": Unit("hdl.optimizer.fixed_point:FixedLane", {}),
    "optimizer.moment_unpacker": Unit("hdl.optimizer.moments:MomentUnpacker", {"lanes": 4}),
    "optimizer.moment_packer": Unit("hdl.optimizer.moments:MomentPacker", {"lanes": 4}),
    "masking.comparator": Unit("hdl.masking.comparator:MaskComparator", {"lanes": 4}),
    "masking.generator": Unit("hdl.masking.generator:MaskGenerator", {"lanes": 4}),
    "masking.source": Unit("hdl.masking.source:MaskSource", {"lanes": 4}),
    "masking.multiplexer": Unit("hdl.masking.multiplexer:MaskMultiplexer", {"lanes": 4}),
    "masking.circuit": Unit("hdl.masking.circuit:MaskCircuit", {"lanes": 4}),
    "masking.magnitude": Unit("hdl.masking.magnitude:MagnitudeMask", {"lanes": 4}),
    "masking.engine": Unit("hdl.masking.engine:MaskEngine", {}),
    "masking.additive": Unit("hdl.baselines.additive_mask:AdditiveMask", {"lanes": 4}),
    **{f"quantization.matrix_vector_{form}": Unit("hdl.features.quantization.matrix_vector:MatrixVector", {
        "lanes": 16, "form": form}) for form in ("adjusted", "separate")},
    "quantization.requantizer": Unit("hdl.features.quantization.requantizer:Requantizer", {}),
    "quantization.integer_offset": Unit("hdl.features.quantization.float_offset:IntegerOffset", {"lanes": 16}),
    "quantization.float_offset": Unit("hdl.features.quantization.float_offset:FloatOffset", {"lanes": 16}),
    "quantization.float_scale": Unit("hdl.features.quantization.float_offset:FloatOffset", {
        "lanes": 16, "offset": False}),
    "quantization.engine": _of_node("hdl.features.quantization.engine:InferenceEngine",
                                    features=["quantization:Quantization"]),
    "throttle": Unit("hdl.throttle:Throttle", {}),
    "rows.serializer": Unit("hdl.streams.rows:RowSerializer", {"lanes": 4}),
    "rows.assembler": Unit("hdl.streams.rows:RowAssembler", {"lanes": 4}),
    "rows.segment_buffer": Unit("hdl.streams.rows:SegmentBuffer", {"lanes": 4, "depth": 256}),
    "ring.packetizer": Unit("hdl.ring.packetizer:Packetizer", {}),
    "ring.depacketizer": Unit("hdl.ring.depacketizer:Depacketizer", {}),
    "ring.link_transmitter": Unit("hdl.ring.link:LinkTransmitter", {"segments": 4, "egress_words": 544}),
    "ring.link_receiver": Unit("hdl.ring.link:LinkReceiver", {"segments": 4, "packet_words": 268}),
    "ring.replay_transmitter": Unit("hdl.features.replay.transmitter:ReplayTransmitter", {
        "segments": 4, "egress_words": 268}),
    "ring.replay_receiver": Unit("hdl.features.replay.receiver:ReplayReceiver", {"segments": 4, "packet_words": 268}),
    "ring.control_transmitter": Unit("hdl.features.replay.control_transmitter:ControlTransmitter", {"window": 31}),
    "ring.link_ends": Unit("hdl.ring.link_ends:LinkEnds", {}),
    "ring.link_ends.throttles": _of_node("hdl.ring.link_ends:LinkEnds", features=["throttles:Throttles"]),
    "ring.link_ends.replay": _of_node("hdl.features.replay.link_ends:ReplayEnds", link="replay:Replay"),
    "ring.link_switch": Unit("hdl.features.grid.switch:LinkSwitch", {"signature": LinkSignature()}),
    "ring.switched_link": _of_node("hdl.features.grid.switched_link:SwitchedLink", topology="grid:Grid"),
    "ring.switched_link.replay": _of_node(
        "hdl.features.grid.switched_link:SwitchedLink", topology="grid:Grid", link="replay:Replay"),
    "ring.wire_delay": Unit("hdl.ring.wire_delay:WireDelay", {"signature": LinkSignature()}),
    "ring.slots.clock": Unit("hdl.features.slots.clock:Clock", {}),
    "ring.slots.departures": Unit("hdl.features.slots.clock:Departures", {}),
    "ring.slots.records": Unit("hdl.features.slots.records:RecordLaps", {}),
    "ring.slots.table": Unit("hdl.features.slots.table:SlotTable", {}),
    "ring.slots.messages": Unit("hdl.features.slots.messages:MessageGate", {}),
    "ring.slots.access": Unit("hdl.features.slots.access:MessageAccess", {}),
    "ring.slots.path": Unit("hdl.features.slots.path:SlotPath", {"depth": 512}),
    "ring.slots.link": _of_node("hdl.features.slots.link:SlotLink", **_SLOTS),
    "ring.slots.job_table": Unit("hdl.features.slots.job_table:JobTable", _job_frame()),
    "ring.slots.job_rooms": Unit("hdl.features.slots.job_rooms:RoomLaps", {}),
    "ring.slots.job_path": Unit("hdl.features.slots.job_path:JobPath", _job_frame(depth=512)),
    "ring.slots.job_link": _of_node("hdl.features.slots.job_link:JobLink", link="slots:JobSlots",
                                    programs="programs:Programs"),
    "ring.slots.all": _of_node("boards.units:SlotsWithMessages", **_MESSAGES),
    "ring.slots.link.messages": _of_node("hdl.features.slots.link:SlotLink", **_MESSAGES),
    "ring.signal_relay": Unit("hdl.features.replay.signals:SignalRelay", {"queues": 2}),
    "ring.keepalive": Unit("hdl.features.replay.keepalive:KeepAlive", {}),
    "ring.quorum_relay": Unit("hdl.features.quorum.quorum_relay:QuorumRelay", {}),
    "ring.control_hub": Unit("boards.units:control_hub", {}, ("replay", "programs")),
    "ring.control_words": _of_node("hdl.features.replay.control_words:ControlWords", link="replay:Replay",
                                   programs="programs:Programs"),
    "ring.sequence": Unit("hdl.ring.order:SequenceGenerator", {"elements": 16384, "segment": 256}),
    "ring.sequence.late": Unit(
        "hdl.ring.order:SequenceGenerator", {"elements": 16384, "segment": 256, "chained": True, "lags": True}),
    "ring.sequence.interleaved": Unit(
        "hdl.ring.interleaved:InterleavedGenerator", {"elements": 16384, "segment": 256}),
    "ring.datapath": Unit("hdl.ring.datapath:Datapath", {}),
    "ring.collective": Unit("hdl.ring.collective:CollectiveEngine", {}),
    "ring.collective.root_reduce": _of_node("hdl.ring.collective:CollectiveEngine", role=RootReduce()),
    "ring.collective.interleaved": _of_node("hdl.ring.collective:CollectiveEngine", role=Peer(interleaved=True)),
    "serial.uart_receiver": Unit("hdl.serial.uart:UartReceiver", _SERIAL),
    "serial.uart_transmitter": Unit("hdl.serial.uart:UartTransmitter", _SERIAL),
    "serial.frame_receiver": Unit("hdl.serial.frame:FrameReceiver", {}),
    "serial.frame_transmitter": Unit("hdl.serial.frame:FrameTransmitter", {}),
    "serial.endpoint": Unit("hdl.serial.endpoint:Endpoint", {"number": 0}),
    "serial.link": Unit("hdl.serial.link:SerialLink", _SERIAL),
    "control.host_port": Unit("hdl.control.host_port:HostPort", {}),
    "control.command_queue": Unit("hdl.control.command_queue:CommandQueue", {}),
    "control.command_queues": Unit("boards.units:command_queues", {"queues": 2}, ("programs",)),
    "control.command_checkers": Unit("boards.units:command_checkers", {"queues": 2}, ("programs",)),
    "control.command_control": Unit("hdl.control.command_control:CommandControl", {}),
    "control.command_loader": Unit("hdl.control.command_loader:CommandLoader", {}),
    "control.event_queue": Unit("hdl.control.event_queue:EventQueue", {"queues": 2, "depth": 8}),
    "control.program_memory": Unit("hdl.features.programs.program_memory:ProgramMemory", {"queues": 2, "depth": 64}),
    "control.program_banks": Unit("hdl.features.programs.program_banks:ProgramBanks", {}),
    "control.remote_after": Unit("hdl.control.remote_after:RemoteAfter", {"queues": 2}),
    "control.region_versions": Unit("hdl.features.programs.region_versions:RegionVersions", {}),
    "control.rejections": Unit("hdl.control.rejections:Rejections", {"queues": 2}),
    "control.scoreboard": Unit("hdl.control.scoreboard:Scoreboard", {"queues": 2}),
    "control.sequencer": Unit("hdl.control.sequencer:Sequencer", {"depth": 64}),
    "control.trace": Unit("hdl.control.trace:Trace", {"queues": 2, "lanes": 4}),
    "control.registers": Unit("hdl.control.register_file:RegisterFile", {}),
    "control.latched_settings": Unit("hdl.features.programs.latched_settings:LatchedSettings", {}),
    "compute.engine": _of_node("hdl.features.compute.engine:ComputeEngine", compute="compute:Compute"),
    "compute.engine.row_owners": _of_node(
        "hdl.features.compute.engine:ComputeEngine", compute=("compute:Compute", {"buffer_tags": True})),
    "compute.lists": Unit("hdl.features.compute.list_runner:ListRunner", {
        "words": (16384, 16384, 8192), "lanes": 4, "rows": 4}),
    "compute.memory_access": Unit("hdl.features.compute.memory_access:MemoryAccess", {
        "rows": (4096, 4096, 2048), "lanes": 4}),
    "compute.row_owners": Unit("hdl.features.compute.row_owners:RowOwners", {"rows": 2048}),
    "compute.compute_stub": _of_node("hdl.features.compute_stub.compute_model:ComputeModel",
                                     stub="compute_stub:ComputeStub"),
    "far.memories": Unit("boards.units:far_memories", _server, ("far", "streaming")),
    "far.guard": Unit("hdl.features.far.guard:FarGuard", {"rows": 1 << 18, "lanes": 4, "outstanding": 32}),
    "far.mover": _of_node("hdl.features.far.mover:Mover", programs=("programs:Programs", {"move_queue": True}),
                          compute=("compute:Compute", {"far": 1 << 20})),
    "quorum.state": Unit("hdl.features.quorum.state:QuorumState", {}),
    "quorum.closer": Unit("hdl.features.quorum.closer:QuorumCloser", {}),
    "quorum.weighting": Unit("hdl.features.quorum.weighting:Weighting", {}),
    "quorum.apply_late": _of_node("hdl.features.quorum.apply_late:ApplyLate", **_ROUNDS),
    "quorum.engine": _of_node("hdl.features.quorum.engine:QuorumEngine", **_ROUNDS),
    "node": Unit("hdl.node:Node", {}),
    "node.replay": _of_node("hdl.node:Node", link="replay:Replay"),
    "node.control_words": _of_node("hdl.node:Node", link="replay:Replay", programs="programs:Programs"),
    "node.slots": _of_node("hdl.node:Node", **_SLOTS),
    "int16.command_queue": Unit("hdl.features.int16.queue:CommandQueue", _int16),
    "int16.engine": Unit("hdl.features.int16.engine:Engine", _int16),
    "int16.masker": Unit("hdl.features.int16.masking:Masker", _int16),
    "int16.node": Unit("hdl.features.int16.node:Int16Node", _int16),
}
