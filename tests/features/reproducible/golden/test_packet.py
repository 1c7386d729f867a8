"""Packets of reproducible sums: known words, each node's contribution to a packet, and words of a collective."""

import itertools

import numpy as np
import pytest

from sim.golden import ring
from sim.golden.codecs import CODECS
from sim.golden.features.reproducible.packet import (
    AHEAD,
    OPERATIONS,
    WIDTHS,
    SumPacket,
    addend_of,
    codes_of,
    collective_packets,
    exponent_words,
    field_hash,
    order,
    pack,
    pack_fields,
    packet_checksum,
    unpack,
    unpack_fields,
)
from sim.golden.features.reproducible.sums import (
    GROUP,
    Addend,
    addend_bits,
    exponent_fields,
    group_starts,
    quantize,
    round_sum,
    special_flags,
    sum_of,
)
from sim.golden.root_reduce import GATHER, SCATTER
from tests.present import needs
from tests.refusals import refuses

#: Hashes of packets with a single exponent field.
HASH_1, HASH_127, HASH_128, HASH_130 = (0xC6EF_3733 ^ field for field in (1, 127, 128, 130))
SGD = ring.settings(0, gradient_scale=1, learning_rate=0.5)


def numbers(seed, shape):
    """Draw numbers with many different exponents, and a few infinities and NaNs."""
    generator = np.random.default_rng(seed)
    values = ring.bits(generator.standard_normal(shape) * np.exp2(generator.integers(-20, 20, shape)))
    special = ring.bits([np.inf, -np.inf, np.nan, -0.0, 1e-40])
    return np.where(generator.random(shape) < 0.02, generator.choice(special, shape), values).astype(np.uint32)


def flags(text):
    """Convert a text such as ``"0+-n"`` to flags: finite, +infinity, -infinity, NaN."""
    return np.array([kind in "+n" for kind in text]), np.array([kind in "-n" for kind in text])


# --- parts of a payload


@pytest.mark.parametrize(("width", "special"), [
    (16, [0x7FFF, -0x7FFF, -0x8000]), (32, [0x7FFF_FFFF, -0x7FFF_FFFF, -0x8000_0000])])
def test_codes(width, special):
    """Infinities and NaNs are encoded as codes that no sum can reach, regardless of their integers."""
    part = Addend(np.array([5, -5, 0, -3, 7]), *flags("00+-n"))
    codes = codes_of(part, width)
    assert codes.tolist() == [5, -5, *special]
    again = addend_of(codes, width)
    assert again.integers.tolist() == [5, -5, 0, 0, 0]
    assert (again.positive == part.positive).all()
    assert (again.negative == part.negative).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [2, 3, 8, 9, 256])
def test_sums_do_not_reach_special_codes(width, count):
    """Even the largest sums of two or more addends do not reach the codes of infinities and NaNs."""
    limit = count * (2 ** (addend_bits(width, count) - 1) - 1)
    largest = Addend(np.array([limit, -limit]), *flags("00"))
    assert addend_of(codes_of(largest, width), width).integers.tolist() == [limit, -limit]


