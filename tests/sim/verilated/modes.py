"""Floating-point modes of a thread that differ from the defaults of IEEE 754."""

import contextlib
import ctypes
import platform

#: Bits of MXCSR that make subnormal operands zero, round upwards, and make subnormal results zero.
_MXCSR = 0x0040 | 0x4000 | 0x8000
#: Offset of MXCSR in the structure fenv_t on x86-64.
_PLACE = 28
#: Value of FE_UPWARD on other processors with Linux or macOS.
_UPWARD = {"aarch64": 0x400000, "arm64": 0x400000, "ppc64le": 2, "riscv64": 3}

#: A number so small that adding it to one has no effect, unless rounding is upwards.
SMALL = 2.0**-60


@contextlib.contextmanager
def hostile():
    """Round upwards and, if the layout of the floating-point environment is known, flush subnormal numbers to
    zero."""
    library = ctypes.CDLL("libm.so.6" if platform.system() == "Linux" else None)
    kept, changed = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
    library.fegetenv(kept)
    library.fegetenv(changed)
    if platform.machine() == "x86_64":
        mxcsr = ctypes.c_uint32.from_buffer(changed, _PLACE)
        mxcsr.value |= _MXCSR
        library.fesetenv(changed)
    else:
        assert library.fesetround(_UPWARD[platform.machine()]) == 0
    try:
        assert 1 + SMALL > 1
        yield
        assert 1 + SMALL > 1, "The modes of the caller must be as they were"
    finally:
        library.fesetenv(kept)
