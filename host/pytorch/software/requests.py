"""Requests to a ring in software only, for parameters that ranks keep in shards."""

import dataclasses
from typing import Annotated

from host.pytorch.messages import AllReduce, Request, Vector
from host.sockets.format import Dimensions

__all__ = ["GatherShards", "KeptAllReduce", "ReduceShards"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptAllReduce(AllReduce):
    """Request to sum one vector per rank, with residuals that the rank keeps itself."""

    # coding errors of this rank, which are added and then replaced; None to keep none
    residuals: Vector | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shards(Request):
    """Request for a vector of one shard per rank. Ranks on which the shards differ in length have other titles."""

    values: Annotated[Vector, Dimensions(1)]
    ranks: int
    group: int = 0  # number of the process group, counted in order of creation

    def _text(self, operation: str) -> str:
        where = f" in group {self.group}" if self.group else ""
        return f"{operation} of {self.ranks} shards of {self.values.size // self.ranks:,} elements{where}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReduceShards(_Shards):
    """Request to sum vectors of one shard per rank; each rank gets the sum of its own shard."""

    residuals: Vector | None = None  # as in :class:`KeptAllReduce`

    @property
    def title(self) -> str:
        return self._text("a reduce-scatter")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatherShards(_Shards):
    """Request to replace each shard of the vector by its rank's, as the codec of weights returns it."""

    @property
    def title(self) -> str:
        return self._text("an all-gather")
