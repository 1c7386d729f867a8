"""Configuration of a run with quorum updates and stragglers."""

import dataclasses
import enum

from sim.golden.features.quorum.rounds import stale_weights

__all__ = ["Late", "LateConfig", "stragglers"]


class Late(enum.Enum):
    """Treatment of late gradients, named as on the command line."""

    APPLY = "apply-late"
    WAIT = "wait"
    DROP = "drop"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateConfig:
    """Configuration of a run with stragglers."""

    #: With ``wait``, every round waits for all workers, whatever the quorum and deadline.
    late: Late = Late.APPLY
    workers: int = 4
    #: Slowdown of each straggler's computation, keyed by worker.
    slow: dict[int, float] = dataclasses.field(default_factory=lambda: {3: 4.5})
    quorum: int = 3
    #: Number of cycles after which a round that has a gradient is closed, or 0 for no deadline.
    deadline: int = 0
    #: Factor that scales a late gradient, applied once for each round that it is late.
    factor: float = 1.0
    #: Maximum number of rounds by which an applied gradient may be late.
    ages: int = 15
    #: Fraction of a worker's examples that come from the worker's own classes.
    skew: float = 0.0
    #: Number of examples per worker and round.
    batch: int = 16
    hidden: tuple[int, ...] = (64,)
    #: Constant learning rate.
    learning_rate: float = 0.05
    momentum: float = 0.9

    #: Length of the run in modelled cycles.
    cycles: int = 1_500_000
    #: Multiply-adds per cycle of each worker.
    macs: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.quorum <= self.workers:
            raise ValueError(f"Quorum must be between 1 and the workers, {self.workers}, not {self.quorum!r}")
        for worker, factor in self.slow.items():
            if not 0 <= worker < self.workers:
                raise ValueError(f"Straggler must be a worker, 0 to {self.workers - 1}, not {worker!r}")
            if not 1 <= factor <= 1000:
                raise ValueError(f"Factor of a straggler must be between 1 and 1,000, not {factor!r}")

    @property
    def weights(self) -> tuple[int, ...]:
        """Weights of late gradients in sixteenths, by age."""
        return stale_weights(self.factor, ages=self.ages if self.late is Late.APPLY else 0)

    @property
    def oldest(self) -> int:
        """Largest age at which a gradient has a nonzero weight; 0 if late gradients are not applied."""
        return sum(weight > 0 for weight in self.weights)

    @property
    def closing(self) -> int:
        """Number of on-time gradients after which a round is closed."""
        return self.workers if self.late is Late.WAIT else self.quorum

    @property
    def closing_deadline(self) -> int:
        """Number of cycles after which a round that has a gradient is closed, or 0 for no deadline."""
        return 0 if self.late is Late.WAIT else self.deadline


def stragglers(text: str) -> dict[int, float]:
    """Parse worker slowdowns such as ``3:4.5,1:2``. Raises ``ValueError`` if the string is malformed."""
    factors: dict[int, float] = {}
    for item in text.split(",") if text else ():
        worker, _, factor = item.partition(":")
        try:
            number, times = int(worker), float(factor)
        except ValueError:
            raise ValueError(f"Straggler must be a worker and its factor, as in 3:4.5, not {item!r}") from None
        if number in factors:
            raise ValueError(f"Stragglers must be different workers, not {number} twice")
        factors[number] = times
    return factors
