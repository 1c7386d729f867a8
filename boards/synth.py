# amaranth: UnusedElaboratable=no
"""Area and speed of one unit, placed and routed out of context on a named ECP5 part.

Run as ``python -m boards.synth --unit floating.add --seeds 3``. See docs/synthesis.md for what is counted, and
docs/decisions/synthesis-tools.md for the choice of tools and of their settings.

The unit is synthesised on its own, and counted as such. For placement it is then wrapped: every input bit comes from
one flip-flop of a shift register and every output bit goes to a flip-flop of its own, which a chain of flip-flops and
exclusive-ors folds into one pin. So three pins suffice, none is part of a timing path, and nothing of the unit is
optimised away. The wrapper is made of flip-flops and LUTs that Yosys does not see as logic, and is not counted.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from boards.tools import ECP5, MOST_SEEDS, RESULTS, SynthesisError, Tools, execute, kept, prepare, save
from hdl.compression.codecs import GRADIENT_CODECS, WEIGHT_CODECS, WordDecoder, WordEncoder
from hdl.compression.feedback import FeedbackEncoder, PacketAdder
from hdl.compression.zero_value import format as zero_value
from sim.verilated import toolchain
from sim.verilated.verilog import Design, convert

__all__ = ["MAPPERS", "UNITS", "Part", "SynthesisError", "Together", "Tools", "Unit", "count", "gradient_codec",
           "measure", "table", "weight_codec", "wrapper", "zero_value_codec"]

DEFAULT_PART = "LFE5U-85F-6"
DEFAULT_MAPPER = "abc9"
#: Largest clock that a target may be, in MHz.
MOST_MHZ = 10_000


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit that can be placed alone: a component class and the parameters it is measured with by default."""

    target: str
    parameters: dict

    def call(self, options):
        """The component's class, and the arguments to make it with, some parameters replaced."""
        module_name, class_name = self.target.split(":")
        try:
            factory = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise SynthesisError(f"{self.target} is not there: {error}") from error
        parameters = {**self.parameters, **options}
        if "config" in inspect.signature(factory).parameters:
            from hdl.config import NodeConfig
            from hdl.engines import operations
            arguments = {"config": NodeConfig(**parameters)}
            if "operations" in inspect.signature(factory).parameters:
                arguments["operations"] = operations(arguments["config"])
            return factory, arguments
        unknown = parameters.keys() - inspect.signature(factory).parameters.keys()
        if unknown:
            known = ", ".join(name for name in inspect.signature(factory).parameters)
            raise SynthesisError(f"Option of {class_name} must be one of {known}, not {', '.join(sorted(unknown))!r}")
        return factory, parameters

    def component(self, options):
        """Make the component, with some parameters replaced."""
        factory, arguments = self.call(options)
        return factory(**arguments)


