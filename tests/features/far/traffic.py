"""Random traffic for the far memory model, and a scoreboard that checks all answers."""

import collections
import random

from sim.streams import stalls
from tests.features.far.memories_model import FarMemories, Inputs, Request


class Traffic:
    """Run the model with random requests, far memory stalls and silences, and resets of reader groups.

    Every answer is compared with the contents when the request was granted, after all writes granted earlier. After a
    group is reset, its ports get no answers to earlier requests.

    ``rows`` gives the row counts of the read ports and of the write ports. The far memory stalls in a pattern and
    answers within ``latency`` cycles. ``rates`` are the probabilities per cycle of a read and of a write at a port,
    ``resets`` the probability of a group reset; a link reset is 1/10 as likely, a silence 1/2.
    """

    def __init__(self, *, seed, model: FarMemories, rows, lanes, latency, pattern, rates=(0.5, 0.3), timeout=100,
                 resets=0.01):
        self._random, self._model, self._rows, self._lanes = random.Random(seed), model, rows, lanes
        self._latency, self._rates, self._timeout, self._resets = latency, rates, timeout, resets
        self._stalls = stalls(pattern, seed=seed)
        self._content, self._far = {}, {}  # memory contents with all writes granted or accepted so far
        self._owed = collections.deque()  # pending answers of the far memory, each with its cycle
        self._expected = [collections.deque() for _ in model.readers]
        self._cycle, self._quiet, self._away, self._held = 0, 0, [0] * model.groups, 0
        #: Numbers of delivered, dropped and made-up answers, of silences, of forgotten rows, and of rows outside
        #: windows.
        self.cycles, self.counts = [], collections.Counter()

    def run(self, cycles):
        for _ in range(cycles):
            inputs = self._inputs()
            shown = self._model.step(inputs)
            self.cycles.append((inputs, shown))
            self._check(inputs, shown)
            self._cycle += 1
        return self

    def _inputs(self):
        generator, rates = self._random, self._rates
        self._quiet = max(0, self._quiet - 1)
        self._held = max(0, self._held - 1)
        self._away = [max(0, left - 1) for left in self._away]
        if generator.random() < self._resets / 2 and not self._quiet:
            self._quiet = generator.choice([self._timeout // 2, 2 * self._timeout, 3 * self._timeout])
        if generator.random() < self._resets / 10:
            self._held = generator.choice([1, 30])
        for group in range(len(self._away)):
            if generator.random() < self._resets:
                self._away[group] = generator.choice([1, 3, 40])

        def requests(ports, rows, chance, make):
            # The host uses one memory at a time, and switches to another only when no answers are pending.
            hosts = [n for n, port in enumerate(ports) if port.host]
            host = next((n for n in hosts if ports is self._model.readers and self._expected[n]),
                        generator.choice(hosts))
            return [make(generator.randrange(size)) if generator.random() < chance and (not port.host or n == host)
                    else None for n, (port, size) in enumerate(zip(ports, rows, strict=True))]

        model, bits = self._model, 32 * self._lanes
        speaks = self._owed and self._owed[0][0] <= self._cycle and not self._quiet and (
            not self._resets or generator.random() < 0.9)
        return Inputs(
            reads=requests(model.readers, self._rows[0], rates[0], lambda row: Request(row=row)),
            writes=requests(model.writers, self._rows[1], rates[1], lambda row: Request(
                row=row, keep=generator.randrange(1, 1 << self._lanes), elements=generator.getrandbits(bits))),
            ready=next(self._stalls) and not self._quiet, answer=self._owed.popleft()[1] if speaks else None,
            abandon=[left > 0 for left in self._away], link_reset=self._held > 0, timeout=self._timeout)

    def _write(self, content, request):
        mask = sum(0xFFFFFFFF << 32 * lane for lane in range(self._lanes) if request.keep >> lane & 1)
        content[request.row] = content.get(request.row, 0) & ~mask | request.elements & mask

    def _check(self, inputs, shown):
        """Compare responses with the granted reads, and update the far memory's state."""
        model, where = self._model, f"cycle {self._cycle}"
        for n, port in enumerate(model.readers):
            wanted = self._expected[n]
            if not port.host and inputs.abandon[port.group]:
                self.counts["dropped"] += len(wanted)
                wanted.clear()  # a reader in reset ignores the response of this cycle
            elif shown.responses[n]:
                elements = wanted.popleft()
                made_up = elements is None or (port.host and shown.elements != elements)
                assert shown.elements == (0 if made_up else elements), where
                self.counts["made up" if made_up else "given"] += 1
        for n, (request, ready) in enumerate(zip(inputs.writes, shown.write_ready, strict=True)):
            if request is not None and ready:
                port = model.writers[n]
                if port.is_outside(request):
                    self.counts["outside"] += 1
                elif port.host and shown.silent:
                    self.counts["lost"] += 1
                else:
                    self._write(self._content, Request(row=port.base + request.row, keep=request.keep,
                                                       elements=request.elements))
        for n, (request, ready) in enumerate(zip(inputs.reads, shown.read_ready, strict=True)):
            if request is not None and ready:
                port = model.readers[n]
                if port.is_outside(request):
                    self.counts["outside"] += 1
                    self._expected[n].append(0)
                    continue
                dead = port.host and shown.silent
                self._expected[n].append(None if dead else self._content.get(port.base + request.row, 0))
        if shown.far is not None and inputs.ready:
            if shown.far.elements is None:
                late = self._random.randrange(1, self._latency + 1)
                at = max(self._cycle + late, self._owed[-1][0] if self._owed else 0)
                self._owed.append((at, self._far.get(shown.far.row, 0)))
            else:
                self._write(self._far, shown.far)
        elif shown.silent and inputs.link_reset and inputs.answer is None and not model.guarded:
            self.counts["forgotten"] += len(self._owed)
            self._owed.clear()
            for n, port in enumerate(model.readers):
                if not port.host:  # a link reset also resets the engines
                    self._expected[n].clear()
        self.counts["silences"] += shown.silent and not self.cycles[-2][1].silent if self._cycle else 0
