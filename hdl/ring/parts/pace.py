"""Options that adapt memory readers and row converters to the width of the optimizer's beats."""

from hdl.optimizer.slices import RowJoiner, RowSplitter
from hdl.row_transfer import LATE_READER, RowReader
from hdl.streams.stream import connect_stream

__all__ = ["beat_lanes", "join", "reader_options", "split"]


def beat_lanes(config):
    """Return the number of elements per beat of the optimizer.

    If an optimizer takes several cycles per beat, its beats and buffers are only as wide as its arithmetic.
    """
    return config.lanes if config.optimizer.interval == 1 else config.optimizer.lanes


def reader_options(config, memory):
    """Return options for a memory's :class:`~hdl.row_transfer.RowReader` that matches the optimizer's pace.

    With a slow optimizer, it is enough to start reading a row when the previous one has been accepted, unless the
    memory may delay its responses.
    """
    if memory in config.far_bases:
        return LATE_READER
    parts = config.lanes // beat_lanes(config)
    slow = config.lanes >= RowReader.latency and parts + RowReader.latency + 1 <= parts * config.optimizer.interval
    return {"depth": 1} if slow else {}


def split(m, config, name, sink):
    """Return a stream of rows, split into beats for one of the optimizer's sinks."""
    if beat_lanes(config) == config.lanes:
        return sink
    m.submodules[f"{name}_splitter"] = splitter = RowSplitter(lanes=config.lanes, slice_lanes=beat_lanes(config))
    connect_stream(m, splitter.o, sink)
    return splitter.i


def join(m, config, name, source):
    """Join the beats from one of the optimizer's sources into memory rows, and return the stream of rows."""
    if beat_lanes(config) == config.lanes:
        return source
    m.submodules[f"{name}_joiner"] = joiner = RowJoiner(lanes=config.lanes, slice_lanes=beat_lanes(config))
    connect_stream(m, source, joiner.i)
    return joiner.o
