"""Gateware of gradring nodes and boards, written in Amaranth."""

import time

#: Time at which this process began to import the gateware.
__loaded__ = time.time()
