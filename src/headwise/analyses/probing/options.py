"""The options of probing, declared once for the analysis, for `headwise.probe` and for the command
line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwise.core.errors import ParameterError
from headwise.core.options import CheckedOptions, option, recorded_options

if TYPE_CHECKING:
    from headwise.probes import ProbeSettings

# Repeated here, and compared by a test: their homes import torch, which `headwise --help` would
# have to wait for.
SOLVERS = ("lbfgs", "senteval", "ridge")
TOKENS = ("auto", "first", "last", "mean")
DTYPES = ("float32", "float16")
CORRECTIONS = ("holm", "benjamini_hochberg", "none")
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
PAIRS = ("joint", "features")
# Numbers of heads at which the curve over n is measured by default, beside H, 3H/2, 2H and 3H with
# H the heads of a layer.
CURVE = (1, 2, 3, 4, 6, 8)
CPU_MEMORY = 2**30  # bytes that a block of probes may take
GPU_MEMORY = 2**33


@dataclass(frozen=True)
class ProbingOptions(CheckedOptions):
    """How heads are probed: which classifier, on which vectors, what is fitted beside every head
    and layer, and how it is tested.

    Parameters
    ----------
    solver : {"lbfgs", "senteval", "ridge"}, default "lbfgs"
        `lbfgs`: logistic regression to convergence; `senteval`: the papers' protocol; `ridge`:
        least squares, closed form.
    folds : int, default 0
        0: the validation part selects penalties and ranks heads; k: k-fold cross-validation on
        training and validation part.
    standardize : bool, default True
        Features minus their mean, divided by their standard deviation, both of the training part.
    penalties : tuple of float, default (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
        L2 penalties to try, in units of the mean loss; the best on validation is used.
    token : {"auto", "first", "last", "mean"}, default "auto"
        Which token stands for the sentence; `auto`: the first for encoders, the last for decoders.
    pairs : {"joint", "features"}, default "joint"
        Two sentences as one input, or apart, as `[u; v; |u−v|; u*v]`.
    top : int, default 0
        How many heads are joined; 0: as many as a layer has, so that the vector is as long as a
        layer's.
    curve : tuple of int, optional
        Numbers of heads of the curve over n; by default some up to three layers' worth; empty for
        none.
    greedy : bool, default True
        Forward selection of heads, by ridge regression.
    greedy_penalty : float, default 0.01
        The penalty of those regressions.
    control : bool, default True
        The control task: random labels.
    random_baseline : bool, default False
        Probe the same architecture with random weights too.
    correction : {"holm", "benjamini_hochberg", "none"}, default "holm"
        Of p-values over the heads of a task.
    train, validation, test : int, default 0
        The most examples of each part of a task, labels in proportion; 0: all.
    dtype : {"float32", "float16"}, default "float32"
        Type in which vectors are stored.
    seed : int, optional
        For splits, samples, control tasks, folds and random weights; default: the run's, else 0.
    """

    solver: str = option(
        "lbfgs",
        choices=SOLVERS,
        help="lbfgs (logistic regression to convergence), senteval (the papers' protocol) or "
        "ridge (least squares).",
    )
    folds: int = option(
        0,
        min=0,
        help="Folds of cross-validation, at least 2; 0: the task's own validation part.",
    )
    standardize: bool = option(
        True,
        flag="standardize/no-standardize",
        help="Features minus their mean, divided by their deviation (of the training part), or as "
        "they are.",
    )
    penalties: tuple[float, ...] = option(
        PENALTIES, command_line=False, help="L2 penalties to try, in units of the mean loss."
    )
    token: str = option(
        "auto",
        choices=TOKENS,
        help="Which token stands for the sentence: auto, first, last or mean.",
    )
    pairs: str = option(
        "joint", choices=PAIRS, help="Two sentences as one input (joint) or apart (features)."
    )
    top: int = option(
        0, min=0, help="How many of the best heads are joined; 0: as many as a layer has."
    )
    curve: tuple[int, ...] | None = option(
        None, command_line=False, help="Numbers of heads of the curve over n."
    )
    greedy: bool = option(
        True, flag="greedy/no-greedy", help="Also choose heads by forward selection."
    )
    greedy_penalty: float = option(
        1e-2, command_line=False, help="L2 penalty of the forward selection."
    )
    control: bool = option(
        True, flag="control/no-control", help="Also fit a control task with random labels."
    )
    random_baseline: bool = option(
        False, help="Probe the same architecture with random weights too."
    )
    correction: str = option(
        "holm",
        choices=CORRECTIONS,
        help="Correction of p-values over the heads of a task: holm, benjamini_hochberg or none.",
    )
    train: int = option(0, min=0, help="The most training examples of a task; 0: all.")
    validation: int = option(0, min=0, help="The most validation examples of a task; 0: all.")
    test: int = option(0, min=0, help="The most test examples of a task; 0: all.")
    dtype: str = option(
        "float32", choices=DTYPES, command_line=False, help="Type in which vectors are stored."
    )
    seed: int | None = option(None, min=0, help="Seed of everything random; default: 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds == 1:
            raise ParameterError("`folds` must be 0 (none) or at least 2; it is 1.")
        if not self.greedy_penalty > 0:
            raise ParameterError(
                f"`greedy_penalty` must be greater than 0; it is {self.greedy_penalty!r}."
            )

    @property
    def limits(self) -> tuple[int | None, int | None, int | None]:
        """The most examples of the training, validation and test part; None: all."""
        return (self.train or None, self.validation or None, self.test or None)

    def probe_settings(self, device: object = "cpu") -> ProbeSettings:
        """Return the settings of the classifiers, for probes that are fitted on a device."""
        from headwise.probes import ProbeSettings

        on_cpu = str(device).startswith("cpu")
        return ProbeSettings(
            solver=self.solver,
            penalties=self.penalties,
            folds=self.folds or None,
            standardize=self.standardize,
            seed=self.seed or 0,
            memory=CPU_MEMORY if on_cpu else GPU_MEMORY,
            device=str(device),
        )

    def identity(self) -> dict[str, Any]:
        """Return the options that change the fits of a task; others change only what is made of
        them, or which examples there are."""
        values = recorded_options(self)
        for name in ("random_baseline", "correction", "train", "validation", "test"):
            del values[name]
        return values

    def head_counts(self, layers: int, heads: int) -> tuple[int, tuple[int, ...]]:
        """Return how many heads are joined, and the points of the curve; raise if the model has
        fewer heads.

        Parameters
        ----------
        layers, heads : int
            Layers of the model, and heads of a layer.
        """
        total = layers * heads
        top = self.top or heads
        if self.curve is None:
            points = {*CURVE, heads, 3 * heads // 2, 2 * heads, 3 * heads}
            points = {n for n in points if 1 <= n <= total}
        else:
            points = set(self.curve)
        curve = tuple(sorted(points))
        for name, counts in (("top", (top,)), ("curve", curve)):
            for n in counts:
                if not 1 <= n <= total:
                    raise ParameterError(
                        f"`{name}` asks for {n} heads, but the model has {total}; give a number "
                        f"from 1 to {total}."
                    )
        return top, curve
