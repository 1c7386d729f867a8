"""Skipping of tests that need features, in a copy of the tree without these features."""

import pytest

from hdl.registry import FEATURES

__all__ = ["needs"]


def needs(*features, what="This test"):
    """Skip a test, or all tests of the module being collected, unless all these features are in this copy."""
    for feature in features:
        if feature not in FEATURES:
            pytest.skip(f"{what} needs feature {feature}, which is not in this copy", allow_module_level=True)
