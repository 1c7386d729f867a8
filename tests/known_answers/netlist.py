"""Digest of a circuit: the logic that its outputs depend on, without names, hierarchy or statement order.

The label of a cell is computed from its kind, its constants and, bit by bit, the labels of the cells that it reads.
All labels are recomputed from the previous round's labels until a round distinguishes no further cells. The digest
covers the labels of all cells that an output depends on. Barring collisions, equal digests mean equal circuits.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from amaranth.hdl import Value
from amaranth.hdl import _ast as ast
from amaranth.hdl import _ir as ir
from amaranth.hdl import _nir as nir
from amaranth.lib import wiring

__all__ = ["digest"]

_Labels = np.ndarray[Any, np.dtype[np.uint64]]

#: Fields of cells that contain names or source locations.
_NAMES = {"module_idx", "src_loc", "name", "attributes"}


def _mixed(values: _Labels) -> _Labels:
    """Hash each number to 64 bits with the SplitMix64 finalizer."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _number(what: Any) -> int:
    """Number that identifies a kind of cell and its constants, and is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


def _facts(value: Any, nets: list[nir.Net]) -> Any:
    """Describe a field of a cell, leaving out its nets. These are appended to ``nets`` in order."""
    if isinstance(value, nir.Net):
        nets.append(value)
        return "net"
    if isinstance(value, nir.Value):
        nets.extend(value)
        return ("nets", len(value))
    if isinstance(value, nir.Assignment):
        return _facts((value.start, value.cond, value.value), nets)
    if isinstance(value, nir.Format):
        return [_facts(chunk, nets) if isinstance(chunk, str) else _facts(chunk.value, nets)
                for chunk in value.chunks]
    if isinstance(value, dict):
        return [(key, _facts(value[key], nets)) for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [_facts(item, nets) for item in value]
    return repr(value)


def _ports(component: wiring.Component) -> dict[str, tuple[Value, ir.PortDirection]]:
    """Ports of a component, keyed by path, in the form that the RTLIL converter expects."""
    ports = {}
    for path, member, value in component.signature.flatten(component):
        value = value.as_value() if isinstance(value, ast.ValueCastable) else value
        direction = ir.PortDirection.Input if member.flow == wiring.In else ir.PortDirection.Output
        ports["__".join(map(str, path))] = (value, direction)
    return ports


class _Graph:
    """Cells of a netlist, with an edge from each bit of a cell to every position where it is read.

    Constants are treated as the bits of an extra cell after the last one.
    """

    def __init__(self, netlist: nir.Netlist):
        self.cells = netlist.cells
        self.constants = len(self.cells)
        self.kinds = np.zeros(self.constants + 1, np.uint64)
        self.roots: list[int] = []
        self._edges: list[tuple[int, int, int, int]] = []
        for index, cell in enumerate(self.cells):
            self._add(index, cell)
        self.reader, self.source, self.bit, self.place = np.array(self._edges, np.int64).T

    def _read(self, index: int, nets: list[nir.Net]) -> None:
        for position, net in enumerate(nets):
            source, bit = (self.constants, int(net.const)) if net.is_const else (net.cell, net.bit)
            self._edges.append((index, source, bit, position))

    def _add(self, index: int, cell: nir.Cell) -> None:
        nets: list[nir.Net] = []
        if isinstance(cell, nir.Top):
            outputs = {name: cell.ports_o[name] for name in sorted(cell.ports_o)}
            inputs = sorted((name, span) for name, span in cell.ports_i.items())
            # The order of ports determines the index of an input's first bit, so bits are numbered in the order of
            # names instead.
            self._inputs = {}
            first = 0
            for _, (start, width) in inputs:
                self._inputs.update({start + bit: first + bit for bit in range(width)})
                first += width
            facts: Any = [_facts(outputs, nets), [(name, width) for name, (_, width) in inputs]]
            self.roots.append(index)
        else:
            fields = {name: value for name, value in vars(cell).items() if name not in _NAMES}
            if isinstance(cell, (nir.AsyncReadPort, nir.SyncReadPort, nir.SyncWritePort)):
                memory = fields.pop("memory")
                write_ports = fields.pop("transparent_for", ())
                self._edges.extend((index, other, 0, -2) for other in write_ports)
                writes = isinstance(cell, nir.SyncWritePort)
                self._edges.append((memory, index, 0, -1) if writes else (index, memory, 0, -1))
            facts = [_facts(value, nets) for _, value in sorted(fields.items())]
            if not isinstance(cell, (nir.Operator, nir.Part, nir.Matches, nir.PriorityMatch, nir.AssignmentList,
                                     nir.FlipFlop, nir.Memory, nir.SyncWritePort, nir.AsyncReadPort,
                                     nir.SyncReadPort)):
                self.roots.append(index)
        self.kinds[index] = _number((type(cell).__name__, facts))
        self._read(index, nets)

    def reached(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Cells on which an output or a check depends, in order. The edges of all other cells are removed."""
        seen = np.zeros(self.constants + 1, bool)
        seen[self.roots] = True
        while True:
            more = self.source[seen[self.reader]]
            if seen[more].all():
                break
            seen[more] = True
        kept = seen[self.reader]
        self.reader, self.source, self.bit, self.place = (
            edges[kept] for edges in (self.reader, self.source, self.bit, self.place))
        first = self.source == 0
        self.bit[first] = [self._inputs[bit] for bit in self.bit[first]]
        return np.flatnonzero(seen)

    def rounds(self) -> Iterator[_Labels]:
        with np.errstate(over="ignore"):
            places = _mixed((self.place.astype(np.uint64) << np.uint64(32)) + self.bit.astype(np.uint64))
            order = np.argsort(self.reader, kind="stable")
            reader, source, places = self.reader[order], self.source[order], places[order]
            starts = np.flatnonzero(np.diff(reader, prepend=-1))
            labels = kinds = _mixed(self.kinds)
            while True:
                yield labels
                sums = np.zeros_like(labels)
                sums[reader[starts]] = np.add.reduceat(_mixed(labels[source] ^ places), starts)
                labels = _mixed(kinds + sums)


def digest(component: wiring.Component) -> dict[str, Any]:
    """Digest and number of the cells on which a component's outputs depend."""
    fragment = ir.Fragment.get(component, None)
    graph = _Graph(ir.build_netlist(fragment, ports=_ports(component), name="top"))
    cells = graph.reached()
    told, labels = 0, np.zeros(0, np.uint64)
    for labels in graph.rounds():
        classes = len(np.unique(labels[cells]))
        if classes == told:
            break
        told = classes
    text = np.sort(labels[cells]).astype("<u8").tobytes()
    return {"netlist": hashlib.sha256(text).hexdigest()[:32], "cells": len(cells)}
