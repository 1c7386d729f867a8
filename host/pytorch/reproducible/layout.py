"""Layout of tensors in a flat vector, where each tensor starts a new group of elements."""

from collections.abc import Sequence

import torch

from host.pytorch.reproducible.arithmetic import GROUP

__all__ = ["Layout", "check_tensors", "zeros"]


def zeros(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a vector of zeros that is a normal tensor, even if it is created in inference mode."""
    with torch.inference_mode(False):
        return torch.zeros(length, dtype=dtype, device=device)


def check_tensors(tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError unless all tensors are dense, of type binary32 and on the same device."""
    if not tensors:
        raise ValueError("Tensors must be given: at least one")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Tensors must be of torch.Tensor, not {type(tensor).__name__}")
        if hasattr(tensor, "to_local"):
            raise ValueError("Tensors must not be distributed: give to_local() of each")
        if tensor.dtype != torch.float32 or tensor.layout != torch.strided:
            raise ValueError(f"Tensors must be dense and of torch.float32, not {tensor.layout} of {tensor.dtype}")
        if tensor.device != tensors[0].device:
            raise ValueError(f"Tensors must be on one device, not on {tensors[0].device} and {tensor.device}")


class Layout:
    """Layout of tensors of certain shapes in a flat vector of whole groups.

    Attributes
    ----------
    length : int
        Number of elements of the vector, including the padding of each tensor's last group.
    shapes : list of torch.Size
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        check_tensors(tensors)
        self.shapes = [tensor.shape for tensor in tensors]
        self._starts = [0]
        for tensor in tensors:
            self._starts.append(self._starts[-1] + -(-tensor.numel() // GROUP) * GROUP)
        self.length = self._starts[-1]
        self.device = tensors[0].device

    @property
    def key(self) -> tuple[object, ...]:
        """Hashable value that is the same for equal layouts."""
        return self.device, tuple(map(tuple, self.shapes))

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ValueError unless tensors have the shapes and the device of this layout."""
        check_tensors(tensors)
        if [tensor.shape for tensor in tensors] != self.shapes or tensors[0].device != self.device:
            raise ValueError("Tensors of all addends must have the shapes and the device of their sum")

    def vector(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a vector of zeros with the layout's length."""
        return zeros(self.length, dtype, self.device)

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a vector's parts, with the shapes of the tensors."""
        return [vector[start:start + shape.numel()].view(shape)
                for start, shape in zip(self._starts, self.shapes, strict=False)]

    def gather(self, tensors: Sequence[torch.Tensor], vector: torch.Tensor) -> None:
        """Copy tensors into a vector; the padding between them is not changed."""
        torch._foreach_copy_(self.views(vector), [tensor.detach() for tensor in tensors])

    def scatter(self, vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the parts of a vector into tensors."""
        torch._foreach_copy_([tensor.detach() for tensor in tensors], self.views(vector))

    def direct(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return a flat view of a single contiguous tensor that consists of whole groups; otherwise None."""
        if len(tensors) == 1 and tensors[0].is_contiguous() and self.length == tensors[0].numel():
            return tensors[0].detach().view(-1)
        return None
