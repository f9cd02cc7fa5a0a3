"""`headwise.cache`: the planted head that needs the distant context, random weights, files, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from markupsafe import escape

import headwise
from headwise.analyses.retrieval.trials import NEEDLES
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.experiments.cache import pattern_of
from headwise.experiments.cache.gates import learn_cache_gates
from headwise.experiments.cache.options import DIFFERENT_NEEDLES, CacheOptions
from headwise.experiments.cache.result import _add_needles, describe_recommendation
from headwise.experiments.cache.run import as_batch, long_texts
from headwise.models import HeadModel
from headwise.models.short_context import LongTextModel
from headwise.page.data import page_data
from headwise.page.report import write_report
from headwise.testing import planted_decoder, random_model
from headwise.testing.names import check_names
from headwise.text import Example

LENGTH = 48
WORDS = [f"word{number}" for number in range(1, 12)]


def repeated_words(path: Path, count: int, n_words: int = LENGTH + 4) -> Path:
    """Texts in which words come again after a long time."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        words = [str(word) for word in random.choice(WORDS, n_words)]
        rows.append(json.dumps({"text": " ".join(words), "document": f"text {number}"}))
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repeated_words(tmp_path_factory.mktemp("cache") / "texts.jsonl", 8)


def test_the_induction_head_needs_the_distant_context(corpus: Path) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(
            model, corpus, documents=8, length=LENGTH, sink=1, window=4, needles=0, random=5
        )
    check_names("cache", result)
    error = result["output_error"]
    far_readers = {decoder.where("induction"), decoder.where("duplicate"), decoder.where("idle")}
    near_readers = {decoder.where(name) for name in ("previous", "sink", "copying")}
    for place in near_readers:
        assert float(error[place]) < 0.05
    for place in far_readers:
        assert float(error[place]) > 0.2
    for name in ("distant", "output_error"):
        assert (result[f"{name}_low"] <= result[name] + 1e-9).all()
        assert (result[name] <= result[f"{name}_high"] + 1e-9).all()


def test_more_whole_heads_cost_less(corpus: Path) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(
            model, corpus, length=LENGTH, sink=1, window=4, needles=0, random=10, keep=0.5
        )
    divergence = result["divergence"].sel(ranking="output error").values
    assert divergence[0] > divergence[-1] >= -1e-6
    memory = result["bytes_per_token"].values
    assert (np.diff(memory) > 0).all()
    assert memory[-1] < result.attrs["whole_bytes_per_token"]
    assert int(result["whole"].sum()) == 3
    pattern = pattern_of(result)
    assert (pattern.sink, pattern.window) == (1, 4)
    assert result.sizes["draw"] == 10


def test_texts_are_as_long_as_asked_for() -> None:
    decoder = planted_decoder(max_length=64)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        examples = []
        for number in range(40):
            examples.append(
                Example(text="word1 word2 word3 word4 word5", document=f"d{number // 10}")
            )
        long = long_texts(model, examples, 4, 30)
        assert [len(text) for text in long.texts] == [30] * 4
        assert long.documents_apart
        with pytest.raises(InputError, match="gives 1 texts of 60 tokens"):
            long_texts(model, examples[:14], 4, 60)
        with pytest.raises(InputError, match="takes at most 64 tokens"):
            long_texts(model, examples, 4, 100)


def test_no_document_is_in_two_texts_where_there_are_enough() -> None:
    """Else one article would rank heads and judge the choice."""
    decoder = planted_decoder(max_length=64)
    examples = []
    for document in range(6):
        word = f"word{document + 1}"  # of no other document
        examples += [Example(text=" ".join([word] * 5), document=f"d{document}")] * 8
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:

        def words_by_text(examples: list[Example], length: int) -> list[list[str]]:
            long = long_texts(model, examples, 10, length)
            assert long.documents_apart
            all_words = []
            for text in long.texts:
                words = set(model.tokenizer.convert_ids_to_tokens(text)) & set(WORDS)
                all_words.append(sorted(words))
            return all_words

        assert words_by_text(examples, 20) == [[f"word{number}"] for number in range(1, 7)]
        # Ten tokens of the first document are continued by the second, whose rest is in no text.
        assert words_by_text(examples[6:], 18) == [
            ["word1", "word2"],
            ["word3"],
            ["word4"],
            ["word5"],
            ["word6"],
        ]
        # Two documents: several texts of each.
        long = long_texts(model, examples[:16], 4, 18)
        assert len(long.texts) == 4
        assert not long.documents_apart


