"""Gateware."""

import time

#: Time at which this process began to load gateware.
__loaded__ = time.time()
