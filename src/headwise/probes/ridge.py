"""Ridge regression in closed form: for all heads and penalties at once, and for choosing heads
one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.probes.features import ProbeFeatures, Scaler, gram_matrix, load_features
from headwise.text.tasks import Split


def fit_ridge(train: Tensor, targets: Tensor, penalties: Sequence[float]) -> Tensor:
    """Minimise `mean |y - XW|^2 + penalty |W|^2` for all heads and penalties together.

    One eigendecomposition of each head's Gram matrix serves all penalties. The bias is not
    penalised.

    Parameters
    ----------
    train : Tensor
        ProbeFeatures without a column of ones, `[head, example, size]`.
    targets : Tensor
        Values to regress on, `[example, column]`.
    penalties : sequence of float
        L2 penalties, all greater than 0.

    Returns
    -------
    Tensor
        Weights `[head, penalty, column, size + 1]`, the bias last.
    """
    n_examples = train.shape[1]
    feature_mean = train.mean(1, keepdim=True)
    centred = train - feature_mean
    target_mean = targets.mean(0)
    gram = gram_matrix(centred) / n_examples
    moment = (centred.mT @ (targets - target_mean)).double() / n_examples

    eigenvalues, eigenvectors = torch.linalg.eigh(gram)
    rotated_moment = eigenvectors.mT @ moment
    ridge = torch.tensor(list(penalties), dtype=torch.float64, device=train.device)
    # [head, penalty, size]: rounding can leave eigenvalues slightly below 0.
    spectrum = eigenvalues.clamp(min=0)[:, None] + ridge[None, :, None]
    weights = (eigenvectors[:, None] @ (rotated_moment[:, None] / spectrum[..., None])).mT

    # The mean vector must be predicted as the mean target.
    bias = target_mean.double()[:, None] - weights @ feature_mean.double().mT[:, None]
    return torch.cat([weights, bias], -1).to(train.dtype)


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Return class numbers as rows with a single 1, `[example, class]`."""
    return torch.nn.functional.one_hot(labels, n_classes).float()


def solve_penalised(gram: Tensor, right_hand_side: Tensor, penalty: float) -> Tensor:
    """Solve `gram @ x = right_hand_side` for Gram matrices that contain a penalty.

    Such a matrix, and every Schur complement of it, is positive definite with eigenvalues of at
    least `penalty`, so a Cholesky factor suffices. `torch.linalg.solve` (LU) is no alternative:
    with several threads the batched LU of oneMKL fails for matrices of about 200 rows and more
    ("Parameter 6 was incorrect on entry to DLASWP"), however well conditioned they are.

    Parameters
    ----------
    gram : Tensor
        `[..., size, size]`, the penalty on the diagonal included.
    right_hand_side : Tensor
        `[..., size, column]`.
    penalty : float
        The penalty that `gram` contains.

    Returns
    -------
    Tensor
        `[..., size, column]`.
    """
    factor, failures = torch.linalg.cholesky_ex(gram)
    solution = torch.cholesky_solve(right_hand_side, factor)
    not_definite = failures != 0
    if not_definite.any():
        # Rounding in repeated Schur complements can push small eigenvalues below 0. Exact
        # arithmetic would leave them at `penalty` or above, so they are raised to it.
        eigenvalues, eigenvectors = torch.linalg.eigh(gram[not_definite])
        smallest = torch.finfo(gram.dtype).eps * eigenvalues.abs().amax(-1, keepdim=True)
        eigenvalues = eigenvalues.clamp(min=penalty).maximum(smallest)
        rotated = eigenvectors.mT @ right_hand_side[not_definite]
        solution[not_definite] = eigenvectors @ (rotated / eigenvalues[..., None])
    return solution


@dataclass(frozen=True, slots=True)
class GreedyOptions:
    """Options of the greedy selection of heads.

    Parameters
    ----------
    steps : int
        How many heads are chosen.
    penalty : float, default 0.01
        L2 penalty of the ridge regressions, in units of the mean loss.
    candidates : sequence of int, optional
        The units to choose among; by default all.
    standardize : bool, default True
        Whether features are standardised on the training part.
    device : str, default "cpu"
        Where regressions are fitted.
    """

    steps: int
    penalty: float = 1e-2
    candidates: Sequence[int] | None = None
    standardize: bool = True
    device: str = "cpu"


def greedy_heads(
    features: ProbeFeatures,
    split: Split,
    targets: np.ndarray,
    score: Callable[[Tensor], Tensor],
    options: GreedyOptions,
) -> tuple[list[int], list[float]]:
    """Choose heads by forward selection: in each step the head that most improves validation.

    Every candidate set is fitted in closed form. After a choice the normal equations of all other
    heads are reduced by the chosen block (a Schur complement), so that a step costs about as much
    as one product of the Gram matrix with one head, however many heads are chosen already. Ties go
    to the lowest index.

    Parameters
    ----------
    features : ProbeFeatures
        The vectors of the heads.
    split : Split
        Its training rows fit, its validation rows choose.
    targets : ndarray
        `[example, column]` of the training rows, to regress on.
    score : callable
        Takes predictions `[candidate, validation example, column]`, returns a score `[candidate]`.
    options : GreedyOptions
        How many heads, among which, with which penalty.

    Returns
    -------
    chosen, scores
        The chosen units in order, and the validation score after each choice.
    """
    if options.candidates is None:
        candidates = list(range(features.units))
    else:
        candidates = sorted(int(unit) for unit in options.candidates)
    if not 1 <= options.steps <= len(candidates):
        raise ParameterError(
            f"`steps` must be from 1 to {len(candidates)}, the number of candidate heads; it is "
            f"{options.steps}."
        )
    equations = _NormalEquations(features, candidates, split, targets, options)
    chosen: list[int] = []
    scores: list[float] = []
    for _ in range(options.steps):
        gains = equations.candidate_predictions()
        candidate_scores = score(equations.predicted[None] + gains)
        best = int(torch.argmax(candidate_scores))
        index = int(equations.remaining.nonzero()[best, 0])
        chosen.append(candidates[index])
        scores.append(float(candidate_scores[best]))
        equations.choose(index, gains[best])
    return chosen, scores


