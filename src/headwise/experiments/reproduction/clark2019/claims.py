"""The claims of Clark et al. 2019: from measured numbers to evidence for each sentence.

The rules, with their bounds, stand beside the sentences in `printed/clark2019.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from headwise.core.labels import head_name
from headwise.experiments.reproduction.estimates import (
    Estimate,
    Estimates,
    Outcome,
    all_of,
    any_of,
    count_text,
    outcome_of,
    weighted_layer,
)
from headwise.experiments.reproduction.printed import bounds_of
from headwise.experiments.reproduction.rules import Evidence, cannot_try
from headwise.experiments.reproduction.shared import best_head, layers_at_depth, layers_text

PAPER = "clark2019"
OFFSETS = {"previous": -1, "next": 1}
# The layers, from 1, in which the paper has heads that attend to a neighbour (§3.1).
NEIGHBOUR_LAYERS = {"previous": (2, 4, 7, 8), "next": (1, 2, 2, 3, 6)}
TYPES_BY_DEPTH = ("cls", "sep", "punct")  # early, middle and deep heads attend to these (Fig 2)
TYPES_IN_WORDS = {"cls": "[CLS]", "sep": "[SEP]", "punct": ". and ,"}
EXCEPTION = "pobj"  # the relation whose head attends to its dependent (§4.2)


# --- §3.1 -----------------------------------------------------------------------------------------


def neighbour_evidence(surface: xr.Dataset) -> dict[str, Evidence]:
    """Return the evidence on heads that attend to the previous, the next and the current token.

    Parameters
    ----------
    surface : xr.Dataset
        The result of `surface`, with `position[layer, head, offset]` and its interval.
    """
    evidence = {}
    sample = {"segments": number_of_segments(surface, "position")}
    n_layers = surface.sizes["layer"]
    heads_by_offset: dict[str, list[tuple[int, int]]] = {}
    counts: dict[str, Estimate] = {}
    for name, offset in OFFSETS.items():
        attention = Estimates.of(surface, "position", offset=offset)
        if not attention.n_known:
            evidence[name] = cannot_try("a causal model sees no next token")
            continue
        bounds = bounds_of(PAPER, name)
        attention = attention.for_all()
        heads = heads_above(attention.value, bounds["share"])
        count = attention.count_above(bounds["share"])
        heads_by_offset[name] = heads
        counts[name] = count
        layers = Counter(layer for layer, _ in heads)
        paper_layers = Counter(
            layers_at_depth(number, number, n_layers)[0] for number in NEIGHBOUR_LAYERS[name]
        )
        in_paper_layers = all_of(
            [
                count.at_least(bounds["heads"]),
                count.at_most(bounds["heads"]),
                outcome_of(layers == paper_layers),
            ]
        )
        ours = f"{count_text(count)} heads ({heads_text(attention.value, heads)})"
        evidence[name] = Evidence(
            ours,
            in_paper_layers,
            {"number": count.at_least(bounds["heads"]), "some": count.at_least(1)},
            sample,
        )
    evidence["earlier"] = earlier_evidence(heads_by_offset, counts, n_layers, sample)
    evidence["current"] = current_evidence(surface, sample)
    return evidence


def number_of_segments(surface: xr.Dataset, name: str) -> int:
    """Return over how many texts a mean was taken."""
    return int(surface[f"{name}_n"].max())


def heads_above(values: np.ndarray, bound: float) -> list[tuple[int, int]]:
    """Return the heads with a value above a bound."""
    return [(int(layer), int(head)) for layer, head in np.argwhere(values > bound)]


def heads_text(values: np.ndarray, heads: Sequence[tuple[int, int]]) -> str:
    """Return the heads with their values, or the head with the highest where there is none."""
    if not heads:
        highest = best_head(values)
        return f"highest: {head_name(*highest)} {values[highest]:.2f}"
    return ", ".join(f"{head_name(*head)} {values[head]:.2f}" for head in heads)


def earlier_evidence(
    heads_by_offset: Mapping[str, Sequence[tuple[int, int]]],
    counts: Mapping[str, Estimate],
    n_layers: int,
    sample: Mapping[str, int],
) -> Evidence:
    """Return the evidence on where the heads that attend to a neighbour lie."""
    bounds = bounds_of(PAPER, "earlier")
    layers = []
    for heads in heads_by_offset.values():
        layers += [layer for layer, _ in heads]
    n_early = sum(layer < n_layers / 2 for layer in layers)
    ours = f"{n_early} of {len(layers)} heads in the first half of the layers"
    some = any_of(count.at_least(1) for count in counts.values())
    if some is not Outcome.FALSE and len(layers) < bounds["heads"]:
        why = f"{len(layers)} such heads, too few to say where they lie"
        return Evidence(ours, Outcome.OPEN, {"some": some}, sample, open_because=why)
    mostly_early = outcome_of(n_early > bounds["share"] * len(layers))
    return Evidence(ours, all_of([some, mostly_early]), {"some": some}, sample)


def current_evidence(surface: xr.Dataset, sample: Mapping[str, int]) -> Evidence:
    """Return the evidence on attention to the token itself."""
    bounds = bounds_of(PAPER, "current")
    to_itself = Estimates.of(surface, "position", offset=0).for_all()
    count = to_itself.count_below(bounds["little"])
    ours = f"{count_text(count, to_itself.n_known)} heads under {bounds['little']:g}"
    return Evidence(ours, count.above(bounds["share"] * to_itself.n_known), {}, sample)


# --- §3.2 -----------------------------------------------------------------------------------------


def token_type_evidence(surface: xr.Dataset) -> dict[str, Evidence]:
    """Return the evidence on attention to token types, from the result of `surface`."""
    n_layers = surface.sizes["layer"]
    middle = layers_at_depth(6, 10, n_layers)
    sample = {"segments": number_of_segments(surface, "mass")}
    by_type = {}
    for token_type in TYPES_BY_DEPTH:
        by_type[token_type] = Estimates.of(surface, "mass", token_type=token_type)
    evidence = {}
    if by_type["sep"].n_known:
        from_sep = Estimates.of(surface, "mass_from_sep", token_type="sep")
        evidence["sep-half"] = _sep_half_evidence(by_type["sep"], middle, sample)
        evidence["sep-self"] = _sep_self_evidence(from_sep, middle, sample)
    else:
        why = "the texts of this model have no [SEP]"
        evidence["sep-half"] = cannot_try(why)
        evidence["sep-self"] = cannot_try(why)
    missing = [TYPES_IN_WORDS[name] for name, mass in by_type.items() if not mass.n_known]
    if missing:
        evidence["early-cls"] = cannot_try(f"no {' and no '.join(missing)} in these texts")
    elif n_layers < 3:
        evidence["early-cls"] = cannot_try("the model has fewer than three layers")
    else:
        evidence["early-cls"] = _depth_evidence(by_type, n_layers, sample)
    return evidence


def _sep_half_evidence(to_sep: Estimates, layers: range, sample: Mapping[str, int]) -> Evidence:
    share = bounds_of(PAPER, "sep-half")["share"]
    mean = to_sep.at(list(layers)).mean()
    by_layer = [to_sep.at(layer).mean() for layer in layers]
    n_over_half = sum(layer.value > share for layer in by_layer)
    ours = (
        f"{mean.text()} in {layers_text(layers)}; over {share:g} in {n_over_half} of "
        f"{len(layers)} of them"
    )
    some_layer = any_of(layer.above(share) for layer in by_layer)
    return Evidence(ours, mean.above(share), {"some-layer": some_layer}, sample)


def _sep_self_evidence(from_sep: Estimates, layers: range, sample: Mapping[str, int]) -> Evidence:
    bounds = bounds_of(PAPER, "sep-self")
    mean = from_sep.at(list(layers)).mean()
    ours = f"{mean.text()} in {layers_text(layers)}"
    return Evidence(ours, mean.above(bounds["share"]), {"half": mean.above(bounds["half"])}, sample)


def _depth_evidence(
    by_type: Mapping[str, Estimates], n_layers: int, sample: Mapping[str, int]
) -> Evidence:
    """Return the evidence on which token type early, middle and deep heads attend to."""
    thirds = np.array_split(np.arange(n_layers), 3)
    peaks = []
    parts = []
    mean_layers = []
    for place, token_type in enumerate(TYPES_BY_DEPTH):
        means = [by_type[token_type].at(third).mean() for third in thirds]
        others = [mean for index, mean in enumerate(means) if index != place]
        peaks += [means[place].minus(other).above(0) for other in others]
        mean_layer = weighted_layer(by_type[token_type])
        mean_layers.append(mean_layer)
        shares = ", ".join(f"{mean.value:.2f}" for mean in means)
        parts.append(f"{TYPES_IN_WORDS[token_type]} {shares} (mean layer {mean_layer.value:.1f})")
    cls_layer, sep_layer, punct_layer = mean_layers
    in_order = all_of([sep_layer.minus(cls_layer).above(0), punct_layer.minus(sep_layer).above(0)])
    ours = f"thirds of the layers: {'; '.join(parts)}"
    return Evidence(ours, all_of(peaks), {"order": in_order}, sample)


def gradient_evidence(gradient: xr.Dataset) -> dict[str, Evidence]:
    """Return the evidence on gradients for attention to [SEP], from the result of `gradient`."""
    importance = Estimates.of(gradient, "importance", token_type="sep")
    late = layers_at_depth(5, 12, len(importance.value))
    if not importance.n_known:
        return {"sep-gradient": cannot_try("the texts of this model have no [SEP]")}
    if late[0] == 0:
        return {"sep-gradient": cannot_try("the model has too few layers")}
    bounds = bounds_of(PAPER, "sep-gradient")
    before = importance.at(slice(0, late[0])).mean()
    after = importance.at(list(late)).mean()
    ours = f"{after.text('.2g')} in {layers_text(late)}, {before.text('.2g')} before"

    def falls_below(share: float) -> Outcome:
        return after.minus(before.times(share)).below(0)

    return {
        "sep-gradient": Evidence(
            ours,
            falls_below(bounds["share"]),
            {"half": falls_below(bounds["half"])},
            {"segments": number_of_segments(gradient, "importance")},
        )
    }


# --- §3.3 -----------------------------------------------------------------------------------------


def entropy_evidence(surface: xr.Dataset) -> dict[str, Evidence]:
    """Return the evidence on broad heads, from the result of `surface`."""
    sample = {"segments": number_of_segments(surface, "entropy")}
    entropy = Estimates.of(surface, "entropy")
    return {
        "broad-low": _broad_evidence(surface, entropy, sample),
        "broad-tenth": _largest_weight_evidence(surface, entropy, sample),
        "cls-last": _cls_entropy_evidence(surface, entropy, sample),
    }


def _broad_evidence(surface: xr.Dataset, entropy: Estimates, sample: Mapping[str, int]) -> Evidence:
    bounds = bounds_of(PAPER, "broad-low")
    even = surface["entropy_uniform"].values[:, None]
    relative = Estimates(entropy.value / even, entropy.low / even, entropy.high / even).for_all()
    count = relative.count_above(bounds["broad"])
    heads = heads_above(relative.value, bounds["broad"])
    n_layers = len(relative.value)
    n_early = sum(layer < n_layers / 2 for layer, _ in heads)
    mostly_early = outcome_of(n_early > bounds["share"] * len(heads))
    if not heads:
        mostly_early = Outcome.FALSE
    broadest = best_head(entropy.value)
    ours = (
        f"{n_early} of {count_text(count)} heads over {bounds['broad']:g} of an even row's entropy "
        f"lie in the first half; broadest {head_name(*broadest)}, {entropy.value[broadest]:.2f} nats"
    )
    weaker = {
        "broadest": outcome_of(broadest[0] < n_layers / 2),
        "some": count.at_least(1),
    }
    return Evidence(ours, all_of([count.at_least(1), mostly_early]), weaker, sample)


def _largest_weight_evidence(
    surface: xr.Dataset, entropy: Estimates, sample: Mapping[str, int]
) -> Evidence:
    bounds = bounds_of(PAPER, "broad-tenth")
    is_broad = entropy.value >= np.nanquantile(entropy.value, 1 - bounds["broadest"])
    largest = Estimates.of(surface, "max_weight").at(is_broad)
    median = largest.median()
    count = largest.for_all().negated().count_above(-bounds["weight"] - 1e-12)
    n_at_most = f"{count_text(count, largest.n_known)} heads at most {bounds['weight']:g}"
    ours = f"median {median.text()}; {n_at_most}"
    return Evidence(ours, median.at_most(bounds["weight"]), {"some": count.at_least(1)}, sample)


def _cls_entropy_evidence(
    surface: xr.Dataset, entropy: Estimates, sample: Mapping[str, int]
) -> Evidence:
    from_cls = Estimates.of(surface, "entropy_from_cls")
    if not from_cls.n_known:
        return cannot_try("the model has no [CLS] that sees other tokens")
    nats = bounds_of(PAPER, "cls-last")["nats"]
    last_from_cls = from_cls.at(-1).mean()
    last_from_all = entropy.at(-1).mean()
    is_higher = last_from_cls.minus(last_from_all).above(0)
    ours = f"{last_from_cls.text()} nats from [CLS], {last_from_all.text()} from all tokens"
    printed = all_of([last_from_cls.at_least(nats), is_higher])
    return Evidence(f"{ours} in the last layer", printed, {"higher": is_higher}, sample)


# --- §4.2 -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RelationScore:
    """The best head of one relation of Table 1.

    Parameters
    ----------
    accuracy : Estimate
        Its accuracy in per cent.
    p_adjusted : float
        Against the best fixed offset, corrected.
    from_dependent : Outcome
        Whether the best head attends from the dependent to the head word.
    text : str
        The treebank's name of the relation with the head.
    """

    accuracy: Estimate
    p_adjusted: float
    from_dependent: Outcome
    text: str


def direction_outcome(accuracy: Estimates, directions: Sequence[str]) -> Outcome:
    """Return whether the best head attends from the dependent, from accuracies `[direction, layer,
    head]`: the best head of one direction against the best of the other."""
    best = []
    for index in range(len(directions)):
        of_direction = accuracy.at(index)
        if not of_direction.n_known:
            return Outcome.OPEN
        best.append(of_direction.one(best_head(of_direction.value)))
    place = directions.index("dependent_to_head")
    return best[place].minus(best[1 - place]).above(0)


def relation_evidence(
    overall: Estimate,
    relations: Mapping[str, RelationScore],
    paper_relations: Sequence[str],
    n_sentences: int,
) -> dict[str, Evidence]:
    """Return the evidence on dependency relations.

    Parameters
    ----------
    overall : Estimate
        The best head's accuracy over all relations, in per cent.
    relations : mapping of str to RelationScore
        By the name in Table 1, without the ones that do not occur.
    paper_relations : sequence of str
        The relations of Table 1.
    n_sentences : int
        The sentences of the treebank that were used.
    """
    sample = {"sentences": n_sentences}
    no_single = Evidence(
        f"{overall.text('.1f')} %", overall.below(bounds_of(PAPER, "no-single")["uas"]), {}, sample
    )
    return {
        "no-single": no_single,
        "specialise": _specialise_evidence(relations, sample),
        "dependent": _dependent_evidence(relations, paper_relations, sample),
    }


def _specialise_evidence(
    relations: Mapping[str, RelationScore], sample: Mapping[str, int]
) -> Evidence:
    bounds = bounds_of(PAPER, "specialise")
    outcomes = []
    texts = []
    for score in relations.values():
        beats_offset = outcome_of(score.p_adjusted < bounds["p"])
        outcome = all_of([score.accuracy.above(bounds["accuracy"]), beats_offset])
        outcomes.append(outcome)
        if score.accuracy.value > bounds["accuracy"] and beats_offset is Outcome.TRUE:
            texts.append(f"{score.text} {score.accuracy.text('.0f')} %")
    n_true = outcomes.count(Outcome.TRUE)
    count = Estimate(len(texts), n_true, n_true + outcomes.count(Outcome.OPEN))
    ours = f"{count_text(count, len(relations))} relations: {', '.join(texts) or 'none'}"
    weaker = {"one": count.at_least(1)}
    return Evidence(ours, count.at_least(bounds["relations"]), weaker, sample)


def _dependent_evidence(
    relations: Mapping[str, RelationScore],
    paper_relations: Sequence[str],
    sample: Mapping[str, int],
) -> Evidence:
    outcomes = {}
    for name, score in relations.items():
        if name != EXCEPTION:
            outcomes[name] = score.from_dependent
    if not outcomes:
        return cannot_try("no relation of Table 1 occurs in this treebank")
    on_present = all_of(outcomes.values())
    missing = [name for name in paper_relations if name not in relations]
    printed = on_present
    exception = relations.get(EXCEPTION)
    if exception is not None:
        reverse = {Outcome.TRUE: Outcome.FALSE, Outcome.FALSE: Outcome.TRUE}
        exception_differs = reverse.get(exception.from_dependent, Outcome.OPEN)
        printed = all_of([on_present, exception_differs])
    if missing and printed is Outcome.TRUE:
        printed = Outcome.OPEN
    n_true = list(outcomes.values()).count(Outcome.TRUE)
    n_open = list(outcomes.values()).count(Outcome.OPEN)
    count = Estimate(n_true, n_true, n_true + n_open)
    ours = f"{count_text(count, len(outcomes))} relations without {EXCEPTION}"
    for outcome, words in ((Outcome.FALSE, "not so"), (Outcome.OPEN, "open")):
        names = [name for name, of_relation in outcomes.items() if of_relation is outcome]
        if names:
            ours += f"; {words}: {', '.join(names)}"
    if exception is not None:
        ours += f"; {EXCEPTION}: {_direction_text(exception.from_dependent)}"
    open_because = ""
    if missing:
        open_because = f"{', '.join(missing)} not in this treebank"
    weaker = {"present": on_present, "most": count.above(len(outcomes) / 2)}
    return Evidence(ours, printed, weaker, sample, open_because=open_because)


def _direction_text(from_dependent: Outcome) -> str:
    if from_dependent is Outcome.OPEN:
        return "undecided"
    return "from the dependent" if from_dependent is Outcome.TRUE else "from the head word"


# --- §4.3 -----------------------------------------------------------------------------------------


def coreference_evidence(
    over_head_match: Mapping[str, Estimate],
    over_rules: Mapping[str, Estimate],
    n_mentions: int,
) -> dict[str, Evidence]:
    """Return the evidence on antecedents from the best head's margin over two baselines, in points
    by mention type."""
    bounds = bounds_of(PAPER, "close-rules")
    sample = {"mentions": n_mentions}
    match_margin = over_head_match["all"]
    rules_margin = over_rules["all"]
    beats_match = match_margin.above(bounds["points"])
    is_close = rules_margin.at_least(-bounds["close"])
    close = Evidence(
        f"{match_margin.text('+.1f')} over head match, {rules_margin.text('+.1f')} over the rules",
        all_of([beats_match, is_close]),
        {"over-match": beats_match, "above-match": match_margin.above(0)},
        sample,
    )
    nominal = over_rules["nominal"]
    others = [name for name in over_rules if name not in ("all", "nominal")]
    parts = [f"{name} {over_rules[name].text('+.1f')}" for name in ("nominal", *others, "all")]
    best_with_nominals = all_of(nominal.minus(over_rules[name]).above(0) for name in others)
    above_all = nominal.minus(rules_margin).above(0)
    return {
        "close-rules": close,
        "nominal": Evidence(
            f"over the rules: {', '.join(parts)}",
            best_with_nominals,
            {"above-all": above_all},
            sample,
        ),
    }


# --- §5 and §6 ------------------------------------------------------------------------------------


def probe_evidence(
    with_words: Estimate, baselines: Mapping[str, Estimate], n_test: int
) -> dict[str, Evidence]:
    """Return the evidence on the probe of attention and words, from UAS in per cent."""
    points = bounds_of(PAPER, "words-best")["points"]
    margins = {name: with_words.minus(baseline) for name, baseline in baselines.items()}
    texts = []
    for name, margin in margins.items():
        texts.append(f"{margin.text('+.1f')} over {name.replace('_', ' ')}")
    return {
        "words-best": Evidence(
            f"{with_words.text('.1f')} %; {', '.join(texts)}",
            all_of(margin.above(points) for margin in margins.values()),
            {"above": all_of(margin.above(0) for margin in margins.values())},
            {"test sentences": n_test},
        )
    }


def distance_evidence(
    within: float, between: float, p_value: float, n_segments: int
) -> dict[str, Evidence]:
    """Return the evidence on distances of heads within and between layers, in nats."""
    ours = f"{within:.3f} nats within a layer, {between:.3f} between layers, p {p_value:.3g}"
    level = bounds_of(PAPER, "same-layer")["p"]
    if within >= between:
        printed = Outcome.FALSE
    else:
        printed = Outcome.TRUE if p_value < level else Outcome.OPEN
    open_because = f"p is not below {level:g}"
    sample = {"segments": n_segments}
    return {"same-layer": Evidence(ours, printed, {}, sample, open_because=open_because)}
