"""Gateware."""

import time

#: Time at which this process started to import the gateware.
__loaded__ = time.time()