def test_the_built_in_text_is_long_enough_for_the_default_length() -> None:
    """Its documents have a few sentences each: they are joined."""
    module, tokenizer = random_model(causal=True, layers=1, heads=2, d_head=8, max_length=1024)
    with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model:
        long = long_texts(model, headwise.open_corpus(None, prose=True), 8, 1024)
    assert [len(text) for text in long.texts] == [1024] * len(long.texts)
    assert len(long.texts) >= 4
    assert long.documents_apart


def test_a_result_says_that_its_texts_share_documents(corpus: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    one = tmp_path / "one.jsonl"
    one.write_text("".join(json.dumps({**row, "document": "one"}) + "\n" for row in rows))
    decoder = planted_decoder(max_length=LENGTH + 16)
    said = []
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        for texts in (corpus, one):
            result = headwise.cache(
                model, texts, length=LENGTH, sink=1, window=4, needles=0, random=0, shares=[0.5]
            )
            said.append(" ".join(describe_recommendation(result)))
    assert "fewer than four long documents" not in said[0]
    assert "fewer than four long documents" in said[1]


def test_models_without_such_a_cache_are_rejected() -> None:
    module, tokenizer = random_model(causal=False, layers=2, heads=2, d_head=8)
    with (
        HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model,
        pytest.raises(ModelError, match="keeps no cache"),
    ):
        headwise.cache(model, length=64, window=16)


def test_options_that_cannot_be_met() -> None:
    # With 4 + 59 of 64 tokens kept, no token would be predicted with anything cut.
    for window in (64, 59):
        with pytest.raises(ParameterError, match="no token is predicted from more"):
            headwise.cache(None, length=64, window=window)
    CacheOptions(length=64, window=58)
    with pytest.raises(ParameterError, match="at most 1"):
        headwise.cache(None, keep=1.5)
    # No needle may both rank heads and judge the ranking.
    assert len(NEEDLES) == DIFFERENT_NEEDLES
    with pytest.raises(ParameterError, match="at most 12 can judge"):
        CacheOptions(needles=13)
    CacheOptions(needles=24, recipes=False)


def test_texts_without_room_for_a_needle_are_told_before_any_work(corpus: Path) -> None:
    stages: list[str] = []
    decoder = planted_decoder(max_length=LENGTH + 16)
    with (
        HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model,
        pytest.raises(InputError, match="no room for a needle"),
    ):
        headwise.cache(
            model,
            corpus,
            documents=4,
            length=24,
            window=4,
            progress=lambda what, done, total: stages.append(what),
        )
    assert "texts" not in stages


def test_all_heads_whole_is_no_verdict_where_it_was_asked_for(corpus: Path) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    sentences = {}
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        for at_most in (0.0, 100.0):
            result = headwise.cache(
                model,
                corpus,
                documents=4,
                length=LENGTH,
                window=4,
                needles=0,
                random=0,
                recipes=False,
                keep=1.0,
                shares=(0.0,),
                at_most=at_most,
            )
            sentences[at_most] = describe_recommendation(result)[0]
    assert "No pattern that was tried" in sentences[0.0]
    assert "as `keep` says" in sentences[100.0]


def test_the_command_writes_result_pattern_and_figures(tmp_path: Path, corpus: Path) -> None:
    from headwise.cli.main import whole_command

    decoder = planted_decoder(max_length=LENGTH + 16)
    folder = tmp_path / "model"
    decoder.model.save_pretrained(folder)
    decoder.tokenizer.save_pretrained(folder)
    arguments = ["cache", str(folder), "--corpus", str(corpus), "--length", str(LENGTH)]
    arguments += [
        "--sink",
        "1",
        "--window",
        "4",
        "--needles",
        "0",
        "--random",
        "3",
        "--keep",
        "0.5",
    ]
    arguments += ["--device", "cpu", "--out", str(tmp_path / "cache.nc")]
    arguments += [
        "--pattern",
        str(tmp_path / "pattern.json"),
        "--figures",
        str(tmp_path / "figures"),
    ]
    with pytest.raises(SystemExit) as stopped:
        whole_command()(arguments)
    assert not stopped.value.code
    pattern = headwise.CachePattern.load(tmp_path / "pattern.json")
    result = headwise.Atlas.load(tmp_path / "cache.nc")["cache"]
    assert (pattern.whole == result["whole"].values).all()
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"cache-heads", "cache-curve"} <= figures


