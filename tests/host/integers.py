"""The golden model of an int16 node as a device, for tests which need no gateware."""

import numpy as np

from hdl.config import Int16Config, Int16Memories
from hdl.control.protocol import EventFlag, EventStatus, Operation
from hdl.control.registers import COUNTERS
from host.driver.command import Event
from host.driver.ring import Ring
from sim.golden import int16_node as model


def configuration(*, gradient=1024, weight=2048, sparsify=True):
    """Configuration of a node with all operations, and room for digits without a hidden layer and their errors."""
    return Int16Config(memories=Int16Memories(gradient=gradient, weight=weight), sparsify=sparsify)


class Answer:
    def __init__(self, value=None):
        self.value = value

    def result(self):
        return self.value


class GoldenDevice:
    """The part of :class:`~host.driver.device.Device` that a ring uses.

    Parameters
    ----------
    config : Int16Config
    fault : callable
        Called with the device after each FUSED_UPDATE.
    """

    name = "node 0"
    privileged = True

    def named(self, command):
        return command

    def __init__(self, config, *, fault=lambda device: None):
        self.config = config
        self.memories = [np.full(config.memories.gradient, -21846), np.full(config.memories.weight, 0x5555)]
        self.registers = {}
        self.event = None
        self.compressed = (1 << 32) - 1000  # as if just before it wraps
        self.masked = (1 << 32) - 10
        self.updates = 0
        self.fault = fault

    def connect(self):
        pass

    def submit_write_register(self, name, value):
        assert isinstance(value, int)
        self.registers[name] = value
        return Answer()

    def submit_write_memory(self, space, address, elements):
        assert elements.dtype == np.uint32
        assert address + elements.size <= self.memories[space].size
        self.memories[space][address:address + elements.size] = model.from_words(elements)
        return Answer()

    def submit_read_memory(self, space, address, count):
        assert address + count <= self.memories[space].size
        return Answer(model.to_words(self.memories[space][address:address + count]))

    def submit_counters(self):
        return Answer({entry.name: 0 for entry in COUNTERS} | {
            "COMPRESSED_WORDS": self.compressed % (1 << 32), "ELEMENTS_MASKED": self.masked % (1 << 32)})

    def submit_push(self, command):
        command.words()
        self.event = self._run(command)
        return Answer()

    def submit_pop_event(self, timeout):
        event, self.event = self.event, None
        return Answer(event)

    def read_fields(self, name):
        return {"running": 0}

    def _run(self, command):
        assert command.gradient_base % 32 == command.weight_base % 32 == 0
        gradients = self.memories[0][command.gradient_base:][:command.length]
        weights = self.memories[1][command.weight_base:]
        assert len(gradients) == command.length
        status, detail = EventStatus.OK, 0
        if command.operation == Operation.FUSED_UPDATE:
            assert (command.rank, command.size, self.registers["OPTIMIZER"]) == (0, 1, 0)
            update = model.update(gradients, weights[:command.length],
                                  gradient_scale=self.registers["GRADIENT_SCALE"],
                                  learning_rate=self.registers["LEARNING_RATE"])
            weights[:command.length] = update.weights
            self.compressed += update.words
            self.updates += 1
            self.fault(self)
        elif command.operation == Operation.SPARSIFY:
            kept = model.sparsify(gradients, weights[:command.length], self.registers["MASK_THRESHOLD"])
            gradients[:], weights[:command.length], detail = kept.gradients, kept.errors, kept.dropped
            self.masked += detail
        elif command.operation == Operation.MASK:
            outcome = model.mask(gradients, weights, self.registers["MASK_ALTERNATIVE"])
            gradients[:], detail = outcome.elements, outcome.replaced
            self.masked += detail
            if outcome.bad is not None:
                status, detail = EventStatus.BAD_MASK, outcome.bad
        return Event(tag=command.tag, status=status, flags=EventFlag(0), detail=detail, cycles=3 * command.length,
                     weight_version=self.updates)


def golden_ring(*, fault=lambda device: None, **options):
    ring = Ring([GoldenDevice(configuration(**options), fault=fault)])
    ring.connect()
    return ring
