"""The analysis `attribution`: exact on planted heads, equal to plain loops, resumable, seeded,
widening `offsets`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from headwise import Corpus, HeadModel
from headwise.analyses.attribution.analysis import Attribution
from headwise.analyses.attribution.figures import contribution_centre
from headwise.analyses.attribution.state import AttributionState
from headwise.analyses.attribution.tables import special_table
from headwise.analyses.contract import make_analysis
from headwise.analyses.offsets.figures import centre_of_mass
from headwise.atlas import Atlas
from headwise.core.errors import InputError, OutputError, ParameterError
from headwise.plots.registry import tables_for
from headwise.run import RunOptions, run_analyses
from headwise.testing import contributions as closed_form
from headwise.testing import planted_model
from headwise.testing.models import random_model
from headwise.text.example import Example

TEXTS = [
    Example(text="the old teacher saw a cat"),
    Example(text="she sleeps .", pair="the dog runs"),
    Example(text="a dog saw the small house"),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random(causal: bool = False, d_head: int = 12, **sizes) -> HeadModel:
    module, tokenizer = random_model(causal=causal, d_head=d_head, **sizes)
    return HeadModel.open(module, tokenizer=tokenizer)


def run(model: HeadModel, examples, folder: Path, *analyses, **options) -> Atlas:
    return run_analyses(
        model,
        Corpus.from_examples(list(examples), "few"),
        list(analyses),
        folder,
        RunOptions(full=True, **options),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_correlations_shares_and_offsets_by_plain_loops(causal: bool, tmp_path: Path) -> None:
    from headwise.analyses.attribution import contributions

    model = random(causal)
    found = run(model, TEXTS, tmp_path, Attribution(method="exact", patterns=0))["attribution"]
    sums = {
        source: {"pearson": [], "spearman": [], "own": [], "sep": []}
        for source in ("previous_layer", "input")
    }
    mass, pairs = np.zeros((model.layers, model.heads, 79)), np.zeros(79)
    for index, example in enumerate(TEXTS):
        batch = model.batch(model.encode(example, index))
        attention = model.trace(batch).attention[0].double().numpy()
        n = attention.shape[-1]
        for source, kept in sums.items():
            maps = contributions(model, batch, source).heads[0].numpy()
            table = {name: np.full((model.layers, model.heads), np.nan) for name in kept}
            for layer in range(model.layers):
                for head in range(model.heads):
                    rows = []
                    for j in range(n):
                        seen = slice(0, j + 1) if causal else slice(0, n)
                        x, y = attention[layer, head, j, seen], maps[layer, head, j, seen]
                        if len(x) >= 3:
                            rows.append((stats.pearsonr(x, y)[0], stats.spearmanr(x, y)[0]))
                        if source == "input":
                            for i in range(n)[seen]:
                                mass[layer, head, 39 + i - j] += maps[layer, head, j, i]
                                pairs[39 + i - j] += layer == head == 0
                    table["pearson"][layer, head], table["spearman"][layer, head] = np.mean(
                        rows, axis=0
                    )
                    table["own"][layer, head] = maps[layer, head].diagonal().mean()
                    table["sep"][layer, head] = (
                        maps[layer, head][:, batch.rows[0].sep].sum(-1).mean()
                    )
            for name, value in table.items():
                kept[name].append(value)
    for source, kept in sums.items():
        for name in ("pearson", "spearman", "own"):
            np.testing.assert_allclose(
                found[name].sel(source=source),
                np.mean(kept[name], axis=0),
                atol=2e-5,
                err_msg=f"{source} {name}",
            )
        np.testing.assert_allclose(
            found["share"].sel(source=source, receiver="all", token_type="sep"),
            np.mean(kept["sep"], axis=0),
            atol=2e-5,
        )
    expected = mass[..., pairs > 0] / pairs[pairs > 0]
    histogram = found["histogram"].sel(source="input", offset=np.flatnonzero(pairs) - 39)
    np.testing.assert_allclose(histogram, expected, atol=2e-5)
    offsets = np.flatnonzero(pairs) - 39
    np.testing.assert_allclose(
        found["centre"].sel(source="input"),
        (expected * offsets).sum(-1) / expected.sum(-1),
        atol=1e-4,
    )
    assert found["pearson"].sel(source="attention").isnull().all()
    assert (found["pearson_n"].sel(source="input") == 3).all()
    model.close()


def test_planted_heads(tmp_path: Path) -> None:
    """Linear heads: local contributions are attention itself; the input's and own shares have a
    closed form."""
    planted = planted_model(
        [["previous", "uniform"], ["first", "previous"]],
        words=["a", "b", "c", "d", "e"],
        max_length=10,
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    texts = ["a b c d", "b a e"]
    found = run(
        model,
        [Example(text=t) for t in texts],
        tmp_path,
        Attribution(method="exact", length="all", patterns=0),
    )["attribution"]
    expected = [closed_form(planted, row) for row in planted.encode(texts)]
    own = np.mean(
        [[layer.diagonal().mean() for layer in one["layer_input"]] for one in expected], axis=0
    )
    np.testing.assert_allclose(found["layer_own"], own, atol=1e-4)
    np.testing.assert_allclose(
        found["own"].sel(source="input"),
        np.mean([np.diagonal(o["input"], axis1=-2, axis2=-1).mean(-1) for o in expected], axis=0),
        atol=1e-4,
    )
    # A row with one target: attention and what is gathered from the layer below are the same
    # one-hot row.
    np.testing.assert_allclose(
        found["pearson"].sel(source="previous_layer", head=1, layer=1), 1, atol=1e-5
    )
    # Uniform attention has no correlation with anything: all its rows are left out and counted.
    assert np.isnan(found["pearson"].sel(source="input", layer=0, head=1))
    assert int(found["rows_left_out"].sel(source="input", layer=0, head=1)) == sum(
        len(row) for row in planted.encode(texts)
    )
    assert int(found["pearson_n"].sel(source="input", layer=0, head=1)) == 0
    model.close()


@pytest.mark.parametrize("causal", [False, True])
def test_offsets_gain_the_sources(causal: bool, tmp_path: Path) -> None:
    model = random(causal)
    long = Example(
        text="the old teacher saw a cat near the house and the bird and a dog",
        pair="the cat saw the dog",
    )
    atlas = run(
        model,
        [*TEXTS, long],
        tmp_path / "a",
        make_analysis("offsets"),
        Attribution(length=14, patterns=0),
    )
    offsets, own = atlas["offsets"], atlas["attribution"]
    assert list(offsets["source"].values) == ["attention", "previous_layer", "input"]
    for name in ("histogram", "centre", "mean_offset", "mean_distance", "beyond"):
        for source in ("previous_layer", "input"):
            a, b = offsets[name].sel(source=source), own[name].sel(source=source)
            if "offset" in a.dims:
                a = a.sel(offset=own["offset"])
            np.testing.assert_array_equal(a, b)
    alone = run(model, [*TEXTS, long], tmp_path / "b", make_analysis("offsets"))["offsets"]
    for name in alone.data_vars:
        np.testing.assert_array_equal(
            offsets[name].sel(source="attention")
            if "source" in alone[name].dims
            else offsets[name],
            alone[name].squeeze("source") if "source" in alone[name].dims else alone[name],
        )
        assert offsets[name].dtype == alone[name].dtype
    assert offsets.sizes["offset"] > own.sizes["offset"]
    assert offsets.attrs["title"] == alone.attrs["title"]
    path = atlas.save(tmp_path / "atlas.nc")
    assert Atlas.load(path).digest == atlas.digest
    model.close()


@pytest.mark.usefixtures("not_laid_out")
def test_models_each_on_its_own_corpus_stand_in_one_figure(tmp_path: Path) -> None:
    """As the paper's Fig 4 has three languages: any number of pairs of a model and a corpus,
    whatever their sizes."""
    corpora = {"encoder": (random(), TEXTS), "decoder": (random(causal=True, heads=2), TEXTS[:1])}
    found = {
        name: run(model, texts, tmp_path / name, make_analysis("offsets"), Attribution(patterns=0))
        for name, (model, texts) in corpora.items()
    }
    for group, drawing in (("offsets", centre_of_mass), ("attribution", contribution_centre)):
        figure = drawing({name: atlas[group] for name, atlas in found.items()})
        assert len(figure.axes) == 2
        for ax, (name, atlas) in zip(figure.axes, found.items(), strict=True):
            assert name in ax.get_title(loc="left")
            drawn = [tuple(line.get_ydata()) for line in ax.lines]
            for source in ("attention", "previous_layer", "input"):
                expected = atlas[group]["centre"].sel(source=source).mean("head").values
                assert any(
                    len(line) == len(expected) and np.allclose(line, expected) for line in drawn
                ), (
                    group,
                    name,
                    source,
                )
    for model, _ in corpora.values():
        model.close()


def test_length_rule_is_said_and_can_be_lifted(tmp_path: Path) -> None:
    model = random(d_head=8)
    examples = [
        Example(text="the cat saw a dog"),
        Example(text="the old teacher saw a small cat near the house"),
        Example(text="she sleeps"),
    ]
    atlas = run(model, examples, tmp_path / "a", Attribution(patterns=0))
    found = atlas["attribution"]
    said = atlas.provenance["left_out"]["attribution"]  # what the screen and the page say
    assert said == {
        "1 input too long": "it takes inputs of at most 8 tokens (d_head, where attention is identifiable; "
        "set `length` to lift it)"
    }
    assert found.attrs["examples"] == 2
    assert found.attrs["left_out_longer"] == 1
    assert "at most 8 tokens (d_head" in found.attrs["length_rule"]
    assert (
        run(model, examples, tmp_path / "b", Attribution(length="all", patterns=0))[
            "attribution"
        ].attrs["examples"]
        == 3
    )
    assert (
        run(model, examples, tmp_path / "c", Attribution(length=5, patterns=0))[
            "attribution"
        ].attrs["examples"]
        == 1
    )
    with pytest.raises(InputError, match="None of the 3 inputs has from 2 to 3 tokens"):
        run(model, examples, tmp_path / "d", Attribution(length=3))
    model.close()


def test_one_token_inputs_are_left_out_and_counted(tmp_path: Path) -> None:
    model = random(causal=True)
    texts = {"the cat saw a dog": 6, "cat": 2, "": 1}  # with the token that every text begins with
    examples = [Example(text=text) for text in texts]
    assert [len(model.encode(example)) for example in examples] == list(texts.values())
    atlas = run(model, examples, tmp_path, Attribution(patterns=0))
    found = atlas["attribution"]
    assert found.attrs["examples"] == 2
    assert found.attrs["left_out_one_token"] == 1
    assert "1 input of one token" in atlas.provenance["left_out"]["attribution"]
    # Two tokens: contributions, but no correlation.
    assert int(found["own_n"].sel(source="input").max()) == 2
    assert int(found["pearson_n"].sel(source="input").max()) == 1
    with pytest.raises(InputError, match="None of the 1 inputs has from 2"):
        run(model, examples[2:], tmp_path / "alone", Attribution())
    model.close()


def test_a_model_in_half_precision_is_computed_in_float32_and_the_result_says_so(
    tmp_path: Path,
) -> None:
    module, tokenizer = random_model(d_head=12)
    model = HeadModel.open(module.to(torch.bfloat16), tokenizer=tokenizer)
    single = HeadModel.open(
        random_model(d_head=12)[0].to(torch.bfloat16).float(), tokenizer=tokenizer
    )
    half = run(model, TEXTS, tmp_path / "half", Attribution(patterns=0))["attribution"]
    assert half.attrs["computed_in"] == "float32, from weights in half precision"
    assert model.dtype == torch.bfloat16
    whole = run(single, TEXTS, tmp_path / "single", Attribution(patterns=0))["attribution"]
    assert whole.attrs["computed_in"] == "float32"
    np.testing.assert_allclose(half["pearson"], whole["pearson"], atol=1e-5)
    model.close()


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import headwise.analyses.attribution.analysis as module

    monkeypatch.setattr(module, "BATCH_TOKENS", 8)
    model = random()
    asked = Attribution(patterns=1)
    whole = run(model, TEXTS, tmp_path / "whole", asked)["attribution"]
    real, seen = AttributionState.observe, []

    def dying(self, batch, sample):
        seen.append(len(batch))
        if len(seen) == 3:
            raise KeyboardInterrupt
        real(self, batch, sample)

    monkeypatch.setattr(AttributionState, "observe", dying)
    with pytest.raises(KeyboardInterrupt):
        run(model, TEXTS, tmp_path / "cut", asked)
    again = run(model, TEXTS, tmp_path / "cut", asked)["attribution"]
    assert len(seen) == 4  # two done, one killed, that one again
    assert whole.identical(again)
    model.close()


def test_the_runs_seed_reaches_the_sketch(tmp_path: Path) -> None:
    model = random()
    asked = Attribution(patterns=0, error=0.3)
    assert asked.seed is None
    found = {
        name: run(
            model,
            TEXTS,
            tmp_path / name,
            asked if own is None else replace(asked, seed=own),
            seed=seed,
        )
        for name, own, seed in (
            ("zero", None, 0),
            ("again", None, 0),
            ("one", None, 1),
            ("own", 0, 1),
        )
    }
    maps = {name: atlas["attribution"]["sample_input"].values for name, atlas in found.items()}
    np.testing.assert_array_equal(maps["zero"], maps["again"])
    assert not np.array_equal(maps["zero"], maps["one"])
    np.testing.assert_array_equal(
        maps["zero"], maps["own"]
    )  # a seed of its own counts more than the run's
    model.close()


def test_a_checkpoint_of_another_seed_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed is in the identity of what is kept: a run of another seed must not go on with this
    one's work."""
    import headwise.analyses.attribution.analysis as module

    monkeypatch.setattr(module, "BATCH_TOKENS", 8)
    model = random()
    real = AttributionState.observe

    def dying(self, batch, sample):
        if self.state.moments("sketch").count[0] >= 1:
            raise KeyboardInterrupt
        real(self, batch, sample)

    monkeypatch.setattr(AttributionState, "observe", dying)
    with pytest.raises(KeyboardInterrupt):
        run(model, TEXTS, tmp_path, Attribution(patterns=0), seed=0)
    with pytest.raises(OutputError, match="differs in"):
        run(model, TEXTS, tmp_path, Attribution(patterns=0), seed=1)
    model.close()


