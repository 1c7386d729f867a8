"""Formats of blocks by name."""

from hdl.features.mx import microscaling, shared_exponent

__all__ = ["FORMATS"]

#: Parameters of every format, keyed by its name in the registry.
FORMATS = {
    "mx9": shared_exponent.MX9,
    "mx6": shared_exponent.MX6,
    "mx4": shared_exponent.MX4,
    "bfp8": shared_exponent.BFP8,
    "mxint8": microscaling.MXINT8,
    "mxfp8_e4m3": microscaling.MXFP8_E4M3,
    "mxfp8_e5m2": microscaling.MXFP8_E5M2,
    "mxfp6_e2m3": microscaling.MXFP6_E2M3,
    "mxfp6_e3m2": microscaling.MXFP6_E3M2,
    "mxfp4_e2m1": microscaling.MXFP4_E2M1,
    "mxfp8_e4m3_up": microscaling.MXFP8_E4M3_UP,
    "mxfp4_e2m1_up": microscaling.MXFP4_E2M1_UP,
}
