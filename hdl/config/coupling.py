"""The type of couplings: rules that reject incompatible values of a node's sections, with the reason."""

import dataclasses
from collections.abc import Callable

__all__ = ["Coupling"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coupling:
    """Rule that makes some combinations of sections' values invalid.

    Parameters
    ----------
    sections : tuple of str
        Names of the sections: fields of a configuration, and types of features.
    clash : callable
        Returns whether the values of these sections are incompatible. An absent section is None.
    rule : str
        Requirement on the sections, for the error message.
    reason : str
        Why the rule exists.
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
        """Error message."""
        return f"{self.rule}, since {self.reason}: {self.advice}"