def test_what_separators_really_give(tmp_path: Path) -> None:
    model = random()
    found = run(model, TEXTS, tmp_path, Attribution(patterns=2))["attribution"]
    table = special_table(found, top=4)
    assert len(table) == 4
    assert table["attention on sep"].is_monotonic_decreasing
    first = table.iloc[0]
    layer, head = int(first["head"][1]), int(first["head"][3])
    assert first["from sep, input"] == pytest.approx(
        float(
            found["share"].sel(
                source="input", receiver="all", token_type="sep", layer=layer, head=head
            )
        )
    )
    by_name = {
        spec.name: spec.function(found) for spec in tables_for("attribution")
    }  # what a user finds on the page and as CSV
    heads = by_name["special-heads"]
    assert list(heads["head"][heads["token type"] == "sep"])[:4] == list(table["head"])
    bare = found.assign(
        share=found["share"].where(found["token_type"] != "sep", 0.0)
    )  # a model without separators
    [table] = [
        spec.function(bare) for spec in tables_for("attribution") if spec.name == "special-heads"
    ]
    assert set(table["token type"]) == set(heads["token type"]) - {"sep"}
    layers = by_name["special-layers"].set_index(["layer", "receiver", "reading"])
    np.testing.assert_allclose(layers.sum(axis=1), 1, atol=1e-5)
    expected = found["share"].sel(source="input", receiver="cls", token_type="sep", layer=1).mean()
    assert layers.loc[(1, "cls", "input"), "from sep"] == pytest.approx(float(expected))
    np.testing.assert_allclose(found["share"].sel(receiver="all").sum("token_type"), 1, atol=1e-5)
    np.testing.assert_allclose(
        found["pattern_share"].sel(source="input").sum("pattern"), 1, atol=1e-5
    )
    assert (found["pattern_share_n"].sel(source="input") == 2).all()
    with pytest.raises(ParameterError, match="token type"):
        special_table(found, "comma")
    model.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"method": "magic"}, "exact, sketch, reverse"),
        ({"error": 2}, "between 0 and 1"),
        ({"length": "long"}, "d_head, all"),
        ({"length": 1}, "d_head, all"),
        ({"memory": -1}, "positive"),
        ({"patterns": -1}, "at least 0"),
        ({"weighting": "heads"}, "examples, tokens"),
    ],
)
def test_wrong_parameters_are_named(wrong, words) -> None:
    with pytest.raises(ParameterError, match=words):
        make_analysis("attribution", wrong)
