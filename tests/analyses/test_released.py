"""`reading="released"`: equal to the arithmetic of the released code, written down plainly, on five
inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.stats import entropy

from headwise.analyses.contract import choose_analyses, has_variant
from headwise.analyses.papers import reference
from headwise.analyses.released import QUIRKS, quirks_of
from headwise.cli.options import check_variant as check_as
from headwise.core.errors import ParameterError
from headwise.experiments.comparison import compare
from headwise.models import HeadModel
from headwise.run import make_atlas
from headwise.testing import eager, eager_maps
from headwise.testing.models import random_model
from headwise.text import Corpus, Example
from headwise.text.encode import Encoded, collate

# Words of several pieces: `random_model` knows whole words and single letters.
WORDS = ("dogs", "bark", "at", "cats", "loudly", "the", "old", "'s", "tail", "##s", "wag", "##ging")
TREES = (
    (("the", "dogs", "bark", "loudly"), (1, 2, -1, 2), ("det", "nsubj", "root", "advmod")),
    (
        ("old", "tails", "wagging", "at", "cats"),
        (1, 2, -1, 4, 2),
        ("amod", "nsubj", "root", "case", "obl"),
    ),
    (("dogs", "'s", "tails", "wagging"), (2, 0, 3, -1), ("nmod:poss", "case", "nsubj", "root")),
    (("wagging", "tails", "bark", "."), (1, 2, -1, 2), ("amod", "nsubj", "root", "punct")),
    (("cats", "wagging", "old", "tails"), (1, -1, 3, 1), ("nsubj", "root", "amod", "obj")),
)


def opened(seed: int = 0) -> HeadModel:
    module, tokenizer = random_model(
        words=(*WORDS, "."), seed=seed, layers=2, heads=3, d_head=8, max_length=64
    )
    for name, weight in module.named_parameters():
        if "query.weight" in name or "key.weight" in name:
            weight.data *= 4  # attention that is far from even
    return HeadModel.open(module, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def model() -> HeadModel:
    return opened()


def tree_rows(model: HeadModel) -> tuple[Corpus, list[Encoded]]:
    examples = [Example(words=w, heads=h, relations=r) for w, h, r in TREES]
    return Corpus.from_examples(examples), [
        model.encoder.encode(e, i) for i, e in enumerate(examples)
    ]


def pair_rows(model: HeadModel) -> tuple[Corpus, list[Encoded]]:
    texts = [
        "the old dogs bark",
        "cats",
        "dogs wagging tails loudly at the cats",
        "the tails",
        "old old old",
    ]
    pairs = [
        "cats",
        "the tails wagging at dogs",
        "bark loudly",
        "the cats bark at the old dogs",
        "tails",
    ]
    examples = [Example(text=a, pair=b) for a, b in zip(texts, pairs, strict=True)]
    return Corpus.from_examples(examples), [
        model.encoder.encode(e, i) for i, e in enumerate(examples)
    ]


def test_dependency_takes_the_first_piece_and_counts_as_the_notebook_does(model: HeadModel) -> None:
    corpus, rows = tree_rows(model)
    assert any((np.bincount(row.word[row.word >= 0]) > 1).any() for row in rows), (
        "no word has several pieces"
    )
    kept = {"subtypes": "keep", "noop": "off"}
    found = make_atlas(
        model, corpus, ["dependency"], parameters={"dependency": kept | {"reading": "released"}}
    )
    own = make_atlas(model, corpus, ["dependency"], parameters={"dependency": kept})["dependency"]
    right: dict[tuple[int, int, int, str], list[bool]] = {}
    for maps, row in zip(eager_maps(model, rows), rows, strict=True):
        words, heads, relations = row.example.words, row.example.heads, row.example.relations
        pieces = [np.flatnonzero(row.word == w) for w in range(len(words))]
        for layer, head in np.ndindex(2, 3):
            attention = maps[layer, head]
            # bpe_utils.py: columns of a word are summed, of its rows the first is taken
            level = np.array(
                [[attention[own[0], other].sum() for other in pieces] for own in pieces]
            )
            for direction, values in enumerate((level, level.T)):
                values = values.copy()
                np.fill_diagonal(values, 0)
                predicted = values.argmax(-1)
                for word, (above, relation) in enumerate(zip(heads, relations, strict=True)):
                    place = (
                        word + 1 if relation == "nmod:poss" and words[word + 1] == "'s" else word
                    )
                    hit = bool(above >= 0 and predicted[place] == above)
                    for name in {relation, "all"} - {"root"}:
                        right.setdefault((direction, layer, head, name), []).append(hit)
    for (direction, layer, head, name), hits in right.items():
        one = (
            found["dependency"].isel(direction=direction, layer=layer, head=head).sel(relation=name)
        )
        assert float(one["accuracy_n"]) == len(hits), name
        assert float(one["accuracy"]) == pytest.approx(np.mean(hits)), name
    assert float(own["accuracy_n"].sel(relation="all").max()) < float(
        found["dependency"]["accuracy_n"].max()
    )
    assert not np.allclose(
        own["accuracy"].sel(relation="nsubj"), found["dependency"]["accuracy"].sel(relation="nsubj")
    )


def released_scores(maps: np.ndarray, row: Encoded) -> dict[str, np.ndarray]:
    """local_score.ipynb and block_score.ipynb, for every layer and head."""
    length = len(row)
    first_sep = int(np.flatnonzero(row.sep)[0])
    scores = {name: np.zeros(maps.shape[:2]) for name in ("local", "block", "delimiter")}
    for layer, head in np.ndindex(*maps.shape[:2]):
        attention = maps[layer, head]
        for token in range(length):
            average = attention[token].sum() / length
            low, high = max(0, token - 2), min(token + 2, length) + 1
            scores["local"][layer, head] += (
                attention[token, low:high].sum() / (high - low) / average
            )
            block = slice(1, first_sep) if token < first_sep else slice(first_sep + 1, length - 1)
            mean = attention[token, block].sum() / (block.stop - block.start)
            scores["block"][layer, head] += mean / average * entropy(attention[token])
            special = (
                attention[token, 0] + attention[token, first_sep] + attention[token, length - 1]
            )
            scores["delimiter"][layer, head] += special / 3 / average
    return {name: score / length for name, score in scores.items()}


def test_roles_are_scored_and_tested_as_in_the_notebooks(model: HeadModel) -> None:
    corpus, rows = pair_rows(model)
    given = {"sieves": "local,block,delimiter", "tau": 1.2, "bootstrap": 0, "random_models": 0}
    found = make_atlas(
        model, corpus, ["roles"], parameters={"roles": given | {"reading": "released"}}
    )["roles"]
    own = make_atlas(model, corpus, ["roles"], parameters={"roles": given})["roles"]
    each = [
        released_scores(maps, row) for maps, row in zip(eager_maps(model, rows), rows, strict=True)
    ]
    for role in ("local", "block", "delimiter"):
        scores = np.stack([one[role] for one in each])
        np.testing.assert_allclose(
            found["bias"].sel(role=role), scores.mean(0), rtol=1e-5, atol=1e-7
        )
        np.testing.assert_allclose(
            found["spread"].sel(role=role), scores.std(0), rtol=1e-3, atol=1e-6
        )
        z = (scores.mean(0) - 1.2) / (scores.std(0) / np.sqrt(5))
        np.testing.assert_allclose(
            found["p_value"].sel(role=role), 1 - scipy.stats.t(4).cdf(z), rtol=1e-3, atol=1e-12
        )
        assert np.allclose(own["bias"].sel(role=role), found["bias"].sel(role=role)) == (
            role == "delimiter"
        )
    assert not np.allclose(
        own["p_value"].sel(role="delimiter"), found["p_value"].sel(role="delimiter")
    )
    assert found["ceiling"].sel(role="block").isnull().all()


def test_the_cosine_counts_the_rows_of_padding(model: HeadModel) -> None:
    corpus, rows = pair_rows(model)
    other = opened(seed=1)
    found = compare([model, other], corpus, analyses=(), variant="released")["change"]
    own = compare([model, other], corpus, analyses=())["change"]
    each = []
    for row in rows:
        batch = collate(
            [row], model.pad_id, pad_to=64
        )  # as much as the model takes; 200 in the notebook
        inputs = {
            "input_ids": batch.ids,
            "attention_mask": batch.attention_mask.long(),
            "token_type_ids": batch.types,
        }
        flat = []
        for one in (model, other):
            with eager(one) as module, torch.no_grad():
                maps = module(**inputs, output_attentions=True).attentions
            flat.append(torch.stack(maps)[:, 0].flatten(-2).double())
        each.append(torch.nn.functional.cosine_similarity(*flat, dim=-1).numpy())
    np.testing.assert_allclose(found["cosine"], np.mean(each, axis=0), atol=1e-6)
    assert not np.allclose(found["cosine"], own["cosine"], atol=1e-3)
    assert found.attrs["reading"] == "released"


def test_the_list_names_what_is_computed() -> None:
    assert {quirk.where for quirk in QUIRKS} == {"dependency", "roles", "change"}
    for quirk in QUIRKS:
        assert reference(quirk.paper).key == quirk.paper
        assert quirk.where == "change" or has_variant(quirk.where)
    assert len(quirks_of(paper="pande2021")) == 3
    told = (Path(__file__).parents[2] / "docs" / "released.md").read_text(encoding="utf-8")
    for quirk in QUIRKS:
        assert (
            f"| `{quirk.where}` | {quirk.printed} | {quirk.released} | {quirk.source} |" in told
        ), quirk.name
    made = choose_analyses(
        ["surface", "roles", "dependency"], {"roles": {"tau": 3.0}}, variant="released"
    )
    assert [analysis.parameters.get("reading") for analysis in made] == [
        None,
        "released",
        "released",
    ]
    with pytest.raises(ParameterError, match="`variant` must be one of"):
        choose_analyses(["roles"], variant="printed")


def test_the_command_line_refuses_a_reading_that_changes_nothing() -> None:
    check_as("released", ["surface", "roles"])
    check_as("paper", ["surface"])
    with pytest.raises(
        ParameterError,
        match="--variant released changes dependency, roles, and none of them is among",
    ):
        check_as("released", ["surface"])
