"""The options of `circuit`; this module imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.models.options import ModelOptions

METRICS = ("difference", "kl")


@dataclass(frozen=True)
class CircuitOptions(ModelOptions):
    """The options of `circuit`: which pairs are used, how edges are scored and tested."""

    # `limit` and `seed` select the pairs, which the identity of a job lists.
    limit: int = option(64, min=4, in_identity=False, help="Use at most this many pairs.")
    metric: str = option(
        "difference",
        choices=METRICS,
        help="What edges are judged by: the answer's logit less the wrong answer's, or the "
        "divergence (KL) from the clean distribution.",
    )
    steps: int = option(
        5,
        min=1,
        help="Points between the corrupted and the clean embeddings at which gradients are taken "
        "(EAP-IG); 1: at the clean input alone (EAP).",
    )
    hold_norms: bool = option(
        False,
        help="Hold the scale of the norms before the receivers instead of computing it again.",
    )
    exact: int = option(
        20, min=0, help="Patch this many of the best edges exactly, each with a run of its own."
    )
    check: int = option(
        0,
        min=0,
        help="Patch this many edges drawn at random exactly, and compare them with their estimate.",
    )
    senders: str = option(
        "",
        help="Patch all edges from these parts to the named receivers exactly: L3H1,L5MLP,embedding.",
    )
    receivers: str = option(
        "",
        help="Patch all edges from the named senders to these inputs exactly: L7H2.key,L9MLP,logits.",
    )
    faithfulness: float = option(
        0.8,
        min=0.0,
        help="The smallest circuit that keeps this share of the metric is reported.",
    )
    random: int = option(
        20, min=0, help="Random rankings of the edges that the ranking is compared with."
    )
    edges: int = option(
        1000, min=10, help="Keep this many of the best edges in the result (all are scored)."
    )
    seed: int = option(0, min=0, help="Seed of the built-in pairs and of the random rankings.")
    batch: int = option(
        16, min=1, command_line=False, help="Pairs that go through the model at once."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.faithfulness > 1:
            raise ParameterError("`faithfulness` is a share of the metric, at most 1.")
        if bool(self.senders) != bool(self.receivers):
            raise ParameterError("Name both `senders` and `receivers`, or neither.")