class Together(wiring.Component):
    """Components that have nothing to do with each other, to be placed as one.

    Members
    -------
    <name> : Out(the component's signature)
        All ports of the component of that name.
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


def weight_codec(*, codec, lanes):
    """What a node has for a codec of weights: from memory rows to words of a link, and back."""
    return Together(encoder=WordEncoder(codec=codec, lanes=lanes), decoder=WordDecoder(codec=codec, lanes=lanes))


def zero_value_codec(*, lanes):
    """What a node has for gradients without their zeros: encoder, adder in compressed form, and decoder."""
    return Together(encoder=zero_value.Encoder(lanes=lanes), adder=zero_value.Adder(),
                    decoder=zero_value.Decoder(lanes=lanes))


def gradient_codec(*, codec, lanes):
    """What a node has for gradients that are added in another form: decoder, adders of what comes in and of what was
    lost before, and an encoder that tells what it loses."""
    lost = {} if codec.exact else {"residual_adder": PacketAdder(lanes=lanes)}
    return Together(decoder=WordDecoder(codec=codec, lanes=lanes), adder=PacketAdder(lanes=lanes, choice=True),
                    encoder=FeedbackEncoder(codec=codec, lanes=lanes), **lost)


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
    from hdl.compression.table.format import LookupTable
    from hdl.floating import format as formats
    table = LookupTable(format=getattr(formats, format), **parameters)
    return Unit(f"hdl.compression.lookup_table_{unit.lower()}:{unit}", {"table": table, "lanes": 4})


def _centroid_table(unit, centroids=16):
    from hdl.compression.centroid.format import CentroidTable
    table = CentroidTable(centroids=centroids)
    module = "gather_reduce" if unit == "MatrixVector" else "centroid"
    return Unit(f"hdl.compression.{module}:{unit}", {"table": table, "lanes": 4})


def _formats(source, target):
    from hdl.floating import format
    return {"source": getattr(format, source), "target": getattr(format, target)}


def _block_codec(unit, codec, lanes=4, format="FP32"):
    from hdl.compression.block import microscaling, shared_exponent
    from hdl.floating import format as formats
    parameters = {"codec": getattr(shared_exponent, codec, None) or getattr(microscaling, codec), "lanes": lanes}
    if unit not in ("Packer", "Unpacker", "DotProduct"):
        parameters["format"] = getattr(formats, format)
    module = {"Quantizer": "quantizer", "Packer": "packing", "Unpacker": "packing"}.get(unit, "block_coding")
    target = "dot_product:BlockDotProduct" if unit == "DotProduct" else f"{module}:{unit}"
    return Unit(f"hdl.compression.{target}", parameters)


_SERIAL = {"clock": 50_000_000, "baud": 3_000_000}
#: The iCEBreaker's.
_REDUCED = {"element": "int16", "lanes": 1, "segment": 32, "gradient_words": 16384, "weight_words": 16384,
            "state_words": 32, "state_planes": 0, "nodes_max": 1}

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
    "compression.zero_value.encoder": Unit("hdl.compression.zero_value.format:Encoder", {"lanes": 4}),
    "compression.zero_value.adder": Unit("hdl.compression.zero_value.format:Adder", {}),
    "compression.zero_value.decoder": Unit("hdl.compression.zero_value.format:Decoder", {"lanes": 4}),
    **{f"compression.shared_exponent.{unit.lower()}_{codec.lower()}": _block_codec(unit, codec)
       for unit in ("Encoder", "Decoder") for codec in (
           "MX9", "MX6", "MX4", "MXINT8", "MXFP8_E4M3", "MXFP8_E5M2", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP4_E2M1")},
    "compression.shared_exponent.encoder_mxint8_bf16": _block_codec("Encoder", "MXINT8", 32, "BF16"),
    "compression.shared_exponent.quantizer_mxint8_bf16": _block_codec("Quantizer", "MXINT8", 32, "BF16"),
    "compression.shared_exponent.quantizer_mxint8": _block_codec("Quantizer", "MXINT8", 32),
    "compression.shared_exponent.quantizer_mx9_bf16": _block_codec("Quantizer", "MX9", 16, "BF16"),
    **{f"compression.dot_product_{codec.lower()}": _block_codec("DotProduct", codec)
       for codec in (
           "MX9", "MX6", "MX4", "MXINT8", "MXFP8_E4M3", "MXFP8_E5M2", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP4_E2M1")},
    "compression.lookup_table.encoder": _lookup_table("Encoder"),
    "compression.lookup_table.decoder": _lookup_table("Decoder"),
    "compression.lookup_table.centroid_encoder": _lookup_table("Encoder", centroids=True),
    "compression.lookup_table.centroid_decoder": _lookup_table("Decoder", centroids=True),
    "compression.lookup_table.bf16_centroid_encoder": _lookup_table("Encoder", "BF16", centroids=True),
    "compression.lookup_table.bf16_encoder": _lookup_table("Encoder", "BF16"),
    "compression.lookup_table.bf16_decoder": _lookup_table("Decoder", "BF16"),
    "compression.lookup_table.bf16_centroid_decoder": _lookup_table("Decoder", "BF16", centroids=True),
    "compression.lookup_table.small_decoder": _lookup_table("Decoder", exponents=32),
    # By name of the format; ``gradring sweep`` shows the figures of those that are here.
    **{f"compression.weight_codec.{name}": Unit("boards.synth:weight_codec", {"codec": codec, "lanes": 4})
       for name, codec in WEIGHT_CODECS.items() if codec is not None},
    "compression.gradient_codec.zero_value": Unit("boards.synth:zero_value_codec", {"lanes": 4}),
    **{f"compression.gradient_codec.{name}": Unit("boards.synth:gradient_codec", {"codec": codec, "lanes": 4})
       for name, codec in GRADIENT_CODECS.items() if codec is not None},
    "compression.prefix_code.encoder": Unit("hdl.compression.table.prefix_code:Encoder", {}),
    "compression.prefix_code.decoder": Unit("hdl.compression.table.prefix_code:Decoder", {}),
    "compression.centroid.nearest": Unit("hdl.compression.centroid.nearest:NearestCentroid",
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
    "masking.generator": Unit("hdl.masking.generator:MaskGenerator", {"lanes": 4}),
    "masking.source": Unit("hdl.masking.source:MaskSource", {"lanes": 4}),
    "masking.multiplexer": Unit("hdl.masking.multiplexer:MaskMultiplexer", {"lanes": 4}),
    "masking.circuit": Unit("hdl.masking.circuit:MaskCircuit", {"lanes": 4}),
    "masking.magnitude": Unit("hdl.masking.magnitude:MagnitudeMask", {"lanes": 4}),
    "masking.engine": Unit("hdl.masking.engine:MaskEngine", {}),
    "masking.additive": Unit("hdl.baselines.additive_mask:AdditiveMask", {"lanes": 4}),
    **{f"quantization.matrix_vector_{form}": Unit("hdl.quantization.matrix_vector:MatrixVector", {
        "lanes": 16, "form": form}) for form in ("adjusted", "separate")},
    "quantization.requantizer": Unit("hdl.quantization.requantizer:Requantizer", {}),
    "quantization.integer_offset": Unit("hdl.baselines.float_offset:IntegerOffset", {"lanes": 16}),
    "quantization.float_offset": Unit("hdl.baselines.float_offset:FloatOffset", {"lanes": 16}),
    "quantization.float_scale": Unit("hdl.baselines.float_offset:FloatOffset", {
        "lanes": 16, "offset": False}),
    "quantization.engine": Unit("hdl.quantization.engine:InferenceEngine", {"quantization": True}),
    "rows.serializer": Unit("hdl.streams.rows:RowSerializer", {"lanes": 4}),
    "rows.assembler": Unit("hdl.streams.rows:RowAssembler", {"lanes": 4}),
    "rows.segment_buffer": Unit("hdl.streams.rows:SegmentBuffer", {"lanes": 4, "depth": 256}),
    "ring.packetizer": Unit("hdl.ring.packet:Packetizer", {}),
    "ring.depacketizer": Unit("hdl.ring.packet:Depacketizer", {}),
    "ring.link_transmitter": Unit("hdl.ring.link:LinkTransmitter", {"segments": 4, "egress_words": 544}),
    "ring.link_receiver": Unit("hdl.ring.link:LinkReceiver", {"segments": 4, "packet_words": 268}),
    "ring.datapath": Unit("hdl.ring.datapath:Datapath", {}),
    "ring.collective": Unit("hdl.ring.collective:CollectiveEngine", {}),
    "serial.uart_receiver": Unit("hdl.serial.uart:UartReceiver", _SERIAL),
    "serial.uart_transmitter": Unit("hdl.serial.uart:UartTransmitter", _SERIAL),
    "serial.frame_receiver": Unit("hdl.serial.frame:FrameReceiver", {}),
    "serial.frame_transmitter": Unit("hdl.serial.frame:FrameTransmitter", {}),
    "serial.endpoint": Unit("hdl.serial.endpoint:Endpoint", {"number": 0}),
    "serial.link": Unit("hdl.serial.link:SerialLink", _SERIAL),
    "control.host_port": Unit("hdl.control.host_port:HostPort", {}),
    "control.command_queue": Unit("hdl.control.command_queue:CommandQueue", {}),
    "control.registers": Unit("hdl.control.register_file:RegisterFile", {}),
    "node": Unit("hdl.node:Node", {}),
    "reduced.command_queue": Unit("hdl.int16_node.queue:CommandQueue", _REDUCED),
    "reduced.engine": Unit("hdl.int16_node.engine:Engine", _REDUCED),
    "reduced.masker": Unit("hdl.int16_node.masking:Masker", _REDUCED),
    "reduced.node": Unit("hdl.int16_node.node:Int16Node", _REDUCED),
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A Lattice ECP5 part, as in LFE5U-85F-6: family, size and speed grade."""

    name: str

    _FAMILIES = {"LFE5U": "", "LFE5UM": "um-", "LFE5UM5G": "um5g-"}

    def __post_init__(self):
        if self._match is None:
            raise SynthesisError(f"Part must be of the form LFE5U-85F-6 (LFE5U, LFE5UM or LFE5UM5G; 12F, 25F, 45F or "
                                 f"85F; speed 6, 7 or 8), not {self.name!r}")

    @property
    def _match(self):
        return re.fullmatch(r"(LFE5U|LFE5UM|LFE5UM5G)-(12|25|45|85)F-([678])", self.name)

    @property
    def options(self):
        """Options of nextpnr-ecp5."""
        family, size, speed = self._match.groups()
        return [f"--{self._FAMILIES[family]}{size}k", "--speed", speed, "--package", "CABGA381"]


