"""Registry of features, which lists their additions to nodes as plain data, so that no feature is imported early.

Each feature is a folder ``hdl/features/<name>``. To delete a feature, delete this folder, the folders of the same
name in other trees, the features that require it, and its entry here.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdl.feature import Feature

__all__ = ["FEATURES", "Codes", "Entry", "codes", "feature", "feature_of_format", "feature_of_section",
           "format_names", "section", "section_names"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codes:
    """Codes of a number format for each use, or None for unsupported uses.

    Parameters
    ----------
    ring : int, optional
        Code in a packet header.
    gradients, weights : bool
        Whether gradients on the ring can use the format, and whether weights can.
    operands : int, optional
        Code in a compute engine instruction.
    blocks : bool
        Whether operands in this format are multiplied in blocks.
    broadcast : int, optional
        Code in a server's BROADCAST command.
    """

    ring: int | None = None
    gradients: bool = True
    weights: bool = True
    operands: int | None = None
    blocks: bool = False
    broadcast: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Registry entry of one feature.

    Parameters
    ----------
    module : str
        Module that contains the feature's description, ``FEATURE``.
    uses : tuple of str
        Other features that the feature's files import, in any tree; its description has those its nodes need.
    sections : mapping
        Names of the section types that the feature adds, keyed by the configuration field that may contain them;
        ``configuration`` is the key of a node configuration that the feature adds.
    formats : mapping
        Codes of the formats that the feature adds, keyed by format name.
    """

    module: str
    uses: tuple[str, ...] = ()
    sections: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    formats: Mapping[str, Codes] = dataclasses.field(default_factory=dict)


#: All features, keyed by name. Section types and engines of features are always listed in this order.
FEATURES: dict[str, Entry] = {
    "grid": Entry(module="hdl.features.grid.feature", sections={"topology": ("Grid",)}),
    "replay": Entry(module="hdl.features.replay.feature", sections={"link": ("Replay",)}),
    "slots": Entry(module="hdl.features.slots.feature", uses=("replay",), sections={"link": ("Slots", "JobSlots")}),
    "streaming": Entry(module="hdl.features.streaming.feature",
                       uses=("programs", "compute", "far", "settable_version", "mx"), sections={
        "role": ("Worker", "Server"), "memories": ("ServerMemories",), "configuration": ("ServerConfig",)}),
    "programs": Entry(module="hdl.features.programs.feature", sections={"programs": ("Programs",)}),
    "compute": Entry(module="hdl.features.compute.feature", uses=("programs",), sections={"compute": ("Compute",)}),
    "block_operands": Entry(module="hdl.features.block_operands.feature", uses=("compute", "mx")),
    "codebook_layers": Entry(module="hdl.features.codebook_layers.feature", uses=("compute", "codebook")),
    "far": Entry(module="hdl.features.far.feature", uses=("programs", "compute")),
    "compute_stub": Entry(module="hdl.features.compute_stub.feature", sections={"stub": ("ComputeStub",)}),
    "quorum": Entry(module="hdl.features.quorum.feature", uses=("grid", "replay", "programs", "compute_stub")),
    "quantization": Entry(module="hdl.features.quantization.feature", sections={"features": ("Quantization",)}),
    "settable_version": Entry(module="hdl.features.settable_version.feature",
                              sections={"features": ("SettableVersion",)}),
    "tenants": Entry(module="hdl.features.tenants.feature", sections={"features": ("Tenants",)}),
    "throttles": Entry(module="hdl.features.throttles.feature", sections={"features": ("Throttles",)}),
    "bf16": Entry(module="hdl.features.bf16.feature", formats={"bf16": Codes(ring=2, operands=1)}),
    "mx": Entry(module="hdl.features.mx.feature", formats={
        "mx9": Codes(ring=3, operands=2, blocks=True, broadcast=3),
        "mx6": Codes(ring=4, operands=3, blocks=True, broadcast=2),
        "mx4": Codes(ring=5, operands=4, blocks=True, broadcast=1),
        "bfp8": Codes(ring=6),
        "mxint8": Codes(ring=7),
        "mxfp8_e4m3": Codes(ring=8),
        "mxfp8_e5m2": Codes(ring=9),
        "mxfp6_e2m3": Codes(ring=10),
        "mxfp6_e3m2": Codes(ring=11),
        "mxfp4_e2m1": Codes(ring=12, operands=5, blocks=True),
        "mxfp8_e4m3_up": Codes(ring=17),
        "mxfp4_e2m1_up": Codes(ring=18, operands=6, blocks=True),
    }),
    "table": Entry(module="hdl.features.table.feature", uses=("codebook",), formats={
        "table32": Codes(ring=13, gradients=False)}),
    "codebook": Entry(module="hdl.features.codebook.feature", formats={
        "centroid16": Codes(ring=14, gradients=False), "centroid64": Codes(ring=15, gradients=False)}),
    "nvfp4": Entry(module="hdl.features.nvfp4.feature", uses=("block_operands", "mx"), formats={
        "nvfp4": Codes(ring=19, operands=7, blocks=True)}),
    "reproducible": Entry(module="hdl.features.reproducible.feature", formats={
        "sum32": Codes(ring=20, weights=False), "sum16": Codes(ring=22, weights=False)}),
    "microbatches": Entry(module="hdl.features.microbatches.feature", uses=("reproducible",), sections={
        "features": ("Microbatches",)}),
    "int16": Entry(module="hdl.features.int16.feature", sections={
        "memories": ("Int16Memories",), "configuration": ("Int16Config",)}),
}


@functools.cache
def feature(name: str) -> "Feature":
    """Return a feature's description; raise ValueError if it or a feature that it requires does not exist."""
    if name not in FEATURES:
        raise ValueError(f"Feature must be one of {', '.join(FEATURES)}, not {name!r}")
    description: Feature = importlib.import_module(FEATURES[name].module).FEATURE
    missing = [other for other in description.requires if other not in FEATURES]
    if missing:
        raise ValueError(f"Feature {name} needs feature {missing[0]}, which is not in this copy: leave {name} out")
    return description


def section_names(field: str) -> tuple[str, ...]:
    """Return the names of the section types that features add for a configuration field."""
    return tuple(name for entry in FEATURES.values() for name in entry.sections.get(field, ()))


def feature_of_section(name: str) -> str | None:
    """Return the name of the feature that adds a section type, or None if the type belongs to the core."""
    return next((feature for feature, entry in FEATURES.items()
                 if any(name in names for names in entry.sections.values())), None)


def section(name: str) -> Any:
    """Return the section type with this name, which a feature adds."""
    owner = feature_of_section(name)
    if owner is None:
        raise ValueError(f"Section must be one of a feature, not {name!r}")
    feature(owner)
    return getattr(importlib.import_module(FEATURES[owner].module), name)


def codes(name: str) -> Codes:
    """Return the codes of the format with this name, which a feature adds."""
    return FEATURES[feature_of_format(name)].formats[name]


def format_names(use: str) -> tuple[str, ...]:
    """Return the names of formats that features add for a use (``ring``, ``operands`` or ``broadcast``), by code."""
    names = {name: getattr(value, use) for entry in FEATURES.values() for name, value in entry.formats.items()
             if use != "operands" or not value.blocks or "block_operands" in FEATURES}
    return tuple(sorted((name for name, code in names.items() if code is not None), key=lambda name: names[name]))


def feature_of_format(name: str) -> str:
    """Return the name of the feature that adds a format; raise KeyError if no feature does."""
    for owner, entry in FEATURES.items():
        if name in entry.formats:
            return owner
    raise KeyError(name)