def test_pack():
    """A word holds two 16-bit codes, with the first code in its lower half."""
    assert pack(np.array([1, -2, -0x8000]), 16).tolist() == [0xFFFE_0001, 0x0000_8000]
    assert pack(np.array([1, -2]), 32).tolist() == [1, 0xFFFF_FFFE]
    for width, count in itertools.product(WIDTHS, (0, 1, 2, 31, 32, 33)):
        codes = np.random.default_rng(count).integers(-2 ** (width - 1), 2 ** (width - 1), count)
        words = pack(codes, width)
        assert len(words) == -(-count * width // 32)
        assert (unpack(words, count, width) == codes).all()
    refuses("Codes must have at most 16 bits", pack, np.array([0x8000]), 16)
    refuses("Width of codes must be 16 or 32, not 24", pack, np.array([0]), 24)
    refuses("Width of codes must be 16 or 32, not 12", unpack, np.array([0], np.uint32), 1, 12)


def test_pack_fields():
    """A word holds four exponent fields, with the first field in its lowest byte."""
    assert pack_fields(np.array([1, 254, 3, 4, 5])).tolist() == [0x0403_FE01, 5]
    assert [exponent_words(count) for count in (0, 1, 32, 128, 129, 512)] == [0, 1, 1, 1, 2, 4]
    for count in range(20):
        fields = np.random.default_rng(count).integers(1, 255, count)
        words = pack_fields(fields)
        assert len(words) == exponent_words(count * GROUP)
        assert (unpack_fields(words, count) == fields).all()


def weighted(codes):
    """Checksum of codes: each code is multiplied by its weight, and the products are added modulo 2**32."""
    return int((codes * (1 + 2 * np.arange(len(codes), 0, -1))).sum()) % 2 ** 32


@pytest.mark.parametrize("width", WIDTHS)
def test_checksum(width):
    """Any wrong bit of a code or an exponent field changes the checksum, and so does exchanging two integers."""
    limit = 2 ** (width - 1)
    generator = np.random.default_rng(width)
    fields = generator.integers(1, 255, 7)
    added = field_hash(fields)
    assert packet_checksum(pack(np.array([5, -3]), width), fields, width) == (5 * 5 - 3 * 3 + added) % 2 ** 32
    for count in (1, 2, 5, 512):
        codes = generator.choice([-limit, 1 - limit, limit - 1, 0, 1, 1000], count)
        words = pack(codes, width)
        check = packet_checksum(words, fields, width)
        assert check == (weighted(np.pad(codes, (0, -count % (32 // width)))) + added) % 2 ** 32
        for index, bit in itertools.product(range(len(words)), range(32)):
            words[index] ^= np.uint32(1 << bit)
            assert packet_checksum(words, fields, width) != check
            words[index] ^= np.uint32(1 << bit)
        for index, bit in itertools.product(range(len(fields)), range(8)):
            fields[index] ^= 1 << bit
            assert packet_checksum(words, fields, width) != check
            fields[index] ^= 1 << bit
    words, exchanged = (pack(np.array(codes), width) for codes in ([4, 7, 7, 1], [7, 4, 7, 1]))
    assert packet_checksum(words, fields, width) != packet_checksum(exchanged, fields, width)


def test_field_hash():
    """Known hashes; wrong bits in any subset of the words, and swapped or missing words, change the hash."""
    assert field_hash(np.zeros(0, np.int64)) == 0x9E37_79B9
    assert field_hash(np.array([1])) == 0xC6EF_3733 ^ 1
    assert field_hash(np.array([1, 2, 3, 254, 5])) == 0xDDE6_E678 ^ 0xC060_403F ^ 5
    generator = np.random.default_rng(1)
    for groups in range(1, 17):
        fields = generator.integers(1, 255, groups)
        words = pack_fields(fields)
        value = field_hash(fields)
        wrong = [words[:-1], np.append(words, np.uint32(0))]
        for bit, places in itertools.product(range(32), range(1, 2 ** len(words))):
            wrong.append(words ^ np.uint32(1 << bit) * (places >> np.arange(len(words)) & 1).astype(np.uint32))
        wrong += [words[[*range(n), n + 1, n, *range(n + 2, len(words))]] for n in range(len(words) - 1)
                  if words[n] != words[n + 1]]
        assert all(field_hash(unpack_fields(each, 4 * len(each))) != value for each in wrong)


# --- packets


def listed(packets):
    return [(*packet[:4], packet.words.tolist()) for packet in packets]


def test_by_hand_16():
    """Known packets of two nodes with one group: 15-bit integers in units of 2**-12, for numbers below 2**2."""
    gradients = ring.bits([[1.0, -0.5, np.inf, -0.0], [2.0, 0.25, 1.0, 0.0]])
    first, second = collective_packets(gradients, width=16, operation="ALL_REDUCE")
    # The first node's integers are 4096, -2048, infinity, 0, with the weights 9, 7, 5 and 3 in the checksum. The hash
    # of the agreed field is added to the checksum.
    assert listed(first) == [
        ("SR", -1, 0, 0, [127]), ("AG", -2, 1, 0, []),
        ("SR", 0, 0, 4, [0xF800_1000, 0x0000_7FFF, 9 * 4096 - 7 * 2048 + 5 * 32767 + HASH_128]),
        ("AG", -1, 1, 0, []), ("AG", 0, 1, 0, [])]
    # The other node's integers are 8192, 1024, 4096, 0.
    assert listed(second) == [
        ("SR", -1, 1, 0, []), ("AG", -2, 0, 0, [128]), ("SR", 0, 1, 0, []), ("AG", -1, 0, 0, []),
        ("AG", 0, 0, 4, [0xFC00_3000, 0x0000_7FFF])]


def test_by_hand_32():
    """Known packets with a block of two segments: 31-bit integers in units of 2**-29, for numbers below 2**1."""
    gradients = np.zeros((2, 96), np.uint32)
    gradients[0, :2] = ring.bits([1.5, -1.0])
    gradients[1, [0, 64]] = ring.bits([np.nan, -8.0])
    first, second = collective_packets(gradients, width=32, operation="REDUCE_SCATTER", segment=32)
    zeros = [0] * 30
    assert listed(first) == [
        ("SR", -1, 0, 0, [127]), ("AG", -2, 1, 0, [1]),
        ("SR", 0, 0, 32, [1, 0x3000_0000, 0xE000_0000, *zeros,
                          (65 * 0x3000_0000 - 63 * 0x2000_0000 + HASH_127) % 2 ** 32]),
        ("AG", -1, 1, 0, []), ("SR", 1, 0, 32, [0] * 32 + [HASH_130]), ("AG", 0, 1, 0, []), ("AG", 1, 1, 0, [])]
    assert listed(second) == [
        ("SR", -1, 1, 0, [1]), ("AG", -2, 0, 0, [127]), ("SR", 0, 1, 32, [0] * 32 + [HASH_1]),
        ("AG", -1, 0, 0, [130]), ("SR", 1, 1, 0, []), ("AG", 0, 0, 0, []), ("AG", 1, 0, 0, [])]


def test_no_packets():
    """A ring of one node sends no packets, and neither does a command without elements."""
    for operation in ("ALL_REDUCE", "REDUCE_SCATTER"):
        assert collective_packets(numbers(0, (1, 70)), width=16, operation=operation) == [[]]
        assert collective_packets(numbers(0, (3, 0)), width=16, operation=operation) == [[], [], []]


def test_errors():
    values = numbers(0, (2, 32))
    refuses("Width of codes must be 16 or 32, not 8", collective_packets, values, width=8, operation="ALL_REDUCE")
    refuses("Operation must be ALL_REDUCE, REDUCE_SCATTER or FUSED_UPDATE, not 'ALL_GATHER'",
            collective_packets, values, width=16, operation="ALL_GATHER")
    for operation, gathered in (("FUSED_UPDATE", None), ("ALL_REDUCE", values[0])):
        refuses("Gathered weights must be there for a FUSED_UPDATE, and for no other operation",
                collective_packets, values, width=16, operation=operation, gathered=gathered)


class Node:
    """A node that forwards packets one by one; an independent model of a node's contribution to a packet.

    Parameters
    ----------
    gradients : array
        The node's gradients for one segment.
    width, addends : int
    """

    def __init__(self, gradients, width, addends):
        self.gradients, self.width = gradients, width
        self.starts, self.bits = group_starts([len(gradients)]), addend_bits(width, addends)

    def prefix(self, words):
        """Largest exponent field of each group at the nodes so far; ``words`` is None at the first node."""
        own = exponent_fields(self.gradients, self.starts)
        return own if words is None else np.maximum(own, unpack_fields(words, len(own)))

    def data(self, words, fields):
        """Add the node's integers to the codes; return codes and checksum. ``words`` is None at the first node.

        The checksum is the received one plus the checksum of the node's changes, as in the gateware.
        """
        count, limit = len(self.gradients), 2 ** (self.width - 1)
        own = quantize(self.gradients, fields, self.starts, self.bits)
        positive, negative = special_flags(self.gradients)
        own = np.where(positive & negative, -limit, np.where(positive, limit - 1, np.where(negative, 1 - limit, own)))
        if words is None:
            codes = changes = own
            check = field_hash(fields)
        else:
            received, check = unpack(words[:-1], count, self.width), int(words[-1])
            assert check == packet_checksum(words[:-1], fields, self.width)
            special, infinite = received <= 1 - limit, received == limit - 1
            special |= infinite
            both = special & (positive | negative)
            codes = np.where(special, received, np.where(positive | negative, own, received + own))
            codes = np.where(both & (received != own), -limit, codes)
            changes = codes - received
        check += weighted(np.pad(changes, (0, -count % (32 // self.width))))
        return np.concatenate([pack(codes, self.width), np.array([check % 2 ** 32], np.uint32)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_each_node_adds_its_own(nodes, width):
    """Each packet follows from the received packet, the node's own gradients and the agreed exponent fields."""
    length, segment, offset = 700, 64, nodes - 1
    gradients = numbers(nodes, (nodes, length))
    segments = ring.segment_indices(length, nodes, segment, block_offset=offset)
    sent = [{packet[:3]: packet for packet in packets} for packets in collective_packets(
        gradients, width=width, operation="ALL_REDUCE", segment=segment, block_offset=offset)]
    total = np.zeros(length, np.uint32)
    for block, number in itertools.product(range(nodes), range(len(segments[0]))):
        index = segments[block][number]
        local = [Node(row[index], width, nodes) for row in gradients]
        groups, prefix, data = -(-len(index) // GROUP), None, None
        owner = (block - 1) % nodes
        agreed = sent[owner][GATHER, number - AHEAD[GATHER], block].words[:exponent_words(len(index))]
        fields = unpack_fields(agreed, groups)
        for rank in (np.arange(block, block + nodes) % nodes).tolist():
            prefix = pack_fields(local[rank].prefix(prefix))
            data = local[rank].data(data, fields) if groups else np.zeros(0, np.uint32)
            if rank == owner:
                assert prefix.tolist() == agreed.tolist()
                continue
            packet = sent[rank][SCATTER, number - AHEAD[SCATTER], block]
            assert packet.words[:len(prefix)].tolist() == prefix.tolist()
            packet = sent[rank][SCATTER, number, block]
            assert packet.length == len(index)
            assert packet.words[len(packet.words) - len(data):].tolist() == data.tolist()
        codes = data[:-1].tolist()
        for rank in range(nodes):
            if rank != (owner - 1) % nodes:  # this rank receives the block without forwarding it
                packet = sent[rank][GATHER, number, block]
                assert packet.words[len(packet.words) - len(codes):].tolist() == codes
        part = addend_of(unpack(np.array(codes, np.uint32), len(index), width), width)
        total[index] = round_sum(part.integers, fields, group_starts([len(index)]), addend_bits(width, nodes),
                                 part.positive, part.negative)
    assert (total == sum_of(gradients, width=width)).all()


def test_order():
    """The two phases alternate in the same order at all ranks; each packet has the segment number of its data."""
    for packets in collective_packets(numbers(1, (3, 96 * 3)), width=16, operation="ALL_REDUCE", segment=32):
        phases = [("SR", -1), ("AG", -2), ("SR", 0), ("AG", -1), ("SR", 1), ("AG", 0), ("SR", 2), ("AG", 1),
                  ("AG", 2)]
        assert [packet[:2] for packet in packets] == [phase for phase in phases for _ in range(2)]
        assert all(isinstance(packet, SumPacket) for packet in packets)


def test_order_by_hand():
    assert order(0, 3) == order(2, 0) == []
    assert order(1, 2) == [("SR", 0, 0), ("SR", 0, 1), ("AG", 0, 0), ("AG", 0, 1), ("SR", 1, 0), ("SR", 1, 1),
                           ("AG", 1, 0), ("AG", 1, 1), ("AG", 2, 0), ("AG", 2, 1)]


def updated(gradients, **options):
    """Master weights after a fused update, before the weight codec, and the traffic of the update."""
    weights = numbers(9, (gradients.shape[1],)) & 0xBFFF_FFFF
    update = ring.fused_update(gradients, weights, [], SGD, **options)
    return update.master, update.traffic


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize(("width", "weights"), [(16, "raw"), (32, "raw"), (32, "bf16"), (16, "mx9")])
def test_traffic(operation, nodes, width, weights):
    """The golden ring's traffic counts match the words of the listed packets."""
    needs("bf16", "mx")
    for length, offset in ((1, 0), (33, 1), (700, nodes - 1), (1000, 0)):
        gradients = numbers(length, (nodes, length))
        shape = {"segment": 64, "block_offset": offset % nodes}
        codec = {"gradient_codec": CODECS[f"sum{width}"], **shape}
        master = None
        if operation == "FUSED_UPDATE":
            master, traffic = updated(gradients, weight_codec=CODECS[weights], **codec)
        else:
            traffic = getattr(ring, operation.lower())(gradients, **codec)[1]
        ranks = collective_packets(gradients, width=width, operation=operation, gathered=master,
                                   weight_codec=CODECS[weights], **shape)
        for rank, packets in enumerate(ranks):
            for phase, words in ((SCATTER, traffic.scatter_words), (GATHER, traffic.gather_words)):
                count = [len(packet.words) + ring.PACKET_OVERHEAD for packet in packets if packet.phase == phase]
                assert sum(count) == words[:, rank].sum()
        gathered = [packet for packets in ranks for packet in packets if packet.phase == GATHER]
        assert traffic.gather_elements == sum(packet.length for packet in gathered)
        assert traffic.gather_payload == sum(len(packet.words) for packet in gathered)
        assert traffic.dense_words == sum(
            packet.length + ring.PACKET_OVERHEAD for packets in ranks for packet in packets)
        assert traffic.bound == max(
            sum(max(len(packet.words), -(-packet.length // 4)) for packet in packets) for packets in ranks)


@pytest.mark.parametrize(("width", "length", "packets", "words"), [
    (32, 16_384, 105, [25_236] * 4), (32, 4_096, 33, [6_336] * 4), (32, 1_000, 15, [1_563, 1_587, 1_587, 1_563]),
    (16, 16_384, 105, [12_948] * 4), (16, 4_096, 33, [3_264] * 4), (16, 1_000, 15, [819, 831, 831, 819])])
def test_words_of_gateware(width, length, packets, words):
    """All-reduces have the packet and word counts of four simulated nodes with segments of 256."""
    gradients = numbers(0, (4, length))
    sent = collective_packets(gradients, width=width, operation="ALL_REDUCE")
    assert [len(each) for each in sent] == [packets] * 4
    assert [sum(len(packet.words) + ring.PACKET_OVERHEAD for packet in each) for each in sent] == words
    assert ring.all_reduce(gradients, gradient_codec=CODECS[f"sum{width}"])[1].words.tolist() == words


@pytest.mark.parametrize(("width", "segment", "packets", "ratio"), [
    (32, 256, 105, 1.0098), (32, 512, 57, 1.0088), (16, 256, 105, 0.5098), (16, 512, 57, 0.5088)])
def test_words_of_an_all_reduce(width, segment, packets, ratio):
    """In an all-reduce of 16,384 elements, each of four nodes sends the stated number of words relative to raw words.
    """
    nodes, length = 4, 16_384
    gradients = numbers(0, (nodes, length))
    codec = CODECS[f"sum{width}"]
    sent = collective_packets(gradients, width=width, operation="ALL_REDUCE", segment=segment)
    assert [len(each) for each in sent] == [packets] * nodes
    traffic = ring.all_reduce(gradients, gradient_codec=codec, segment=segment)[1]
    words = traffic.words - packets * ring.PACKET_OVERHEAD
    raw = 2 * (nodes - 1) * length // nodes
    print(f"sum{width}, segments of {segment}: {words.max() / raw:.4f} of raw words")
    assert (words == words[0]).all()
    assert round(words.max() / raw, 4) == ratio
