"""Part that updates a node's own block: the optimizer, with readers for gradients and state."""

from amaranth.hdl import Cat, Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.burst_controller import command_layout
from hdl.optimizer.moments import MomentPacker, MomentUnpacker
from hdl.optimizer.rules import RULES, planes_used
from hdl.ring.parts.conditions import is_update
from hdl.ring.parts.pace import beat_lanes, join, reader_options, split
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, job
from hdl.ring.sequences import OWN
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["Update", "describe", "keeps_updated"]


def keeps_updated(config, setup):
    """Return whether updated weights stay on this node: in a ring of one, or on a server at the end of a chain."""
    return setup.alone | setup.chain if config.is_server else setup.alone


def _adds_local(config):
    """Return whether the optimizer adds the local gradients to sums; sums of integers already contain them."""
    return not config.adds_integers


def _is_local_update(record, setup):
    """Return whether an update includes the local gradient; a server, at the end of a chain, has none."""
    return setup.fused & ~setup.chain


def _state_jobs(config, plane):
    """Return instructions for a state plane's reader and writer; a plane that the rule does not use has no jobs."""
    def is_used(record, setup):
        return setup.fused & planes_used(setup.settings.rule, config.memories.planes)[plane]

    options = {"sequence": OWN, "memory": f"state_{plane}", "packs": True, "when": is_used}
    return (job(config, f"state_{plane}_job", **options),
            job(config, f"state_{plane}_write_job", awaited=True, **options))


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`; every node has this part."""
    planes = range(config.memories.planes)

    def burst(record, setup):
        active = Cat(~setup.alone, ~setup.chain if config.is_server else 1) if _adds_local(config) else 1
        return {"count": record.length, "active": active}

    return PartDescription(
        name="update",
        component=Update,
        instructions=(
            # Reads of the local gradient.
            *((job(config, "gradient_job", OWN, "gradients",
                   when=_is_local_update if config.is_server else is_update),) if _adds_local(config) else ()),
            # Commands for the optimizer, whose workers are the ring and the local gradient.
            Instruction("bursts", OWN, command_layout(1 + _adds_local(config), config.segment), burst,
                        when=is_update),
            # Reads and writes of state planes.
            *(instruction for plane in planes for instruction in _state_jobs(config, plane)),
        ),
        reads={**({"gradients": 1} if _adds_local(config) else {}), **{f"state_{plane}": 1 for plane in planes}},
        writes={f"state_{plane}": 1 for plane in planes},
        inputs=(
            Input("finished", Channel.COUNTED_SUMS if config.serves_formats else Channel.SUMS),
            Input("weights", Channel.WEIGHTS),
        ),
        outputs=(Output("updated", Channel.UPDATED), Output("broadcast", Channel.BROADCAST)),
        pulses=("optimizer_bursts", *(("local_nan",) if _adds_local(config) else ()), "not_finite"),
    )


class Update(Part):
    """Add the local gradient to sums, then update weights and state, segment by segment.

    If the optimizer's beats are narrower than rows, the optimizer is placed between units that split and join rows.
    """

    def __init__(self, *, config, description):
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Sums of all gradients except for the local one.
            "finished": In(rows),
            # Weights before the update.
            "weights": In(rows),
            # Weights after the update, for a memory.
            "updated": Out(rows),
            # Updated weights for the ring, in optimizer beats.
            "broadcast": Out(stream.Signature(beat_layout(beat_lanes(config)))),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup, narrow = self._config, self.setup, beat_lanes(self._config)
        segment = config.segment
        m.submodules.optimizer = optimizer = StreamedOptimizer(
            workers=1 + _adds_local(config),
            lanes=narrow,
            update_lanes=config.optimizer.lanes,
            update_interval=config.optimizer.interval,
            depth=segment,
            broadcasts=1,
            rules=tuple(rule for rule, traits in RULES.items() if traits.planes <= config.memories.planes),
            dsps=config.optimizer.dsps,
            throttled=config.has("throttles"),
        )
        if config.has("throttles"):
            m.d.comb += optimizer.rate.eq(setup.pace)
        connect_stream(m, self.bursts, optimizer.command)
        connect_stream(m, self.finished, split(m, config, "finished", optimizer.gradients[0]))
        if _adds_local(config):
            connect_stream(m, self._gradient_rows(m), split(m, config, "gradient", optimizer.gradients[1]))
        connect_stream(m, self.weights, split(m, config, "weight", optimizer.weights))
        connect_stream(m, join(m, config, "weight", optimizer.weights_out), self.updated)
        connect_stream(m, optimizer.broadcast[0], self.broadcast)
        for plane in range(config.memories.planes):
            self._connect_plane(m, plane, optimizer)
        m.d.comb += [
            optimizer.settings.eq(setup.settings),
            self.pulses.optimizer_bursts.eq(optimizer.bursts),
            self.pulses.not_finite.eq(optimizer.nonfinite),
        ]
        return m

    def _gradient_rows(self, m):
        """Create the reader of the local gradients, and return its stream of rows."""
        reader = self._read_gradients(m, self.gradient_job, name="gradient_reader",
                                      **reader_options(self._config, "gradients"))
        m.d.comb += self.pulses.local_nan.eq(reader.nan)
        return reader.o

    def _connect_plane(self, m, plane, optimizer):
        """Connect a state plane to the optimizer."""
        config, setup, name = self._config, self.setup, f"state_{plane}"
        shape = {"rows": config.memories.state // config.lanes, "lanes": config.lanes, "elements": config.segment}
        m.submodules[f"{name}_reader"] = reader = RowReader(**shape, **reader_options(config, name))
        m.submodules[f"{name}_writer"] = writer = RowWriter(**shape)
        m.submodules[f"{name}_unpacker"] = unpacker = MomentUnpacker(lanes=beat_lanes(config))
        m.submodules[f"{name}_packer"] = packer = MomentPacker(lanes=beat_lanes(config))
        m.d.comb += [
            unpacker.packed_state.eq(setup.packed_state),
            packer.packed_state.eq(setup.packed_state),
            getattr(self, f"{name}_write_job_done").eq(writer.done),
        ]
        connect_stream(m, getattr(self, f"{name}_job"), reader.job)
        connect_stream(m, getattr(self, f"{name}_write_job"), writer.job)
        connect_stream(m, reader.o, split(m, config, name, unpacker.i))
        connect_stream(m, unpacker.o, optimizer.state[plane])
        connect_stream(m, optimizer.state_out[plane], packer.i)
        connect_stream(m, join(m, config, name, packer.o), writer.i)
        self._connect_read(m, reader, name)
        self._connect_write(m, writer, name)
