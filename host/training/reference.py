"""Golden model of a run: weights, master weights, optimizer state, errors and residuals."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.group import GROUP
from host.driver.masking import MaskJob, Matrices
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import VectorRing
from host.driver.words import Vector
from host.feature import feature, features_of
from host.models.layers import Array

if TYPE_CHECKING:
    from sim.golden.ring import Traffic, Update

__all__ = ["Codebooks", "Part", "Places", "Reference", "golden_settings", "is_packed", "reference_of", "words_of"]


Bits: TypeAlias = npt.NDArray[np.uint32]
#: Indices of elements in a vector, given as a slice or an array.
Places: TypeAlias = slice | npt.NDArray[np.int64]
_ALL = slice(None)


class Part(NamedTuple):
    """A collective of a training step: operation name, elements and block offset."""

    operation: str
    base: int
    length: int
    block_offset: int


def words_of(vector: Vector) -> Bits:
    """Convert elements to words: binary32 bit patterns or sign-extended integers."""
    return (vector.astype(np.int32) if vector.dtype == np.int16 else vector).view(np.uint32)


def golden_settings(settings: Settings | FixedSettings) -> Any:
    """Convert settings to the golden model's settings, which have no field for packed state."""
    from sim.golden import ring as golden

    return golden.settings(**{name: value for name, value in dataclasses.asdict(settings).items()
                              if name != "packed_state"})


def is_packed(settings: Settings | FixedSettings) -> bool:
    """Return whether settings use packed state."""
    return isinstance(settings, Settings) and settings.packed_state


