"""Skips tests that need features missing from this copy of the tree."""

import pytest

from hdl.registry import FEATURES

__all__ = ["needs"]


def needs(*features, what="This test"):
    """Skip a test, or all tests of the module being collected, unless this copy has all these features."""
    for feature in features:
        if feature not in FEATURES:
            pytest.skip(f"{what} needs feature {feature}, which is not in this copy", allow_module_level=True)
