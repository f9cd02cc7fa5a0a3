"""What a head does, as numbers and as labels.

Both are read from the groups of a result: scores from `surface`, `dependency` and `roles`, labels
from `surface`, `dependency` and `coreference`, and for decoders from `induction`, `retrieval` and
`logits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from headwise.core.labels import SIGNIFICANCE_LEVEL, labels_of, variable_of
from headwise.core.token_types import TOKEN_TYPES

POSITIONS = {-1: "previous token", 0: "same token", 1: "next token"}
PREVIOUS = POSITIONS[-1]
SINK = "sink"
TO_PUNCT = "to punct"
# The name by token type. The first token is a sink, unless it is an encoder's opening token.
TYPES = {"first": SINK}
for _token_type in TOKEN_TYPES:
    if _token_type.label:
        TYPES[_token_type.name] = _token_type.label
NEIGHBOURS = "neighbours"
DELIMITERS = "delimiters"
BROAD_LABEL = "broad"
OTHER = "other"
INDUCTION = "induction"
DUPLICATE = "duplicate"
RETRIEVAL = "retrieval"
COPYING = "copying"
COPY_SUPPRESSION = "copy suppression"
SUCCESSOR = "successor"
FUNCTION_VECTOR = "function vector"
ANTECEDENTS = "antecedents"
# The labels by measure on repeated sequences, from weak to strong.
REPEATS = {"previous": PREVIOUS, "duplicate": DUPLICATE, "prefix_matching": INDUCTION}

# Thresholds of the labels.
MIN_SHARE = 0.5  # of a head's attention on one target, after subtracting chance
# Of a head's attention on the first token, where no other single target gets more, after
# subtracting chance. Gu et al. (2024) call a head a sink above this share. Many heads of a decoder
# give it about half, so that a bound there would make another label of the same head on other text.
MIN_SINK = 0.3
MIN_MARGIN = 0.1  # of accuracy on a relation over the best baseline
# Of the pairs of a relation. Heads that link words by what they are, in any order, find fewer.
MIN_ACCURACY = 0.5
MIN_REPEAT = 0.3  # of a head's attention on a repeated sequence
MIN_RETRIEVAL = 0.1  # of a needle's tokens (Wu et al. 2024)
# Of what a head adds to the logit of the token it attends to, over that of a control: in logits, by
# the lower end of the interval, and in standard deviations of what it adds to all logits.
MIN_COPYING = 0.1
MIN_COPYING_SPREADS = 0.6
# Of what a head takes off the logit of a predicted token of the text, over a control: in logits, by
# the lower end of the interval, and in standard deviations of what it adds to all logits.
MIN_SUPPRESSION = 0.05
MIN_SUPPRESSION_SPREADS = 0.6
MIN_SUCCESSORS = 0.5  # of the pairs of all sequences (days, months, numbers, ...)
MIN_GAIN = 0.01  # of the right answer's probability, by a head's mean output (Todd et al. 2023)
# `broad`: entropy as a share of a uniform head's, whatever the length of the text. A head above the
# upper bound does not differ from a uniform one, which does nothing.
MIN_BROAD_ENTROPY = 0.8
MAX_BROAD_ENTROPY = 0.98
# Random weights of one size give all heads of a layer the same share of that entropy: where its
# standard deviation over the heads of a layer is smaller than MIN_ENTROPY_SPREAD, none is called
# broad. Random weights whose size differs from head to head pass this. So the model must also have
# heads with other labels, which random weights do not get (at most 1 of 36 heads of a model did).
# All layers count together: the first layer of a trained model may have broad heads and none with
# another label (SmolLM2).
MIN_ENTROPY_SPREAD = 0.05
MIN_LABELLED = 0.1  # share of a model's heads with other labels; also for the second rule of `sink`
# The cosine of the keys of two special tokens above which they count as the same.
SAME_KEYS = 0.95


def is_decoder(surface: xr.Dataset) -> bool:
    """Whether no head can look ahead."""
    return 1 in surface["offset"] and bool(surface["position"].sel(offset=1).isnull().all())


def special_token_note(surface: xr.Dataset) -> str:
    """Return in which layers no head can tell the opening from the closing token; empty if none.

    Parameters
    ----------
    surface : Dataset
        The group `surface`.
    """
    if "special_cosine" not in surface:
        return ""
    cosine = surface["special_cosine"]
    same = cosine.where(cosine > SAME_KEYS, drop=True)
    if not same.size:
        return ""
    layers = ", ".join(str(int(layer)) for layer in same["layer"].values)
    lowest = float(same.min())
    highest = float(same.max())
    return (
        f"In layers {layers} (counted from 0) the opening and the closing token have the same keys "
        f"(cosine {lowest:.3f} to {highest:.3f}): attention to cls and attention to sep cannot be "
        "told apart there."
    )


def attention_shares(surface: xr.Dataset, suffix: str = "") -> dict[str, xr.DataArray]:
    """Return the mean attention to each position and token type that labels are made of.

    An encoder's opening token is `to cls`, any other first token a `sink`: never both, because they
    are the same token.

    Parameters
    ----------
    surface : Dataset
        The group `surface`.
    suffix : str, default ""
        `_rest` for the attention excluding the first token, `_uniform` for a uniform head.

    Returns
    -------
    dict of DataArray
        `[layer, head]`, by label.
    """
    shares = {}
    for offset, label in POSITIONS.items():
        if offset in surface["offset"]:
            shares[label] = surface[f"position{suffix}"].sel(offset=offset, drop=True)
    for token_type, label in _label_by_token_type(surface).items():
        shares[label] = surface[f"mass{suffix}"].sel(token_type=token_type, drop=True)
    return shares


def _label_by_token_type(surface: xr.Dataset) -> dict[str, str]:
    """Return the labels of the token types that this result tells apart."""
    label_by_type = {}
    for token_type, label in TYPES.items():
        if token_type in surface["token_type"]:
            label_by_type[token_type] = label
    if "first" in label_by_type:
        has_cls = "cls" in label_by_type and bool(
            surface["mass"].sel(token_type="cls").notnull().any()
        )
        same_token = "first" if has_cls and not is_decoder(surface) else "cls"
        label_by_type.pop(same_token, None)
    elif is_decoder(surface):
        # An atlas from before the first token was a token type: a decoder's opening token is it.
        label_by_type["cls"] = SINK
    return label_by_type


def behaviour_scores(datasets: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """Return how much of each behaviour a head shows, `[behaviour, layer, head]`.

    From `surface`: mean attention to the previous, same and next token, to `[CLS]` (or to the first
    token, `sink`), `[SEP]` and punctuation, and `broad`, one minus the mean largest weight. From
    `dependency`: for each relation, by how much the head beats the best baseline in its better
    direction, where it does so significantly (else 0). From `roles`: 1 where it has the role. A
    group that is missing is left out.
    """
    scores: dict[str, xr.DataArray] = {}
    if "surface" in datasets:
        surface = datasets["surface"]
        scores |= attention_shares(surface)
        scores[BROAD_LABEL] = 1 - surface["max_weight"]
    if "dependency" in datasets:
        margins = significant_margins(datasets["dependency"]).max("direction")
        for relation in labels_of(datasets["dependency"], "relation"):
            margin = margins.sel(relation=relation, drop=True)
            if relation != "all" and bool((margin > 0).any()):
                scores[f"relation {relation}"] = margin
    if "roles" in datasets:
        has_role = datasets["roles"]["has_role"]
        for role in labels_of(datasets["roles"], "role"):
            scores[f"role {role}"] = has_role.sel(role=role, drop=True).astype(float)
    if not scores:
        return xr.DataArray(
            np.zeros((0, 0, 0)),
            dims=("behaviour", "layer", "head"),
            coords={"behaviour": np.array([], dtype=str)},
        )
    arrays = [score.reset_coords(drop=True).transpose("layer", "head") for score in scores.values()]
    joined = xr.concat(arrays, dim="behaviour", coords="minimal", compat="override")
    return joined.assign_coords(behaviour=list(scores))


def best_baseline(dependency: xr.Dataset) -> xr.DataArray:
    """Return the accuracy that a head must beat on each relation, `[direction, relation]`.

    It is the best of all baselines, or in an older atlas the best offset."""
    if "bar" in dependency:
        return dependency["bar"]
    return dependency["baseline_possible"]


def significant_margins(dependency: xr.Dataset) -> xr.DataArray:
    """Return by how much each head beats the best baseline on each relation.

    `[direction, layer, head, relation]`: 0 where it does not beat it, or not significantly, and for
    `all`, which is not a relation."""
    margins = dependency["accuracy"] - best_baseline(dependency)
    significant = dependency["p_adjusted"] < SIGNIFICANCE_LEVEL
    counts = significant & (margins > 0) & (dependency["relation"] != "all")
    return margins.where(counts, 0.0).transpose("direction", "layer", "head", "relation")


def followed_margins(dependency: xr.Dataset) -> xr.DataArray:
    """Return the margins of the relations that a head follows, `[direction, layer, head,
    relation]`, 0 elsewhere.

    It beats every baseline by at least 10 points (corrected p < 0.05) and finds at least half of
    the pairs of this text. A label asks for more: see `followed_relations`."""
    margins = significant_margins(dependency)
    follows = (margins >= MIN_MARGIN) & (dependency["accuracy"] >= MIN_ACCURACY)
    return margins.where(follows, 0.0).transpose(*margins.dims)


def finds_antecedents(coreference: xr.Dataset) -> np.ndarray:
    """Return which heads find antecedents at least 10 points better than every baseline rule
    (corrected p < 0.05), bool `[layer, head]`."""
    all_mentions = coreference.sel(mention_type="all")
    accuracy = all_mentions["accuracy"].transpose("layer", "head").values
    best_rule = float(all_mentions["baseline_accuracy"].max())
    beats_all = (all_mentions["p_adjusted"] < SIGNIFICANCE_LEVEL).all("baseline")
    significant = beats_all.transpose("layer", "head").values
    return np.asarray(significant & (np.nan_to_num(accuracy) - best_rule >= MIN_MARGIN))


def copies_on_text(logits: xr.Dataset) -> np.ndarray:
    """Return which heads write the token that they attend to on text, bool `[layer, head]`.

    What they add to its logit is positive, and exceeds what they add to that of a control: by 0.1
    logits, by the lower end of the interval (corrected p < 0.05), and by 0.6 standard deviations of
    what they add to all logits."""

    def by_head(name: str) -> np.ndarray:
        values: np.ndarray = np.nan_to_num(logits[name].transpose("layer", "head").values)
        return values

    significant = (
        logits["copying_p_adjusted"].transpose("layer", "head").values < SIGNIFICANCE_LEVEL
    )
    is_large = by_head("copying_low") >= MIN_COPYING
    stands_out = by_head("copying_spreads") >= MIN_COPYING_SPREADS
    return np.asarray(significant & is_large & stands_out & (by_head("copying_effect") > 0))


def suppresses_copying(copy_suppression: xr.Dataset) -> np.ndarray:
    """Return which heads lower the logit of a token that earlier layers predict and that stands in
    the text, bool `[layer, head]`.

    They lower it, and more than where it is not predicted: by 0.05 logits, by the lower end of the
    interval (corrected p < 0.05), and by 0.6 standard deviations of what they add to all logits."""

    def by_head(name: str) -> np.ndarray:
        values = copy_suppression[name].transpose("layer", "head").values
        numbers: np.ndarray = np.nan_to_num(values)
        return numbers

    significant = by_head("suppression_p_adjusted") < SIGNIFICANCE_LEVEL
    is_large = by_head("suppression_low") >= MIN_SUPPRESSION
    stands_out = by_head("suppression_spreads") >= MIN_SUPPRESSION_SPREADS
    return np.asarray(significant & is_large & stands_out & (by_head("suppression_effect") > 0))


def successor_shares(successors: xr.Dataset) -> np.ndarray:
    """Return the share of the pairs of all sequences that a head's weights get right after the
    first MLP, `[layer, head]`, 0 where it is not significant."""
    if SUCCESSOR not in labels_of(successors, "relation"):
        return np.zeros((successors.sizes["layer"], successors.sizes["head"]))
    pooled = successors.sel(stream="after_mlp", relation=SUCCESSOR)
    significant = pooled["p_adjusted"] < SIGNIFICANCE_LEVEL
    shares: np.ndarray = pooled["share"].where(significant, 0.0).transpose("layer", "head").values
    return shares


# --- labels ---------------------------------------------------------------------------------------


def label_rules(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> list[np.ndarray]:
    """Return the label that each rule gives each head, `[layer, head]`, "" where it gives none,
    from the strongest rule to the weakest.

    - `induction`, then `duplicate`: on repeated sequences the token after the earlier occurrence,
      or the earlier occurrence, gets at least 0.3 of its attention (corrected p < 0.05);
    - `retrieval`: it copies at least 0.1 of a needle's tokens (corrected p < 0.05);
    - `function vector`: its mean output raises the right answer's probability by at least 0.01
      (corrected p < 0.05);
    - `copying`: see `copies_on_text`;
    - `copy suppression`: see `suppresses_copying`;
    - `successor`: by its weights it turns at least half of the words of sequences into the next
      one (see `successor_shares`);
    - a relation: see `followed_relations`;
    - `antecedents`: see `finds_antecedents`;
    - a single position, the opening token (an encoder's `to cls`, or `sink`) or the closing token
      that gets more than half of its attention; where several do, the one with the largest share;
    - `delimiters`: these tokens and punctuation together get more than half of its attention, and
      more than the neighbours (not in a sink head);
    - `previous token`, also where the previous token gets at least 0.3 of its attention on
      repeated sequences (corrected p < 0.05);
    - `neighbours`: the previous, same and next token together get more than half;
    - `sink`, also where the first token gets more than 0.3 of its attention, and no other single
      target as much, in a model where at least a tenth of the heads have one of the labels above;
    - `broad`: its attention has from 0.8 to 0.98 of the entropy of uniform attention, in a layer
      whose heads differ in entropy, in such a model.

    In the rules on single positions, `delimiters` and `neighbours`, the share that uniform
    attention would give is subtracted first: `(share - uniform) / (1 - uniform)`. In a short text,
    uniform attention gives every token a large share.
    """
    rules = []
    for measure, label in reversed(REPEATS.items()):
        score = _significant_values(datasets, "induction", measure)
        # `previous token` on repeats is a weaker label, added below.
        if score is not None and label != PREVIOUS:
            rules.append(_labelled(label, score >= MIN_REPEAT))
    retrieval = _significant_values(datasets, "retrieval", "score")
    if retrieval is not None:
        rules.append(_labelled(RETRIEVAL, retrieval >= MIN_RETRIEVAL))
    gain = _significant_values(datasets, "function_vectors", "gain")
    if gain is not None:
        rules.append(_labelled(FUNCTION_VECTOR, gain >= MIN_GAIN))
    if "logits" in datasets and "copying" in datasets["logits"]:
        rules.append(_labelled(COPYING, copies_on_text(datasets["logits"])))
    if "copy_suppression" in datasets:
        suppresses = suppresses_copying(datasets["copy_suppression"])
        rules.append(_labelled(COPY_SUPPRESSION, suppresses))
    if "successors" in datasets:
        shares = successor_shares(datasets["successors"])
        rules.append(_labelled(SUCCESSOR, shares >= MIN_SUCCESSORS))
    if "dependency" in datasets:
        rules += followed_relations(datasets["dependency"])
    if "coreference" in datasets:
        rules.append(_labelled(ANTECEDENTS, finds_antecedents(datasets["coreference"])))
    previous = _significant_values(datasets, "induction", "previous")
    on_repeats = []
    if previous is not None:
        on_repeats.append(_labelled(PREVIOUS, previous >= MIN_REPEAT))
    if "surface" not in datasets:
        return rules + on_repeats
    surface = datasets["surface"]
    single, delimiters, neighbours = attention_rules(surface)
    before_weak_rules = [*rules, single, delimiters, *on_repeats, neighbours]
    has_label = strongest_label(before_weak_rules, (layers, heads)) != OTHER
    is_trained = bool(has_label.mean() >= MIN_LABELLED)
    is_sink = attends_to_first(surface) & is_trained
    # Nearly half for the first token, and punctuation besides: a sink, not delimiters.
    rules += [single, np.where(is_sink, "", delimiters), *on_repeats, neighbours]
    rules.append(_labelled(SINK, is_sink))
    if {"entropy", "entropy_uniform"} <= set(surface):
        rules.append(_labelled(BROAD_LABEL, _is_broad(surface) & is_trained))
    return rules


def _labelled(label: str, applies: np.ndarray) -> np.ndarray:
    """Return a rule: the label where it applies, "" elsewhere."""
    return np.where(applies, label, "").astype(object)


def attention_rules(surface: xr.Dataset) -> list[np.ndarray]:
    """Return what the rules on the targets of attention give each head, from the strongest to the
    weakest: a single position, `delimiters`, `neighbours`. `label_rules` describes them."""
    names = list(attention_shares(surface))
    near_names = [name for name in names if name in POSITIONS.values()]
    delimiter_names = [name for name in names if name not in near_names]
    # Full stops and commas are no label of their own: how much they get beside the closing token
    # depends on how many of them a text has.
    single_names = [name for name in names if name != TO_PUNCT]
    single = np.stack([_above_chance(surface, [name]) for name in single_names])
    best_target = np.array(single_names, dtype=object)[single.argmax(0)]
    near = _above_chance(surface, near_names)
    delimiters = _above_chance(surface, delimiter_names)
    return [
        np.where(single.max(0) > MIN_SHARE, best_target, ""),
        _labelled(DELIMITERS, (delimiters > MIN_SHARE) & (delimiters > near)),
        _labelled(NEIGHBOURS, (near > MIN_SHARE) & (near >= delimiters)),
    ]


def attends_to_first(surface: xr.Dataset) -> np.ndarray:
    """Return which heads give the first token more than 0.3 of their attention above chance, and no
    other single target as much, bool `[layer, head]`. None of an encoder with an opening token."""
    names = [name for name in attention_shares(surface) if name != TO_PUNCT]
    if SINK not in names:
        return np.zeros(surface["max_weight"].shape, dtype=bool)
    single = np.stack([_above_chance(surface, [name]) for name in names])
    is_largest = single.argmax(0) == names.index(SINK)
    return np.asarray(is_largest & (single.max(0) > MIN_SINK))


def _above_chance(surface: xr.Dataset, names: Sequence[str]) -> np.ndarray:
    """Return the share of attention on these targets together, above uniform attention, `[layer,
    head]`."""
    shares = attention_shares(surface)
    share = sum(np.nan_to_num(shares[name].transpose("layer", "head").values) for name in names)
    uniform: np.ndarray | float = 0.0
    if "mass_uniform" in surface:
        by_name = attention_shares(surface, "_uniform")
        chance = sum(np.nan_to_num(by_name[name].values) for name in names)
        uniform = np.clip(chance, 0, 0.999)[:, None]
    return np.asarray((share - uniform) / (1 - uniform))


def _is_broad(surface: xr.Dataset) -> np.ndarray:
    """Return which heads have broad attention, in a layer whose heads differ in that, bool `[layer,
    head]`."""
    entropy_ratio = surface["entropy"] / surface["entropy_uniform"]
    relative_entropy = entropy_ratio.transpose("layer", "head").values
    is_broad = (relative_entropy >= MIN_BROAD_ENTROPY) & (relative_entropy < MAX_BROAD_ENTROPY)
    heads_differ = np.nanstd(relative_entropy, axis=1, keepdims=True) >= MIN_ENTROPY_SPREAD
    return np.asarray(is_broad & heads_differ)


def head_labels(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> np.ndarray:
    """Return one label for what each head does, `[layer, head]`: that of the strongest of
    `label_rules` which gives one, `other` where none does."""
    return strongest_label(label_rules(datasets, layers, heads), (layers, heads))


def significant_labels(datasets: Mapping[str, xr.Dataset], labels: np.ndarray) -> np.ndarray:
    """Return which heads have their label beyond the error of the examples, bool `[layer, head]`.

    Labels of a rule with a test are significant by that test. Labels of where attention goes (the
    rules of `attention_rules`) are if their rule holds by the lower ends of the intervals too; the
    lower ends of several targets are added up, which is stricter than the interval of their sum.
    `other` is never significant.

    Parameters
    ----------
    datasets : mapping
        The groups that the labels come from.
    labels : array
        `[layer, head]`, from `head_labels`.
    """
    significant = labels != OTHER
    if "surface" not in datasets:
        return np.asarray(significant)
    surface = datasets["surface"]
    names = list(attention_shares(surface))
    targets = {name: [name] for name in names}
    targets[NEIGHBOURS] = [name for name in names if name in POSITIONS.values()]
    targets[DELIMITERS] = [name for name in names if name not in POSITIONS.values()]
    lower_ends = surface.assign(position=surface["position_low"], mass=surface["mass_low"])
    for label, target_names in targets.items():
        has_label = labels == label
        if has_label.any():
            least = MIN_SINK if label == SINK else MIN_SHARE
            passes = _above_chance(lower_ends, target_names) > least
            significant &= ~has_label | passes
    if (labels == BROAD_LABEL).any():
        passes = _is_broad(surface.assign(entropy=surface["entropy_low"]))
        passes &= _is_broad(surface.assign(entropy=surface["entropy_high"]))
        significant &= (labels != BROAD_LABEL) | passes
    # `previous token` may also come from a test on repeated sequences.
    previous = _significant_values(datasets, "induction", "previous")
    if previous is not None:
        significant |= (labels == PREVIOUS) & (previous >= MIN_REPEAT)
    return np.asarray(significant)


def strongest_label(rules: Sequence[np.ndarray], size: tuple[int, ...]) -> np.ndarray:
    """Return for each head the first label of these rules, `other` where there is none."""
    labels = np.full(size, OTHER, dtype=object)
    for rule in reversed(rules):
        labels = np.where(rule != "", rule, labels)
    return labels.astype(str)


def further_labels(rules: Sequence[np.ndarray], place: tuple[int, ...]) -> list[str]:
    """Return the labels of one head beside the strongest, strongest first.

    What another one implies is left out: single targets are neighbours or delimiters."""
    labels: list[str] = []
    for rule in rules:
        label = str(rule[place])
        implied = label in (NEIGHBOURS, DELIMITERS) and any(
            other in (*POSITIONS.values(), *TYPES.values()) for other in labels
        )
        if label and label not in labels and not implied:
            labels.append(label)
    return labels[1:]


def followed_relations(dependency: xr.Dataset) -> list[np.ndarray]:
    """Return the relations that each head follows beyond the error of the text, the one that it
    follows most first: rules `[layer, head]`.

    The lower end of the interval of its accuracy is at least half. Of several relations, the one
    whose lower end is furthest above the best baseline comes first: a relation with few pairs may
    have a large margin by chance, and the head another label on other text."""
    margins = followed_margins(dependency)
    lowest = variable_of(dependency, "accuracy_low")
    if lowest is None:
        lowest = dependency["accuracy"]
    lowest_margins = lowest - best_baseline(dependency)
    is_label = (margins > 0) & (lowest >= MIN_ACCURACY) & (lowest_margins > 0)
    best_margins = lowest_margins.where(is_label, 0.0).max("direction")
    by_relation = best_margins.transpose("layer", "head", "relation").values
    relations = np.array(labels_of(dependency, "relation"), dtype=object)
    order = np.argsort(-by_relation, axis=-1, kind="stable")
    rules = []
    for rank in range(int((by_relation > 0).sum(-1).max(initial=0))):
        relation = order[..., rank]
        margin = np.take_along_axis(by_relation, relation[..., None], axis=-1)[..., 0]
        rules.append(np.where(margin > 0, relations[relation], ""))
    return rules


def labels_without_first(surface: xr.Dataset) -> np.ndarray:
    """Return where the attention of each head goes excluding the first token, `[layer, head]`.

    `other` in an atlas that does not know. How broad the remainder is depends on the text too much
    to be a label: half of the heads change it between two texts."""
    without_first = surface_without_first(surface)
    rules = []
    if without_first is not None:
        rules = attention_rules(without_first)
    return strongest_label(rules, surface["max_weight"].shape)


def surface_without_first(surface: xr.Dataset) -> xr.Dataset | None:
    """Return `surface` as it is excluding the first token; None in an atlas that does not know."""
    measures = ("position", "mass", "entropy", "max_weight")
    if any(f"{name}_rest" not in surface for name in measures):
        return None
    without_first = surface.assign({name: surface[f"{name}_rest"] for name in measures})
    without_first = without_first.assign(entropy_uniform=surface["entropy_rest_uniform"])
    chance = ("position_uniform", "mass_uniform")
    if "mass_rest_uniform" not in surface:
        # An older atlas knows chance with the first token only.
        return without_first.drop_vars(chance, errors="ignore")
    return without_first.assign(
        position_uniform=surface["position_rest_uniform"],
        mass_uniform=surface["mass_rest_uniform"],
    )


def _significant_values(
    datasets: Mapping[str, xr.Dataset], group: str, measure: str
) -> np.ndarray | None:
    """Return a measure `[layer, head]`, 0 where it is not significant; None where it is missing."""
    if group not in datasets or measure not in datasets[group]:
        return None
    values = datasets[group][measure].transpose("layer", "head").values
    p_adjusted = variable_of(datasets[group], f"{measure}_p_adjusted")
    if p_adjusted is None:
        significant = np.isfinite(values)
    else:
        significant = p_adjusted.transpose("layer", "head").values < SIGNIFICANCE_LEVEL
    return np.where(significant, np.nan_to_num(values), 0.0)