class Reference:
    """Golden model of a run on a ring, with its state in arrays for the whole vector. Operations apply to the
    elements at the indices ``places``, which the nodes treat as a separate vector."""

    #: Name of the nodes' counter that must match the words that :meth:`step` predicts.
    counter = "WORDS_SENT"
    #: Number of gradients of each node in a sum of integers; None if each node has one gradient.
    counts: Sequence[int] | None = None

    def __init__(self, ring: VectorRing, weights: Vector, planes: int, centroids: Bits | None = None):
        # Imported here, since nothing else in host/ needs the golden models of a node's units.
        from sim.golden import masking
        from sim.golden import ring as golden
        from sim.golden.codecs import CODECS

        self._golden, self._masking, self._ring = golden, masking, ring
        #: Whether nodes store master weights.
        self.has_master = ring.formats.has_master
        self._codec = CODECS[ring.formats.weight_codec]
        self._gradient_codec = CODECS[ring.formats.gradient_codec]
        if centroids is not None:
            self.bind(centroids)
        #: Master weights, and the weights that nodes compute with; they are equal unless there is a weight codec.
        self.master = golden.bits(weights).copy()
        self.weights = golden.distribute(self.master, ring.nodes, weight_codec=self._codec,
                                         segment=ring.formats.segment).copy()
        self.state = [np.zeros_like(self.weights) for _ in range(planes)]
        self.errors = np.zeros((ring.nodes, self.weights.size), dtype=np.uint32)
        #: Residual of the gradient codec on each node, or None for a lossless codec.
        self.residuals = np.zeros_like(self.errors) if ring.formats.has_residual else None

    @property
    def equivalent_nodes(self) -> float:
        """Size of a flat ring in which sparse gradient sums would have the same mean density over all hops."""
        return self._ring.nodes

    def arrays(self) -> dict[str, Any]:
        """Return copies of all arrays of the golden model's state."""
        return {"weights": self.weights.copy(), "master": self.master.copy(),
                "state": [plane.copy() for plane in self.state], "errors": self.errors.copy(),
                "residuals": None if self.residuals is None else self.residuals.copy()}

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from copies made by :meth:`arrays`. If they are for a different number of nodes, their errors must
        be zero. This is always so in runs with microbatches, which cannot sparsify gradients."""
        self.weights, self.master = (arrays[name].copy() for name in ("weights", "master"))
        errors = arrays["errors"]
        if len(errors) != len(self.errors):
            if errors.any():
                raise ValueError(f"Errors must be of {len(self.errors)} nodes, not of {len(errors)}")
            errors = np.zeros_like(self.errors)
        self.errors = errors.copy()
        self.state = [plane.copy() for plane in arrays["state"]]
        self.residuals = None if arrays["residuals"] is None else arrays["residuals"].copy()

    def adopt(self, ring: VectorRing, *, packed_state: bool) -> None:
        """Read the nodes' state, after steps that this model has not performed."""
        length = len(self.weights)
        self.weights = ring.memory.read_weights(length, ranks=[0])[0].view(np.uint32)
        self.master = ring.memory.read_master(length).view(np.uint32) if self.has_master else self.weights.copy()
        self.state = [ring.memory.read_state(length, plane, packed_state=packed_state).view(np.uint32)
                      for plane in range(len(self.state))]
        if self.residuals is not None:
            self.residuals = ring.memory.read_residual(length).view(np.uint32)

    def unknown(self) -> "Traffic":
        """Return traffic with all figures zero, for a step that this model has not performed."""
        none, traffic = np.zeros((0, self._ring.nodes), np.int64), self._golden.Traffic
        return traffic(scatter_words=none, gather_words=none, dense_words=0, density=np.zeros(0), scatter_bound=0,
                       bound=0, gather_elements=0, gather_payload=0)

    def bind(self, centroids: Bits) -> None:
        """Use a new codebook from now on."""
        self._codec = self._codec.bind(centroids)

    def load(self, weights: Bits, places: Places, *, fresh: bool) -> None:
        """Replace the weights at ``places`` and clear their residuals. If ``fresh``, also clear errors and state."""
        self.master[places] = weights
        self.weights[places] = self._golden.distribute(weights, self._ring.nodes, weight_codec=self._codec,
                                                       segment=self._ring.formats.segment)
        if self.residuals is not None:
            self.residuals[:, places] = 0
        if fresh:
            self.errors[:, places] = 0
            for plane in self.state:
                plane[places] = 0

    def sparsify(self, gradients: Sequence[Vector], threshold: float, places: Places = _ALL) -> (
            tuple[list[Vector], list[int]]):
        """Return the gradients that nodes send, and how many elements each node has dropped."""
        golden = self._golden
        bound = int(golden.bits([threshold])[0])
        kept, self.errors[:, places] = self._masking.sparsify(golden.bits(np.stack(gradients)),
                                                              self.errors[:, places], bound)
        length = kept.shape[1]
        sent = np.count_nonzero(kept, axis=1) if bound else [length] * len(kept)
        return list(golden.floats(kept)), [length - int(count) for count in sent]

    def all_reduce(self, gradients: Sequence[Vector], places: Places | None,
                   begin: int = 0) -> tuple[Bits, "Traffic"]:
        """Return the sum of gradients, including any residuals at ``places``, and its traffic. The gradients are part
        of a longer vector, which starts at index ``begin``."""
        patterns = self._golden.bits(np.stack(gradients))
        residuals = None
        if self.residuals is not None:
            residuals = np.zeros_like(patterns) if places is None else self.residuals[:, places]
        formats = self._ring.formats
        total, traffic = self._golden.all_reduce(patterns, gradient_codec=self._gradient_codec, residuals=residuals,
                                                 segment=formats.segment, lanes=formats.lanes,
                                                 block_offset=begin // GROUP % self._ring.nodes)
        if self.residuals is not None and residuals is not None and places is not None:
            self.residuals[:, places] = residuals
        return total, traffic

    def step(self, gradients: Sequence[Vector], settings: Settings | FixedSettings,
             parts: Sequence[Part] | None = None, places: Places = _ALL) -> "Traffic":
        """Perform the ring's step and return its traffic. ``parts`` are the collectives that make up the step, by
        default one fused update of the whole vector; they affect the traffic but not the results."""
        patterns = self._golden.bits(np.stack(gradients))
        residuals = None if self.residuals is None else self.residuals[:, places].copy()
        before = None if residuals is None else residuals.copy()
        update = self._update(patterns, settings, places, 0, residuals)
        traffics = None if parts is None else [self._part(part, patterns, settings, before, update) for part in parts]
        self.weights, self.master = (_put(old, places, new) for old, new in (
            (self.weights, update.weights), (self.master, update.master)))
        self.state = [_put(old, places, new) for old, new in zip(self.state, update.state, strict=True)]
        if self.residuals is not None and residuals is not None:
            self.residuals[:, places] = residuals
        return update.traffic if traffics is None else _together(update.traffic, traffics)

    def _update(self, gradients: Bits, settings: Settings | FixedSettings, places: Places, block_offset: int,
                residuals: Bits | None) -> "Update":
        """Compute a fused update of the elements at ``places``. Of all arrays, only ``residuals`` is modified."""
        formats, root = self._ring.formats, self._ring.partition.root
        vectors = gradients, self.master[places], [plane[places] for plane in self.state], golden_settings(settings)
        shape: dict[str, Any] = {"packed_state": is_packed(settings), "segment": formats.segment,
                                 "lanes": formats.lanes}
        update: Update
        if root is not None and self._ring.nodes > 1:
            from sim.golden import root_reduce

            update = root_reduce.fused_update(*vectors, root, **shape)
        else:
            update = self._golden.fused_update(*vectors, weight_codec=self._codec, residuals=residuals,
                                               block_offset=block_offset, counts=self.counts,
                                               gradient_codec=self._gradient_codec, **shape)
        return update

    def _part(self, part: Part, gradients: Bits, settings: Settings | FixedSettings,
              before: Bits | None, update: "Update") -> "Traffic":
        """Return the traffic of one collective of a step, given the residuals before the step and its result."""
        golden = self._golden
        elements = slice(part.base, part.base + part.length)
        shape = {"segment": self._ring.formats.segment, "lanes": self._ring.formats.lanes,
                 "block_offset": part.block_offset}
        gradients = gradients[:, elements]
        residuals = None if before is None else before[:, elements].copy()
        traffic: Traffic
        match part.operation:
            case "FUSED_UPDATE":
                return self._update(gradients, settings, elements, part.block_offset, residuals).traffic
            case "REDUCE_SCATTER":
                _, traffic = golden.reduce_scatter(gradients, gradient_codec=self._gradient_codec,
                                                   residuals=residuals, **shape)
            case "ALL_GATHER":
                weights = np.broadcast_to(update.weights[elements], (self._ring.nodes, part.length))
                _, traffic = golden.all_gather(weights, weight_codec=self._codec, **shape)
            case other:
                raise ValueError(f"Operation must be one of a schedule, not {other!r}")
        return traffic

    def mask(self, job: MaskJob, alternative: float) -> tuple[Bits, int]:
        """Return the expected matrices of a job after masking, and the number of replaced elements."""
        masking = self._masking
        shape = masking.Job(rows=job.rows, columns=job.columns, count=job.count, mask=masking.Mask(**vars(job.mask)))
        kept = masking.kept(shape, None if job.external is None else masking.words(job.external))
        return (np.where(kept, words_of(job.matrices), self._pattern(alternative)),
                int(kept.size - np.count_nonzero(kept)))

    def masked(self, job: MaskJob, alternative: float) -> Matrices:
        """Return the expected matrices of a job after masking."""
        return self.mask(job, alternative)[0].view(job.matrices.dtype)

    def _pattern(self, number: float) -> Bits:
        return self._golden.bits([number])


def _put(array: Bits, places: Places, values: Bits) -> Bits:
    """Store ``values`` at ``places`` of an array and return it; if they replace everything, return ``values``."""
    if places is _ALL:
        return values
    array[places] = values
    return array


def _together(whole: "Traffic", parts: Sequence["Traffic"]) -> "Traffic":
    """Add up the traffic of successive collectives; all other figures are those of ``whole``."""
    words = {name: sum((getattr(part, name) for part in parts if getattr(part, name).size),
                       start=np.zeros_like(getattr(whole, name))) for name in ("scatter_words", "gather_words")}
    return dataclasses.replace(whole, **words, **{
        name: sum(getattr(part, name) for part in parts)
        for name in ("dense_words", "scatter_bound", "bound", "gather_elements", "gather_payload")})


def reference_of(ring: VectorRing, plan: Any, weights: Vector, planes: int,
                 centroids: Bits | None = None) -> Reference:
    """Return the golden model of a ring's nodes or, if there is a plan, of the plan's rings."""
    models = (feature.reference(ring, plan, weights, planes, centroids) for feature in features_of(ring.config))
    return next((model for model in models if model is not None), None) or Reference(ring, weights, planes, centroids)


class Codebooks:
    """Codebooks of the nodes and of the golden model, if the weight codec uses any."""

    def __init__(self, ring: VectorRing, interval: int):
        self._ring, self._interval = ring, interval
        #: Centroids that are stored on the nodes.
        self.centroids: Bits | None = None
        #: Number of words written to all nodes for the next step or for the initial weights.
        self.words = 0

    def load(self, weights: Array) -> None:
        """Compute a codebook from weights and write it to the nodes."""
        self.centroids = feature("codebook").centroids(self._ring.formats.weight_codec, weights)
        self.words = self._ring.memory.write_codebook(self.centroids)

    def refresh(self, number: int, reference: Reference) -> int:
        """Recompute the codebook from the master weights if it is due; return the number of words written."""
        if self.centroids is None:
            return 0
        if number > 1:
            self.words = 0
            if (number - 1) % self._interval == 0:
                self.load(self._ring.memory.read_master(reference.weights.size))
                reference.bind(self.centroids)
        return self.words

    def move(self, state: dict[str, Any]) -> None:
        """Write the codebook from the previous nodes' ``state`` to the current nodes."""
        self.centroids, self.words = state["centroids"], state["words"]
        if self.centroids is not None:
            self._ring.memory.write_codebook(self.centroids)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the centroids and the number of words."""
        return {"centroids": self.centroids, "words": self.words}

    def restore(self, state: dict[str, Any], reference: Reference) -> None:
        """Restore a saved codebook, which the nodes already contain."""
        self.centroids, self.words = state["centroids"], state["words"]
        if self.centroids is not None:
            reference.bind(self.centroids)
