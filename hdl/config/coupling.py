"""Incompatible values of sections of a node's configuration, and the reason."""

import dataclasses
from collections.abc import Callable

__all__ = ["Coupling"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coupling:
    """Incompatible values of sections.

    Parameters
    ----------
    sections : tuple of str
        Names of the sections: fields of a configuration, and types of features.
    clash : callable
        Takes the values of these sections, and returns whether they are refused. An absent section is None.
    rule : str
        Requirement for the sections.
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
        """Error message."""
        return f"{self.rule}, since {self.reason}: {self.advice}"
