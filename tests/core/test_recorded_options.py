"""Identity and provenance come from the declaration of the options, so none can be forgotten."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headwise.analyses.probing.options import ProbingOptions
from headwise.core.options import option, recorded_options
from headwise.experiments.ablation.options import AblationOptions, PruneOptions
from headwise.experiments.comparison.options import ComparisonOptions
from headwise.experiments.finetuning.options import FinetuneOptions
from headwise.experiments.patching.options import PatchOptions
from headwise.experiments.reproduction.options import ReproductionOptions
from headwise.run.options import RunOptions

RECORDED = {
    AblationOptions: "how heads layers sets importance sinks correction share seed",
    PatchOptions: "exact positions ablate batch share",
    PruneOptions: "mode seed",
    ComparisonOptions: "correction variant seed",
    FinetuneOptions: "pooling start half",
    ReproductionOptions: "data quick scale finetuned sources variant parser seed",
    RunOptions: "batch_tokens seed",
}
TASKS = [*RECORDED, ProbingOptions]


@pytest.mark.parametrize(("options_class", "names"), RECORDED.items())
def test_recorded_options_of_each_task(options_class: type, names: str) -> None:
    assert set(recorded_options(options_class())) == set(names.split())


@pytest.mark.parametrize("options_class", TASKS)
def test_a_new_option_changes_the_identity_unless_declared_otherwise(options_class: type) -> None:
    @dataclass(frozen=True)
    class Extended(options_class):  # type: ignore[misc]
        threshold: float = option(0.5, help="A new option.")
        colour: str = option("red", in_identity=False, help="A new option of the display.")

    usual = recorded_options(Extended())
    assert usual == {**recorded_options(options_class()), "threshold": 0.5}
    assert recorded_options(Extended(threshold=0.7)) != usual
    assert recorded_options(Extended(colour="blue")) == usual


def test_recorded_values_are_those_of_the_options() -> None:
    options = AblationOptions(how="zero", sets={"sinks": "roles:delimiter"}, seed=3)
    recorded = recorded_options(options)
    assert recorded["how"] == "zero"
    assert recorded["sets"] == {"sinks": "roles:delimiter"}
    assert recorded["seed"] == 3
