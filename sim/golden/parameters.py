"""Checks of format parameters."""

__all__ = ["check_integer", "check_power"]


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise ValueError unless a parameter is an integer within bounds."""
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer between {low} and {high}, not {value!r}")


def check_power(name: str, value: object, low: int, high: int) -> None:
    """Raise ValueError unless a parameter is a power of two within bounds."""
    if not isinstance(value, int) or not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} must be a power of two between {low} and {high}, not {value!r}")
