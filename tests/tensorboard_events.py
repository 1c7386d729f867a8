"""Scalars in event files, read as TensorBoard does: after a restart, earlier values of later steps are discarded."""

import struct

from tensorboardX.proto.event_pb2 import Event, SessionLog


def _crc32c(data):
    """CRC-32C checksum, masked as in record files."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _records(path):
    data = path.read_bytes()
    while data:
        length, check = struct.unpack("<QI", data[:12])
        assert check == _crc32c(data[:8])
        record, (check,) = data[12:12 + length], struct.unpack("<I", data[12 + length:16 + length])
        assert check == _crc32c(record)
        yield Event.FromString(record)
        data = data[16 + length:]


def scalars(folder):
    """Return the values of each name, keyed by step."""
    series = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in _records(path):
            if event.session_log.status == SessionLog.START:
                series = {name: {step: value for step, value in values.items() if step < event.step}
                          for name, values in series.items()}
            for value in event.summary.value:
                series.setdefault(value.tag, {})[event.step] = value.simple_value
    return {name: values for name, values in series.items() if values}
