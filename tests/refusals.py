# amaranth: UnusedElaboratable=no
"""Checks that invalid parameters are rejected with exactly the expected message."""

import re

import pytest


def refuses(message, make, /, *arguments, error=ValueError, **parameters):
    """Check that a call with these parameters is rejected with exactly this message."""
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make(*arguments, **parameters)


def refused(make, base, cases, error=ValueError):
    """Create a test of several sets of parameters, each of which must be rejected with exactly its message."""
    @pytest.mark.parametrize(("parameters", "message"), cases)
    def test(parameters, message):
        refuses(message, make, error=error, **{**base, **parameters})

    return test


def refused_values(make, base, name, values, message, error=ValueError):
    """Create a test of several values of a parameter, which must be rejected with a message that ends with the
    value."""
    return refused(make, base, [({name: value}, f"{message}, not {value!r}") for value in values], error)
