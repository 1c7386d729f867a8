"""A coupling: values of sections of a node's configuration that do not go together, and the reason."""

import dataclasses
from collections.abc import Callable

__all__ = ["Coupling"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coupling:
    """Values of sections that do not go together.

    Parameters
    ----------
    sections : tuple of str
        Names of the sections: fields of a configuration, and types of features.
    clash : callable
        Takes the values of these sections, and returns whether they are refused. A section that is not there is None.
    rule : str
        What is asked of the sections.
    reason : str
        Why.
    advice : str
        What to do.
    """

    sections: tuple[str, ...]
    clash: Callable[..., bool]
    rule: str
    reason: str
    advice: str

    @property
    def message(self) -> str:
        """Text of the error."""
        return f"{self.rule}, since {self.reason}: {self.advice}"
