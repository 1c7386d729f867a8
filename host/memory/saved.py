"""Chains of the maps that programs save from forward to backward, with modelled cycles of their steps.

A map of a program of steps is a buffer of more than one column that is written before the turn, which is the last
step of the loss, and read behind it. Row vectors, of one column, are kept beside it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from host.memory.chain import Chain, Map
from host.memory.steps import StepProgram, product_cycles

__all__ = ["AGAIN", "Saved", "chain_of", "layers_chain"]

#: End of the name of a buffer that backward makes again; the one without it has the same bits.
AGAIN = " again"


class _Touches(Protocol):
    """A step, or an operation: names of the buffers that it touches."""

    @property
    def reads(self) -> tuple[str, ...]: ...

    @property
    def writes(self) -> tuple[str, ...]: ...


class Saved:
    """Maps that a program saves, and the steps that write and read them.

    Parameters
    ----------
    steps : sequence
        Steps in order, which have names of buffers as ``reads`` and ``writes``.
    turn : str
        Buffer that the last step of the loss writes.
    vectors, given : collection of str
        Buffers that are no maps, and those that are always there.

    Members
    -------
    turn : int
        Last step of the loss.
    maps : list of str
        Names of the maps, in the order of forward.
    beside : set of str
        Buffers that are saved and are no maps.
    """

    def __init__(self, steps: Sequence[_Touches], turn: str, *, vectors: Collection[str],
                 given: Iterable[str] = ()):
        self._steps = steps
        self.turn = max(number for number, step in enumerate(steps) if turn in step.writes)
        self._writers: dict[str, list[int]] = {}
        last: dict[str, int] = {}
        for number, step in enumerate(steps):
            for name in step.writes:
                self._writers.setdefault(name, []).append(number)
            last |= dict.fromkeys(step.reads, number)
        across = [name for name, numbers in self._writers.items() if numbers[0] < self.turn < last.get(name, 0)]
        ends = {name: max(number for number in self._writers[name] if number < self.turn) for name in across}
        self.maps = sorted((name for name in across if name not in vectors), key=lambda name: ends[name])
        self.beside = {name for name in across if name in vectors}
        self._there = {*across, *given}
        self._number = {name: number for number, name in enumerate(self.maps)}
        self._begins = [0, *(ends[name] + 1 for name in self.maps)]
        freed = [last[name] for name in self.maps]
        self._lasts = [len(steps) - 1, *(max(freed[number:]) for number in range(1, len(freed)))]

    @property
    def loss(self) -> range:
        """Steps between the last forward and the first backward."""
        return range(self._begins[-1], self.turn + 1)

    def forward(self, number: int) -> range:
        """Steps of a map's forward, from the map before it on."""
        return range(self._begins[number], self._begins[number + 1])

    def backward(self, number: int) -> range:
        """Steps of a map's backward, up to the last that reads it."""
        behind = self._lasts[number + 1] if number + 1 < len(self._lasts) else self.turn
        return range(behind + 1, self._lasts[number] + 1)

    def again(self, name: str) -> list[int]:
        """Steps that make a buffer again from what is saved and given, in an order in which they can run."""
        found: list[int] = []
        twin = name + AGAIN
        for writer in self._writers[name if name in self._there or twin not in self._writers else twin]:
            for read in self._steps[writer].reads:
                if read not in self._there and read != name:
                    found += [one for one in self.again(read) if one not in found]
            found.append(writer)
        return found

    def earlier(self, steps: Iterable[int], number: int) -> tuple[int, ...]:
        """Maps before a map that steps read."""
        read = {self._number.get(name, number) for step in steps for name in self._steps[step].reads}
        return tuple(sorted(one for one in read if one < number))

    def chain(self, name: str, *, words: Callable[[str], int], cycles: Callable[[Sequence[int]], int],
              multiplications: Callable[[int], int]) -> Chain:
        """Chain of the maps.

        Parameters
        ----------
        words, multiplications : callable
            Words of a buffer, and multiply-adds of a step.
        cycles : callable
            Cycles of steps that run one behind the other.
        """
        maps = []
        for number, one in enumerate(self.maps):
            forward, backward, again = self.forward(number), self.backward(number), self.again(one)
            maps.append(Map(
                name=one, words=words(one), forward=cycles(forward), backward=cycles(backward), again=cycles(again),
                multiplications=sum(map(multiplications, again)), sources=self.earlier(forward, number),
                needs=self.earlier(again, number), reads=self.earlier(backward, number)))
        return Chain(name, tuple(maps), loss=cycles(self.loss), loss_reads=self.earlier(self.loss, len(self.maps)))


def chain_of(program: StepProgram, *, name: str, turn: str) -> Chain:
    """Chain of what is written before the step which writes the buffer ``turn``, and read behind it."""
    steps = program.steps
    saved = Saved(steps, turn, given=program.given,
                  vectors=[buffer for buffer, (_, columns) in program.shapes.items() if columns == 1])
    return saved.chain(name, words=program.profile.words.__getitem__,
                       cycles=lambda found: sum(steps[step].cycles for step in found),
                       multiplications=lambda step: steps[step].multiplications)


def layers_chain(count: int, *, width: int, examples: int, outputs: int = 10) -> Chain:
    """Chain of equal layers, with a product forward and two backward, and an output layer at the turn."""
    forward = product_cycles(examples, width, width)
    one = Map(examples * width, forward, 2 * forward, examples * width ** 2)
    return Chain(f"{count} maps of {width}, batch {examples}", (one,) * count,
                 loss=product_cycles(examples, width, outputs, count=3))
