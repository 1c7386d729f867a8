"""The golden model of a training run, in step with the ring."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from host.driver.masking import MaskJob, Matrices
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import VectorRing
from host.driver.words import Vector

if TYPE_CHECKING:
    from sim.golden.ring import Traffic, Update

__all__ = ["IntegerReference", "Part", "Reference", "words_of"]


class Part(NamedTuple):
    """A collective of a step: the name of its operation, its elements, and its turn."""

    operation: str
    base: int
    length: int
    turn: int


def words_of(vector: Vector) -> npt.NDArray[np.uint32]:
    """Elements as words: patterns of binary32, or integers with their sign extended."""
    return (vector.astype(np.int32) if vector.dtype == np.int16 else vector).view(np.uint32)


class Reference:
    """The golden model of the same training run.

    Members
    -------
    counter : str
        The counter of the words that :meth:`step` predicts.
    weights, master : array of uint32
        Weights that nodes compute with, and masters that those are encoded from; the same without a weight codec.
    has_master : bool
        Whether nodes keep masters.
    residuals : array of uint32, optional
        Residual of the gradient codec on each node, if the codec loses something.
    """

    counter = "WORDS_SENT"

    def __init__(self, ring: VectorRing, weights: Vector, planes: int,
                 centroids: npt.NDArray[np.uint32] | None = None):
        # Loaded here, since nothing else in host/ needs the models of a node's inside.
        from sim.golden import masking
        from sim.golden import ring as golden
        from sim.golden.codecs import CODECS

        self._golden = golden
        self._masking = masking
        self._traffic = golden.Traffic
        self._ring = ring
        self.has_master = ring.formats.has_master
        self._codec = CODECS[ring.formats.weight_codec]
        self._gradient_codec = CODECS[ring.formats.gradient_codec]
        if centroids is not None:
            self.bind(centroids)
        self.master = golden.bits(weights).copy()
        self.weights = golden.distribute(self.master, ring.nodes, weight_codec=self._codec,
                                         segment=ring.formats.segment)
        self.state = [np.zeros_like(self.weights) for _ in range(planes)]
        self.errors = np.zeros((ring.nodes, self.weights.size), dtype=np.uint32)
        self.residuals = np.zeros_like(self.errors) if ring.formats.has_residual else None

    @property
    def equivalent_nodes(self) -> float:
        """Nodes of a ring over whose hops the sums of all nodes' sparse gradients have the same mean density."""
        return self._ring.nodes

    def arrays(self) -> dict[str, Any]:
        """Copies of all arrays."""
        return {"weights": self.weights.copy(), "master": self.master.copy(),
                "state": [plane.copy() for plane in self.state], "errors": self.errors.copy(),
                "residuals": None if self.residuals is None else self.residuals.copy()}

    def restore(self, arrays: dict[str, Any]) -> None:
        """Go on from copies of such arrays."""
        self.weights, self.master, self.errors = (arrays[name].copy() for name in ("weights", "master", "errors"))
        self.state = [plane.copy() for plane in arrays["state"]]
        self.residuals = None if arrays["residuals"] is None else arrays["residuals"].copy()

    def adopt(self, ring: VectorRing, *, packed_state: bool) -> None:
        """Take what the nodes have, after steps that this model has not done."""
        length = len(self.weights)
        self.weights = ring.memory.read_weights(length, ranks=[0])[0].view(np.uint32)
        self.master = ring.memory.read_master(length).view(np.uint32) if self.has_master else self.weights.copy()
        self.state = [ring.memory.read_state(length, plane, packed_state=packed_state).view(np.uint32)
                      for plane in range(len(self.state))]
        if self.residuals is not None:
            self.residuals = ring.memory.read_residual(length).view(np.uint32)

    def unknown(self) -> "Traffic":
        """Traffic of a step that this model has not done."""
        none = np.zeros((0, self._ring.nodes), np.int64)
        return self._traffic(scatter_words=none, gather_words=none, dense_words=0, density=np.zeros(0),
                             scatter_bound=0, bound=0, gather_elements=0, gather_payload=0)

    def bind(self, centroids: npt.NDArray[np.uint32]) -> None:
        """Go on with another codebook."""
        self._codec = self._codec.bind(centroids)

    def sparsify(self, gradients: Sequence[Vector], threshold: float) -> tuple[list[Vector], list[int]]:
        """Parts of their gradients that nodes send, and the number of elements that each has dropped."""
        golden = self._golden
        bound = int(golden.bits([threshold])[0])
        kept, self.errors = self._masking.sparsify(golden.bits(np.stack(gradients)), self.errors, bound)
        sent = np.count_nonzero(kept, axis=1) if bound else [self.weights.size] * len(kept)
        return list(golden.floats(kept)), [self.weights.size - int(count) for count in sent]

    def _numbers(self, settings: Settings | FixedSettings) -> tuple[Any, bool]:
        """Settings in the form that the golden model takes them, and whether state is packed."""
        numbers = dataclasses.asdict(settings)
        packed_state: bool = numbers.pop("packed_state")
        return self._golden.settings(**numbers), packed_state

    def step(self, gradients: Sequence[Vector], settings: Settings | FixedSettings,
             parts: Sequence[Part] | None = None) -> "Traffic":
        """Do the ring's step, and return its traffic.

        Parameters
        ----------
        gradients : sequence of array
        parts : sequence of Part, optional
            Collectives that together do the step; by default one fused update of the whole vector. They change the
            traffic, and no bits.
        """
        given = self._golden.bits(np.stack(gradients))
        before = None if self.residuals is None else self.residuals.copy()
        update = self._update(given, settings, slice(None), 0, self.residuals)
        traffics = None if parts is None else [self._part(one, given, settings, before, update) for one in parts]
        self.weights = update.weights
        self.master = update.master
        self.state = update.state
        return update.traffic if traffics is None else _together(update.traffic, traffics)

    def _update(self, gradients: npt.NDArray[np.uint32], settings: Settings | FixedSettings, elements: slice,
                turn: int, residuals: npt.NDArray[np.uint32] | None) -> "Update":
        """A fused update of some elements; ``residuals`` are replaced, and nothing else."""
        golden = self._golden
        numbers, packed_state = self._numbers(settings)
        if self._ring.partition.root is not None and self._ring.nodes > 1:
            from sim.golden import one_owner

            return one_owner.fused_update(
                gradients[:, elements], self.master[elements], [plane[elements] for plane in self.state], numbers,
                self._ring.partition.root, packed_state=packed_state, segment=self._ring.formats.segment,
                lanes=self._ring.formats.lanes)
        update: Update = golden.fused_update(
            gradients[:, elements], self.master[elements], [plane[elements] for plane in self.state],
            numbers, packed_state=packed_state, weight_codec=self._codec,
            gradient_codec=self._gradient_codec, residuals=None if residuals is None else residuals[:, elements],
            segment=self._ring.formats.segment, lanes=self._ring.formats.lanes, turn=turn)
        return update

    def _part(self, part: Part, gradients: npt.NDArray[np.uint32], settings: Settings | FixedSettings,
              before: npt.NDArray[np.uint32] | None, update: "Update") -> "Traffic":
        """Traffic of a collective of the step, with the residuals before it and the outcome of the whole."""
        golden = self._golden
        elements = slice(part.base, part.base + part.length)
        shape = {"segment": self._ring.formats.segment, "lanes": self._ring.formats.lanes, "turn": part.turn}
        residuals = None if before is None else before.copy()
        traffic: Traffic
        match part.operation:
            case "FUSED_UPDATE":
                return self._update(gradients, settings, elements, part.turn, residuals).traffic
            case "REDUCE_SCATTER":
                _, traffic = golden.reduce_scatter(
                    gradients[:, elements], gradient_codec=self._gradient_codec,
                    residuals=None if residuals is None else residuals[:, elements], **shape)
            case "ALL_GATHER":
                weights = np.broadcast_to(update.weights[elements], (self._ring.nodes, part.length))
                _, traffic = golden.all_gather(weights, weight_codec=self._codec, **shape)
            case other:
                raise ValueError(f"Operation must be one of a schedule, not {other!r}")
        return traffic

    def mask(self, job: MaskJob, alternative: float) -> tuple[npt.NDArray[np.uint32], int]:
        """The matrices of a job as they must come back, and the number of elements that are replaced."""
        masking = self._masking
        shape = masking.Job(rows=job.rows, columns=job.columns, count=job.count, mask=masking.Mask(**vars(job.mask)))
        kept = masking.kept(shape, None if job.external is None else masking.words(job.external))
        return (np.where(kept, words_of(job.matrices), self._pattern(alternative)),
                int(kept.size - np.count_nonzero(kept)))

    def masked(self, job: MaskJob, alternative: float) -> Matrices:
        """The matrices of a job as they must come back."""
        return self.mask(job, alternative)[0].view(job.matrices.dtype)

    def _pattern(self, number: float) -> npt.NDArray[np.uint32]:
        """Bit pattern of an element."""
        return self._golden.bits([number])


