"""Queued commands of every engine match the model bit for bit, with any throttles on the nodes."""

import contextlib
import random

import pytest

from hdl.throttle import RATE_BITS
from tests.host.rings import library
from tests.pairs.generator import KINDS
from tests.pairs.memories import CONFIG
from tests.pairs.play import Player

FULL = 1 << RATE_BITS


class ThrottledPlayer(Player):
    """A player that sets new random throttles and delays on every node before it plays a batch."""

    def _settle(self, *, patient):
        super()._settle(patient=patient)
        choose = random.Random(self._random.getrandbits(32))
        self.settings = [*getattr(self, "settings", []), [{
            **{name: rate(choose) for name in ("THROTTLE_LINK", "THROTTLE_MEMORY", "THROTTLE_HOST")},
            "THROTTLE_COMPUTE": rate(choose) | rate(choose) << RATE_BITS,
            "DELAY_LINK": choose.choice([0, 1, 2, 17, choose.randrange(256), 255])} for _ in self._ring.devices]]
        for device, values in zip(self._ring.devices, self.settings[-1], strict=True):
            for name, value in values.items():
                device.write_register(name, value)


def rate(choose):
    """Draw a throttle rate: zero (off), or a rate from an eighth of all cycles to almost all of them."""
    return choose.choice([0, FULL - 1, FULL // 2, *(choose.randrange(FULL // 8, FULL) for _ in range(2))])


@pytest.mark.parametrize(("nodes", "settings"), [(1, 10), (2, 25), (3, 15)])
def test_same_bits(nodes, settings):
    """Throttles never change results, even if commands are aborted. 50 settings, with different throttles on each
    node, are tested."""
    with contextlib.closing(ThrottledPlayer(library(CONFIG), nodes=nodes, seed=300 + nodes)) as player:
        for _ in range(settings):
            player.batch()
        assert len(player.settings) == settings
        assert len({str(setting) for setting in player.settings}) == settings
        kinds = {kind for pair in player.generator.pairs for kind in pair}
        assert len(set(KINDS) & kinds) > len(KINDS) // 2, f"seed {player.seed}"
