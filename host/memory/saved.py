"""Chains of the maps that programs save from forward to backward, with modelled cycles of their steps.

A map of a program of steps is a buffer of more than one column that is written before the turn, which is the last
step of the loss, and read behind it. Row vectors, of one column, are kept beside it.
"""

from collections.abc import Iterable

from host.memory.chain import Chain, Map
from host.memory.steps import StepProgram, product_cycles

__all__ = ["chain_of", "layers_chain"]


class _Saved:
    """Maps that a program saves, and the steps that write and read them."""

    def __init__(self, program: StepProgram, turn: str):
        self.steps = program.steps
        self.turn = next(number for number, step in enumerate(program.steps) if turn in step.writes)
        self._writer: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, step in enumerate(program.steps):
            for name in step.writes:
                self._writer.setdefault(name, number)
            last |= dict.fromkeys(step.reads, number)
        across = [name for name, number in self._writer.items() if number < self.turn < last.get(name, 0)]
        self.maps = [name for name in across if program.shapes[name][1] > 1]
        self._there = {*across, *program.given}
        self._number = {name: number for number, name in enumerate(self.maps)}
        self.ends = [self._writer[name] for name in self.maps]
        freed = [last[name] for name in self.maps]
        self.lasts = [len(self.steps) - 1, *(max(freed[number:]) for number in range(1, len(freed)))]

    def again(self, name: str) -> set[int]:
        """Steps that make a buffer again from what is saved and given."""
        found = {self._writer[name]}
        for read in self.steps[self._writer[name]].reads:
            if read not in self._there:
                found |= self.again(read)
        return found

    def earlier(self, steps: Iterable[int], number: int) -> tuple[int, ...]:
        """Maps before a map that steps read."""
        read = {self._number.get(name, number) for step in steps for name in self.steps[step].reads}
        return tuple(sorted(one for one in read if one < number))


def chain_of(program: StepProgram, *, name: str, turn: str) -> Chain:
    """Chain of what is written before the step which writes the buffer ``turn``, and read behind it.

    Forward of a map is made of the steps from the map before it on; backward of those up to the last that reads it.
    """
    saved = _Saved(program, turn)

    def cycles(steps: Iterable[int]) -> int:
        return sum(program.steps[step].cycles for step in steps)

    maps = []
    begins = [0, *(end + 1 for end in saved.ends)]
    for number, one in enumerate(saved.maps):
        forward = range(begins[number], begins[number + 1])
        behind = saved.lasts[number + 1] if number + 1 < len(saved.lasts) else saved.turn
        backward, again = range(behind + 1, saved.lasts[number] + 1), saved.again(one)
        maps.append(Map(
            name=one, words=program.profile.words[one], forward=cycles(forward), backward=cycles(backward),
            again=cycles(again), multiplications=sum(program.steps[step].multiplications for step in again),
            sources=saved.earlier(forward, number), needs=saved.earlier(again, number),
            reads=saved.earlier(backward, number)))
    return Chain(name, tuple(maps), loss=cycles(range(begins[-1], saved.turn + 1)))


def layers_chain(count: int, *, width: int, examples: int, outputs: int = 10) -> Chain:
    """Chain of equal layers, with a product forward and two backward, and an output layer at the turn."""
    forward = product_cycles(examples, width, width)
    one = Map(examples * width, forward, 2 * forward, examples * width ** 2)
    return Chain(f"{count} maps of {width}, batch {examples}", (one,) * count,
                 loss=product_cycles(examples, width, outputs, count=3))
