"""Packets read from a waveform equal the golden packets on the wires."""

import math
import random
import re

import numpy as np
import pytest
from vcd import VCDWriter

from host.reports.packets import Seen, Wave, column_titles, describe, read_packets, write_packet_wave
from sim.golden.codecs import CODECS
from sim.golden.packet import ABORT, Header, packet
from sim.golden.ring import bits, floats
from sim.verilated.names import Encoding
from tests.present import needs

STATE = Encoding(("unit",), "state", 2, {0: "REST", 1: "SEND"}, True)
PLAIN = ("raw", "zero_value", "bf16", "mx9", "mx6", "mxfp8_e4m3")


def wave_of(path, links, *, seed=0):
    """Write a waveform of nodes that send packets with pauses; return the cycles of each packet by node."""
    generator, cycles, changes = random.Random(seed), [], []
    with path.open("w") as file, VCDWriter(file, timescale="1 ps") as writer:
        for node, packets in enumerate(links):
            wires = {name: writer.register_var(f"node{node}", f"ring_o__{name}", "wire", size=size, init=0)
                     for name, size in (("valid", 1), ("data", 32), ("last", 1))}
            state = writer.register_var(f"node{node}.ring_node.node.unit", "state", "wire", size=2, init=0)
            cycle, sent = 1, []
            for words in packets:
                sent.append([])
                for index, word in enumerate(words):
                    for _ in range(generator.choice([0, 0, 0, 1, 5])):
                        cycle += 1
                        # Wires may have any value while no word is valid.
                        changes += [(10 * cycle - 5, wires["valid"], 0),
                                    (10 * cycle - 5, wires["data"], generator.getrandbits(32))]
                    cycle += 1
                    changes += [(10 * cycle - 5, wires["valid"], 1), (10 * cycle - 5, wires["data"], word),
                                (10 * cycle - 5, wires["last"], int(index == len(words) - 1))]
                    sent[-1].append(cycle)
            changes += [(10 * cycle + 5, wires["valid"], 0), (10 * sent[0][0], state, 1), (10 * cycle + 5, state, 0)]
            cycles.append(sent)
        for time, variable, value in sorted(changes, key=lambda change: change[0]):
            writer.change(variable, time, value)
    return cycles


def random_packets(node, *, codecs=PLAIN, seed=0):
    """Return a packet in each codec, together with its decoded elements."""
    generator = np.random.default_rng([seed, node])
    packets = []
    for sequence, name in enumerate(codecs):
        length = int(generator.integers(1, 100))
        values = generator.standard_normal(length).astype(np.float32)
        values[generator.random(length) < 0.4] = 0
        codec = CODECS[name]
        payload = codec.encode(bits(values))
        header = Header(codec=codec.code, source=node, destination=1 - node, epoch=3, sequence=sequence, block=node,
                        segment=sequence % 3, length=length, collective=9)
        packets.append((header, payload.tolist(), floats(codec.decode(payload, length))))
    return packets


def test_packets_of_every_plain_codec(tmp_path):
    links = [random_packets(node) for node in range(2)]
    cycles = wave_of(tmp_path / "ring.vcd", [[packet(header, payload) for header, payload, _ in link]
                                             for link in links])
    seen = read_packets(Wave(tmp_path / "ring.vcd"))
    assert len(seen) == 2 * len(PLAIN)
    assert [item.cycles[0] for item in seen] == sorted(item.cycles[0] for item in seen)
    for node, link in enumerate(links):
        arrived = [item for item in seen if item.link == (node, 1 - node)]
        assert [list(item.cycles) for item in arrived] == cycles[node]
        for item, (header, payload, elements) in zip(arrived, link, strict=True):
            assert (item.header, list(item.payload), item.crc, item.type) == (header, payload, "right", "DATA")
            assert CODECS[item.codec].code == header.codec
            np.testing.assert_array_equal(item.elements.view(np.uint32), elements.view(np.uint32))
            line = describe(item, first=2)
            assert line.split()[:5] == [f"{item.cycles[0]}", f"{node}", ">", f"{1 - node}", "DATA"]
            assert line.split()[5:11] == [item.codec, f"{header.sequence}", f"{header.block}", f"{header.segment}",
                                          f"{header.length}", f"{len(payload) + 4}"]
            assert line.split()[11:] == ["right", *(f"{number:.4g}" for number in elements[:2].tolist())]
            assert len(describe(item, first=0)) == column_titles().index("first elements")


