"""The watermark of a model: an HMAC over its structure and its weights, with the key of the model's owner.

Whoever runs the fabric has the key of the checkpoint's HMAC, and not this one: so a model with other weights, or of
another structure, cannot be passed off as the owner's.
"""

import hashlib
import hmac
from typing import Any

from host.checkpoints.manifest import canonical
from host.checkpoints.rejections import WrongWatermarkError

__all__ = ["check_watermark", "watermark"]

#: Memory spaces that have weights.
_SPACES = ("weights", "masters", "codebook")


def watermark(manifest: dict[str, Any], key: bytes) -> str:
    """The watermark of the model that a manifest describes, in hexadecimal digits.

    The structure is the contracts and the windows of the nodes; the weights are the digests of the regions that have
    them. A checkpoint without device frame is marked as a whole.
    """
    device, regions = manifest["device"], manifest["regions"]
    if device is None:
        structure, marked = None, regions
    else:
        structure = [[node["contract"], node["windows"]] for node in device["nodes"]]
        marked = [one for one in regions if one["name"].startswith("device/")
                  and one["name"].split("/")[2] in _SPACES]
    return hmac.new(key, canonical([structure, marked]), hashlib.sha256).hexdigest()


def check_watermark(manifest: dict[str, Any], key: bytes) -> None:
    """Raise ``WrongWatermarkError`` unless the manifest has the watermark of this owner."""
    found = manifest["watermark"]
    if found is None or not hmac.compare_digest(found, watermark(manifest, key)):
        raise WrongWatermarkError("model must have the watermark of this owner: its structure or its weights are "
                                  "others, or another key has marked it")
