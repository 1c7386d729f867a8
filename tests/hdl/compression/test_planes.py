# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.byte_packing import BytePacker, ByteUnpacker
from hdl.compression.planes import PLANE, GroupAssembler, GroupSplitter, code_layout
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, connect_stream
from sim.golden import planes as model
from sim.golden.stream import Feed as Source
from sim.golden.stream import first_from
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets, plane_cycles
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refuses

#: Number of lanes and maximum code width. They cover groups of eight codes in one and in several chunks, and all
#: numbers of words.
CASES = [(1, 3), (2, 9), (4, 17), (8, 6), (8, 16)]
cases = pytest.mark.parametrize(("lanes", "width"), CASES)


class _Pack(wiring.Component):
    """Test unit that converts codes to words."""

    def __init__(self, *, lanes, width):
        self.assembler = GroupAssembler(lanes=lanes, width=width)
        self.words = self.assembler.words
        super().__init__({
            "i": In(stream.Signature(code_layout(lanes, width))), "size": In(range(width + 1)),
            "o": Out(stream.Signature(beat_layout(self.words)))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.assembler = assembler = self.assembler
        m.submodules.packer = packer = BytePacker(words=self.words)
        connect_stream(m, self.i, assembler.i)
        connect_stream(m, assembler.o, packer.i)
        connect_stream(m, packer.o, self.o)
        m.d.comb += assembler.size.eq(self.size)
        return m


class _Unpack(wiring.Component):
    """Test unit that converts words to codes."""

    def __init__(self, *, lanes, width):
        self.splitter = GroupSplitter(lanes=lanes, width=width)
        self.words = self.splitter.words
        super().__init__({
            "i": In(stream.Signature(beat_layout(self.words))), "size": In(range(width + 1)),
            "o": Out(stream.Signature(code_layout(lanes, width))), "ended": Out(1), "error": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unpacker = unpacker = ByteUnpacker(words=self.words)
        m.submodules.splitter = splitter = self.splitter
        connect_stream(m, self.i, unpacker.i)
        connect_stream(m, splitter.o, self.o)
        m.d.comb += [
            splitter.window.eq(unpacker.window), splitter.enough.eq(unpacker.enough),
            splitter.stops.eq(unpacker.stops), splitter.take.eq(unpacker.take), splitter.run.eq(1),
            splitter.size.eq(self.size), unpacker.want.eq(splitter.want), unpacker.allow.eq(splitter.allow),
            unpacker.done.eq(splitter.ended), self.ended.eq(splitter.ended), self.error.eq(splitter.error),
        ]
        return m


class _Bytes(wiring.Component):
    """A :class:`ByteUnpacker` that completes a packet when its last bytes are consumed."""

    def __init__(self, *, words):
        self._words = words
        super().__init__({
            "i": In(stream.Signature(beat_layout(words))), "window": Out(32 * words), "shown": Out(1),
            "want": In(range(4 * words + 1)), "align": In(1), "enough": Out(1), "stops": Out(1), "allow": In(1),
            "take": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unpacker = unpacker = ByteUnpacker(words=self._words)
        connect_stream(m, self.i, unpacker.i)
        m.d.comb += [
            *(getattr(self, name).eq(getattr(unpacker, name))
              for name in ("window", "shown", "enough", "stops", "take")),
            *(getattr(unpacker, name).eq(getattr(self, name)) for name in ("want", "align", "allow")),
            unpacker.done.eq(unpacker.take & unpacker.stops),
        ]
        return m


def _codes(generator, width, total):
    """Draw packets of codes, each with whole groups."""
    vectors = []
    while sum(map(len, vectors)) < total:
        vectors.append(generator.integers(0, 1 << width, GROUP * int(generator.integers(1, 6)), dtype=np.uint32))
    return vectors


def _rows(vectors, lanes, width):
    codes = np.concatenate(vectors).reshape(-1, lanes)
    ends = np.cumsum([len(vector) // lanes for vector in vectors]) - 1
    return pack(code_layout(lanes, width), {"codes": codes, "last": np.isin(np.arange(len(codes)), ends)})


def _sizes(width):
    """Code widths to test; a packet may use fewer bits than the maximum width."""
    return sorted({1, width // 2, width - 1, width})


# --- construction


@pytest.mark.parametrize("unit", [BytePacker, ByteUnpacker])
def test_words(unit):
    refuses("Word count must be 1, 2 or 4, not 3", unit, words=3)


@pytest.mark.parametrize("unit", [GroupAssembler, GroupSplitter])
def test_lanes(unit):
    for lanes in (0, 3, 16, "4", None):
        refuses(f"Lane count must be 1, 2, 4 or 8, not {lanes!r}", unit, lanes=lanes, width=4)


# --- every cycle against the model


def _trace_pack(lanes, width, size, beats, willing, ready):
    """Trace the handshakes of an assembler and packer: input ready and offered beat per cycle."""
    words = model.word_count(lanes, width)
    feed, packer = Source(sum(beats), willing), plane_cycles.Packer(words, ready)
    eights, sizes, held = plane_cycles.Eights(packer), plane_cycles.chunks(size, 4 * words), width > 4 * words
    cycle = taken = 0
    for count in beats:
        for beat in range(count):
            if (beat + 1) % (PLANE // lanes):
                cycle = feed.accept(cycle) + 1
                continue
            cycle = feed.accept(max(cycle, taken) if held else packer.free(cycle))
            _, taken = eights.give(cycle, 0, sizes, held=held, last=beat == count - 1)
            cycle += 1
    return feed, packer.output.offered


def _trace_unpack(lanes, width, size, streams, willing, ready):
    """Trace the handshakes of an unpacker and splitter: input ready and offered beat per cycle."""
    words = model.word_count(lanes, width)
    unpacker = plane_cycles.Unpacker(words, sum(-(-len(stream_) // words) for stream_ in streams), willing)
    sizes, sink = plane_cycles.chunks(size, 4 * words), first_from(ready)
    end = len(sink) - 1
    offered = np.full(end, -1)
    free = departed = beats = 0
    for stream_ in streams:
        eights = 4 * len(stream_) // size
        for eight in range(eights):
            for number, part in enumerate(sizes):
                closing = number == len(sizes) - 1
                cycle = max(free, unpacker.shown(part), departed if closing else 0)
                unpacker.take(cycle, part, last=closing and eight == eights - 1)
                free = cycle + 1
            departed = cycle
            for _ in range(PLANE // lanes):
                first, departed = departed + 1, sink[min(departed + 1, end)]
                offered[first:departed + 1] = beats
                beats += 1
    return unpacker.feed, offered


def _drive(generator, kind, lanes, width, total=3_000):
    size = int(generator.choice(_sizes(width)))
    vectors = _codes(generator, size, total * lanes)
    streams = [model.pack(vector, size) for vector in vectors]
    rows = _rows(vectors, lanes, width) if kind is _Pack else packets.beats(streams, model.word_count(lanes, width))
    return Drive({"i": rows}, (lanes, width, size, vectors, streams), {"size": size})


def _model(unit, drawn, willing, ready):
    lanes, width, size, vectors, streams = drawn
    words, cycles = model.word_count(lanes, width), len(ready["o"])
    if isinstance(unit, _Pack):
        beats = [len(vector) // lanes for vector in vectors]
        feed, offered = _trace_pack(lanes, width, size, beats, willing["i"], ready["o"])
        rows, more = packets.beats(streams, words), {}
        rows = rows, packets.kept(rows, words)
    else:
        feed, offered = _trace_unpack(lanes, width, size, streams, willing["i"], ready["o"])
        rows, more = _rows(vectors, lanes, width), {"error": np.zeros(cycles, bool)}
    return Want({"i__valid": feed.valid, "i__ready": feed.ready, **more}, {"o": rows}, {"o": offered})


def _make(kind, lanes, width):
    return kind(lanes=lanes, width=width)


BENCH = UnitBench(_make, _model, _drive, name=lambda kind, *_: f"Planes{kind.__name__.strip('_')}")
KINDS = [(kind, *case) for kind in (_Pack, _Unpack) for case in CASES]
test_lockstep = BENCH.lockstep(KINDS, count=1_500, least=5)
test_reset_in_a_packet = BENCH.resets(KINDS, (3, 10, 25, 41), count=150, drive=functools.partial(_drive, total=200))
test_offers_stand_for_all_time = offers(lambda: BytePacker(words=1), depth=2)


# --- bytes output in chunks of any size


@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("words", [1, 2, 4])
def test_bytes(words, source):
    """Exactly the bytes of a packet are output, in chunks of any size; the rest of a word may be skipped."""
    count, seed = 4_000, STALLS.index(source)
    generator = np.random.default_rng(seed)
    vectors = [generator.integers(0, 1 << 32, int(generator.integers(1, 12)), dtype=np.uint32) for _ in range(count)]
    want, align = generator.integers(1, 4 * words + 1, count), generator.random(count) < 0.1
    allow = generator.random(count) < 0.8
    unit = Unit(_Bytes(words=words), name="PlanesBytes")
    unit.reset()
    trace = unit.lockstep(
        sources={"i": Feed(packets.beats(vectors, words), stall_array(source, count, seed=seed))}, sinks={},
        cycles=count, inputs={"want": want, "align": align, "allow": allow})
    window = np.ascontiguousarray(trace["window"]).view(np.uint8).reshape(count, -1)
    packet = position = taken = 0
    for cycle in np.flatnonzero(trace["shown"]).tolist():
        note = f"{cycle=}, {seed=}"
        stored = vectors[packet].astype("<u4").view(np.uint8)
        after = -(-position // 4) * 4 if align[cycle] else position + int(want[cycle])
        enough, stops, take = (bool(trace[name][cycle]) for name in ("enough", "stops", "take"))
        assert not enough or after <= len(stored), note
        assert not stops or after >= len(stored), note
        assert take == (bool(allow[cycle]) and (enough or stops)), note
        if enough:
            assert window[cycle][:after - position].tolist() == stored[position:after].tolist(), note
        if take:
            taken += 1
            packet, position = (packet + 1, 0) if stops else (packet, after)
    assert packet > 50
    assert taken > 100
    assert not trace["take"][trace["shown"] == 0].any()


# --- packets that end within a group, and resets


@cases
def test_cut_packets(lanes, width):
    """A truncated packet yields whole groups of eight, with an error if it ends in a group; the next is correct."""
    words, size = model.word_count(lanes, width), width
    vector = np.random.default_rng(1).integers(0, 1 << width, 2 * GROUP, dtype=np.uint32)
    whole = model.pack(vector, size)
    unit = BENCH.unit(_Unpack, lanes, width)
    for length in range(1, len(whole)):
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(packets.beats([whole[:length], whole], words))}, sinks={"o": True},
                              cycles=500, inputs={"size": size})
        when = np.flatnonzero(trace["o__valid"])
        got = unpack(code_layout(lanes, width), trace["o__payload"][when])
        codes, ends = got["codes"].reshape(-1), np.flatnonzero(got["last"]) + 1
        eights, rest = divmod(4 * length, size)
        cut = PLANE * (eights + (rest > 0))
        assert (ends * lanes).tolist() == [cut, cut + len(vector)], f"{length=}"
        assert codes[:PLANE * eights].tolist() == vector[:PLANE * eights].tolist(), f"{length=}"
        assert codes[cut:].tolist() == vector.tolist(), f"{length=}"
        assert trace["error"].sum() == (length % size != 0), f"{length=}"
        assert trace["ended"].sum() == 2, f"{length=}"
