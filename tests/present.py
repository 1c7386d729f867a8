"""Function that skips tests if this copy of the tree lacks features that they need."""

import pytest

from hdl.registry import FEATURES

__all__ = ["needs"]


def needs(*features, what="This test"):
    """Skip a test, or all tests of a module that is being collected, unless this copy has all of these features."""
    for feature in features:
        if feature not in FEATURES:
            pytest.skip(f"{what} needs feature {feature}, which is not in this copy", allow_module_level=True)
