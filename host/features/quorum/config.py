"""Description of a run of quorum updates with stragglers."""

import dataclasses
import enum

from sim.golden.features.quorum.rounds import stale_weights

__all__ = ["Late", "LateConfig", "stragglers"]


class Late(enum.Enum):
    """Ways to treat late gradients, by their names on the command line."""

    APPLY = "apply-late"
    WAIT = "wait"
    DROP = "drop"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateConfig:
    """A run with stragglers."""

    #: ``wait`` closes rounds with all workers, for any quorum and deadline.
    late: Late = Late.APPLY
    workers: int = 4
    #: Factor of the computations of each straggler.
    slow: dict[int, float] = dataclasses.field(default_factory=lambda: {3: 4.5})
    quorum: int = 3
    #: Cycles until a round with a gradient is closed; 0 for none.
    deadline: int = 0
    #: Factor of a gradient for each round that it is late.
    factor: float = 1.0
    #: Largest number of rounds by which an applied gradient is late.
    ages: int = 15
    #: Share of a worker's examples that comes from its own classes.
    skew: float = 0.0
    #: Examples of a worker in a round.
    batch: int = 16
    hidden: tuple[int, ...] = (64,)
    #: The learning rate does not change.
    learning_rate: float = 0.05
    momentum: float = 0.9

    #: Modelled cycles of the run.
    cycles: int = 1_500_000
    #: Multiply-adds per cycle of a worker.
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
        """Weights of late gradients, in sixteenths, by their age."""
        return stale_weights(self.factor, ages=self.ages if self.late is Late.APPLY else 0)

    @property
    def oldest(self) -> int:
        """Largest age of a gradient that has a weight; 0 if late gradients have none."""
        return sum(weight > 0 for weight in self.weights)

    @property
    def closing(self) -> int:
        """Gradients in time that close a round."""
        return self.workers if self.late is Late.WAIT else self.quorum

    @property
    def closing_deadline(self) -> int:
        """Cycles until a round with a gradient is closed; 0 for none."""
        return 0 if self.late is Late.WAIT else self.deadline


def stragglers(text: str) -> dict[int, float]:
    """Factors of slow workers, as in ``3:4.5,1:2``; ``ValueError`` if the text is not such a list."""
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