#: How logic becomes LUTs: name to commands between Yosys's own steps.
MAPPERS = {
    "abc9": ECP5.mapping,
    "dense": ECP5.dense,
    "abc": ["synth_ecp5 -top {top} -noabc9"],
}


def wrapper(design: Design) -> str:
    """Verilog of the module ``wrapper``, which holds the unit between flip-flops; see this module's description."""
    flip_flop = 'TRELLIS_FF #(.GSR("DISABLED"), .CEMUX("1"), .CLKMUX("CLK"), .LSRMUX("LSR"), .REGSET("RESET"))'
    inputs = [port for port in design.ports if port.is_input and port.name != "clk"]
    outputs = [port for port in design.ports if not port.is_input]
    fed, read = sum(port.width for port in inputs), sum(port.width for port in outputs)
    lines = [
        "module wrapper(input clk, input shift_i, output shift_o);",
        f"  wire [{fed}:0] feed; wire [{read - 1}:0] result, kept, fold; wire [{read}:0] chain;",
        "  assign feed[0] = shift_i; assign chain[0] = 1'b0;",
    ]
    rest = ".CLK(clk), .LSR(1'b0)"
    exclusive_or = "LUT4 #(.INIT(16'h6666))"
    for n in range(fed):
        lines.append(f"  {flip_flop} feed_{n} ({rest}, .DI(feed[{n}]), .Q(feed[{n + 1}]));")
    for n in range(read):
        lines += [f"  {flip_flop} kept_{n} ({rest}, .DI(result[{n}]), .Q(kept[{n}]));",
                  f"  {exclusive_or} fold_{n} (.A(chain[{n}]), .B(kept[{n}]), .C(1'b0), .D(1'b0), .Z(fold[{n}]));",
                  f"  {flip_flop} chain_{n} ({rest}, .DI(fold[{n}]), .Q(chain[{n + 1}]));"]
    lines += [f"  assign shift_o = chain[{read}];", f"  {design.name} unit ("]
    connections = [".clk(clk)"] if design.clocked else []
    for vector, ports, start in (("feed", inputs, 1), ("result", outputs, 0)):
        for port in ports:
            connections.append(f".{port.name}({vector}[{start + port.width - 1}:{start}])")
            start += port.width
    return "\n".join([*lines, ",\n".join(f"    {connection}" for connection in connections), "  );", "endmodule", ""])


