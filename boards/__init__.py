"""Units and nodes on boards: synthesis, bitstreams and Verilog export."""

import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a program interrupted during imports should print no traceback