def _together(whole: "Traffic", parts: Sequence["Traffic"]) -> "Traffic":
    """Traffic of collectives that are done one after the other, with the densities of the whole vector."""
    scatter, gather = ([getattr(one, name) for one in parts if getattr(one, name).size]
                       for name in ("scatter_words", "gather_words"))
    return dataclasses.replace(
        whole, scatter_words=sum(scatter, start=np.zeros_like(whole.scatter_words)),
        gather_words=sum(gather, start=np.zeros_like(whole.gather_words)),
        **{name: sum(getattr(one, name) for one in parts) for name in
           ("dense_words", "scatter_bound", "bound", "gather_elements", "gather_payload")})


class IntegerReference(Reference):
    """Golden model of a training run on the int16 node."""

    counter = "COMPRESSED_WORDS"

    def __init__(self, weights: Vector):
        from sim.golden import int16_node as reduced
        from sim.golden import masking
        from sim.golden.ring import Traffic

        self._masking = masking
        self._reduced = reduced
        self._traffic = Traffic
        self.has_master = False
        self.master = self.weights = words_of(weights)
        self.state = []
        self.errors = np.zeros((1, weights.size), dtype=np.uint32)
        self.residuals = None

    def sparsify(self, gradients: Sequence[Vector], threshold: float) -> tuple[list[Vector], list[int]]:
        gradient, = gradients
        kept = self._reduced.sparsify(gradient, self._reduced.from_words(self.errors[0]), int(threshold))
        self.errors = self._reduced.to_words(kept.errors)[np.newaxis]
        return [kept.gradients.astype(np.int16)], [kept.dropped]

    def step(self, gradients: Sequence[Vector], settings: Settings | FixedSettings,
             parts: Sequence[Part] | None = None) -> "Traffic":
        gradient, = gradients
        update = self._reduced.update(gradient, self._reduced.from_words(self.weights),
                                      gradient_scale=int(settings.gradient_scale),
                                      learning_rate=int(settings.learning_rate))
        self.master = self.weights = self._reduced.to_words(update.weights)
        return self._traffic(
            scatter_words=np.array([[update.words]]), gather_words=np.zeros((0, 1), np.int64),
            dense_words=-(-gradient.size // 2), density=np.array([np.count_nonzero(gradient) / gradient.size]),
            scatter_bound=0, bound=0, gather_elements=0, gather_payload=0)

    def masked(self, job: MaskJob, alternative: float) -> Matrices:
        """The matrices of a job as they must come back."""
        return self.mask(job, alternative)[0].view(job.matrices.dtype)

    def _pattern(self, number: float) -> npt.NDArray[np.uint32]:
        return self._reduced.to_words([int(number)])