def test_a_page_of_a_result_says_the_recommendation_and_shows_the_pattern(
    tmp_path: Path, corpus: Path
) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    options = {"length": LENGTH, "sink": 1, "window": 4, "random": 3, "keep": 0.5, "needles": 0}
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        headwise.cache(model, corpus, out=tmp_path / "cache.nc", **options)
    atlas = headwise.Atlas.load(tmp_path / "cache.nc")
    # No head has a label: the grid shows which heads are short, and no "none of these".
    assert page_data(atlas)["colour"] == "cache.head_is_short"
    html = write_report(atlas, tmp_path / "page").page.read_text(encoding="utf-8")
    recommendation, *comparisons = describe_recommendation(atlas["cache"])
    assert "3 of 6 key/value heads whole" in recommendation
    for sentence in (recommendation, *comparisons):
        assert str(escape(sentence)) in html
    assert "none of these</li>" not in html
    assert "No head has a label here" in html


def test_the_learned_gate_of_the_head_that_matters_stays_open(corpus: Path) -> None:
    """Three heads attend far; what only one of them writes reaches the output."""
    decoder = planted_decoder(max_length=LENGTH + 16)
    options = {"length": LENGTH, "sink": 1, "window": 4, "needles": 0, "random": 0, "keep": 1 / 6}
    results = []
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        for _ in range(2):
            results.append(headwise.cache(model, corpus, gates=60, recipes=False, **options))
    openness = results[0]["score_learned_gates"]
    assert float(openness[decoder.where("induction")]) > 0.8
    others = openness.values.copy()
    others[decoder.where("induction")] = 0
    assert others.max() < 0.2
    # The same seed gives the same gates.
    assert results[0].identical(results[1])
    at_share = results[0]["loss_rise"].sel(share=1 / 6)
    assert abs(float(at_share.sel(ranking="learned gates"))) < 1e-6
    assert float(results[0]["loss_rise"].sel(ranking="learned gates", share=0)) > 1


def test_gates_stay_open_where_short_heads_change_little() -> None:
    """In a model with many heads each contributes little to the error: the penalty on open gates must
    not close all of them."""
    module, tokenizer = random_model(causal=True, layers=6, heads=6, d_head=8, max_length=LENGTH)
    ids = torch.randint(5, 20, (4, LENGTH), generator=torch.Generator().manual_seed(0)).numpy()
    with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model:
        long_model = LongTextModel(model, 1, 24)
        batches = [as_batch(model, row) for row in ids]
        free = np.ones((6, 6), bool)
        openness = learn_cache_gates(long_model, batches, free, 9, steps=100)
    assert 5 <= (openness > 0.1).sum() <= 13


def test_the_head_with_the_largest_effect_is_kept(corpus: Path) -> None:
    """Three heads attend far; what only one of them writes reaches the output."""
    decoder = planted_decoder(max_length=LENGTH + 16)
    options = {"length": LENGTH, "sink": 1, "window": 4, "needles": 0, "random": 0, "keep": 1 / 6}
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(
            model, corpus, effects=2, rank_by="effect", recipes=False, **options
        )
    assert result["ranking"].values.tolist() == ["effect", "output error", "uniform window"]
    assert int(result["score_effect_n"][0, 0]) == 2
    best = np.unravel_index(int(np.argmax(result["score_effect"].values)), (2, 3))
    assert best == decoder.where("induction")
    assert np.argwhere(result["whole"].values).tolist() == [list(decoder.where("induction"))]
    # The pattern has the scores that it was made by.
    assert (pattern_of(result).scores == result["score_effect"].values).all()
    at_share = result["loss_rise"].sel(ranking="effect")
    assert abs(float(at_share.sel(share=1 / 6))) < 1e-6
    assert float(at_share.sel(share=0)) > 1
    with pytest.raises(ParameterError, match="no effects are measured"):
        headwise.cache(None, rank_by="effect")