def _synthesise(folder: Path, design: Design, tools: Tools, mapper: str):
    (folder / "unit.v").write_text(design.text)
    (folder / "wrapper.v").write_text(wrapper(design))
    script = ["read_verilog unit.v", *(step.format(top=design.name) for step in MAPPERS[mapper]),
              f"tee -q -o stat.json stat -json -top {design.name}",
              "read_verilog wrapper.v", "hierarchy -check -top wrapper", "flatten", "opt_clean",
              "write_json wrapper.json"]
    execute([*tools.yosys, "-q", "-l", "yosys.log", "-p", "; ".join(script)], folder, "wrapper.json", "yosys.log")


def _place(folder: Path, netlist: Path, tools: Tools, part: Part, frequency: float, seed: int):
    shutil.copyfile(netlist, folder / "wrapper.json")
    # Without --timing-allow-fail a missed target could not be told from a failure; the report says if it was met.
    execute([*tools.nextpnr, *part.options, "--json", "wrapper.json", "--report", "report.json", "-q",
              "-l", "nextpnr.log", "--seed", str(seed), "--freq", f"{frequency:g}", "--timing-allow-fail",
              "--lpf-allow-unconstrained"], folder, "report.json", "nextpnr.log")


def _check(name: str, mapper: str):
    if name not in UNITS:
        raise SynthesisError(f"Unit must be one of {', '.join(sorted(UNITS))}, not {name!r}")
    if mapper not in MAPPERS:
        raise SynthesisError(f"Mapper must be one of {', '.join(MAPPERS)}, not {mapper!r}")


