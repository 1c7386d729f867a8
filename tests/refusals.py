# amaranth: UnusedElaboratable=no
"""Checks that parameters are rejected with exactly the expected message."""

import re

import pytest


def refuses(message, make, /, *arguments, error=ValueError, **parameters):
    """Check that the parameters are rejected with exactly this message."""
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make(*arguments, **parameters)


def refused(make, base, cases, error=ValueError):
    """Create a test that each set of parameters is rejected with exactly its message."""
    @pytest.mark.parametrize(("parameters", "message"), cases)
    def test(parameters, message):
        refuses(message, make, error=error, **{**base, **parameters})

    return test


def refused_values(make, base, name, values, message, error=ValueError):
    """Create a test that each value of a parameter is rejected with a message that ends with the value."""
    return refused(make, base, [({name: value}, f"{message}, not {value!r}") for value in values], error)
