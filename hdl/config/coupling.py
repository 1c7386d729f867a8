"""Couplings: rules that reject incompatible values in sections of a node's configuration, with a reason."""

import dataclasses
from collections.abc import Callable

__all__ = ["Coupling"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coupling:
    """Rule that forbids certain combinations of section values.

    Parameters
    ----------
    sections : tuple of str
        Names of the sections: fields of a configuration, and types of features.
    clash : callable
        Returns whether the values of these sections are incompatible. An absent section is passed as None.
    rule : str
        Requirement on the sections, for the error message.
    reason : str
        The reason for the rule.
    advice : str
        How the user can satisfy the rule.
    """

    sections: tuple[str, ...]
    clash: Callable[..., bool]
    rule: str
    reason: str
    advice: str

    @property
    def message(self) -> str:
        """Error message for sections with incompatible values."""
        return f"{self.rule}, since {self.reason}: {self.advice}"