def _netlist(name: str, options: dict, part: str, tools: Tools, mapper: str,
             progress: Callable[[str], None]) -> tuple[str, str, Path]:
    """Synthesise a unit: the name of its results, the name in the cache, and the folder of the netlist."""
    component = UNITS[name].component(options)
    progress(f"{name}: Verilog")
    design = convert(component, name=re.sub(r"\W", "_", name))
    settings = {**options, **({"part": part} if part != DEFAULT_PART else {}),
                **({"mapper": mapper} if mapper != DEFAULT_MAPPER else {})}
    label = "-".join([name, *(f"{key}={value}" for key, value in sorted(settings.items()))])
    key = toolchain.digest(design.name, design.text, wrapper(design), repr(MAPPERS[mapper]), repr(tools.versions),
                           toolchain.source(_synthesise, _place))
    place = f"{name}-{key}"
    progress(f"{label}: synthesis")
    netlist = toolchain.cached(kept(place), lambda fresh: _synthesise(fresh, design, tools, mapper))
    return label, place, netlist


def _cells(netlist: Path) -> dict:
    statistic = json.loads((netlist / "stat.json").read_text())
    return ECP5.count(statistic["design"]["num_cells_by_type"])


def count(name: str, *, options: dict | None = None, native: bool = False, mapper: str = DEFAULT_MAPPER,
          progress: Callable[[str], None] = lambda text: None) -> dict:
    """Synthesise one unit, and count its cells; nothing is placed, and no result is written.

    Parameters are those of :func:`measure`.
    """
    _check(name, mapper)
    label, _, netlist = _netlist(name, options or {}, DEFAULT_PART, Tools(native=native), mapper, progress)
    return {"name": label, **_cells(netlist)}


def measure(name: str, *, options: dict | None = None, part: str = DEFAULT_PART, seeds: int = 3,
            frequency: float = 120.0, native: bool = False, mapper: str = DEFAULT_MAPPER, path: bool = False,
            progress: Callable[[str], None] = lambda text: None) -> dict:
    """Synthesise and place one unit and write ``build/synth/<name>.json``.

    The name in the result is the unit's, followed by what differs from the defaults: ``floating.multiply-dsps=2``.

    Parameters
    ----------
    name : str
        A key of :data:`UNITS`.
    options : dict or None
        Parameters of the unit in place of those of its entry.
    part : str
        Part, with speed grade.
    seeds : int
        How many placements; the seeds are 1, 2, ….
    frequency : float
        Target in MHz, to which nextpnr works. A missed target is no error, but is in the result.
    native : bool
        Whether to use the tools on PATH.
    mapper : str
        A key of :data:`MAPPERS`.
    path : bool
        Whether progress tells the critical path of each placement.
    progress : callable
        Told what begins, and what was reached.
    """
    _check(name, mapper)
    if not 1 <= seeds <= MOST_SEEDS:
        raise SynthesisError(f"Seed count must be a positive integer of at most {MOST_SEEDS:,}, not {seeds!r}")
    if not 0 < frequency <= MOST_MHZ:
        raise SynthesisError(f"Target must be above 0 and at most {MOST_MHZ:,} MHz, not {frequency!r}")
    chip, tools = Part(part), Tools(native=native)
    prepare(RESULTS)
    label, unit, netlist = _netlist(name, options or {}, part, tools, mapper, progress)
    reached = []
    for seed in range(1, seeds + 1):
        progress(f"{label}: placement with seed {seed} of {seeds}")
        place = toolchain.cached(
            kept(f"{unit}-{part}-{frequency:g}-{seed}"),
            lambda fresh, seed=seed: _place(fresh, netlist / "wrapper.json", tools, chip, frequency, seed))
        report = json.loads((place / "report.json").read_text())
        reached.append(_fmax(report))
        progress(f"{label}: seed {seed} reaches {reached[-1]:.2f} MHz" + (_path(report) if path else ""))
    result = {
        "name": label,
        "part": part,
        "tools": {**tools.versions, "mapper": mapper},
        **_cells(netlist),
        "fmax_mhz": {"median": round(statistics.median(reached), 2), "min": round(min(reached), 2),
                     "max": round(max(reached), 2)},
        "seeds": seeds,
        "target_mhz": frequency,
        "seeds_below_target": sum(fmax < frequency for fmax in reached),
    }
    save(RESULTS / f"{label}.json", json.dumps(result, indent=2) + "\n")
    return result


