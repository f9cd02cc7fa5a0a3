"""What each head does, in one row: its label, and behind it what each analysis measured, with the
baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from headwise.atlas import behaviours
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name, labels_of

MIN_SHOWN_SHARE = 0.1  # smaller shares of attention are not listed
MOST_RELATIONS = 3
MIN_WEIGHTS_COPYING = 0.5  # of the copying score of a head's weights that is listed
# What is said in `finds`, by group, in this order.
FINDING_GROUPS = (
    "induction",
    "retrieval",
    "function_vectors",
    "logits",
    "copy_suppression",
    "successors",
    "dependency",
    "coreference",
    "frames",
    "circuits",
    "cache",
)
ANTECEDENTS = behaviours.ANTECEDENTS
FIRST = "first"
TextsByHead = dict[tuple[int, ...], list[str]]  # what is said of a head, by (layer, head)
CARD_COLUMNS = (
    "does",
    "also",
    "why",
    "attention",
    "finds",
    "roles",
    "maps",
)  # a card's first lines
COLUMNS = (
    "layer",
    "head",
    "name",
    "does",
    "kind",
    "best",
    "also",
    "why",
    "looks",
    "attention",
    "finds",
    "roles",
    "maps",
)
# The categories of labels (column `kind`), and what each means to a reader.
LABEL_CATEGORIES = {
    "syntax": "on this dependency relation it beats every baseline (a fixed offset, uniform attention, the first word) "
    "by at least 10 points, corrected p < 0.05, and finds at least half of the pairs, by the lower end of the "
    "interval; of several relations, the one whose lower end is furthest above the baseline; in bold, the best head "
    "for it",
    "coreference": "it finds antecedents with an accuracy at least 10 points above every baseline rule, string "
    "matching by sieves included, corrected p < 0.05",
    "repeats": "on random sequences repeated once, at least 0.3 of its attention, corrected p < 0.05, goes to the "
    "token after the earlier occurrence (induct) or to the earlier occurrence (dupl)",
    "retrieval": "at least a tenth of a needle's tokens are copied from where it attends (retr); or its mean output "
    "over prompts that show a task raises the right answer's probability by at least 0.01 where the examples are "
    "shuffled, corrected p < 0.05 (func)",
    "copying": "on this text it raises the logit of the token that it attends to over that of a control token: by at "
    "least 0.1 logits, corrected p < 0.05, and 0.6 standard deviations of what it adds to all logits (copy); or it "
    "lowers the logit of a token that earlier layers predict and that stands in the text, more than where it is not "
    "predicted: by at least 0.05 logits, corrected p < 0.05, and 0.6 standard deviations (supp); or, by its "
    "weights, it turns at least half of the words of sequences (days, months, numbers, letters) into the next one, "
    "corrected p < 0.05 (succ)",
    "position": "the previous, the same or the next token (near: the three together) gets more than half of its "
    "attention; or, on random sequences repeated once, the previous token at least 0.3, corrected p < 0.05",
    "sink": "the first token, whatever it is, gets more than 0.3 of its attention above chance, (share − uniform) / (1 "
    "− uniform), and no other single target as much; in sentences this is a share of about 0.43; below, where its "
    "attention goes excluding that token",
    "cls": "the opening token gets more than half of its attention",
    "sep": "the closing token gets more than half of its attention",
    "delimiters": "full stops and commas, with the first and the closing token, get more than half of its attention",
    "broad": "its attention has at least 0.8 of the entropy of uniform attention, and is not uniform, in a layer whose "
    "heads differ",
    "other": "none of these",
}
# The category and the short form of every label except the relations, whose category is `syntax`.
LABELS: dict[str, tuple[str, str]] = {
    ANTECEDENTS: ("coreference", "antec."),
    "previous token": ("position", "prev"),
    "next token": ("position", "next"),
    "same token": ("position", "self"),
    behaviours.NEIGHBOURS: ("position", "near"),
    behaviours.SINK: ("sink", "sink"),
    behaviours.INDUCTION: ("repeats", "induct"),
    behaviours.DUPLICATE: ("repeats", "dupl"),
    behaviours.RETRIEVAL: ("retrieval", "retr"),
    behaviours.FUNCTION_VECTOR: ("retrieval", "func"),
    behaviours.COPYING: ("copying", "copy"),
    behaviours.COPY_SUPPRESSION: ("copying", "supp"),
    behaviours.SUCCESSOR: ("copying", "succ"),
    "to cls": ("cls", "cls"),
    "to sep": ("sep", "sep"),
    behaviours.DELIMITERS: ("delimiters", "delim"),
    behaviours.BROAD_LABEL: ("broad", "broad"),
    behaviours.OTHER: ("other", "–"),
}
SHORT_LABELS = {label: short for label, (_, short) in LABELS.items()}
# Labels from inputs of their own, which say nothing of this text.
FROM_OTHER_INPUTS = (
    behaviours.INDUCTION,
    behaviours.DUPLICATE,
    behaviours.RETRIEVAL,
    behaviours.FUNCTION_VECTOR,
)
# What gets the attention, by label of where attention goes, and the role that means the same.
TARGETS = {
    "previous token": "the previous token",
    "same token": "the token itself",
    "next token": "the next token",
    behaviours.NEIGHBOURS: "the token itself and its two neighbours",
    behaviours.SINK: "the first token",
    "to cls": "the opening token",
    "to sep": "the closing token",
    behaviours.DELIMITERS: "the first and the closing token, full stops and commas",
}
ROLE_OF_LABEL = {
    "previous token": "local:prev",
    "next token": "local:next",
    behaviours.NEIGHBOURS: "local",
    behaviours.SINK: "first",
    "to cls": "cls",
    "to sep": "sep",
    behaviours.DELIMITERS: "delimiter",
}
# Roles that are part of a coarser one: a card names them in brackets after it.
ROLE_PARTS = {
    "local": ("local:prev", "local:next", "previous"),
    "syntactic": ("nsubj", "dobj", "amod", "advmod"),
    "delimiter": ("cls", "sep"),
    "same_word": ("same_word:other_segment", "duplicate"),
}


def describe_heads(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> pd.DataFrame:
    """Return one row for each head, from the groups that describe heads.

    These are `surface`, `dependency`, `coreference`, `frames`, `roles`, `patterns`, `induction`,
    `retrieval`, `function_vectors`, `logits`, `copy_suppression`, `successors`, `circuits` and
    `cache`, as far as they are there.

    Returns
    -------
    DataFrame
        - `layer`, `head`, `name` (`L7H9`);
        - `does`: the label, that of the strongest rule of `headwise.atlas.behaviours.label_rules`
          which gives one. What the head does on repeated sequences or needles comes first, then
          what it writes and finds, because a head with nothing to find attends to delimiters or to
          the first token; where it finds nothing, where its attention goes;
        - `kind`: the category of that label, one of `LABEL_CATEGORIES`;
        - `best`: whether it is the best head of that relation;
        - `also`: the labels of the other rules that fit;
        - `why`: one sentence with the numbers behind the label, and how it goes with the roles;
        - `looks`: where its attention goes, as a label (of a `sink`, excluding the first token);
        - `attention`: the token types and neighbouring positions that get at least a tenth of its
          attention, each with its mean share (a token counts for its type and for its position, so
          shares of both overlap), and of a sink head the same excluding the first token;
        - `finds`: up to three dependency relations that the head follows (it beats every baseline
          by at least 10 points and finds at least half of the pairs), antecedents where it beats
          every baseline by at least 10 points, frame elements where its score exceeds the same
          words without a frame link and random heads; all with corrected p < 0.05, each with score
          and baseline (of a relation's best head on text that it was not picked on); what it
          copies, on text and by its weights; and how much of the context its keys and values are
          needed for;
        - `roles`: the roles it has (`has_role`, after correction), parts of a role in brackets;
        - `maps`: the pattern of more than half of its maps, by the lower end of the interval.
    """
    usable = {}
    for name, (_, needed_variables) in DESCRIBERS.items():
        if name in datasets and all(needed in datasets[name] for needed in needed_variables):
            usable[name] = datasets[name]
    rules = behaviours.label_rules(usable, layers, heads)
    labels = behaviours.strongest_label(rules, (layers, heads))
    looks = _attention_labels(usable, labels)
    texts = {name: DESCRIBERS[name][0](dataset) for name, dataset in usable.items()}
    texts["roles"] = _shown_roles(texts.get("roles", {}), usable.get("surface"))
    reasons = LabelReasons(usable)
    best_heads = {}
    if "dependency" in usable:
        best_heads = _best_heads(usable["dependency"])

    rows = []
    for place in np.ndindex(layers, heads):
        head_texts = {name: texts.get(name, {}).get(place, []) for name in DESCRIBERS}
        label = str(labels[place])
        category = "syntax"
        if label in LABELS:
            category, _ = LABELS[label]
        finds = []
        for name in FINDING_GROUPS:
            finds += head_texts[name]
        row = (
            *place,
            head_name(*place),
            label,
            category,
            best_heads.get(label) == place,
            ", ".join(behaviours.further_labels(rules, place)),
            reasons.sentence(place, label, head_texts["roles"]),
            str(looks[place]),
            ", ".join(head_texts["surface"]),
            ", ".join(finds),
            ", ".join(head_texts["roles"]),
            ", ".join(head_texts["patterns"]),
        )
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


class LabelReasons:
    """The sentence that says why a head has its label, with the numbers behind it."""

    def __init__(self, datasets: Mapping[str, xr.Dataset]) -> None:
        self.datasets = datasets
        self._shares: dict[str, np.ndarray] = {}
        self._relations: TextsByHead = {}
        if "surface" in datasets:
            self._shares = _shares_by_label(datasets["surface"])
        if "dependency" in datasets:
            self._relations = _describe_relations(datasets["dependency"])

    def sentence(self, place: tuple[int, ...], label: str, roles: Sequence[str]) -> str:
        """Return the reason for a label, and how it goes with the roles where they say something
        else."""
        reason = self._reason(place, label)
        if not reason:
            return ""
        if label in FROM_OTHER_INPUTS and roles:
            reason += "; its roles are what it does on this text"
        elif label == behaviours.OTHER and roles:
            reason += "; its roles are tokens that get more of its attention than others do"
        elif self._lacks_role(place, label):
            reason += (
                f"; without the role {ROLE_OF_LABEL[label]}, which asks for more than random heads "
                "as sharp as these have"
            )
        return f"{reason}."

    def _lacks_role(self, place: tuple[int, ...], label: str) -> bool:
        """Whether the role that means the same as this label was tested, and the head has it not."""
        roles = self.datasets.get("roles")
        role = ROLE_OF_LABEL.get(label)
        if roles is None or role not in labels_of(roles, "role"):
            return False
        of_role = roles["has_role_adjusted"].sel(role=role).transpose("layer", "head")
        return not bool(of_role.values[place])

    def _reason(self, place: tuple[int, ...], label: str) -> str:
        if label in (behaviours.INDUCTION, behaviours.DUPLICATE):
            measure = {name: measure for measure, name in behaviours.REPEATS.items()}[label]
            target = "the token after an earlier occurrence"
            if label == behaviours.DUPLICATE:
                target = "an earlier occurrence"
            share = self._value("induction", measure, place)
            return (
                f"on random sequences written twice, {share:.2f} of its attention goes to {target}"
            )
        if label == behaviours.RETRIEVAL:
            score = self._value("retrieval", "score", place)
            return f"{score:.2f} of a needle's tokens are copied from where it attends"
        if label == behaviours.FUNCTION_VECTOR:
            gain = self._value("function_vectors", "gain", place)
            return (
                "put into prompts with shuffled examples, its mean output over prompts that show a "
                f"task raises the right answer's probability by {gain:.3f}"
            )
        if label == behaviours.COPYING:
            return self._copying_reason(place)
        if label == behaviours.COPY_SUPPRESSION:
            taken_off = self._value("copy_suppression", "suppression", place)
            attention = self._value("copy_suppression", "attention", place)
            return (
                f"it takes {taken_off:.2f} logits off a token of the text that earlier layers "
                f"predict, over a control, and gives it {attention:.2f} of its attention"
            )
        if label == behaviours.SUCCESSOR:
            share = behaviours.successor_shares(self.datasets["successors"])[place]
            return (
                f"by its weights it turns {100 * share:.0f} % of the words of sequences (days, "
                "months, numbers, letters) into the next one"
            )
        if label == ANTECEDENTS:
            accuracy = self.datasets["coreference"]["accuracy"].sel(mention_type="all")
            share = accuracy.transpose("layer", "head").values[place]
            return f"it finds {100 * share:.0f} % of the antecedents, more than every rule"
        if label not in LABELS:
            return f"it finds {self._relations[place][0]}"
        if label == behaviours.BROAD_LABEL:
            surface = self.datasets["surface"]
            ratio = (surface["entropy"] / surface["entropy_uniform"]).transpose("layer", "head")
            return (
                f"its attention has {ratio.values[place]:.2f} of the entropy of uniform attention"
            )
        if label == behaviours.OTHER:
            return "no target gets half of its attention" if self._shares else ""
        return self._attention_reason(place, label)

    def _attention_reason(self, place: tuple[int, ...], label: str) -> str:
        reasons = []
        if label in self._shares:
            share = self._shares[label][place]
            reasons.append(f"{share:.2f} of its attention goes to {TARGETS[label]}")
        if label == behaviours.PREVIOUS and "induction" in self.datasets:
            on_repeats = self._value("induction", "previous", place)
            reasons.append(f"{on_repeats:.2f} on random sequences written twice")
        return ", ".join(reasons)

    def _copying_reason(self, place: tuple[int, ...]) -> str:
        added = self._value("logits", "copying", place)
        spreads = self._value("logits", "copying_spreads", place)
        reason = (
            f"it adds {added:.2f} logits to the token that it attends to, over a control "
            f"({spreads:.1f} standard deviations)"
        )
        if "circuits" in self.datasets:
            by_weights = self._value("circuits", "ov_copying", place)
            reason += f"; by its weights alone {by_weights:.2f} of −1 to 1"
        return reason

    def _value(self, group: str, name: str, place: tuple[int, ...]) -> float:
        (values,) = _by_head(self.datasets[group], name)
        return float(values[place])


def _shares_by_label(surface: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the shares of attention behind the labels of where it goes, `[layer, head]`."""
    by_name = behaviours.attention_shares(surface)
    shares = {}
    for name, share in by_name.items():
        shares[name] = np.nan_to_num(share.transpose("layer", "head").values)
    near = [name for name in shares if name in behaviours.POSITIONS.values()]
    delimiters = [name for name in shares if name not in near]
    if near:
        shares[behaviours.NEIGHBOURS] = np.sum([shares[name] for name in near], axis=0)
    if delimiters:
        shares[behaviours.DELIMITERS] = np.sum([shares[name] for name in delimiters], axis=0)
    return shares


def _attention_labels(datasets: Mapping[str, xr.Dataset], labels: np.ndarray) -> np.ndarray:
    """Return where the attention of each head goes, as labels; of sinks, excluding the sink."""
    if "surface" not in datasets:
        return behaviours.head_labels({}, *labels.shape)
    surface = datasets["surface"]
    looks = behaviours.head_labels({"surface": surface}, *labels.shape)
    # How many heads have other labels, which `broad` and `sink` ask for, is known from all groups.
    for label in (behaviours.BROAD_LABEL, behaviours.SINK):
        looks = np.where(labels == label, label, looks)
    is_sink = (looks == behaviours.SINK) & (labels == behaviours.SINK)
    return np.where(is_sink, behaviours.labels_without_first(surface), looks)


def _shown_roles(roles: TextsByHead, surface: xr.Dataset | None) -> TextsByHead:
    """Return the roles as a card names them: none that means the same tokens as another, and parts
    of a role in brackets after it."""
    if surface is not None and behaviours.is_decoder(surface):
        # Of a decoder the opening token is the first token.
        usual_name = FIRST
        synonyms: tuple[str, ...] = ("cls", "delimiter", "sink")
    else:
        # Of an encoder the first token is its opening token.
        usual_name = "cls"
        synonyms = (FIRST, "sink")
    roles_by_head = {}
    for place, names in roles.items():
        if usual_name in names:
            names = [name for name in names if name not in synonyms]
        roles_by_head[place] = with_parts(names)
    return roles_by_head


def with_parts(roles: Sequence[str]) -> list[str]:
    """Return roles with their parts in brackets.

    >>> with_parts(["local", "nsubj", "local:prev"])
    ['local (prev)', 'nsubj']
    """
    parts_shown = set()
    for whole, parts in ROLE_PARTS.items():
        if whole in roles:
            parts_shown |= set(parts)
    shown = []
    for role in roles:
        if role in parts_shown:
            continue
        names = []
        for part in ROLE_PARTS.get(role, ()):
            if part in roles:
                names.append(part.removeprefix(f"{role}:"))
        shown.append(f"{role} ({', '.join(names)})" if names else role)
    return shown


def _describe_attention(surface: xr.Dataset) -> TextsByHead:
    shares = _shares_by_name(surface)
    shares_without_first = {}
    if "mass_rest" in surface:
        shares_without_first = _shares_by_name(surface, "_rest")
    is_sink = behaviours.attends_to_first(surface)
    texts: TextsByHead = {}
    for place in np.ndindex(*is_sink.shape):
        texts[place] = _largest_shares(shares, place)
        if shares_without_first and is_sink[place]:
            largest = ", ".join(_largest_shares(shares_without_first, place)) or "spread"
            texts[place].append(f"without the first token: {largest}")
    return texts


def _shares_by_name(surface: xr.Dataset, suffix: str = "") -> dict[str, np.ndarray]:
    """Return the shares of attention, `[layer, head]`, by position or token type."""
    type_by_label = {label: token_type for token_type, label in behaviours.TYPES.items()}
    type_by_label[behaviours.SINK] = FIRST
    shares = {}
    for label, share in behaviours.attention_shares(surface, suffix).items():
        shares[type_by_label.get(label, label)] = share.transpose("layer", "head").values
    return shares


def _largest_shares(shares: Mapping[str, np.ndarray], place: tuple[int, ...]) -> list[str]:
    """Return the shares of one head worth listing, the largest first."""
    large = []
    for name, values in shares.items():
        # A share that is not defined (NaN) is not listed.
        if values[place] >= MIN_SHOWN_SHARE:
            large.append((float(values[place]), name))
    return [f"{name} {share:.2f}" for share, name in sorted(large, reverse=True)]


def _describe_relations(dependency: xr.Dataset) -> TextsByHead:
    """Return up to three relations that each head follows: first its labels, in their order, then
    the others, the largest margin first."""
    margins = behaviours.followed_margins(dependency)
    label_rules = behaviours.followed_relations(dependency)
    accuracy = dependency["accuracy"].transpose(*margins.dims).values
    baseline = behaviours.best_baseline(dependency).transpose("direction", "relation").values
    baseline_name = np.full(baseline.shape, "offset", dtype=object)
    if "bar_name" in dependency:
        baseline_name = dependency["bar_name"].transpose("direction", "relation").values
    lexical = np.zeros_like(baseline)
    if "lexical" in dependency:
        lexical = np.nan_to_num(dependency["lexical"].transpose("direction", "relation").values)
    names = labels_of(dependency, "relation")
    held_out = _held_out_scores(dependency)
    texts: TextsByHead = {}
    n_layers, n_heads = margins.shape[1:3]
    for layer, head in np.ndindex(n_layers, n_heads):
        head_margins = margins.values[:, layer, head]
        followed: list[int] = []
        for label_rule in label_rules:
            if label_rule[layer, head]:
                followed.append(names.index(str(label_rule[layer, head])))
        for relation in np.argsort(-head_margins.max(0), kind="stable").tolist():
            if head_margins[:, relation].max() > 0 and relation not in followed:
                followed.append(relation)
        for relation in followed[:MOST_RELATIONS]:
            direction = int(head_margins[:, relation].argmax())
            score = 100 * accuracy[direction, layer, head, relation]
            rule_score = 100 * baseline[direction, relation]
            if (layer, head, relation) in held_out:
                score, rule_score = held_out[layer, head, relation]
            rule = baseline_name[direction, relation]
            if 100 * lexical[direction, relation] > rule_score:
                rule = "the words in any order"
                rule_score = 100 * lexical[direction, relation]
            text = f"{names[relation]} {score:.0f} % ({rule} {rule_score:.0f} %)"
            texts.setdefault((layer, head), []).append(text)
    return texts


def _held_out_scores(dependency: xr.Dataset) -> dict[tuple[int, int, int], tuple[float, float]]:
    """Return accuracy and baseline in % of the best head of each relation on text that it was not
    picked on, by (layer, head, relation), where both halves of the text pick it."""
    scores: dict[tuple[int, int, int], tuple[float, float]] = {}
    if "best_heldout_accuracy" not in dependency:
        return scores
    accuracy = 100 * dependency["best_heldout_accuracy"].values
    baseline = 100 * dependency["best_heldout_baseline"].values
    layers = dependency["best_layer"].values
    heads = dependency["best_head"].values
    for relation in np.flatnonzero(dependency["best_heldout_same"].values):
        place = (int(layers[relation]), int(heads[relation]), int(relation))
        scores[place] = (float(accuracy[relation]), float(baseline[relation]))
    return scores


def _best_heads(dependency: xr.Dataset) -> dict[str, tuple[int, int]]:
    """Return the head that follows each relation best, where one does so significantly."""
    best_layer = dependency["best_layer"].values.tolist()
    best_head = dependency["best_head"].values.tolist()
    significant = (dependency["best_p_adjusted"] < SIGNIFICANCE_LEVEL).values
    best = {}
    for number, relation in enumerate(labels_of(dependency, "relation")):
        if significant[number]:
            best[relation] = (best_layer[number], best_head[number])
    return best


def _describe_antecedents(coreference: xr.Dataset) -> TextsByHead:
    all_mentions = coreference.sel(mention_type="all")
    (accuracy,) = _by_head(all_mentions, "accuracy")
    best_rule = float(all_mentions["baseline_accuracy"].max())
    finds = behaviours.finds_antecedents(coreference)
    rule_text = f"(best rule {100 * best_rule:.0f} %)"
    return _texts_where(finds, lambda at: f"{ANTECEDENTS} {100 * accuracy[at]:.0f} % {rule_text}")


def _describe_repeats(induction: xr.Dataset) -> TextsByHead:
    texts: TextsByHead = {}
    for measure, label in reversed(behaviours.REPEATS.items()):
        if measure not in induction or f"{measure}_p_adjusted" not in induction:
            continue
        score, p_adjusted = _by_head(induction, measure, f"{measure}_p_adjusted")
        passes = (p_adjusted < SIGNIFICANCE_LEVEL) & (score >= behaviours.MIN_REPEAT)
        for place, head_texts in _scores_where(passes, f"{label} on repeats", score).items():
            texts.setdefault(place, []).extend(head_texts)
    return texts


def _describe_retrieval(retrieval: xr.Dataset) -> TextsByHead:
    (score,) = _by_head(retrieval, "score")
    passes = np.nan_to_num(score) >= behaviours.MIN_RETRIEVAL
    return _scores_where(passes, "retrieval of needles", score)


def _describe_function_vectors(function_vectors: xr.Dataset) -> TextsByHead:
    gain, p_adjusted = _by_head(function_vectors, "gain", "gain_p_adjusted")
    passes = (p_adjusted < SIGNIFICANCE_LEVEL) & (np.nan_to_num(gain) >= behaviours.MIN_GAIN)
    return _texts_where(passes, lambda at: f"function vector {gain[at]:+.3f}")


def _describe_copying(logits: xr.Dataset) -> TextsByHead:
    (copying,) = _by_head(logits, "copying")
    copies = behaviours.copies_on_text(logits)
    return _texts_where(copies, lambda at: f"copying {copying[at]:+.2f} logits")


def _describe_suppression(copy_suppression: xr.Dataset) -> TextsByHead:
    (suppression,) = _by_head(copy_suppression, "suppression")
    suppresses = behaviours.suppresses_copying(copy_suppression)
    return _texts_where(suppresses, lambda at: f"copy suppression {suppression[at]:.2f} logits")


def _describe_weight_relations(successors: xr.Dataset) -> TextsByHead:
    """Return the relations that a head's weights have, highest share first: evidence, and the label
    `successor` where it is about all sequences."""
    after_mlp = successors.sel(stream="after_mlp")
    share, p_adjusted = _by_head(after_mlp, "share", "p_adjusted")
    names = labels_of(successors, "relation")
    chance = successors["chance"].values
    texts: TextsByHead = {}
    for place in np.ndindex(*share.shape[:2]):
        is_significant = p_adjusted[place] < SIGNIFICANCE_LEVEL
        ranked = np.argsort(-share[place], kind="stable")
        for number in [number for number in ranked if is_significant[number]][:MOST_RELATIONS]:
            texts.setdefault(place, []).append(
                f"{names[number]} by weights {100 * share[place][number]:.0f} % of pairs "
                f"(chance {100 * chance[number]:.0f} %)"
            )
    return texts


def _describe_copying_weights(circuits: xr.Dataset) -> TextsByHead:
    """Return what the weights alone would copy: evidence, not a label."""
    score, p_adjusted = _by_head(circuits, "ov_copying", "ov_copying_p_adjusted")
    passes = (p_adjusted < SIGNIFICANCE_LEVEL) & (score >= MIN_WEIGHTS_COPYING)
    return _scores_where(passes, "copying by weights", score)


def _describe_cache(cache: xr.Dataset) -> TextsByHead:
    """Return how much of the context a head's group must keep, where a pattern was found."""
    needs_context, is_short = _by_head(cache, "head_needs_context", "head_is_short")
    distant, error = _by_head(cache, "head_distant", "head_output_error")
    near = f"the first {cache.attrs['sink']} and the last {cache.attrs['window']} tokens"
    texts = _texts_where(
        needs_context.astype(bool),
        lambda at: (
            f"needs the whole context ({100 * distant[at]:.0f} % of its attention beyond {near}, "
            f"output error {error[at]:.2f} without; shared by its key/value group)"
        ),
    )
    short = f"sink and last {cache.attrs['window']} are enough"
    # Where the share was asked for, the pattern may cost more than is acceptable.
    if not cache.attrs["recommended_loss_rise"] <= cache.attrs["at_most"]:
        short = (
            f"keeps only sink and last {cache.attrs['window']} in a pattern whose loss rises by more "
            f"than {cache.attrs['at_most']:g} nats"
        )
    return texts | _texts_where(
        is_short.astype(bool), lambda at: f"{short} (output error {error[at]:.2f})"
    )


def _describe_frames(frames: xr.Dataset) -> TextsByHead:
    score, expected, stands_out = _by_head(frames, "score", "expected", "stands_out")
    return _texts_where(
        stands_out.astype(bool),
        lambda at: f"frame elements {score[at]:.2f} (expected {expected[at]:.2f})",
    )


def _describe_roles(roles: xr.Dataset) -> TextsByHead:
    names = labels_of(roles, "role")
    # The rule of `has_role`, also in an atlas from before that one was corrected.
    (has_role,) = _by_head(roles, "has_role_adjusted")
    has_role = has_role.astype(bool)
    texts = _texts_where(has_role, lambda at: names[at[2]])
    if "has_role_rest" in roles:
        # Sink heads have other roles when the first token is excluded.
        (has_role_without_first,) = _by_head(roles, "has_role_rest")
        additional = has_role_without_first.astype(bool) & ~has_role
        for place, role_names in _texts_where(additional, lambda at: names[at[2]]).items():
            text = f"without the first token: {', '.join(role_names)}"
            texts.setdefault(place, []).append(text)
    return texts


def _describe_maps(patterns: xr.Dataset) -> TextsByHead:
    names = labels_of(patterns, "pattern")
    share, low = _by_head(patterns, "proportion", "proportion_low")
    return _texts_where(
        np.nan_to_num(low) > behaviours.MIN_SHARE,
        lambda at: f"{names[at[2]]} {100 * share[at]:.0f} %",
    )


def _by_head(dataset: xr.Dataset, *names: str) -> list[np.ndarray]:
    """Return variables as `[layer, head, ...]`."""
    return [dataset[name].transpose("layer", "head", ...).values for name in names]


def _scores_where(passes: np.ndarray, name: str, score: np.ndarray) -> TextsByHead:
    """Return the name and the score of every head that passes."""
    return _texts_where(passes, lambda at: f"{name} {score[at]:.2f}")


def _texts_where(passes: np.ndarray, text_of: Callable[[tuple[int, ...]], str]) -> TextsByHead:
    """Return the texts of every index `[layer, head, ...]` that passes, by head."""
    texts: TextsByHead = {}
    for index in np.argwhere(passes).tolist():
        layer, head = index[:2]
        texts.setdefault((layer, head), []).append(text_of(tuple(index)))
    return texts


# What describes heads by each group, and the variables it needs; a group without them (of another
# version, a part of one) is passed over.
BEST = ("best_layer", "best_head", "best_margin", "best_p_adjusted")
DESCRIBERS: dict[str, tuple[Callable[[xr.Dataset], TextsByHead], tuple[str, ...]]] = {
    "surface": (_describe_attention, ("position", "mass", "max_weight")),
    "dependency": (_describe_relations, ("accuracy", "p_adjusted", "baseline_possible", *BEST)),
    "coreference": (_describe_antecedents, ("accuracy", "p_adjusted", "baseline_accuracy")),
    "frames": (_describe_frames, ("score", "expected", "stands_out")),
    "roles": (_describe_roles, ("has_role_adjusted",)),
    "patterns": (_describe_maps, ("proportion", "proportion_low")),
    "induction": (_describe_repeats, ("prefix_matching", "prefix_matching_p_adjusted")),
    "retrieval": (_describe_retrieval, ("score",)),
    "function_vectors": (_describe_function_vectors, ("gain", "gain_p_adjusted")),
    "logits": (_describe_copying, ("copying", "copying_p_adjusted", "copying_spreads")),
    "copy_suppression": (
        _describe_suppression,
        ("suppression", "suppression_p_adjusted", "suppression_spreads"),
    ),
    "successors": (_describe_weight_relations, ("share", "p_adjusted", "chance")),
    "circuits": (_describe_copying_weights, ("ov_copying", "ov_copying_p_adjusted")),
    "cache": (
        _describe_cache,
        ("head_needs_context", "head_is_short", "head_distant", "head_output_error"),
    ),
}
