"""Cycle-accurate golden models of the encoder and the decoder for a prefix code."""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import stream
from sim.golden.features.table.prefix_code import Code, PrefixCode
from tests.hdl.compression import plane_cycles

_SYMBOLS, _LONGEST = 16, 6


def _lengths(elements: npt.ArrayLike, code: Code) -> list[tuple[int, bool]]:
    """Return the code length of each element and of the end symbol, and whether each code is the escape code."""
    of = dict(zip(code.exponents, code.lengths, strict=False))
    exponents = (np.asarray(elements, np.uint32) >> 7 & 0xFF).tolist()
    escape = code.lengths[-1]
    return [(of.get(exponent, escape), exponent not in of) for exponent in exponents] + [(escape, True)]


def trace_encoder(packets: Sequence[npt.ArrayLike], codes: Sequence[Code], *, table_willing: npt.ArrayLike,
                  willing: npt.ArrayLike, ready: npt.ArrayLike) -> plane_cycles.Trace:
    """Trace an encoder cycle by cycle; the trace's ``scan`` holds the handshakes of the table stream."""
    tables = stream.Feed(6 * len(packets), table_willing)
    feed = stream.Feed(sum(len(np.asarray(packet)) for packet in packets), willing)
    output, registers = stream.Output(ready), plane_cycles.Registers(feed, 3)
    free = position = packed = 0

    def leave(cycle: int, *, count: int, end: bool) -> int:
        nonlocal packed
        packed = max(cycle, packed + 1)
        if position + count >= 32 or end:
            packed = output.load(packed)
        return packed

    for packet, code in zip(packets, codes, strict=True):
        for _ in range(6):
            free = output.load(tables.accept(max(free, output.departed))) + 1
        opened = free + _SYMBOLS
        position, packed = 0, opened - 1
        lengths = _lengths(packet, code)
        for number, (length, escape) in enumerate(lengths):
            end = number == len(lengths) - 1
            count = 8 + length + 8 * escape
            registers.beat(opened, functools.partial(leave, count=count, end=end), real=not end)
            position += count
            if end and position > 32:
                packed = output.load(packed + 1)
            position %= 32
        free = packed + 1
    tables.accept(max(free, output.departed))
    return plane_cycles.Trace(feed.valid, feed.ready, output.offered >= 0, output.offered, tables.valid, tables.ready)


def trace_decoder(packets: Sequence[npt.ArrayLike], codes: Sequence[Code], *, willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> plane_cycles.Trace:
    """Trace a decoder cycle by cycle while it receives valid packets."""
    lengths = [_lengths(packet, code) for packet, code in zip(packets, codes, strict=True)]
    code_format = PrefixCode()
    words = [code_format.words([length + 8 * escape for length, escape in packet]) for packet in lengths]
    last_words = set(np.cumsum(words) - 1)
    total = sum(words)
    feed = [*np.asarray(willing, np.bool_).tolist()]
    sink = [*np.asarray(ready, np.bool_).tolist()]
    end = len(feed)
    i_valid, i_ready = np.zeros(end, np.bool_), np.zeros(end, np.bool_)
    offered = np.full(end, -1, np.int64)
    offering = False
    taken = sent = 0  # number of accepted words and of output elements
    held = -1  # index of the input word in the register
    upper = final = pending = present = False
    out = -1
    fill = state = step = packet = 0
    # States 0 to 5 receive table words, followed by one state per symbol (16 in total), one for elements and one for
    # escapes.
    elements, escapes = 6 + _SYMBOLS, 7 + _SYMBOLS
    for cycle in range(end):
        offering = offering or (feed[cycle] and taken < total)
        output_free = sink[cycle] or out < 0
        room = output_free or not present
        take_word = state < 6 and held >= 0 and not present
        take_half = state >= elements and held >= 0 and fill < 32 and not final
        i_valid[cycle], offered[cycle] = offering, out
        i_ready[cycle] = held < 0 or take_word or (take_half and upper)
        forward = ending = False
        consumed, after = 0, state
        if state < 6:
            after = state + take_word
        elif state < elements:
            after = state + 1
        elif state == elements and fill >= 8 + _LONGEST and room:
            length, escape = lengths[packet][step]
            consumed, forward = 8 + length, not escape
            after = escapes if escape else state
            step += not escape
        elif state == escapes and fill >= 8 and room:
            consumed, forward, after = 8, True, elements
            ending = step == len(lengths[packet]) - 1
            step += 1
        # Update the registers in order from output to input.
        if output_free:
            out = sent if present else -1
            sent += present
        if room:
            present = forward and pending
        if forward:
            pending = not ending
        fill += 16 * take_half - consumed
        final = final or (take_half and upper and held in last_words)
        if ending:
            fill, final, step, packet, after = 0, False, 0, packet + 1, 0
        if i_ready[cycle]:
            held, upper = (taken, False) if offering else (-1, False)
            taken += offering
            offering = False
        elif take_half:
            upper = True
        state = after
    none = np.zeros(0, np.bool_)
    return plane_cycles.Trace(i_valid, i_ready, offered >= 0, offered, none, none)
