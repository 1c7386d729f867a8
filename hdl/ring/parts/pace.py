"""Pace of the optimizer, and options of readers and adapters to keep up with it."""

from hdl.optimizer.slices import RowJoiner, RowSplitter
from hdl.row_transfer import LATE_READER, RowReader
from hdl.streams.stream import connect_stream

__all__ = ["beat_lanes", "join", "reader_options", "split"]


def beat_lanes(config):
    """Elements in a beat of the optimizer.

    An optimizer that takes several cycles per beat has beats and buffers as narrow as its arithmetic.
    """
    return config.lanes if config.optimizer.interval == 1 else config.optimizer.lanes


def reader_options(config, memory):
    """Options of a :class:`~hdl.row_transfer.RowReader` at a memory, which need not be faster than the optimizer.

    With a slow optimizer, it is enough to read a row when the previous one has been taken; but not from a memory that
    answers late.
    """
    if memory in config.far_bases:
        return LATE_READER
    parts = config.lanes // beat_lanes(config)
    slow = config.lanes >= RowReader.latency and parts + RowReader.latency + 1 <= parts * config.optimizer.interval
    return {"depth": 1} if slow else {}


def split(m, config, name, sink):
    """Return the stream of rows that go to a sink of the optimizer's beats."""
    if beat_lanes(config) == config.lanes:
        return sink
    m.submodules[f"{name}_splitter"] = splitter = RowSplitter(lanes=config.lanes, slice_lanes=beat_lanes(config))
    connect_stream(m, splitter.o, sink)
    return splitter.i


def join(m, config, name, source):
    """Return the stream of rows that come from a source of the optimizer's beats."""
    if beat_lanes(config) == config.lanes:
        return source
    m.submodules[f"{name}_joiner"] = joiner = RowJoiner(lanes=config.lanes, slice_lanes=beat_lanes(config))
    connect_stream(m, source, joiner.i)
    return joiner.o