def test_other_rankings_are_told_the_lowest_loss_first(corpus: Path) -> None:
    """A user reads where another ranking costs less than the one that makes the pattern."""
    decoder = planted_decoder(max_length=LENGTH + 16)
    options = {"length": LENGTH, "sink": 1, "window": 4, "random": 0, "keep": 1 / 6}
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(model, corpus, effects=2, needles=0, **options)
        alone = headwise.cache(model, corpus, needles=0, recipes=False, **options)
    at_share = {"share": 1 / 6}
    result["loss_rise"].loc[{"ranking": "effect", **at_share}] = 0.25
    result["loss_rise"].loc[{"ranking": "induction", **at_share}] = -0.125
    expected = "As many heads by other rankings: induction -0.1250; effect +0.2500."
    assert describe_recommendation(result)[-1] == expected
    assert not any("other rankings" in line for line in describe_recommendation(alone))


def test_heads_that_need_the_context_are_named_on_their_cards(tmp_path: Path) -> None:
    # Each text repeats its words in an order of its own: what comes next stands far back.
    random = np.random.default_rng(0)
    rows = []
    for number in range(8):
        words = [str(word) for word in random.permutation(WORDS)] * 5
        rows.append(json.dumps({"text": " ".join(words), "document": f"text {number}"}))
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("\n".join(rows))
    decoder = planted_decoder(max_length=LENGTH + 16)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(
            model,
            corpus,
            length=LENGTH,
            sink=1,
            window=4,
            needles=0,
            keep=1 / 6,
            random=20,
            rank_by="induction",
        )
    expected = np.zeros((2, 3), bool)
    expected[decoder.where("induction")] = True
    assert (result["needs_context"].values == expected).all()
    atlas = headwise.Atlas({"cache": result})
    card = atlas.head(*decoder.where("induction"))
    assert card.does["finds"].startswith("needs the whole context (")
    assert "beyond the first 1 and the last 4 tokens" in card.does["finds"]
    near = atlas.head(*decoder.where("previous"))
    assert near.does["finds"].startswith("sink and last 4 are enough")
    costly = headwise.Atlas({"cache": result.assign_attrs(recommended_loss_rise=0.5)})
    finds = costly.head(*decoder.where("previous")).does["finds"]
    assert finds.startswith(
        "keeps only sink and last 4 in a pattern whose loss rises by more than 0.01 nats"
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_no_head_of_random_weights_needs_the_context(corpus: Path, seed: int) -> None:
    module, tokenizer = random_model(
        causal=True, layers=3, heads=4, d_head=8, words=WORDS, max_length=LENGTH + 60, seed=seed
    )
    with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model:
        result = headwise.cache(
            model, corpus, length=LENGTH, sink=1, window=4, needles=0, keep=0.5, seed=seed
        )
    # Half of the heads are whole because that was asked for; none is said to need it.
    assert int(result["whole"].sum()) == 6
    assert not result["needs_context"].any()
    assert "score_retrieval" not in result
    described = headwise.Atlas({"cache": result}).describe()
    assert not described["finds"].str.contains("needs the whole context").any()


def test_scores_of_rankings_have_intervals_and_shares_can_be_chosen(corpus: Path) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(
            model,
            corpus,
            length=LENGTH,
            sink=1,
            window=4,
            needles=0,
            shares=(0.0, 0.5),
            random_texts=2,
            random=3,
        )
    assert result["share"].values.tolist() == [0.0, 0.5]
    assert result.attrs["random_texts"] == 2
    for name in ("score_output_error", "score_induction"):
        assert (result[f"{name}_low"] <= result[name] + 1e-9).all()
        assert (result[name] <= result[f"{name}_high"] + 1e-9).all()
    assert float(result["score_induction"][decoder.where("induction")]) > 0.8
    with pytest.raises(ParameterError, match="`shares` are numbers from 0 to 1"):
        headwise.cache(None, shares=(0.5, 2.0))


def test_an_interrupted_study_resumes(tmp_path: Path, corpus: Path) -> None:
    class Interrupted(Exception):
        pass

    calls: list[tuple[str, int, int]] = []

    def stop_early(what: str, done: int, total: int) -> None:
        if what == "judged" and done == 2:
            raise Interrupted

    decoder = planted_decoder(max_length=LENGTH + 16)
    options = {"length": LENGTH, "sink": 1, "window": 4, "needles": 0, "random": 2, "keep": 0.5}
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        with pytest.raises(Interrupted):
            headwise.cache(model, corpus, out=tmp_path / "cache.nc", progress=stop_early, **options)
        resumed = headwise.cache(
            model,
            corpus,
            out=tmp_path / "cache.nc",
            progress=lambda *report: calls.append(report),
            **options,
        )
        whole = headwise.cache(model, corpus, **options)
    assert resumed.identical(whole)
    # Two texts were judged before: only the patterns of the two others are computed.
    finished = [report for report in calls if report[0] == "patterns" and report[1] == report[2]]
    assert len(finished) == 2 + 4  # then the random choices on all four texts


def test_models_without_a_whole_context_or_with_a_source_are_rejected() -> None:
    sizes = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    with (
        HeadModel.open(
            transformers.T5ForConditionalGeneration(
                transformers.T5Config(**sizes, num_heads=2, decoder_start_token_id=0)
            ),
            tokenizer=None,
            device="cpu",
        ) as model,
        pytest.raises(ModelError, match="is an encoder-decoder"),
    ):
        headwise.cache(model, length=64, window=16)
    config = transformers.MistralConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
    )
    with (
        HeadModel.open(
            transformers.MistralForCausalLM(config), tokenizer=None, device="cpu"
        ) as model,
        pytest.raises(ModelError, match="see a sliding window only"),
    ):
        headwise.cache(model, length=64, window=16)


