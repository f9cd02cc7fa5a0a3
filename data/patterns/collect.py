"""Draws the maps that were labelled for the `patterns` classifier: model, head and text of each, chosen by seed.

Usage: python collect.py SHARED OUT.npz OUT.csv NAME=FOLDER [NAME=FOLDER ...]; a folder with a .gguf file is opened
through it.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import lzma
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

# By design: every head of the small models, a draw of those of the large one, each on texts of all kinds. Beside it,
# maps picked for the rarer shapes (blocks, diagonals, both) by crude summaries: those only choose which maps to look
# at, they never label one.
PLAN = {
    "wiki-bert": {"design": 288, "picked": 60, "causal": False},
    "stories15M": {"design": 96, "picked": 12, "causal": True},
    "SmolLM2-135M": {"design": 120, "picked": 20, "causal": True},
    "all-MiniLM-L6-v2": {"design": 216, "picked": 24, "causal": False},
}
# A second draw, after the first had shown which labels were rare in which model: candidates again, never labels.
SECOND = {
    "wiki-bert": {"diagonal": 24, "spread": 24, "segments": 12},
    "stories15M": {"segments": 12, "spread": 8},
    "SmolLM2-135M": {"diagonal": 8, "spread": 16, "segments": 16},
    "all-MiniLM-L6-v2": {"segments": 48},
}
# A third draw, to have more to train on: any head ("any") and candidates as before.
THIRD = {
    "wiki-bert": {"any": 40, "diagonal": 24, "spread": 16, "segments": 16},
    "stories15M": {"any": 32},
}
KINDS = ("single", "pair", "long")
TEXTS_PER_KIND = 24
MAX_LENGTH = 128


def sentences(path: Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [line[len("# text = ") :].strip() for line in lines if line.startswith("# text = ")]


def text_pools(
    shared: Path, rng: np.random.Generator
) -> dict[str, dict[str, list[tuple[str, str | None, str]]]]:
    """For every model its own texts: `(first, second or None, corpus)` by kind; no text serves two models."""
    tree = [
        (s, "UD EWT dev")
        for s in sentences(shared / "data/trees/en_ewt-ud-dev.conllu.xz")
        if 5 <= len(s.split()) <= 45
    ]
    tree += [
        (s, "UD English PUD")
        for s in sentences(shared / "data/trees/en_pud-ud-test.conllu.xz")
        if 5 <= len(s.split()) <= 45
    ]
    with gzip.open(shared / "data/wikipedia/articles.jsonl.gz", "rt", encoding="utf-8") as lines:
        articles = [json.loads(line)["paragraphs"] for line in lines]
    runs = [
        (a, b)
        for paragraphs in articles
        for a, b in zip(paragraphs[::2], paragraphs[1::2], strict=False)
        if min(len(a), len(b)) > 80
    ]
    tree = [tree[i] for i in rng.permutation(len(tree))]
    runs = [runs[i] for i in rng.permutation(len(runs))]
    pools: dict[str, dict[str, list[tuple[str, str | None, str]]]] = {}
    for name in PLAN:
        single = [(tree.pop()[0], None, "UD EWT dev, PUD") for _ in range(TEXTS_PER_KIND)]
        pairs: list[tuple[str, str | None, str]] = []
        for k in range(TEXTS_PER_KIND):
            if k % 2:
                pairs.append((tree.pop()[0], tree.pop()[0], "UD EWT dev, PUD"))
            else:
                first, second = runs.pop()
                pairs.append((first, second, "Wikipedia"))
        long = [(" ".join(runs.pop()), None, "Wikipedia") for _ in range(TEXTS_PER_KIND)]
        pools[name] = {"single": list(single), "pair": pairs, "long": list(long)}
    return pools


def open_model(folder: Path) -> tuple[AutoTokenizer, torch.nn.Module]:
    packed = sorted(folder.glob("*.gguf"))
    options = {"gguf_file": packed[0].name} if packed else {}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    return tokenizer, AutoModel.from_pretrained(
        folder, attn_implementation="eager", **options
    ).eval()


def crude_summaries(maps: np.ndarray, boundary: int | None) -> dict[str, np.ndarray]:
    """Near-diagonal mass, largest column mass and, for pairs, the mass inside the own segment, for `maps[layer, head,
    n, n]`."""
    n = maps.shape[-1]
    offset = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
    near = (maps * (offset <= 1)).sum(-1).mean(-1)
    column = maps.mean(-2).max(-1)
    out = {"diagonal": near * (1 - column), "both": np.minimum(near, column)}
    if boundary:
        side = np.arange(n) > boundary
        inside = (maps * (side[:, None] == side[None, :])).sum(-1).mean(-1)
        out["block"] = inside * (1 - column) * (1 - near)
    return out


def second_summaries(maps: np.ndarray, boundary: int | None) -> dict[str, np.ndarray]:
    """For the second draw: near-diagonal mass without stripes, mass without either, and own-segment mass beyond what
    the columns alone explain."""
    n = maps.shape[-1]
    offset = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
    near = (maps * (offset <= 1)).sum(-1).mean(-1)
    column = maps.mean(-2).max(-1)
    out = {"diagonal": near - 3 * column, "spread": -near - column}
    if boundary:
        side = np.arange(n) > boundary
        own = side[:, None] == side[None, :]
        expected = (maps.mean(-2, keepdims=True) * own).sum(-1).mean(-1)
        out["segments"] = (maps * own).sum(-1).mean(-1) - expected - near
    return out


def main() -> None:
    shared, out_maps, out_rows = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    folders = dict(argument.split("=", 1) for argument in sys.argv[4:])
    rng = np.random.default_rng(20190819)
    pools = text_pools(shared, rng)
    arrays: dict[str, np.ndarray] = {}
    rows: list[dict[str, object]] = []
    for name, plan in PLAN.items():
        if (
            name not in folders
        ):  # later ones come out otherwise without the earlier ones: one seed serves all in turn
            continue
        tokenizer, model = open_model(Path(folders[name]))
        config = model.config
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        order = np.concatenate(
            [rng.permutation(layers * heads) for _ in range(-(-plan["design"] // (layers * heads)))]
        )[: plan["design"]]
        wanted: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for k, flat in enumerate(order):
            wanted.setdefault((KINDS[k % 3], int(rng.integers(TEXTS_PER_KIND))), []).append(
                divmod(int(flat), heads)
            )
        candidates: dict[str, list[tuple[float, str, int, int, int]]] = {
            "diagonal": [],
            "both": [],
            "block": [],
        }
        later: dict[str, list[tuple[float, str, int, int, int]]] = {
            "diagonal": [],
            "spread": [],
            "segments": [],
        }
        kept: dict[tuple[str, int], np.ndarray] = {}
        lengths: dict[tuple[str, int], int] = {}
        for kind in KINDS:
            for t, (first, second, _) in enumerate(pools[name][kind]):
                limit = MAX_LENGTH if kind != "long" else int(rng.integers(64, MAX_LENGTH + 1))
                if kind == "pair" and rng.random() < 0.5:
                    limit = int(rng.integers(32, MAX_LENGTH + 1))
                encoded = tokenizer(
                    first,
                    second,
                    truncation="longest_first" if second else True,
                    max_length=limit,
                    return_tensors="pt",
                )
                encoded.pop("token_type_ids", None) if plan["causal"] else None
                with torch.no_grad():
                    maps = torch.stack(model(**encoded, output_attentions=True).attentions)[
                        :, 0
                    ].numpy()
                kept[kind, t], lengths[kind, t] = maps.astype(np.float16), maps.shape[-1]
                sequence = encoded.sequence_ids(0)
                boundary = max(i for i, s in enumerate(sequence) if s == 0) if second else None
                for listed_by_shape, summaries in (
                    (candidates, crude_summaries),
                    (later, second_summaries),
                ):
                    for shape, score in summaries(maps, boundary).items():
                        for layer, head in np.ndindex(layers, heads):
                            listed_by_shape[shape].append(
                                (float(score[layer, head]), kind, t, layer, head)
                            )
        chosen = {
            (kind, t, layer, head): "design"
            for (kind, t), pairs in wanted.items()
            for layer, head in pairs
        }
        for shape, listed in candidates.items():
            listed.sort(reverse=True)
            top, used, taken = listed[: max(len(listed) // 20, 20)], set(), 0
            for k in rng.permutation(len(top)):
                _, kind, t, layer, head = top[k]
                # One head gives at most one picked map of a shape, else a handful of heads would fill the stratum.
                if (
                    (kind, t, layer, head) in chosen
                    or sum((layer, head) == u for u in used)
                    or taken >= plan["picked"] // 3
                ):
                    continue
                used.add((layer, head))
                chosen[kind, t, layer, head] = f"picked:{shape}"
                taken += 1
        later["any"] = [
            (0.0, kind, t, layer, head)
            for kind, t in kept
            for layer, head in np.ndindex(layers, heads)
        ]
        for draw, plan_of_draw, seed, most in (
            ("second", SECOND, 20190820, 6),
            ("third", THIRD, 20190821, 3),
        ):
            later_rng = np.random.default_rng(seed)
            for shape, number in plan_of_draw.get(name, {}).items():
                top = (
                    sorted(later[shape], reverse=True)[: 8 * number]
                    if shape != "any"
                    else later[shape]
                )
                uses: dict[tuple[int, int], int] = {}
                taken = 0
                for k in later_rng.permutation(len(top)):
                    _, kind, t, layer, head = top[k]
                    if (
                        (kind, t, layer, head) in chosen
                        or uses.get((layer, head), 0) >= most
                        or taken >= number
                    ):
                        continue
                    uses[layer, head] = uses.get((layer, head), 0) + 1
                    chosen[kind, t, layer, head] = f"{draw}:{shape}"
                    taken += 1
        for (kind, t, layer, head), drawn in sorted(chosen.items()):
            first, second, corpus = pools[name][kind][t]
            fingerprint = hashlib.sha256((first + "\n" + (second or "")).encode()).hexdigest()[:12]
            identity = f"{name}/{kind}-{fingerprint[:6]}/L{layer}H{head}"
            arrays[identity] = np.rint(
                255 * np.sqrt(kept[kind, t][layer, head].astype(np.float64))
            ).astype(np.uint8)
            where = {
                "id": identity,
                "model": name,
                "causal": int(plan["causal"]),
                "corpus": corpus,
                "kind": kind,
                "layer": layer,
                "head": head,
            }
            rows.append(where | {"tokens": lengths[kind, t], "text": fingerprint, "drawn": drawn})
        print(name, len(chosen), flush=True)
    np.savez_compressed(out_maps, **arrays)
    with out_rows.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
