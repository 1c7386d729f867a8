"""Ways to damage files of any kind, JSON, and zip archives of arrays."""

import functools
import io
import json
import struct
import zipfile
import zlib

import numpy as np


def flip(data, rng):
    """Flip up to eight bits of a file."""
    damaged = bytearray(data)
    for bit in rng.integers(len(damaged) * 8, size=rng.integers(1, 9)) if damaged else ():
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def truncate(data, rng):
    return data[:rng.integers(len(data) + 1)]


def zero(data, rng):
    """Overwrite a range of bytes with zeros."""
    start, end = sorted(rng.integers(len(data) + 1, size=2))
    return data[:start] + bytes(int(end - start)) + data[end:]


def double(data, rng):
    """Duplicate a range of bytes."""
    start, end = sorted(rng.integers(len(data) + 1, size=2))
    return data[:end] + data[start:]


def swap(data, rng):
    """Swap two ranges of bytes."""
    a, b, c = sorted(rng.integers(len(data) + 1, size=3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def replace(data, rng):
    """Replace a range of bytes with random bytes, some of them invalid UTF-8."""
    start = rng.integers(len(data) + 1)
    return data[:start] + rng.bytes(int(rng.integers(1, 64))) + data[start + rng.integers(64):]


def inflate(data, rng):
    """Overwrite a field of 2, 4 or 8 bytes with a large value."""
    size = int(rng.choice([2, 4, 8]))
    start = int(rng.integers(max(1, len(data) - size)))
    value = [(1 << 8 * size) - 1, (1 << 8 * size - 1) - 1, 1 << 8 * size - 4][rng.integers(3)]
    return data[:start] + value.to_bytes(size, ["little", "big"][rng.integers(2)]) + data[start + size:]


def extend(data, rng):
    return data + rng.bytes(int(rng.integers(1, 4096)))


ANY = [flip, flip, truncate, zero, double, swap, replace, inflate, extend]

#: JSON texts that can replace a value in a file.
VALUES = [b"null", b"true", b"-1", b"0", b"1.5", b'""', b"[]", b"{}", b"NaN", b"Infinity", b"1e400", b"-1e308",
          b"18446744073709551616", b"9" * 30, b"9" * 4300, b"9" * 100_000, b'"\\ud800"', b'"\xff"',
          b'"\\u0000\\u001b[31m"', b"[" * 50 + b"]" * 50, b"[" * 100_000, b'{"a":' * 100_000,
          b'"' + b"a" * 1_000_000 + b'"', b"[[]]", b'{"":{}}',
          b"[" + b"[]," * 300_000 + b"[]]", b"[" + b"0," * 300_000 + b"0]"]


def _paths(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _paths(child, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def json_value(data, rng):
    """Replace a value in a JSON file."""
    value = json.loads(data)
    paths = list(_paths(value))
    path = paths[rng.integers(len(paths))]
    if not path:
        return VALUES[rng.integers(len(VALUES))]
    _at(value, path[:-1])[path[-1]] = "@@here@@"
    return json.dumps(value).encode().replace(b'"@@here@@"', VALUES[rng.integers(len(VALUES))])


def json_key(data, rng):
    """Remove, duplicate, add or rename a key of a JSON object, or remove or duplicate an item of a list."""
    value = json.loads(data)
    paths = [path for path in _paths(value) if path]
    path = paths[rng.integers(len(paths))]
    parent, key = _at(value, path[:-1]), path[-1]
    kind = rng.integers(3)
    if isinstance(parent, list):
        item = parent.pop(key)
        if kind:
            parent += [item] * int(rng.choice([2, 1000]))
    elif kind == 0:
        del parent[key]
    elif kind == 1:
        parent["another"] = parent.pop(key)
    else:
        parent["@@twice@@"] = parent[key]
    return json.dumps(value).encode().replace(b'"@@twice@@"', json.dumps(key).encode())


def json_number(data, rng):
    """Change the value, sign or magnitude of a number in a JSON file."""
    value = json.loads(data)
    paths = [path for path in _paths(value) if path and type(_at(value, path)) in (int, float)]
    if not paths:
        return flip(data, rng)
    path = paths[rng.integers(len(paths))]
    parent, key = _at(value, path[:-1]), path[-1]
    parent[key] = [parent[key] + 1, -parent[key], parent[key] * 1000, 2**31, 2**63, 0, 1e39, str(parent[key])][
        rng.integers(8)]
    return json.dumps(value).encode()


JSON = [*ANY, json_value, json_value, json_value, json_key, json_key, json_number]


def _members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def _archive(members):
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return text.getvalue()


def npy(array):
    text = io.BytesIO()
    np.save(text, array, allow_pickle=True)
    return text.getvalue()


def archive_swap(data, rng):
    """Swap the names of two archive members."""
    members = _members(data)
    contents = list(members.values())
    rng.shuffle(contents)
    return _archive(zip(members, contents, strict=True))


def archive_names(data, rng):
    """Remove, add, duplicate or rename archive members."""
    members = list(_members(data).items())
    chosen = int(rng.integers(len(members)))
    name, content = members[chosen]
    match rng.integers(5):
        case 0:
            del members[chosen]
        case 1:
            members.append(("another.npy", content))
        case 2:
            members.append((f"../{name}", content))
        case 3:
            members[chosen] = (name.removesuffix(".npy"), content)
        case _:
            members += [(f"{number}.{name}", content[:20]) for number in range(5000)]
    return _archive(members)


ARRAYS = [np.array([{}], object), np.zeros(3, np.float16), np.array(np.nan, np.float32), np.array(np.inf),
          np.array(""), np.full((4, 4), np.nan, np.float32), np.array(-1), np.array(2**63 - 1), np.array(b"bytes"),
          np.zeros((0, 3)), np.zeros((1,) * 30), np.array(1 + 1j), np.array("x" * 10_000),
          np.array("\udfff\x1b[31m"), np.zeros(2, "V3"), np.zeros(2, [("a", "<i4")]),
          np.array("2020", "datetime64[Y]"), np.asfortranarray(np.eye(3, dtype=np.uint8)), np.arange(5, dtype=">i8")]


def archive_array(data, rng):
    """Change the type, shape or values of an array in an archive."""
    members = _members(data)
    name = list(members)[rng.integers(len(members))]
    array = ARRAYS[rng.integers(len(ARRAYS))]
    if rng.integers(2):
        old = np.load(io.BytesIO(members[name]))
        other = np.ones(old.shape, ["f4", "f8", "i8", "u1", "U8"][rng.integers(5)])
        array = [other, old[None], old.repeat(2), old.ravel()[:-1], old.T][rng.integers(5)]
        if array.dtype.kind == "f" and array.size and rng.integers(2):
            array = array.copy()
            array.flat[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -1e38, 1e-45])
    return _archive({**members, name: npy(array)}.items())


def archive_header(data, rng):
    """Make an array's header invalid, or make it declare an excessive size."""
    members = _members(data)
    name = list(members)[rng.integers(len(members))]
    shape = [b"(1152921504606846976,)", b"(4294967295,)", b"(1000000000, 1000000000)", b"(-1,)", b"(" * 500,
             b"(0, 99999999999)", b"('a',)", b"(1,) + (2,)"][rng.integers(8)]
    header = b"{'descr': '" + rng.choice([b"<f4", b"|O", b"<U0", b"<z9", b"<f3"]) + (
        b"', 'fortran_order': False, 'shape': " + shape + b", }\n")
    length = int(rng.choice([len(header), 65535, 4]))
    content = b"\x93NUMPY" + bytes([int(rng.choice([1, 2, 3, 9])), 0]) + struct.pack("<H", length) + header
    return _archive({**members, name: content}.items())


@functools.cache
def _zeros(size):
    """Return a deflated run of ``size`` zeros, compressed 1 MB at a time."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)), packer.flush()])


def archive_bomb(data, rng):
    """Create a small file holding a 300 MB array that declares its true size or a different one."""
    members = _members(data)
    name, size = list(members)[rng.integers(len(members))], 300 << 20
    return _stored({**members, name: b""}, name, _zeros(size), int(rng.choice([size, 1000, 0xFFFFFFF0])))


def _stored(members, name, packed, declared):
    """A handmade zip archive with one deflated member that declares the given size."""
    parts, directory, offset = [], [], 0
    for member, content in members.items():
        body, size, method = (packed, declared, 8) if member == name else (content, len(content), 0)
        label = member.encode()
        fields = struct.pack("<HHHHHLLLHH", 20, 0, method, 0, 33, zlib.crc32(content), len(body), size, len(label),
                             0)
        parts += [b"PK\3\4", fields, label, body]
        where = struct.pack("<HHHLL", 0, 0, 0, 0, offset)
        directory.append(b"PK\1\2" + struct.pack("<H", 20) + fields + where + label)
        offset += 4 + len(fields) + len(label) + len(body)
    index = b"".join(directory)
    return b"".join([*parts, index, b"PK\5\6", struct.pack("<HHHHLLH", 0, 0, len(members), len(members), len(index),
                                                           offset, 0)])


def archive_sizes(data, rng):
    """Change a size, count or offset declared in an archive's directory or in a member's header."""
    damaged = bytearray(data)
    mark, field = [(b"PK\1\2", 24), (b"PK\1\2", 20), (b"PK\3\4", 22), (b"PK\5\6", 10), (b"PK\5\6", 12),
                   (b"PK\5\6", 16), (b"PK\1\2", 42)][rng.integers(7)]
    positions = [position for position in range(len(data) - 60) if data[position:position + 4] == mark]
    if mark == b"PK\5\6":
        positions = [data.rfind(mark)]
    position = positions[rng.integers(len(positions))] + field
    damaged[position:position + (2 if field == 10 else 4)] = [b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0"][
        rng.integers(3)][:2 if field == 10 else 4]
    return bytes(damaged)


def archive_flags(data, rng):
    """Mark archive members as encrypted or as compressed with another method."""
    damaged = bytearray(data)
    for mark, field in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        position = data.find(mark) + field
        damaged[position:position + 4] = struct.pack("<HH", int(rng.choice([0, 1, 1 << 11, 0xFFFF])),
                                             int(rng.choice([0, 8, 9, 12, 14, 99])))
    return bytes(damaged)


ARCHIVE = [*ANY, archive_swap, archive_names, archive_array, archive_array, archive_header, archive_header,
           archive_bomb, archive_sizes, archive_sizes, archive_flags]
