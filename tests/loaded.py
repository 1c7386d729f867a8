"""Test benches for units that must be loaded with data after a reset; see :mod:`tests.hdl.unit_bench`."""

from sim.verilated.vectors import Feed, Unit


class Loaded(Unit):
    """Unit that receives the rows of ``load``, if it has any, after each reset. This takes up to ``spare`` extra
    cycles."""

    load = None

    def __init__(self, component, *, stream="load", spare=20, **options):
        self.stream, self._spare = stream, spare
        super().__init__(component, **options)

    def reset(self):
        super().reset()
        if self.load is not None:
            count = len(self.load)
            trace = self.lockstep(sources={self.stream: Feed(self.load)}, sinks={"o": True},
                                  cycles=2 * count + self._spare)
            assert (trace[f"{self.stream}__valid"] & trace[f"{self.stream}__ready"]).sum() == count
            assert not trace["error"].any()

    def no_more(self):
        """Empty feed for the load stream, used by a run that loads nothing more."""
        return {} if self.load is None else {self.stream: self.load[:0]}
