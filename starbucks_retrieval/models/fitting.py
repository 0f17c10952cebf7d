"""Fit projections in closed form: from sums over texts without labels to one linear map per layer.

For a backbone with N layers of width H, x_n is the pooled output of layer n of a text, u_n = x_n / |x_n|, and the target
is the full embedding e = u_N if the model compares cosines, else x_N. With the eigenvectors V of the mean of e eᵀ, the
rotated target is r = Vᵀ e, whose first d numbers are the best subspace of d dimensions. The map of layer n minimises the
sum over texts of |A_n [u_n; 1] - r|² + λ tr(G_n)/(H+1) |A_n|², with G_n the sum of [u_n; 1][u_n; 1]ᵀ: ridge regression,
solved from two sums per layer that do not grow with the number of texts. Related: the tuned lens (arXiv 2303.08112).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.layer_maps import LayerMap, TokenTable
from starbucks_retrieval.models.projections import Projections

#: The values of λ that are tried; the one with the smallest error on held-out texts is taken, layer by layer.
RIDGES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)


@dataclasses.dataclass
class Moments:
    """Sums over texts from which all maps are solved.

    Attributes:
        target: The sum of e eᵀ, float64 [hidden, hidden].
        grams: {layer: the sum of [u; 1][u; 1]ᵀ}, float64 [inputs + 1, inputs + 1].
        crosses: {layer: the sum of [u; 1] eᵀ}, float64 [inputs + 1, hidden].
        count: The number of texts.
        needed: The fewest texts that are solved.

    Example:
        >>> moments = Moments.zeros(2, {1: 2})
        >>> moments.add({1: np.array([[0.6, 0.8]])}, np.array([[1.0, 0.0]]))
        >>> moments.count, moments.grams[1].shape, moments.crosses[1][:, 0].tolist()
        (1, (3, 3), [0.6, 0.8, 1.0])
    """

    target: np.ndarray
    grams: dict[int, np.ndarray]
    crosses: dict[int, np.ndarray]
    count: int = 0
    needed: int = 0

    @classmethod
    def zeros(cls, hidden: int, inputs: Mapping[int, int], needed: int | None = None) -> Moments:
        """Return sums over no texts.

        Args:
            hidden: The width of the target.
            inputs: {layer: width of its input}.
            needed: The fewest texts that are solved; None: as many as the widest input has numbers.
        """
        return cls(
            np.zeros((hidden, hidden)),
            {layer: np.zeros((width + 1, width + 1)) for layer, width in inputs.items()},
            {layer: np.zeros((width + 1, hidden)) for layer, width in inputs.items()},
            needed=max([hidden, *inputs.values()]) if needed is None else needed,
        )

    def check_count(self) -> None:
        """Raise UserError if there are fewer texts than are needed."""
        if self.count < self.needed:
            raise UserError(
                f"{self.count} texts cannot fit maps of {self.needed} numbers",
                f"give at least {self.needed} texts, better ten times",
            )

    def add(self, inputs: Mapping[int, np.ndarray], target: np.ndarray) -> None:
        """Add texts. Sums are in float64, whatever the type of the arrays.

        Args:
            inputs: {layer: the inputs u of its map, [texts, width]}, without the column of ones.
            target: The full embeddings e, [texts, hidden].
        """
        wide = np.asarray(target, dtype=np.float64)
        self.target += wide.T @ wide
        self.count += len(wide)
        self.add_inputs(inputs, wide)

    def add_inputs(self, inputs: Mapping[int, np.ndarray], target: np.ndarray) -> None:
        """Add inputs of texts whose targets were added before; `count` stays as it is.

        Args:
            inputs: As in `add`, of some of the layers.
            target: The full embeddings e of the same texts, [texts, hidden].
        """
        for layer, found in inputs.items():
            ones = with_ones(found)
            self.grams[layer] += ones.T @ ones
            self.crosses[layer] += ones.T @ np.asarray(target, dtype=np.float64)


def with_ones(inputs: np.ndarray) -> np.ndarray:
    """Return inputs [texts, width] in float64 with a last column of ones, [texts, width + 1]."""
    return np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1, dtype=np.float64)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return rows of length 1, in float64; rows of zeros stay zero.

    Args:
        vectors: [rows, dim], of any type of numbers.
    """
    wide = np.asarray(vectors, dtype=np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def principal_axes(moment: np.ndarray) -> np.ndarray:
    """Return the eigenvectors of a second moment as columns, the largest eigenvalue first, with defined signs.

    Args:
        moment: Symmetric [hidden, hidden].

    Returns:
        [hidden, hidden], orthogonal. The largest number of each column is positive.

    Example:
        >>> principal_axes(np.diag([1.0, 4.0])).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    _, vectors = np.linalg.eigh(moment)
    vectors = vectors[:, ::-1]
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


class Ridge:
    """The ridge regressions of one layer, for any λ from one decomposition.

    Args:
        gram: The sum of [u; 1][u; 1]ᵀ.
        cross: The sum of [u; 1] rᵀ.
    """

    def __init__(self, gram: np.ndarray, cross: np.ndarray) -> None:
        self._values, self._vectors = np.linalg.eigh(gram)
        self._projected = self._vectors.T @ cross
        self._scale = float(np.trace(gram)) / len(gram)

    def solve(self, ridge: float) -> np.ndarray:
        """Return the coefficients [width + 1, hidden] for one λ; the last row is the bias."""
        return self._vectors @ (self._projected / (self._values[:, None].clip(min=0) + ridge * self._scale))

    def best(
        self, inputs: np.ndarray, target: np.ndarray, ridges: Sequence[float] = RIDGES
    ) -> tuple[float, np.ndarray]:
        """Return the λ with the smallest squared error on held-out texts, and its coefficients.

        Args:
            inputs: What `with_ones` returns for the texts, [texts, width + 1].
            target: Their targets r, [texts, hidden].
            ridges: The values of λ to try.
        """
        errors = {ridge: float(((inputs @ self.solve(ridge) - target) ** 2).sum()) for ridge in ridges}
        found = min(errors, key=lambda ridge: errors[ridge])
        return found, self.solve(found)


@dataclasses.dataclass(frozen=True)
class Solution:
    """Fitted maps and what was found on the way.

    Attributes:
        axes: V, float64 [hidden, hidden].
        coefficients: {layer below the last: float64 [width + 1, hidden]}.
        ridges: {layer: the λ that was taken}.
    """

    axes: np.ndarray
    coefficients: dict[int, np.ndarray]
    ridges: dict[int, float]

    def embed(self, layer: int, inputs: np.ndarray) -> np.ndarray:
        """Return the projected outputs of a layer, float64 [texts, hidden].

        Args:
            layer: A layer of `coefficients`; any other is taken for the last one, whose map is the rotation.
            inputs: The inputs u of the layer's map, [texts, width]; for the last layer the full embeddings e,
                [texts, hidden].
        """
        if layer in self.coefficients:
            return with_ones(inputs) @ self.coefficients[layer]
        return np.asarray(inputs, dtype=np.float64) @ self.axes


def solve(
    moments: Moments, held_out: Mapping[int, np.ndarray], target: np.ndarray, ridges: Sequence[float] = RIDGES
) -> Solution:
    """Solve the maps of all layers.

    Args:
        moments: Sums over the texts that are fitted.
        held_out: {layer: inputs [texts, width]} of other texts, which choose λ.
        target: Their full embeddings e, [texts, hidden].
        ridges: The values of λ to try.

    Raises:
        UserError: There are fewer texts than numbers in an input, or the embeddings are constant or not finite.

    Example:
        >>> u = unit(np.random.default_rng(0).normal(size=(50, 4)))
        >>> turned = u[:, [1, 0, 2, 3]]
        >>> moments = Moments.zeros(4, {1: 4})
        >>> moments.add({1: u[10:]}, turned[10:])
        >>> found = solve(moments, {1: u[:10]}, turned[:10])
        >>> bool(np.allclose(found.embed(1, u), turned @ found.axes, atol=1e-3))
        True
    """
    moments.check_count()
    if not np.isfinite(moments.target).all():
        raise UserError("the model's embeddings of these texts are not finite", "check the weights of the model")
    axes = principal_axes(moments.target)
    # One direction holds everything if all texts have the same embedding, up to length.
    values = np.linalg.eigvalsh(moments.target)
    if values[-1] <= 0 or values[-2:-1].sum() <= 1e-9 * values[-1]:
        raise UserError(
            "the model gives all these texts the same embedding", "check the texts, the model and --pooling"
        )
    rotated = np.asarray(target, dtype=np.float64) @ axes
    coefficients, chosen = {}, {}
    for layer, gram in moments.grams.items():
        if not np.isfinite(gram).all():
            raise UserError(f"the outputs of layer {layer} are not finite", "check the weights of the model")
        regression = Ridge(gram, moments.crosses[layer] @ axes)
        chosen[layer], coefficients[layer] = regression.best(with_ones(held_out[layer]), rotated, ridges)
    return Solution(axes, coefficients, chosen)


def layer_maps(solution: Solution, last: int, inputs: Mapping[int, Sequence[int]]) -> dict[int, LayerMap]:
    """Return the maps of the layers from 1, by layer, as modules in float32.

    Args:
        solution: The fitted maps.
        last: The last layer, whose map is the rotation.
        inputs: {layer: the layers whose outputs are its input}.
    """
    maps = {}
    for layer, found in solution.coefficients.items():
        weight, bias = _float32(found[:-1].T), _float32(found[-1])
        maps[layer] = LayerMap(weight, bias, inputs[layer], normalize=True)
    maps[last] = LayerMap(_float32(solution.axes.T), None, (last,), normalize=False)
    return maps


def projections(maps: Mapping[int, LayerMap], table: TokenTable | None, fingerprints: Mapping[int, str]) -> Projections:
    """Return maps as the projections of a model with these fingerprints of its layers.

    Args:
        maps: {layer from 1: its map}, as `layer_maps` returns them.
        table: The embedding of layer 0, or None.
        fingerprints: {layer: fingerprint of the backbone up to it}.

    Returns:
        The projections, whose `space` identifies these maps.
    """
    found = Projections(maps, table, fingerprints, "")
    found.space = found.identity()
    return found


def _float32(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).float()