def test_roles():
    """The payload of a zero-value packet consists of masks, each followed by an element for every mask bit that is
    1."""
    for name in ("zero_value", "raw"):
        ((header, payload, elements),) = random_packets(0, codecs=[name], seed=5)
        seen = _seen(packet(header, payload))
        assert [role for role, _ in seen.roles[:3]] == ["header0", "header1", "header2"]
        assert seen.roles[-1] == ("CRC_right", None)
        assert len(seen.roles) == len(seen.words)
        shown = {index: word for (_, index), word in zip(seen.roles, seen.words, strict=True) if index is not None}
        expected = {index: word for index, word in enumerate(bits(elements).tolist()) if word or name == "raw"}
        assert shown == expected


def _seen(words):
    return Seen(link=(0, 1), cycles=tuple(range(len(words))), words=tuple(words))


def test_damaged_packets():
    ((header, payload, _),) = random_packets(0, codecs=["zero_value"])
    good = packet(header, payload)
    for index in range(len(good)):
        damaged = _seen([word ^ (1 << 7 if at == index else 0) for at, word in enumerate(good)])
        assert damaged.crc == "wrong"
        assert damaged.elements is None
        assert describe(damaged).endswith("wrong    unknown")
    assert _seen(packet(header, payload, stomp=True)).crc == "stomped"
    abort = _seen(packet(Header(type=ABORT, source=1, length=8)))
    assert (abort.type, abort.crc, abort.elements, abort.payload) == ("ABORT", "right", None, ())
    assert describe(_seen(packet(Header(type=7, codec=200)))).split()[4:6] == ["7", "200"]


def test_packets_with_a_codebook():
    """If a packet needs a codebook to be decoded, its elements are unknown, and no word is shown as an element."""
    name = next(name for name, codec in CODECS.items() if codec.codebook_words)
    seen = _seen(packet(Header(codec=CODECS[name].code, length=4), [1]))
    assert (seen.codec, seen.elements, seen.roles[3]) == (name, None, ("payload0", None))


def sums_of(operation):
    """Packets sent by the ranks, with their phases, in a collective that sums integers."""
    needs("reproducible")
    from sim.golden.features.reproducible.packet import collective_packets

    gradients = bits(np.random.default_rng(3).standard_normal((2, 200)))
    weights = bits(np.arange(200)) if operation == "FUSED_UPDATE" else None
    ranks = collective_packets(gradients, width=16, operation=operation, segment=32, gathered=weights)
    for rank, sent in enumerate(ranks):
        for sequence, (phase, segment, block, length, words) in enumerate(sent):
            codec = "raw" if phase == "AG" and operation == "FUSED_UPDATE" else "sum16"
            header = Header(codec=CODECS[codec].code, source=rank, destination=1 - rank, sequence=sequence,
                            block=block, segment=segment % 1024, length=length)
            yield phase, _seen(packet(header, words.tolist()))


def test_sums_of_integers():
    """Integers are not decoded, because their exponents are in other packets. If a packet has no elements, all its
    words are exponents."""
    shown = set()
    for _, seen in sums_of("ALL_REDUCE"):
        assert (seen.elements is None) is seen.integers is (seen.header.length > 0)
        roles = [role for role, _ in seen.roles[3:-1]]
        name = "payload" if seen.integers else "exponents"
        assert roles == [f"{name}{index}" for index in range(len(seen.payload))]
        assert describe(seen).endswith("right    integers, not decoded" if seen.integers else "right    ")
        shown.add((name, len(roles)))
    # Payloads have 32 or 8 integers, with or without words for exponents and a checksum.
    assert shown == {("exponents", 0), ("exponents", 1), *(("payload", count) for count in (16, 17, 18, 4, 5))}


