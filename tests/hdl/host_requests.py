"""Send requests to a node's host port and collect the responses."""

import numpy as np

from hdl.control.protocol import DESCRIPTOR_WORDS, Opcode, header_layout
from hdl.streams.stream import word_layout
from host.driver.command import Command, Event
from sim.payload import to_int
from sim.streams import stall_array
from sim.verilated.vectors import Feed, pack
from tests.traces import taken


def request(opcode, count, *words):
    """Words of a request packet."""
    header = to_int(header_layout(), {"opcode": opcode, "tag": 9, "count": count})
    return [header, *(int(word) for word in words)]


def push(**fields):
    """Words of a request that pushes a command to the queue."""
    return request(Opcode.PUSH_COMMAND, DESCRIPTOR_WORDS, *Command(**fields).words())


def event(response):
    """Decode the event in a response."""
    return Event.from_words(np.array(response[2:], np.uint32))


def exchange(node, *requests, pattern="none", seed=0, cycles):
    """Send requests one after another to a node; return the responses."""
    words = [word for packet in requests for word in packet]
    last = [n == len(packet) - 1 for packet in requests for n in range(len(packet))]
    trace = node.lockstep(
        sources={"host_i": Feed(pack(word_layout(), {"data": np.array(words, np.uint32), "last": np.array(last)}),
                                willing=stall_array(pattern, cycles, seed=seed))},
        sinks={"host_o": stall_array(pattern, cycles, seed=seed + 1)})
    _, beats = taken(trace, "host_o", word_layout())
    ends = np.flatnonzero(beats["last"]) + 1
    return [response.tolist() for response in np.split(beats["data"], ends)[:-1]]
