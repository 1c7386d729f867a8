"""A step is repeated if its sums do not match their checksums."""

import dataclasses

import pytest

from hdl.control.protocol import EventFlag, EventStatus
from host.driver.command import Event
from host.driver.diagnosis import RingError
from host.training.record import TrainingConfig
from host.training.trainer import train
from tests.host.golden import GoldenRing
from tests.present import needs

needs("reproducible", what="A sum of integers")

WRONG = Event(tag=1, status=EventStatus.WRONG_SUM, flags=EventFlag(0), detail=0x0201_0003, cycles=0, weight_version=0)


@pytest.mark.parametrize("failures", [1, 3])
def test_repeated(few, monkeypatch, failures):
    """The weights and the other figures are the same as in a run without faults; the report counts repetitions."""
    config, outcomes = TrainingConfig(max_steps=3, hidden=(), batch=20), []
    for wrong in (0, failures):
        ring, said, left = GoldenRing(3, gradient_codec="sum32"), [], [wrong]
        update = ring.collectives.fused_update

        def fail_first(length, update=update, left=left):
            outcome = update(length)  # the result of this update is ignored in failed calls
            if left[0]:
                left[0] -= 1
                raise RingError("fused-update failed", cause=2, events=[None, None, WRONG])
            return outcome

        monkeypatch.setattr(ring.collectives, "fused_update", fail_first)
        training = train(ring, few, config, on_repeat=said.append)
        assert training.repeats == len(said) == training.steps[0].repeats == wrong
        weights = ring.memory.read_weights(training.parameters)
        outcomes.append((weights.tobytes(), [dataclasses.replace(step, repeats=0) for step in training.steps]))
    assert outcomes[0] == outcomes[1]
