"""The table of docs/decoders.md: what the questions for decoders find in one model.

    headwise atlas MODEL --out ATLAS
    python benchmarks/table_decoder.py MODEL --atlas ATLAS [--write]

Most is read off the atlas. Patching (64 pairs to first order, 30 pairs exactly: fewer are not tested), an experiment of
its own, and `retrieval` at 512 and 1,024 tokens, longer than in an atlas, are run here: minutes on
one core."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xarray as xr

from headwise import Atlas, HeadModel, make_atlas
from headwise.analyses.contract import MIN_EXAMPLES
from headwise.core.labels import head_name
from headwise.experiments.patching import builtin_pairs, patch
from headwise.stats.correlation import correlation

PAGE = Path(__file__).parents[1] / "docs" / "decoders.md"
MARK, END = "<!-- made by benchmarks/table_decoder.py -->\n", "<!-- end -->"
LEVEL = 0.05
HEADS = ("layer", "head")
Row = tuple[str, str]


def plane(dataset: xr.Dataset, name: str) -> np.ndarray:
    values: np.ndarray = dataset[name].transpose(*HEADS).values
    return values


def best(values: np.ndarray, count: int) -> list[tuple[int, int]]:
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), axis=None, kind="stable")[:count]
    return [divmod(int(place), values.shape[1]) for place in order]


def named(values: np.ndarray, count: int) -> str:
    return ", ".join(f"{head_name(*at)} {values[at]:.2f}" for at in best(values, count))


def p_text(p: float) -> str:
    return f"p = {p:.2g}"


def induction(found: xr.Dataset) -> Row:
    a = found.attrs
    first, second = map(float, found["loss"].values)
    sure = {
        name: int((plane(found, f"{name}_p_adjusted") < LEVEL).sum())
        for name in ("prefix_matching", "duplicate")
    }
    score = plane(found, "prefix_matching")
    top = best(score, 1)[0]
    low, high = (plane(found, f"prefix_matching_{end}")[top] for end in ("low", "high"))
    told = (
        f"{a['sequences']} sequences of {a['length']} tokens: loss {first:.1f} nats in the first half, {second:.1f} in "
        f"the second (gain {a['gain']:.1f}, {a['gain_low']:.1f} … {a['gain_high']:.1f}). {sure['prefix_matching']} "
        f"heads match prefixes significantly, {sure['duplicate']} attend to duplicates significantly; the best match "
        f"prefixes with {named(score, 5)} (interval of the first: {low:.2f} … {high:.2f})"
    )
    if "disabled_effect" in a:
        drawn = found["drawn_effect"].values
        told += (
            f". Without {a['disabled']} the second half's loss rises by {a['disabled_effect']:.1f} nats "
            f"({a['disabled_effect_low']:.1f} … {a['disabled_effect_high']:.1f}); without as many random heads of the "
            f"same layers by {drawn.mean():.1f} on average, at most {drawn.max():.1f} in {len(drawn)} draws "
            f"({p_text(a['disabled_p'])}; {len(drawn)} draws cannot give less than {1 / (len(drawn) + 1):.2g})"
        )
    return "`induction`", told


def sinks(found: xr.Dataset) -> Row:
    first = plane(found, "first")
    sure = int((plane(found, "first_p_adjusted") < LEVEL).sum())
    longest = float(found["hidden_norm_ratio"].max())
    told = (
        f"{int((first > 0.5).sum())} of {first.size} heads give over half of their attention to the first token, "
        f"{sure} significantly over {found.attrs['threshold']:g}; the norm of the first token's hidden "
        f"state is up to {longest:.0f} times the median"
    )
    return "`sinks`", told


def opening(found: xr.Dataset) -> Row:
    there, gone = (float(np.nanmean(plane(found, f"first_{way}"))) for way in ("with", "without"))
    change = plane(found, "change")
    at = best(np.abs(change), 1)[0]
    return "`opening_token`", (
        f"mean weight on the first token over heads: {there:.2f} with an opening token, {gone:.2f} without; the head "
        f"that changes most is {head_name(*at)} ({change[at]:+.2f})"
    )


def circuits(found: xr.Dataset, induction_of: xr.Dataset) -> Row:
    copying, sure = plane(found, "ov_copying"), plane(found, "ov_copying_p_adjusted") < LEVEL
    heads = copying.shape[1]
    layer, head = best(plane(induction_of, "prefix_matching"), 1)[0]
    into = found["composition"].sel(side="key").isel(head_b=layer * heads + head).values
    before = plane(induction_of, "previous")
    senders = [
        divmod(int(place), heads) for place in np.argsort(-np.nan_to_num(into, nan=-np.inf))[:2]
    ]
    told = " and ".join(
        f"{head_name(*at)} ({before[at]:.2f} of its attention to the previous token)"
        for at in senders
    )
    return "`circuits`", (
        f"{int((sure & (copying > 0)).sum())} heads copy, {int((sure & (copying < 0)).sum())} do the reverse; the "
        f"heads that compose most into the keys of {head_name(layer, head)} are {told}"
    )


def logits(found: xr.Dataset) -> Row:
    specific, sure = plane(found, "specific"), plane(found, "specific_p_adjusted") < LEVEL
    return "`logits`", (
        f"the parts add up to the model's logit to {found.attrs['adds_up']:.0e}; {int((sure & (specific > 0)).sum())} "
        f"heads raise the logit of the actual next token, {int((sure & (specific < 0)).sum())} lower it"
    )


def retrieval(found: xr.Dataset) -> Row:
    a = found.attrs
    lengths = " and ".join(f"{int(n):,}" for n in found["length"].values)
    told = f"{a['trials_passed']} of {a['trials']} trials passed"
    if bool(found["score"].notnull().any()):
        sure = int((plane(found, "score_p_adjusted") < LEVEL).sum())
        told += f"; {sure} heads score significantly over 0.1; highest: {named(plane(found, 'score'), 5)}"
    return f"`retrieval`, {lengths} tokens, {found.sizes['depth']} depths", told


def roles(found: xr.Dataset, induction_of: xr.Dataset) -> Row:
    a = induction_of.attrs
    sure = plane(induction_of, "prefix_matching_p_adjusted") < LEVEL
    rest = found["bias_rest"].sel(role="induction").transpose(*HEADS).values
    has, without = (
        int(found[name].sel(role="induction").sum())
        for name in ("has_role_adjusted", "has_role_rest")
    )
    return f"`roles`, {int(found.attrs['inputs']):,} texts", (
        "rank correlation over heads of `prefix_matching` on random sequences with the bias for the role `induction` "
        f"on these texts: {a['role_r']:.2f} with the plain bias ({p_text(a['role_p'])}), since a sink head has a small "
        f"bias for every role; {a['role_rest_r']:.2f} ({a['role_rest_low']:.2f} … {a['role_rest_high']:.2f}, "
        f"{p_text(a['role_rest_p'])}) excluding the first token (`bias_rest`); for the control `rare` "
        f"{a['control_rest_r']:.2f} ({p_text(a['control_rest_p'])}). Excluding it, the {int(sure.sum())} significant "
        f"heads have a median bias of {np.nanmedian(rest[sure]):.1f}, the others of {np.nanmedian(rest[~sure]):.1f}. "
        f"Heads that have the role by the test: {has}, and {without} excluding the first token"
    )


def patching(model: HeadModel) -> Iterator[Row]:
    pairs = builtin_pairs("agreement", 64)
    first = patch(model, pairs, exact=False, ablate=0)
    right = [
        f"{100 * first.attrs[f'{which}_right']:.0f} % of {which}"
        for which in ("clean", "corrupted")
    ]
    told = f"right on {' and '.join(right)} inputs; largest effects {named(plane(first, 'estimate'), 2)}"
    yield f"`headwise patch`, subject and verb, {len(pairs)} pairs, first order", told
    exact = patch(model, pairs[:MIN_EXAMPLES])
    back, gone = plane(exact, "recovered"), plane(exact, "ablated")
    r = ", ".join(f"{name.title()} {exact.attrs[name]:.3f}" for name in ("pearson", "spearman"))
    told = (
        f"share of the logit difference that is recovered: {named(back, 3)}; first order and exact "
        f"over all heads: {r}"
    )
    yield f"the same, {MIN_EXAMPLES} pairs, exact", told
    tried = np.isfinite(gone)
    sure = tried & (plane(exact, "ablated_p_adjusted") < LEVEL)
    most = named(np.where(sure, gone, np.nan), int(sure.sum())) or "nothing"
    rank = correlation(back[tried], gone[tried], "spearman")
    told = f"share that is lost, where significant (corrected): {most}. Recovered and lost over these heads: Spearman"
    told += f" {rank.r:.2f} ({p_text(rank.p_value)})"
    yield f"its {int(tried.sum())} best heads, zeroed in the clean run, the same pairs", told


def rows(atlas: Atlas, model: HeadModel) -> Iterator[Row]:
    yield induction(atlas["induction"])
    yield sinks(atlas["sinks"])
    yield opening(atlas["opening_token"])
    yield circuits(atlas["circuits"], atlas["induction"])
    yield logits(atlas["logits"])
    yield from patching(model)
    longer = {"lengths": (512, 1024), "depths": 3, "needles": 2}
    yield retrieval(
        make_atlas(model, analyses=["retrieval"], parameters={"retrieval": longer})["retrieval"]
    )
    yield roles(atlas["roles"], atlas["induction"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--atlas", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="into docs/decoders.md")
    asked = parser.parse_args()
    atlas = Atlas.load(asked.atlas)
    with HeadModel.open(asked.model, device="cpu") as model:
        about = f"{model.layers} layers of {model.heads} heads"
        if model.kv_groups != tuple(range(model.heads)):
            about += f", {len(set(model.kv_groups))} key/value heads"
        corpus = atlas.provenance["corpus"]
        lines = [f"| {question} | {found} |" for question, found in rows(atlas, model)]
    head = [
        f"{about}; {corpus['examples']:,} texts of the built-in corpus.",
        "",
        "| analysis | result |",
        "|---|---|",
    ]
    text = "\n".join([*head, *lines])
    print(text)
    if asked.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
        assert rest, f"{PAGE} has no mark {MARK!r}"
        PAGE.write_text(before + MARK + f"\n{text}\n\n" + rest[rest.index(END) :], encoding="utf-8")


if __name__ == "__main__":
    main()