def test_results_on_one_model_are_joined() -> None:
    from xarray import Dataset

    atlas = headwise.Atlas({"surface": Dataset()}, {"model": {"name": "a", "layers": 2}})
    cache = headwise.Atlas({"cache": Dataset()}, {"model": {"name": "b", "layers": 2}})
    joined = atlas.joined(cache)
    assert list(joined) == ["cache", "surface"]
    assert joined.provenance["joined"] == [cache.provenance]
    with pytest.raises(ParameterError, match="Both results have the group cache"):
        joined.joined(cache)
    other = headwise.Atlas({"cache": Dataset()}, {"model": {"name": "b", "layers": 3}})
    with pytest.raises(ParameterError, match="not on the same model: layers is 2 of a, and 3"):
        atlas.joined(other)


def test_the_pattern_is_made_by_the_ranking_that_is_asked_for(corpus: Path) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    options = {"length": LENGTH, "sink": 1, "window": 4, "random": 0, "keep": 1 / 6}
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(model, corpus, needles=0, rank_by="induction", **options)
        assert result["ranking"].values.tolist()[0] == "induction"
        best = int(np.argmax(result["score_induction"].values))
        assert np.flatnonzero(result["whole"].values).tolist() == [best]
    with pytest.raises(ParameterError, match="no gates are learned"):
        headwise.cache(None, rank_by="gates")
    with pytest.raises(ParameterError, match="`recipes` leaves out"):
        headwise.cache(None, rank_by="induction", recipes=False)
    module, tokenizer = random_model(causal=True, heads=2, d_head=8, words=WORDS, max_length=300)
    texts = repeated_words(corpus.parent / "longer.jsonl", 4, 260)
    with (
        HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model,
        pytest.raises(InputError, match="finds no needle in 256 tokens"),
    ):
        headwise.cache(model, texts, length=256, window=4, rank_by="retrieval", needles=2)


def test_needles_that_are_all_found_still_have_an_interval() -> None:
    """Of eight needles found whole, Student's t would say 100 to 100 %."""
    found = np.ones((8, 3))
    found[:, 2] = [1, 1, 1, 1, 1, 1, 0.5, 0]
    measured: Any = SimpleNamespace(found=found, random_found=None, needle_tokens=9.0)
    variables: dict[str, Any] = {}
    names = [("output error", 0.5), ("output error", 1.0)]
    _add_needles(variables, {}, measured, names, ["output error", "uniform window"], [0.5, 1.0])
    low = variables["needle_low"][1]
    high = variables["needle_high"][1]
    assert high[0, 0] == 1
    assert 0.5 < low[0, 0] < 0.8
    assert low[0, 1] < found[:, 2].mean() < high[0, 1] < 1
    assert np.isnan(low[1]).all()
