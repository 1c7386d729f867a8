"""Gateware."""

import time

#: Time from which on this process loads gateware.
__loaded__ = time.time()
