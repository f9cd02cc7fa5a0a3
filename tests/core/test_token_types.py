"""A token type is one entry of a table: encoding, analyses, figures and the page follow it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from headwise.core.token_types import OTHER, TOKEN_TYPES, TYPE_NAMES

ADD_A_TYPE = """
import json, sys
from pathlib import Path
import headwise.core.token_types as table

table.TOKEN_TYPES += (table.TokenType("the", "the article", texts=("the", "The")),)
table.TYPE_NAMES = (*(each.name for each in table.TOKEN_TYPES), "other")
table.OTHER = table.TYPE_NAMES.index("other")

import headwise
from headwise.analyses.features.predicates import known_features
from headwise.page.report import write_report
from headwise.text.corpus import Corpus

texts = ["The dog saw the cat, and the cat ran.", "All the birds of the wood sang."]
model = headwise.HeadModel.from_pretrained()
row = model.encode(texts[0])
names = ("surface", "attribution")
atlas = headwise.make_atlas(
    model,
    Corpus.from_texts(texts),
    analyses=names,
)
report = write_report(atlas, Path(sys.argv[1]))
assert not report.failures, report.failures

# The mean of all rows of an example, then of the examples.
expected = 0
for text in texts:
    maps = model.attention(text)
    is_the = [token.strip().lower() == "the" for token in model.encode(text).tokens]
    expected = expected + maps.values[..., is_the].sum(-1).mean(-1) / len(texts)
difference = abs(atlas["surface"]["mass"].sel(token_type="the").values - expected).max()
groups = {name: "the" in atlas[name]["token_type"] for name in names}
print(json.dumps({
    "tokens": [row.tokens[number] for number in row.token_mask("the").nonzero()[0]],
    "types": list(model.encoder.token_types),
    "groups": groups,
    "features": list(known_features()),
    "difference": float(difference),
}))
"""


def test_a_new_type_is_one_entry(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADD_A_TYPE, str(tmp_path / "page")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [token.strip().lower() for token in result["tokens"]] == ["the"] * 3
    assert result["types"] == ["cls", "sep", "punct", "the", "other"]
    assert result["groups"] == {"surface": True, "attribution": True}
    assert "the" in result["features"]
    assert result["difference"] < 1e-5
    page = (tmp_path / "page" / "index.html").read_text()
    assert "most on the article" in page


def test_names_and_numbers_agree() -> None:
    assert TYPE_NAMES[OTHER] == "other"
    assert len(TYPE_NAMES) == len(set(TYPE_NAMES)) == len(TOKEN_TYPES) + 1
    for token_type in TOKEN_TYPES:
        assert bool(token_type.special_tokens) != bool(token_type.texts)


def test_each_token_has_one_type() -> None:
    from headwise import HeadModel

    row = HeadModel.from_pretrained().encode("It rained, and it rained.")
    masks = np.stack([row.token_mask(name) for name in TYPE_NAMES])
    assert (masks.sum(0) == 1).all()
    assert row.cls.tolist() == [True] + [False] * (len(row) - 1)
    assert row.punct.sum() == 2
    assert row.sep[-1]
