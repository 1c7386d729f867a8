"""Parts of the datapath that agree on exponents and sum integers, with several addends on each node.

The addends of a node are read group by group. Maxima of exponents and sums of integers do not depend on the
distribution of addends among nodes.
"""

import dataclasses

from amaranth.lib import stream

from hdl.features.microbatches.addend_adder import AddendAdder
from hdl.features.microbatches.fields import AddendMaximum, FieldRepeater
from hdl.features.microbatches.group_jobs import GroupJobs
from hdl.features.reproducible import exponents_part, integer_sum
from hdl.features.reproducible.exponents import MAX_GROUPS
from hdl.features.reproducible.exponents_part import Exponents
from hdl.features.reproducible.field_hash import FieldHash
from hdl.features.reproducible.integer_sum import IntegerSum
from hdl.features.reproducible.layout import integers_layout, parity_of
from hdl.features.reproducible.quantizer import Quantizer
from hdl.features.reproducible.sequences import SUMS, groups_in, groups_of, has_ahead
from hdl.group import GROUP
from hdl.ring.parts.part import Instruction
from hdl.row_transfer import RowReader
from hdl.streams.stream import connect_stream

__all__ = ["MicrobatchExponents", "MicrobatchSum", "describe_exponents", "describe_sums"]

_GROUPS = range(MAX_GROUPS + 1)


def _groups_ahead(record, setup):
    return groups_of(record.ahead)


def _extended(description, component, instruction):
    return dataclasses.replace(description, component=component,
                               instructions=(*description.instructions, instruction))


def describe_exponents(config):
    """Return the :class:`~hdl.ring.parts.part.PartDescription` of the part that exchanges exponents."""
    # The added instruction gives the number of groups in each scan.
    return _extended(exponents_part.describe(config), MicrobatchExponents,
                     Instruction("scanned_groups", SUMS, _GROUPS, _groups_ahead, present=has_ahead))


def describe_sums(config):
    """Return the :class:`~hdl.ring.parts.part.PartDescription` of the part that sums integers."""
    # The added instruction gives the number of groups in each packet that holds sums of the node's own addends.
    return _extended(integer_sum.describe(config), MicrobatchSum,
                     Instruction("added_groups", SUMS, _GROUPS, groups_in))


class _AddendReader:
    """Reading of all addends of a node, group by group. :class:`GroupJobs` applies the command's pitch, so the reader
    does not have to.
    """

    def _read_gradients(self, m, jobs):
        config, setup = self._config, self.setup
        rows = config.memories.gradient // config.lanes
        m.submodules.group_jobs = groups = GroupJobs(rows=rows, lanes=config.lanes, elements=config.segment)
        m.submodules.reader = reader = RowReader(rows=rows, lanes=config.lanes, elements=GROUP, gradients=True)
        connect_stream(m, jobs, groups.i)
        connect_stream(m, groups.o, reader.job)
        m.d.comb += [groups.addends.eq(setup.addends), groups.distance.eq(setup.distance),
                     groups.pitch.eq(setup.pitch)]
        self._connect_read(m, reader, "gradients")
        return reader


class MicrobatchExponents(_AddendReader, Exponents):
    """Exchange the exponents of all addends with the other nodes."""

    def _scan(self, m):
        m.submodules.addend_maximum = maximum = AddendMaximum()
        connect_stream(m, super()._scan(m), maximum.i)
        connect_stream(m, self.scanned_groups, maximum.groups)
        m.d.comb += maximum.addends.eq(self.setup.addends)
        return maximum.o


class MicrobatchSum(_AddendReader, IntegerSum):
    """Sum the integers of the node's addends, add them to packets, and round complete sums.

    Reading, quantizing and adding take a cycle for each word of each addend, unless the memory limits reading.
    """

    def _connect_fields(self, m, agreed, fields, quantizer, hashes):
        # The quantizer and its reader can hold beats and fields of several packets, and the adder holds one more
        # packet; the hashes of all these packets may have to wait.
        m.submodules.field_hash = field_hash = FieldHash(depth=Quantizer.latency + 4)
        m.submodules.repeater = repeater = FieldRepeater()
        for source, sink in ((agreed, field_hash.i), (field_hash.hash, hashes), (field_hash.o, fields.i),
                             (fields.o, repeater.i), (repeater.o, quantizer.fields)):
            connect_stream(m, source, sink)
        m.d.comb += repeater.addends.eq(self.setup.addends)

    def _own(self, m, integers):
        m.submodules.addend_adder = adder = AddendAdder(width=self._width)
        own = stream.Signature(integers_layout(self._width, parity=True)).create()
        connect_stream(m, self.added_groups, adder.groups)
        m.d.comb += [
            adder.addends.eq(self.setup.addends),
            adder.i.valid.eq(integers.valid),
            integers.ready.eq(adder.i.ready),
            own.valid.eq(adder.o.valid),
            adder.o.ready.eq(own.ready),
            own.payload.parity.eq(parity_of(adder.o.payload)),
            *(port[name].eq(other[name]) for name in ("data", "special", "last")
              for port, other in ((adder.i.payload, integers.payload), (own.payload, adder.o.payload))),
        ]
        # `wrong` stays high. Once `o.ready` is high, the next word to be added belongs to the wrong packet, and
        # `summed_place` holds the place of this packet.
        return own, adder.wrong & adder.o.ready