def test_weights_after_exponents():
    """In a packet of new weights, the exponents of a later segment come before the weights."""
    counts = set()
    for phase, seen in sums_of("FUSED_UPDATE"):
        if phase == "SR":
            continue
        length, count = seen.header.length, len(seen.payload) - seen.header.length
        assert seen.exponent_words == count
        begin = 32 * (seen.header.segment * 2 + seen.header.block)
        assert seen.elements.tolist() == [begin + index for index in range(length)]
        assert seen.roles[3:-1] == [*((f"exponents{word}", None) for word in range(count)),
                                    *((f"element{word}", word) for word in range(length))]
        assert seen.words[3 + count:-1] == tuple(bits(seen.elements).tolist())
        counts.add((count, length))
    assert counts == {(1, 0), (1, 32), (0, 32), (0, 8), (0, 0)}
    # If the CRC is wrong, it is unknown whether there are exponents.
    damaged = _seen([*seen.words[:-1], seen.words[-1] ^ 1])
    assert (damaged.exponent_words, damaged.elements, damaged.integers) == (0, None, False)


def test_packet_wave(tmp_path):
    """The waveform shows the word of each cycle, elements as floating-point numbers, and states by name."""
    links = [random_packets(node, codecs=("raw", "zero_value"), seed=2) for node in range(2)]
    wave_of(tmp_path / "ring.vcd", [[packet(header, payload) for header, payload, _ in link] for link in links])
    wave = Wave(tmp_path / "ring.vcd")
    seen = read_packets(wave)
    save = write_packet_wave(tmp_path / "plain.vcd", wave, seen, [STATE])
    plain = Wave(tmp_path / "plain.vcd")

    def at(name, cycle):
        return [value for time, value in plain.changes(name) if time <= 10 * cycle][-1]

    for item in seen:
        scope = "link{}to{}".format(*item.link)
        for cycle, word, (role, index) in zip(item.cycles, item.words, item.roles, strict=True):
            assert at(f"{scope}.packet", cycle).startswith(f"DATA_{item.header.sequence}:block{item.header.block}.")
            assert at(f"{scope}.word", cycle) == role
            assert at(f"{scope}.data", cycle) == word
            shown = at(f"{scope}.element", cycle)
            assert math.isnan(shown) if index is None else bits([shown])[0] == word
        busy = {cycle for other in seen if other.link == item.link for cycle in other.cycles}
        for cycle in set(range(item.cycles[0], item.cycles[-1] + 2)) - busy:
            assert at(f"{scope}.word", cycle) == "-"
            assert math.isnan(at(f"{scope}.element", cycle))
            assert at(f"{scope}.data", cycle) == "x" * 32
    assert at("node0.unit.state", 0) == "REST"
    assert at("node0.unit.state", seen[0].cycles[0] + 1) == "SEND"
    text = save.read_text()
    for name in ("link0to1.packet", "link1to0.element", "node0.unit.state", "node1.unit.state"):
        assert re.search(rf"^(\+\{{.*\}} )?{name}$", text, re.MULTILINE)


def test_waves_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.fst must be a waveform, and is not there; 'gradring wave'"):
        Wave(tmp_path / "none.fst")
    (tmp_path / "text.fst").write_text("text")
    with pytest.raises(ValueError, match=r"text\.fst must be a waveform that pywellen reads: "):
        Wave(tmp_path / "text.fst")
    with (tmp_path / "other.vcd").open("w") as file, VCDWriter(file) as writer:
        writer.change(writer.register_var("top", "x", "wire", size=1, init=0), 5, 1)
    with pytest.raises(ValueError, match=r"^Waveform must be one of a ring, and has no signal node0\.ring_o__valid$"):
        read_packets(Wave(tmp_path / "other.vcd"))