class _NormalEquations:
    """The normal equations of all candidate heads together, given the heads chosen so far.

    The Gram matrix `X'X / n + penalty` of all candidates, of which only the blocks on the diagonal
    and those of chosen heads are needed, is never formed: with 270 heads of size 64 it has 2.4 GB.

    Attributes
    ----------
    train : Tensor
        Centred training features, `[example, candidate * size]`.
    own_blocks : Tensor
        The block of each candidate on the diagonal of the Gram matrix, `[candidate, size, size]`,
        after elimination of the chosen heads.
    eliminated : list of (Tensor, Tensor)
        Of each chosen head its columns of the Gram matrix at that time, `[candidate * size, size]`,
        and the projection on it, `[size, candidate * size]`: their product is what its elimination
        subtracts.
    moment : Tensor
        `X'y / n`, `[candidate * size, column]`, after elimination.
    validation : Tensor
        Validation features, `[example, candidate * size]`, less what the chosen heads explain.
    predicted : Tensor
        Validation predictions of the chosen heads, `[example, column]`.
    remaining : Tensor
        Which candidates are not chosen yet.
    """

    def __init__(
        self,
        features: ProbeFeatures,
        candidates: Sequence[int],
        split: Split,
        targets: np.ndarray,
        options: GreedyOptions,
    ) -> None:
        self.penalty = options.penalty
        self.size = features.size
        self.count = len(candidates)
        device = options.device
        train_blocks = []
        validation_blocks = []
        for unit in candidates:
            raw = load_features(features, unit, unit + 1, split.train, device)
            raw_validation = load_features(features, unit, unit + 1, split.validation, device)
            scaler = Scaler(raw, options.standardize)
            scaled = scaler(raw)[0].double()
            mean = scaled.mean(0)
            train_blocks.append(scaled - mean)
            validation_blocks.append(scaler(raw_validation)[0].double() - mean)
        self.train = torch.cat(train_blocks, 1)
        self.validation = torch.cat(validation_blocks, 1)
        self.eliminated: list[tuple[Tensor, Tensor]] = []

        wanted = torch.as_tensor(targets, dtype=torch.float64, device=device)
        target_mean = wanted.mean(0)
        n_examples = len(self.train)
        by_candidate = self.train.view(n_examples, self.count, self.size).transpose(0, 1)
        self.own_blocks = by_candidate.mT @ by_candidate / n_examples
        self.own_blocks.diagonal(dim1=1, dim2=2).add_(self.penalty)
        self.moment = self.train.T @ (wanted - target_mean) / n_examples
        self.predicted = target_mean.expand(len(self.validation), -1).clone()
        self.remaining = torch.ones(self.count, dtype=torch.bool, device=device)

    def candidate_predictions(self) -> Tensor:
        """What each remaining candidate adds to the predictions, `[candidate, example, column]`."""
        moments = self.moment.view(self.count, self.size, -1)
        weights = solve_penalised(
            self.own_blocks[self.remaining], moments[self.remaining], self.penalty
        )
        validation = self.validation.view(-1, self.count, self.size)[:, self.remaining]
        return validation.transpose(0, 1) @ weights

    def choose(self, index: int, gain: Tensor) -> None:
        """Add a candidate with its predictions, and eliminate its block from the equations."""
        block = slice(index * self.size, (index + 1) * self.size)
        self.predicted += gain
        columns = self._columns(block)
        projection = solve_penalised(
            columns[block], columns.T, self.penalty
        )  # [size, candidate * size]
        self.moment -= projection.T @ self.moment[block].clone()
        self.validation -= self.validation[:, block].clone() @ projection
        of_candidates = projection.view(self.size, self.count, self.size).transpose(0, 1)
        self.own_blocks -= columns.view(self.count, self.size, self.size) @ of_candidates
        # Nothing is left of the chosen head; an identity keeps its block regular.
        self.own_blocks[index] = torch.eye(self.size, dtype=columns.dtype, device=columns.device)
        self.eliminated.append((columns, projection))
        self.remaining[index] = False

    def _columns(self, block: slice) -> Tensor:
        """Return the columns of a head in the Gram matrix, `[candidate * size, size]`, after
        elimination of the heads chosen before."""
        columns = self.train.T @ self.train[:, block] / len(self.train)
        columns[block].diagonal().add_(self.penalty)
        for chosen_columns, projection in self.eliminated:
            columns -= chosen_columns @ projection[:, block]
        return columns