def table() -> str:
    """All results in ``build/synth`` as a table in Markdown."""
    lines = ["| Unit | Part | LUT4 | CCU2C | LUT RAM | FF | DSP | BRAM | Fmax MHz: median (range) | Seeds |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for row in [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]:
        if "board" in row:
            continue
        fmax = row["fmax_mhz"]
        counts = " | ".join(str(row[name]) for name in ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram"))
        lines.append(f"| {row['name']} | {row['part']} | {counts} | {fmax['median']:.0f} ({fmax['min']:.0f} to "
                     f"{fmax['max']:.0f}) | {row['seeds']} |")
    return "\n".join(lines)


def _fmax(report: dict) -> float:
    clocks = report.get("fmax", {})
    if len(clocks) != 1:
        raise SynthesisError(f"Report must be of one clock, not of {len(clocks)}: {', '.join(clocks)}")
    return next(iter(clocks.values()))["achieved"]


def _path(report: dict) -> str:
    """The longest path from clock edge to clock edge, one line per cell and net."""
    paths = [path for path in report["critical_paths"] if not path["from"].startswith("<async>")
             and not path["to"].startswith("<async>")]
    lines, passed = [], 0.0
    for step in max(paths, key=lambda path: sum(step["delay"] for step in path["path"]))["path"]:
        passed += step["delay"]
        port = step["to"].get("port", "")
        if port not in ("FCI", "FCO"):  # the inside of a carry chain says little
            lines.append(f"\n    {passed:6.2f} ns  {step['type']:<8}  {step['to']['cell']}.{port}")
    return "".join(lines)


def _option(text: str) -> tuple[str, int]:
    name, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"-?\d+", value):
        raise argparse.ArgumentTypeError(f"option must be NAME=NUMBER, not {text!r}")
    return name, int(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m boards.synth", description=__doc__.partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--unit", action="append", help="unit to place; may be given several times")
    chosen.add_argument("--list", action="store_true", help="show the names of all units")
    chosen.add_argument("--table", action="store_true", help="show all earlier results as a table")
    parser.add_argument("--seeds", type=int, default=3, help="placements per unit")
    parser.add_argument("--count", action="store_true", help="count cells alone, place nothing, and print JSON")
    parser.add_argument("--part", default=DEFAULT_PART, help="part with speed grade")
    parser.add_argument("--freq", type=float, default=120.0, help="target in MHz")
    parser.add_argument("--mapper", choices=MAPPERS, default=DEFAULT_MAPPER, help="how logic becomes LUTs")
    parser.add_argument("--path", action="store_true", help="show the critical path of each placement")
    parser.add_argument("--native", action="store_true", help="use yosys and nextpnr-ecp5 on PATH")
    parser.add_argument("--lanes", type=int, help="short for --set lanes=LANES")
    parser.add_argument("--dsps", type=int, help="short for --set dsps=DSPS")
    parser.add_argument("--set", type=_option, action="append", default=[], metavar="NAME=NUMBER", dest="options",
                        help="a parameter of the unit; may be given several times")
    values = parser.parse_args(arguments)
    if values.list:
        print("\n".join(sorted(UNITS)))
        return 0
    if values.table:
        print(table())
        return 0
    options = dict(values.options)
    options.update({name: getattr(values, name) for name in ("lanes", "dsps") if getattr(values, name) is not None})
    try:
        def progress(text: str) -> None:
            print(text, file=sys.stderr)

        for unit in values.unit:
            if values.count:
                print(json.dumps(count(unit, options=options, native=values.native, mapper=values.mapper,
                                       progress=progress)))
                continue
            result = measure(unit, options=options, part=values.part, seeds=values.seeds, frequency=values.freq,
                             native=values.native, mapper=values.mapper, path=values.path, progress=progress)
            _print(result)
    except (SynthesisError, toolchain.ToolError, TypeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _print(result: dict):
    fmax = result["fmax_mhz"]
    missed = result["seeds_below_target"]
    print(f"{result['name']} on {result['part']}, {result['tools']['yosys']}, {result['tools']['nextpnr']}")
    print(f"  LUT4 {result['lut4']}  CCU2C {result['ccu2c']}  LUT-RAM {result['lut_ram']}  (in all "
          f"{result['lut4_occupied']} LUTs)  FF {result['ff']}  DSP {result['dsp']}  BRAM {result['bram']}")
    print(f"  Fmax {fmax['median']} MHz median of {result['seeds']} seeds, {fmax['min']} to {fmax['max']}; target "
          f"{result['target_mhz']:g} MHz {'met by all' if not missed else f'MISSED by {missed}'}")


if __name__ == "__main__":
    sys.exit(main())
