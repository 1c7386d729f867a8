"""Handle of a sum that the ring does while the script continues."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Answer
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

__all__ = ["RingWork"]


class RingWork(dist.Work):
    """Reduction that is done, or has failed, when the ring has answered.

    Parameters
    ----------
    tensors : sequence of Tensor
        Tensors that the sums are written to.
    answers : sequence of Future
        The ring's answers, in the order in which they come.
    finish : callable
        Writes the sums into the tensors, or raises the ring's error; called once.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], answers: Sequence["Answer[Any]"],
                 finish: Callable[[], None]) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._ended: Answer[None] = Answer()
        arrived: Future[None] = Future()

        def write(_arrived: Any) -> list[torch.Tensor]:
            try:
                finish()
            except Exception as error:
                self._ended.set_exception(error)
                raise
            self._ended.set_result(None)
            return self._tensors

        def arrive(_answer: Any) -> None:
            # In a thread of its own, since a callback of the script may wait for the next sum.
            threading.Thread(target=arrived.set_result, args=(None,)).start()

        # An error raised in a callback is an error to C++ as well; `Future.set_exception` is one in Python only.
        self._future: Future[list[torch.Tensor]] = arrived.then(write)
        if answers:
            answers[-1].add_done_callback(arrive)
        else:
            arrived.set_result(None)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the sums are in the tensors.

        Raises
        ------
        RingError
            The ring has failed.
        """
        self._ended.result()
        return True

    def synchronize(self) -> None:
        """Wait, as PyTorch does for other devices."""
        self.wait()

    def is_completed(self) -> bool:
        return self._ended.done()

    def is_success(self) -> bool:
        return self._ended.done() and self._ended.exception() is None

    def exception(self) -> BaseException | None:
        return self._ended.exception() if self._ended.done() else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> "Future[list[torch.Tensor]]":
        return self._future
