"""Encoding of messages: a bit-exact round trip, and a clear error for any invalid bytes."""

import dataclasses
import math
import random
import struct
import tracemalloc
import zlib
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pytest

from host.migration.parties import MESSAGES as OF_PARTIES
from host.pytorch.messages import MESSAGES as OF_RANKS
from host.pytorch.messages import AllReduce, Answer, Hello, Step
from host.sockets.format import HEAD, MAX_HEADER, Dimensions, MessageError, Registry, Within, length_of
from host.training.optimizers import SGD
from tests.host.sockets.values import value
from tests.refusals import refuses


def bits(value):
    """Convert a value to a form that equals another value's only if all bits and types are equal."""
    if isinstance(value, float):
        return "float", struct.pack(">d", value)
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(item) for item in value]
    if isinstance(value, dict):
        return "dict", [(bits(key), bits(item)) for key, item in value.items()]
    if dataclasses.is_dataclass(value):
        return type(value).__name__, [bits(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return type(value).__name__, value


def test_round_trip():
    """Random values of all types are encoded and decoded without any change of bits."""
    generator = random.Random(5)
    kinds = set()
    for _ in range(3000):
        message = Answer(well=generator.random() < 0.5, value=value(generator))
        kinds.add(type(message.value))
        frame = OF_RANKS.encode(message)
        assert length_of(frame) == len(frame)
        assert bits(OF_RANKS.decode(frame)) == bits(message)
    assert len(kinds) == 12
    step = Step(job=3, gradients=np.arange(5, dtype=np.float32), present=((True, False),), names=(("a", "b"),),
                optimizers=(SGD(1, momentum=np.float64(0.5)),),  # type: ignore[arg-type]
                state={"steps": [1, 2], "thresholds": {(0, 4): {"dropped": 3}}})
    result = OF_RANKS.decode(OF_RANKS.encode(step))
    assert bits(result) == bits(dataclasses.replace(step, optimizers=(SGD(1, momentum=0.5),)))
    result.gradients[0] = 7  # decoded arrays are writable


def mutated(frame, generator):
    """Change, remove or add bytes of a frame, in some cases with a valid CRC."""
    data = bytearray(frame)
    for _ in range(generator.choice([1, 1, 2, 5])):
        start = generator.randrange(len(data) + 1)
        match generator.randrange(5):
            case 0 if data:
                data[start % len(data)] = generator.randrange(256)
            case 1:
                del data[start:start + generator.choice([1, 8, 100])]
            case 2:
                data[start:start] = generator.randbytes(generator.choice([1, 8, 100]))
            case 3:
                data[start:start] = generator.choice([b"[", b"{", b"9" * 300, b"1e5", b"NaN", b'"', b"null", b"-1"])
            case 4:
                data[start:start + 8] = data[:8]
    return reframed(bytes(data), generator) if generator.random() < 0.7 else bytes(data)


def reframed(data, generator):
    """Add a matching frame header, so that the damage in the JSON header itself must be detected."""
    body = data[HEAD:]
    header = min(len(body), int.from_bytes(data[8:12], "big")) if generator.random() < 0.7 else len(body)
    lengths = struct.pack(">4sHHIQ", b"grad", 1, 0, header, len(body) - header)
    return lengths + struct.pack(">I", zlib.crc32(body, zlib.crc32(lengths))) + body


@pytest.mark.parametrize("registry", [OF_RANKS, OF_PARTIES], ids=["ranks", "parties"])
def test_any_bytes(registry):
    """Each of 10,000 random or damaged frames gives a message or ``MessageError``, and takes little memory."""
    generator = random.Random(6)
    answers = [Answer(well=True, value=value(generator)) for _ in range(60)] + [
        AllReduce(values=np.ones(4, np.float32)), Hello(rank=1, ranks=2, timeout=3.0)]
    frames = [OF_RANKS.encode(answer) for answer in answers]
    refused = []
    tracemalloc.start()
    for number in range(10_000):
        data = (generator.randbytes(generator.randrange(200)) if number % 10 == 0
                else mutated(generator.choice(frames), generator))
        try:
            registry.decode(data)
        except MessageError as error:
            refused.append(len(str(error)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(refused) > 9000
    assert max(refused) < 600
    assert peak < 20 << 20


@pytest.mark.parametrize("header", [
    b"[" * 100_000, b'{"tuple":' * 50_000, b"[]," * 9, b'{"array":["<f4",[1099511627775,1099511627775]]}',
    b'{"array":["<f4",[-1]]}', b'{"array":["O",[1]]}', b'{"bytes":-1}', b'{"bytes":true}', b'{"float":"00"}', b"1e5",
    b"9" * 5000, b"NaN", b'{"class":"system","fields":{}}', b'{"class":"Listen","fields":{"a":1}}',
    b'{"dict":[[[1],2]]}', b'{"dict":[[1,2],[1,3]]}', b'{"set":[1]}', b"null", b"\xff\xfe",
    b'{"class":"Answer","fields":{"well":1,"value":null}}', b'{"class":"SGD","fields":{}}'])
def test_headers(header):
    """A JSON header that describes no valid message is rejected even if its frame is complete."""
    lengths = struct.pack(">4sHHIQ", b"grad", 1, 0, len(header), 0)
    with pytest.raises(MessageError):
        OF_RANKS.decode(lengths + struct.pack(">I", zlib.crc32(header, zlib.crc32(lengths))) + header)


@pytest.mark.parametrize(("change", "text"), [
    ({"values": np.ones(3)}, "values of AllReduce must be an array of float32 in 1 dimension, not one of float64 in "
                             "1 dimension"),
    ({"values": np.ones((1, 3), np.float32)}, "values of AllReduce must be an array of float32 in 1 dimension, not "
                                              "one of float32 in 2 dimensions"),
    ({"job": -1}, "job of AllReduce must be int from 0 to 1.09951e+12 or None, not -1"),
    ({"job": True}, "job of AllReduce must be int from 0 to 1.09951e+12 or None, not True"),
    ({"job": "1"}, "job of AllReduce must be int from 0 to 1.09951e+12 or None, not '1'"),
])
def test_fields(change, text):
    """Encoding rejects a message with a field of the wrong type."""
    message = dataclasses.replace(AllReduce(values=np.ones(3, np.float32)), **change)
    with pytest.raises(MessageError) as caught:
        OF_RANKS.encode(message)
    assert str(caught.value) == text


def test_values():
    """Values of unsupported types and values that are nested too deeply are rejected."""
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    for wrong in ({1, 2}, object(), np.array(["a"]), 1 << 300, 1j, deep, np.zeros([1] * 9),
                  "x" * (MAX_HEADER + 1)):
        with pytest.raises(MessageError, match=r"^(Values|Arrays|Integers|Header) of a message must "):
            OF_RANKS.encode(Answer(well=True, value=wrong))
    refuses("Message must be of a class of the registry, not int", OF_RANKS.encode, 1, error=MessageError)


def test_frames():
    frame = OF_RANKS.encode(Answer(well=True, value=np.arange(9)))
    with pytest.raises(MessageError, match=r"^Frame must be of version 1, not 2: both sides need the same release$"):
        length_of(frame[:5] + b"\2" + frame[6:])
    refuses("Frame must begin with b'grad', not b'GET '", length_of, b"GET / HTTP/1.1", error=MessageError)
    with pytest.raises(MessageError, match=r"^Header of a message must have at most 4,194,304 bytes, not "):
        length_of(frame[:8] + b"\xff" + frame[9:])
    with pytest.raises(MessageError, match=r"^Frame must have the CRC of its bytes: it was damaged$"):
        OF_RANKS.decode(frame[:-1] + b"\1")
    with pytest.raises(MessageError, match=rf"^Frame must have the {len(frame)} bytes that its head names, not "):
        OF_RANKS.decode(frame[:-1])
    assert [length_of(frame[:count]) for count in (0, 3, HEAD - 1)] == [None] * 3


def test_registry():
    """Registration rejects a class with annotations that cannot be checked."""
    @dataclasses.dataclass(frozen=True)
    class Good:
        one: Annotated[float, Within(0, 1)] | None
        other: dict[str, list[tuple[int, str]]]
        bytes: bytes
        array: Annotated[npt.NDArray[np.uint8], Dimensions(2)]

    registry = Registry(Good)
    good = Good(0.5, {"a": [(1, "b")]}, b"c", np.zeros((1, 2), np.uint8))
    assert bits(registry.decode(registry.encode(good))) == bits(good)
    for change in ({"one": 1.5}, {"one": math.nan}, {"other": {"a": [(1,)]}}, {"other": {1: []}}, {"bytes": "c"},
                   {"other": {"a": ((1, "b"),)}}):
        with pytest.raises(MessageError, match=f"^{next(iter(change))} of Good must be "):
            registry.encode(dataclasses.replace(good, **change))

    @dataclasses.dataclass(frozen=True)
    class Unknown:
        one: set[int]

    @dataclasses.dataclass
    class Open:
        one: int

    with pytest.raises(TypeError, match=r"^Field one of Unknown must be annotated with kinds of values that "):
        Registry(Unknown)
    for wrong in (Open, int):
        with pytest.raises(TypeError, match=r"^Message must be a frozen dataclass, not "):
            Registry(wrong)
