"""Layer streaming: docs/streaming.md."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from host.feature import Feature

if TYPE_CHECKING:
    from host.run.schedule import Schedule

__all__ = ["FEATURE", "StreamingFeature"]


class StreamingFeature(Feature):
    """Feature for training with a server that streams layers to workers."""

    not_golden = "Roles of layer streaming", "microbatches are chosen by measured cycles"

    def schedules(self) -> "Iterable[type[Schedule]]":
        from host.features.streaming.schedule_section import Streaming

        return (Streaming,)


FEATURE = StreamingFeature()
