"""What labels rest on: planted heads, compared with the values that were planted."""

from __future__ import annotations

import pytest
from site_of import BEST, INDUCTION_HEAD, SINK_HEAD, decoder_atlas, small_atlas

from headwise.atlas.role_words import ROLE_WORDS, roles_text
from headwise.page.data import page_data
from headwise.page.evidence import label_evidence, most_interesting
from headwise.page.report import highlights
from headwise.page.wording import parameters_text, run_facts


def test_the_evidence_of_a_relation_is_its_accuracy_and_the_best_baseline() -> None:
    atlas = small_atlas()
    heads = atlas.describe()
    evidence = label_evidence(atlas, heads)
    row = BEST[0] * atlas.heads + BEST[1]
    found = evidence[row]
    assert found is not None
    assert (found.value, found.bar) == (pytest.approx(0.87), pytest.approx(0.39))
    assert found.margin == pytest.approx(0.48)
    assert most_interesting(heads, evidence) == row


def test_what_a_test_found_comes_before_a_stronger_sink() -> None:
    atlas = decoder_atlas()
    heads = atlas.describe()
    evidence = label_evidence(atlas, heads)
    labels = heads.set_index("name")["does"]
    assert labels["L2H1"] == "sink"
    assert labels["L4H3"] == "induction"
    row = INDUCTION_HEAD[0] * atlas.heads + INDUCTION_HEAD[1]
    assert most_interesting(heads, evidence) == row
    found = evidence[row]
    assert found is not None
    assert (found.value, found.bar, found.bar_name) == (0.85, 0.02, "uniform attention")
    data = page_data(atlas)
    assert data["start"] == "L4H3"
    assert data["model"]["decoder"] == 1
    sinks = {head["name"] for head in data["heads"] if head.get("sink")}
    assert {"L2H1", "L4H3"} <= sinks
    first = atlas["surface"]["mass"].sel(token_type="first").values
    assert len(sinks) == (first > 0.5).sum()
    assert "decoder" not in page_data(small_atlas())["model"]


def test_where_no_head_has_a_label_the_first_is_shown() -> None:
    atlas = small_atlas()
    heads = atlas.describe().assign(does="other", kind="other")
    evidence = label_evidence(atlas, heads)
    assert set(evidence) == {None}
    assert most_interesting(heads, evidence) is None


def test_extreme_heads_of_a_decoder_exclude_the_first_token() -> None:
    texts = highlights(decoder_atlas())
    by_words = {text.partition(":")[0]: name for name, text in texts}
    assert by_words["most on the first token"] in ("L2H1", "L4H3")
    sinks = {f"L{SINK_HEAD[0]}H{SINK_HEAD[1]}", f"L{INDUCTION_HEAD[0]}H{INDUCTION_HEAD[1]}"}
    for words, name in by_words.items():
        if words != "most on the first token":
            # Planted as the sharpest, but with values on 3 of 200 examples.
            assert name not in sinks, words
    others = [text for _, text in texts if not text.startswith("most on the first token")]
    assert others
    assert all("excluding the first token" in text for text in others)
    assert not any("excluding" in text for _, text in highlights(small_atlas()))


def test_identifiers_become_words() -> None:
    text = roles_text("same_word:other_segment, without the first token: induction, my_role")
    assert text == (
        "the same word in the other segment, without the first token: token after an earlier "
        "occurrence, my role"
    )
    assert parameters_text({"heads": [], "pairs": 200}) == "heads: none named; pairs: 200"
    assert not any("_" in words or ":" in words for words in ROLE_WORDS.values())


def test_a_run_is_told_in_five_facts() -> None:
    facts = run_facts({"seed": 0, "headwise": "0.1.0", "device": "cpu", "dtype": "float32"})
    assert facts == [
        ("Software", "headwise 0.1.0"),
        ("Seed", "0"),
        ("Computed on", "cpu, float32"),
    ]
    assert run_facts({}) == []
