import re

import pytest

from host.models.layers import widths


@pytest.mark.parametrize(("text", "expected"), [
    ("64", (64,)), ("64,32", (64, 32)), ("32x9", (32,) * 9), ("64,32x2,16", (64, 32, 32, 16)), ("none", ()), ("", ()),
    ("1x1000", (1,) * 1000)])
def test_widths(text, expected):
    assert widths(text) == expected


@pytest.mark.parametrize("text", [
    "a,3", "32x", "x9", "32x0", "32x-1", "32x9x2", "32x1001", "1x999,2,3", "32x9999999999"])
def test_other_texts(text):
    with pytest.raises(ValueError, match=re.escape(
            f"Widths of hidden layers must be numbers, or a number x a count as in 32x9, of at most 1,000 layers, "
            f"with commas between them, not {text!r}")):
        widths(text)
