"""Parts of the datapath that agree on exponents and sum integers, with several addends on each node.

The addends of a node are read group by group. Maxima of exponents and sums of integers do not depend on the
distribution of addends among nodes.
"""

import dataclasses

from hdl.features.microbatches.addend_adder import AddendAdder
from hdl.features.microbatches.fields import AddendMaximum, FieldRepeater
from hdl.features.microbatches.group_jobs import GroupJobs
from hdl.features.reproducible import exponents_part, integer_sum
from hdl.features.reproducible.exponents import MAX_GROUPS, ExponentScan, FieldReader
from hdl.features.reproducible.exponents_part import Exponents
from hdl.features.reproducible.integer_sum import IntegerSum
from hdl.features.reproducible.quantizer import Quantizer
from hdl.features.reproducible.rows import RowNarrower
from hdl.features.reproducible.sequences import SUMS, groups_of, has_ahead
from hdl.ring.parts.part import Instruction
from hdl.row_transfer import RowReader
from hdl.streams.stream import connect_stream

__all__ = ["MicrobatchExponents", "MicrobatchSum", "describe_exponents", "describe_sums"]

_GROUPS = range(MAX_GROUPS + 1)


def _groups_ahead(record, setup):
    return groups_of(record.ahead)


def _groups(record, setup):
    return groups_of(record.length)


def _with(description, component, instruction):
    return dataclasses.replace(description, component=component,
                               instructions=(*description.instructions, instruction))


def describe_exponents(config):
    """Return the :class:`~hdl.ring.parts.part.PartDescription` of the part that exchanges exponents."""
    # Number of groups of each scan.
    return _with(exponents_part.describe(config), MicrobatchExponents,
                 Instruction("scanned_groups", SUMS, _GROUPS, _groups_ahead, present=has_ahead))


def describe_sums(config):
    """Return the :class:`~hdl.ring.parts.part.PartDescription` of the part that sums integers."""
    # Number of groups of each packet of sums of the node's own addends.
    return _with(integer_sum.describe(config), MicrobatchSum,
                 Instruction("added_groups", SUMS, _GROUPS, _groups))


def _reader(part, m, config, jobs):
    """Reader of the groups of all addends of packets, whose jobs arrive at ``jobs``."""
    rows = config.memories.gradient // config.lanes
    m.submodules.group_jobs = groups = GroupJobs(rows=rows, lanes=config.lanes, elements=config.segment)
    m.submodules.reader = reader = RowReader(rows=rows, lanes=config.lanes, elements=config.segment, gradients=True)
    connect_stream(m, jobs, groups.i)
    connect_stream(m, groups.o, reader.job)
    m.d.comb += [groups.addends.eq(part.setup.addends), groups.distance.eq(part.setup.distance),
                 groups.pitch.eq(part.setup.pitch)]
    return reader


class MicrobatchExponents(Exponents):
    """Exchange the exponents of all addends with the other nodes."""

    def _scan(self, m):
        config = self._config
        reader = _reader(self, m, config, self.scan_job)
        m.submodules.scan = scan = ExponentScan(lanes=config.lanes)
        m.submodules.addend_maximum = maximum = AddendMaximum()
        connect_stream(m, reader.o, scan.i)
        connect_stream(m, scan.o, maximum.i)
        connect_stream(m, self.scanned_groups, maximum.groups)
        m.d.comb += maximum.addends.eq(self.setup.addends)
        self._connect_read(m, reader, "gradients")
        return maximum.o


class MicrobatchSum(IntegerSum):
    """Sum the integers of the node's addends, add them to packets, and round complete sums.

    Reading, quantizing and adding take a cycle for each word of each addend.
    """

    def _quantized(self, m, agreed):
        config, width = self._config, self._width
        reader = _reader(self, m, config, self.summing_job)
        m.submodules.narrower = narrower = RowNarrower(lanes=config.lanes, slice_lanes=32 // width)
        m.submodules.quantizer = quantizer = Quantizer(width=width)
        m.submodules.fields = fields = FieldReader()
        m.submodules.repeater = repeater = FieldRepeater()
        m.submodules.addend_adder = adder = AddendAdder(width=width)
        for source, sink in ((self.summed_groups, fields.groups), (agreed, fields.i), (fields.o, repeater.i),
                             (reader.o, narrower.i), (narrower.o, quantizer.i), (repeater.o, quantizer.fields),
                             (quantizer.o, adder.i), (self.added_groups, adder.groups)):
            connect_stream(m, source, sink)
        m.d.comb += [
            quantizer.spare.eq(self.setup.spare),
            repeater.addends.eq(self.setup.addends),
            adder.addends.eq(self.setup.addends),
            self.pulses.local_nan.eq(reader.nan),
        ]
        self._connect_read(m, reader, "gradients")
        # The check has failed for the packet that waits for its last word.
        return adder.o, adder.wrong & adder.o.ready
