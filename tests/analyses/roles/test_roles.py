"""`roles`: equal to loops over tokens, exact on planted heads, and tests that hold their level."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import xarray as xr

import slow_sieves
from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.roles import significance
from headwise.analyses.roles.analysis import Roles
from headwise.analyses.roles.sieves import known_sieves, sieve
from headwise.analyses.roles.sieves.registry import forget_sieve
from headwise.core.errors import MissingAnnotationError, ParameterError
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import WAITING_BYTES, observe_batches
from headwise.run.plan import model_shape
from headwise.stats.accumulators import Moments
from headwise.stats.bootstrap import bootstrap_family_test
from headwise.stats.corrections import benjamini_hochberg, holm
from headwise.stats.records import Records
from headwise.stats.tests import overlap_test, stratified_overlap_test
from headwise.testing import eager_maps, planted_annotations, planted_model
from headwise.testing.corpora import battery_examples
from headwise.text import open_corpus
from headwise.text.demo import demo_examples
from headwise.text.encode import Encoded, batches

BEHIND = ("previous", "duplicate", "induction", "sink")  # decoder-only
COUNT = 50 if os.environ.get("HEADWISE_FULL") else 8


def slow_bias(maps: np.ndarray, row: Encoded, role: str, causal: bool) -> np.ndarray | None:
    """The score of one input `[layer, head]`, token by token; None where no token has a sieve."""
    scores = []
    for i in range(len(row)):
        visible = range(i + 1) if causal else range(0 if role in BEHIND else len(row))
        inside = [j for j in visible if slow_sieves.in_sieve(role, row, i, j)]
        if inside:
            to_sieve = sum(maps[:, :, i, j] for j in inside) / len(inside)
            to_all = sum(maps[:, :, i, j] for j in visible) / len(visible)
            scores.append(to_sieve / to_all)
    return np.mean(scores, axis=0) if scores else None


def slow_rest(maps: np.ndarray, row: Encoded, role: str) -> np.ndarray | None:
    """The same of a causal model with the first token left out, from the map without its first
    column."""
    scores = []
    for i in range(1, len(row)):
        inside = [j for j in range(1, i + 1) if slow_sieves.in_sieve(role, row, i, j)]
        left = maps[:, :, i, 1 : i + 1].sum(-1)
        if inside:
            share = maps[:, :, i, inside].sum(-1) / np.where(left > 1e-4, left, np.nan)
            scores.append(share / (len(inside) / i))
    return mean_of_known(scores) if scores else None


def mean_of_known(values: Sequence[np.ndarray]) -> np.ndarray:
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)


class ByLoops:
    """What loops over tokens give, each role once."""

    def __init__(self, maps: Sequence[np.ndarray], rows: Sequence[Encoded], causal: bool) -> None:
        self.rows, self.causal = rows, causal
        self.both = list(zip(maps, rows, strict=True))
        self.known: dict[str, tuple[list[np.ndarray], list[np.ndarray], int]] = {}

    def of(self, role: str) -> tuple[list[np.ndarray], list[np.ndarray], int]:
        """The scores of the inputs that have some, the same without the first token, and the tokens
        with a sieve."""
        if role not in self.known:
            scores = [slow_bias(m, row, role, self.causal) for m, row in self.both]
            rest = [slow_rest(m, row, role) for m, row in self.both] if self.causal else []
            tokens = sum(
                any(
                    slow_sieves.in_sieve(role, row, i, j)
                    for j in range(i + 1 if self.causal else len(row))
                )
                for row in (self.rows if self.causal or role not in BEHIND else ())
                for i in range(len(row))
            )
            self.known[role] = (
                [s for s in scores if s is not None],
                [s for s in rest if s is not None],
                tokens,
            )
        return self.known[role]


def compare(dataset: xr.Dataset, expected: ByLoops) -> None:
    rows, causal = expected.rows, expected.causal
    for role in dataset["role"].values:
        known, rest, tokens = expected.of(role)
        chosen = dataset.sel(role=role)
        assert (chosen["bias_n"] == len(known)).all(), role
        assert (chosen["inputs_left_out"] == len(rows) - len(known)).all(), role
        if known:
            np.testing.assert_allclose(
                chosen["bias"], np.mean(known, axis=0), rtol=2e-5, atol=1e-5, err_msg=role
            )
        else:
            assert chosen["bias"].isnull().all()
        if len(known) > 1:
            np.testing.assert_allclose(
                chosen["spread"], np.std(known, axis=0, ddof=1), rtol=1e-3, atol=2e-5, err_msg=role
            )
        if causal:
            mean = mean_of_known(rest) if rest else np.full(chosen["bias"].shape, np.nan)
            np.testing.assert_allclose(
                chosen["bias_rest"], mean, rtol=2e-5, atol=1e-5, err_msg=role
            )
        assert (chosen["tokens"] == tokens).all(), role
        assert (chosen["tokens_empty"] == sum(map(len, rows)) - tokens).all(), role


def opened(planted) -> HeadModel:
    return HeadModel.open(planted.model, tokenizer=planted.tokenizer)


@pytest.fixture(params=["matrices", "asked"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By matrices of sieves, as where a sieve is known to its function alone, or asked for."""
    if request.param == "matrices":
        monkeypatch.setattr(Roles, "request", lambda self, batch: None)
    else:
        monkeypatch.setattr(Roles, "reduce_rows", None)
        monkeypatch.setitem(WAITING_BYTES, "cpu", 2**40)  # all layers at once
    return str(request.param)


@cache
def planted_by_loops(causal: bool) -> tuple[HeadModel, ByLoops]:
    behaviours = [["previous", "uniform", "same_word"], ["first", "self", "offset:-2"]]
    examples = battery_examples()
    planted = planted_model(
        behaviours, causal=causal, words=[w for e in examples for w in e.all_words]
    )
    model = opened(planted)
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    return model, ByLoops([planted.expected_map(row) for row in rows], rows, causal)


@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_loops_on_planted_heads(causal: bool, method: str) -> None:
    model, expected = planted_by_loops(causal)
    examples = battery_examples()
    dataset = make_atlas(model, Corpus.from_examples(examples), ["roles"])["roles"]
    assert len(dataset["role"]) == len(known_sieves())
    compare(dataset, expected)


@pytest.fixture(scope="module")
def real_by_loops(shared: Path, wiki_model: HeadModel) -> ByLoops:
    gold = list(open_corpus(shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz", limit=COUNT))
    examples = [example for example in gold if len(example.all_words) < 40] + demo_examples(
        COUNT // 2
    )
    rows = [wiki_model.encode(example, i) for i, example in enumerate(examples)]
    return ByLoops(eager_maps(wiki_model, rows), rows, causal=False)


@pytest.mark.real
def test_equal_to_loops_on_a_real_model(
    wiki_model: HeadModel, real_by_loops: ByLoops, method: str
) -> None:
    examples = [row.example for row in real_by_loops.rows]
    roles_parameters = {"roles": {"random_models": 0}}  # what they give is not compared here
    dataset = make_atlas(
        wiki_model, Corpus.from_examples(examples), ["roles"], parameters=roles_parameters
    )["roles"]
    compare(dataset, real_by_loops)


@pytest.mark.parametrize("causal", [False, True])
def test_a_uniform_head_scores_one_on_every_role_and_has_none(causal: bool) -> None:
    examples = demo_examples(20)
    planted = planted_model(
        [["uniform", "self"]],
        causal=causal,
        words=[w for e in examples for w in e.all_words],
        max_length=96,
    )
    dataset = make_atlas(
        opened(planted), Corpus.from_examples(examples), ["roles"], parameters={"roles": {"tau": 1}}
    )["roles"]
    uniform = dataset.sel(layer=0, head=0)
    known = uniform["bias_n"] > 0
    assert known.sum() >= (10 if causal else 16)
    np.testing.assert_allclose(uniform["bias"].values[known], 1, atol=2e-6)
    assert (uniform["p_value"].values[known] == 1).all()
    assert (uniform["bootstrap_p_value"].values[known] == 1).all()
    assert not uniform["has_role"].any()


def test_planted_heads_get_their_roles_up_to_their_bias_and_no_other() -> None:
    heads = {
        "cls": "cls",
        "sep": "sep",
        "block": "block",
        "same_word_other_segment": "same_word:other_segment",
        "offset:-2": "local:prev",
        "next": "local:next",
    }
    examples = [e for e in demo_examples(64) if e.has_pair]
    assert len(examples) > 30
    planted = planted_model(
        [list(heads)], words=[w for e in examples for w in e.all_words], max_length=96
    )
    model, corpus = opened(planted), Corpus.from_examples(examples)
    analysis = make_analysis("roles", {"bootstrap": 0})
    shape = model_shape(model, EncodedCorpus(corpus, model.encoder).scan)
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    state = observe_batches(
        model, batches(rows, 2000, model.pad_id), [analysis], {"roles": analysis.start(shape)}
    )["roles"]
    first = analysis.result(state, shape)
    for head, (behaviour, role) in enumerate(heads.items()):
        one = first.sel(layer=0, head=head, role=role)
        if behaviour in ("cls", "sep", "block"):  # nothing but the sieve: the largest bias there is
            assert float(one["bias"]) == pytest.approx(float(one["ceiling"].values), rel=1e-5)
    for tau in (1.0, 1.5, 1.9, 4.0):
        dataset = make_analysis("roles", {"tau": tau, "bootstrap": 0}).result(state, shape)
        for head, (behaviour, role) in enumerate(heads.items()):
            one = dataset.sel(layer=0, head=head)
            if tau < float(one["bias"].sel(role=role)) - 0.3:
                assert bool(one["has_role"].sel(role=role)), (behaviour, tau)
        here = dataset.sel(layer=0)
        missed = {
            "cls": ["sep", "block", "local:next", "same_word", "syntactic"],
            "sep": ["cls", "first", "block", "same_word", "rare"],
            "block": ["cls", "sep", "delimiter", "first"],
        }
        for behaviour, roles in missed.items():
            chosen = here.sel(head=list(heads).index(behaviour), role=roles)
            assert not chosen["has_role"].any()
            if behaviour != "block":  # special tokens of a block head look at themselves
                np.testing.assert_allclose(
                    chosen["bias"].sel(role=[r for r in roles if r not in ("local:next",)]),
                    0,
                    atol=1e-6,
                )
        assert bool(here["has_role"].sel(head=0, role="cls")) == (
            tau < float(here["bias"].sel(head=0, role="cls"))
        )
    assert (
        first.attrs["tau_rule"]
        == "floor(mean of all scores of local, syntactic, block) + 1, at least 2"
    )
    paper = make_analysis("roles", {"tau": "paper", "bootstrap": 0}).result(state, shape)
    assert (
        paper.attrs["tau_rule"]
        == "floor(mean of all scores of local, syntactic, block, delimiter) + 1"
    )
    assert paper.attrs["tau"] == paper.attrs["tau_paper"] == first.attrs["tau_paper"]


def test_heads_that_follow_the_tree_are_syntactic() -> None:
    planted, examples = planted_annotations(
        demo_examples(40), [["tree", "children", "uniform"]], max_length=128
    )
    dataset = make_atlas(
        opened(planted),
        Corpus.from_examples(examples),
        ["roles"],
        parameters={"roles": {"tau": 3, "bootstrap": 0, "random_models": 0}},
    )["roles"]
    roles = dataset["has_role"].sel(layer=0)
    assert roles.sel(head=0, role=["nsubj", "dobj", "amod"]).all()
    assert not roles.sel(head=2).any()
    assert not roles.sel(role=["cls", "sep", "delimiter", "rare"]).any()
    # A head that follows only one end of an arc gets about half of what it would from both: the
    # rule gives its bias.
    rows = [opened(planted).encode(example, i) for i, example in enumerate(examples)]
    for role in ("nsubj", "dobj"):
        known = [
            b[0, 1]
            for row in rows
            if (b := slow_bias(planted.expected_map(row), row, role, False)) is not None
        ]
        below = np.mean(known) - 4 * np.std(known, ddof=1) / np.sqrt(len(known))
        again = make_atlas(
            opened(planted),
            Corpus.from_examples(examples),
            ["roles"],
            parameters={
                "roles": {
                    "tau": below,
                    "bootstrap": 0,
                    "sieves": role,
                    "min_effect": 0,
                    "random_models": 0,
                }
            },
        )["roles"]
        assert below > 1
        assert bool(again["has_role"].sel(layer=0, head=1, role=role))


def test_heads_that_rest_have_the_roles_they_have_without_the_first_token() -> None:
    """Of three heads, two rest; with the first token left out one of them is a head for the
    role."""
    random = np.random.default_rng(0)
    scores = torch.tensor(random.normal([[[5.0], [1.0], [5.0]]], 0.5, (40, 1, 3, 1)))
    resting = torch.tensor(random.normal([[0.9, 0.9, 0.1]], 0.01, (40, 1, 3)))
    moments, first = Moments(1, 3, 1), Moments(1, 3)
    moments.add(scores)
    first.add(resting)
    roles_analysis = Roles(sieves="local", tau=2.0)
    computed = significance.tests_without_first(moments, first, 2.0, roles_analysis)
    assert computed["has_role_rest"].values.ravel().tolist() == [True, False, False]
    assert np.isnan(computed["bias_rest_p"].values).ravel().tolist() == [False, False, True]
    z = (float(moments.mean[0, 0, 0]) - 2) / np.sqrt(float(scores[:, 0, 0, 0].var()) / 40)
    assert computed["bias_rest_p"].values[0, 0, 0] == pytest.approx(scipy.stats.norm.sf(z))
    known = {
        "bias_rest": (significance.DIMS, moments.mean.numpy()),
        "bias_rest_n": (significance.DIMS, [[[40]] * 3]),
    }
    dataset = xr.Dataset(known | computed, attrs={"tau": 2.0})
    assert not significance.assign_roles_without_first(
        dataset, roles_analysis, np.array([6.0])
    ).values.any()  # random heads reach that too
    few = Moments(1, 3, 1)
    few.add(scores[:20])
    assert not significance.tests_without_first(few, first, 2.0, roles_analysis)[
        "has_role_rest"
    ].values.any()


def test_rule_for_tau_counts_every_score_alike() -> None:
    examples = demo_examples(12)
    planted = planted_model(
        [["previous", "uniform", "sep"]],
        words=[w for e in examples for w in e.all_words],
        max_length=96,
    )
    model = opened(planted)
    corpus, light = Corpus.from_examples(examples), {"bootstrap": 0, "random_models": 0}
    parameter_sets = [light, light | {"tau_floor": 0}, light | {"tau": "paper"}]
    computed = [
        make_atlas(model, corpus, ["roles"], parameters={"roles": one})["roles"].attrs
        for one in parameter_sets
    ]
    scores = {}
    for role in ("local", "syntactic", "block", "delimiter"):
        own = (
            slow_bias(planted.expected_map(r), r, role, False) for r in map(model.encode, examples)
        )
        scores[role] = np.concatenate([one.ravel() for one in own if one is not None])
    of_paper = np.concatenate(list(scores.values())).mean()
    mean = np.concatenate([scores[role] for role in ("local", "syntactic", "block")]).mean()
    for attrs in computed:
        assert attrs["tau_mean"] == pytest.approx(mean, rel=1e-5)
        assert attrs["tau_mean_paper"] == pytest.approx(of_paper, rel=1e-5)
        assert attrs["tau_paper"] == np.floor(of_paper) + 1
    assert [attrs["tau"] for attrs in computed] == [
        max(2, np.floor(mean) + 1),
        np.floor(mean) + 1,
        np.floor(of_paper) + 1,
    ]


def test_delimiters_do_not_move_tau() -> None:
    """The same texts and heads, once with [CLS] and [SEP] and once without: the paper's τ is
    another, ours is not."""
    examples = [e for e in demo_examples(24) if not e.has_pair]
    words = [w for e in examples for w in e.all_words]
    light = {"roles": {"bootstrap": 0, "random_models": 0}}
    computed = []
    for special in (True, False):
        planted = planted_model([["sep", "first", "uniform", "cls"]], words=words, max_length=96)
        model = opened(planted)
        if not special:
            model.tokenizer._tokenizer.post_processor = None
            model = HeadModel.open(planted.model, tokenizer=model.tokenizer)
        computed.append(
            make_atlas(model, Corpus.from_examples(examples), ["roles"], parameters=light)["roles"]
        )
    assert computed[0]["bias"].sel(role="delimiter").notnull().all()
    assert computed[1]["bias_n"].sel(role="delimiter").max() == 0
    assert computed[0].attrs["tau_paper"] != computed[1].attrs["tau_paper"]
    assert computed[0].attrs["tau"] == computed[1].attrs["tau"] == 2


# --- what random weights give ---------------------------------------------------------------------


def test_roles_need_thirty_inputs_and_an_effect() -> None:
    rng = np.random.default_rng(3)
    true = np.full((2, 3, 4), 4.0)
    scores = simulate(rng, 60, true, 0.3)
    scores[29:, :, :, 1] = np.nan
    computed = decide(scores, 3.0)
    assert computed["has_role"][..., [0, 2, 3]].all()
    assert computed["few"].tolist() == [False, True, False, False]
    assert (computed["p_value"][..., 1] < 0.05).all()
    assert not computed["has_role"][..., 1].any()
    assert not computed["has_role_adjusted"][..., 1].any()
    slight = simulate(rng, 6000, np.full((2, 3, 4), 3.06), 0.3)  # certain, and next to nothing
    assert (decide(slight, 3.0)["p_adjusted"] < 0.05).all()
    assert not decide(slight, 3.0)["has_role_adjusted"].any()
    assert decide(slight, 3.0, min_effect=0.0)["has_role_adjusted"].all()


def test_planted_heads_keep_their_roles_beside_random_models_and_random_heads_have_none() -> None:
    examples = demo_examples(48)
    behaviours = [["cls", "sep", "previous", "next"], ["uniform", "self", "first", "offset:-2"]]
    planted = planted_model(
        behaviours, words=[w for e in examples for w in e.all_words], max_length=96
    )
    roles_parameters = {
        "roles": {"bootstrap": 0, "sieves": "local,block,cls,sep,first,local:prev,local:next,rare"}
    }
    roles = make_atlas(
        opened(planted), Corpus.from_examples(examples), ["roles"], parameters=roles_parameters
    )["roles"]
    assert roles.attrs["random_models"] == 4
    has = roles["has_role_adjusted"]
    for layer, head, role in (
        (0, 0, "cls"),
        (0, 1, "sep"),
        (0, 2, "local:prev"),
        (0, 3, "local:next"),
        (1, 2, "first"),
    ):
        assert bool(has.sel(layer=layer, head=head, role=role)), role
    assert not has.sel(layer=1, head=0).any()
    assert not has.sel(role="rare").any()
    np.testing.assert_allclose(roles["random_bias"], 1, atol=0.8)
    assert (roles["random_bound"] > roles["random_bias"]).all()
    top = roles["ceiling"].mean("layer")
    assert (roles["random_bound"] <= 1 + 0.6 * (top - 1) + 1e-6).all()
    above = roles["bias"] > roles["random_bound"]
    assert bool((~has | above).all())
    assert int(has.sum()) == int(roles["has_role_adjusted"].sum())
    assert roles["per_layer"].values.tolist() == roles["has_role"].sum("head").values.tolist()


# --- the tests hold their level -------------------------------------------------------------------


def simulate(rng: np.random.Generator, inputs: int, true: np.ndarray, skew: float) -> np.ndarray:
    """Scores `[input, layer, head, role]` with these means: lognormal, so skewed as real ones
    are."""
    raw = rng.lognormal(0, skew, (inputs, *true.shape))
    return (raw / np.exp(skew**2 / 2) * true).astype(np.float32)


def decide(
    scores: np.ndarray, tau: float, bootstrap: int = 0, **more: float
) -> dict[str, np.ndarray]:
    moments = Moments(*scores.shape[1:])
    moments.add(torch.from_numpy(scores))
    records = Records(*scores.shape[1:])
    records.add(range(len(scores)), torch.from_numpy(scores))
    roles = list(significance.COARSE_ROLES)[: scores.shape[-1]]
    roles_analysis = Roles(tau=tau, bootstrap=bootstrap, seed=1, **more)
    return {
        name: variable.values
        for name, variable in significance.tests_of_scores(moments, records, roles, roles_analysis)[
            0
        ].items()
    }


@pytest.mark.parametrize("skew", [0.1, 0.6])
def test_the_z_test_holds_its_level(skew: float) -> None:
    rng = np.random.default_rng(5)
    true = np.full((12, 12, 4), 3.0)
    rejected, family = [], []
    for _ in range(40):
        computed = decide(simulate(rng, 400, true, skew), 3.0)
        rejected.append((computed["p_value"] < 0.05).mean())
        family.append((computed["p_holm"] < 0.05).any())
        assert not (computed["has_role"] & ~(computed["p_value"] < 0.05)).any()
    trials = 40 * true.size
    assert np.mean(rejected) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)
    assert np.mean(rejected) > 0.01  # and it does test something
    assert np.mean(family) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 40)


def test_false_discoveries_and_family_errors_hold_with_true_roles_among_them() -> None:
    rng = np.random.default_rng(6)
    true = np.full((12, 12, 4), 3.0)
    true[:4] = 3.25
    null = true == 3.0
    false_share, family, power = [], [], []
    for _ in range(40):
        computed = decide(simulate(rng, 400, true, 0.4), 3.0)
        message = computed["p_fdr"] < 0.05
        false_share.append((message & null).sum() / max(message.sum(), 1))
        family.append((computed["p_holm"][null] < 0.05).any())
        power.append(message[~null].mean())
    assert np.mean(false_share) <= 0.05 + 3 * np.std(false_share) / np.sqrt(40)
    assert np.mean(family) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 40)
    assert np.mean(power) > 0.5


def test_the_bootstrap_holds_its_level_where_scores_are_skewed_and_few() -> None:
    rng = np.random.default_rng(7)
    scores = simulate(rng, 40, np.full((20, 20, 4), 2.0), 1.0)
    p = bootstrap_family_test(scores, 2.0, 400).p_value
    assert (p < 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / p.size)
    assert (bootstrap_family_test(scores + 2, 2.0, 400).p_value < 0.05).mean() > 0.5
    # Skewed to the left: where z rejects too often, the bootstrap must not.
    below = bootstrap_family_test(2 - (scores - 2), 2.0, 400).p_value
    z = (2 - (scores.astype(float) - 2)).mean(0) - 2
    z /= scores.std(0, ddof=1) / np.sqrt(40)
    assert (z > 1.645).mean() > 0.1
    assert (below < 0.05).mean() - 0.05 < 0.6 * ((z > 1.645).mean() - 0.05)


def test_bootstrap_against_a_plain_one() -> None:
    rng = np.random.default_rng(8)
    values = rng.exponential(1, (30, 3))
    values[:5, 2] = np.nan
    p = bootstrap_family_test(values, 0.8, 3000).p_value
    for column in range(3):
        own = values[~np.isnan(values[:, column]), column]
        t = (own.mean() - 0.8) / (own.std(ddof=1) / np.sqrt(len(own)))
        drawn = [rng.choice(own, len(own)) for _ in range(3000)]
        stars = [(d.mean() - own.mean()) / (d.std(ddof=1) / np.sqrt(len(d))) for d in drawn]
        assert p[column] == pytest.approx(np.mean(np.array(stars) >= t), abs=0.04)
    assert bootstrap_family_test(np.full((5, 2), 3.0), 2.0).p_value.tolist() == [0, 0]
    assert bootstrap_family_test(np.full((5, 2), 2.0), 2.0).p_value.tolist() == [1, 1]
    assert np.isnan(bootstrap_family_test(np.ones((1, 2)), 2.0).p_value).all()


def test_the_bootstrap_holds_its_family_and_finds_roles_all_the_same() -> None:
    rng = np.random.default_rng(13)
    family = []
    for seed in range(40):
        scores = simulate(rng, 100, np.full((6, 6, 4), 2.0), 0.6)
        family.append((bootstrap_family_test(scores, 2.0, 200, seed).p_adjusted < 0.05).any())
    assert np.mean(family) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 40)
    # With far more tests than resamples, each p multiplied by their number would never be small.
    true = np.full((12, 12, 4), 2.0)
    true[:3] = 3.5
    computed = decide(simulate(rng, 100, true, 0.6), 2.0, bootstrap=200)
    assert (computed["bootstrap_p_adjusted"][:3] < 0.05).mean() > 0.95
    assert (computed["bootstrap_p_adjusted"][3:] < 0.05).mean() < 0.01
    assert (computed["bootstrap_p_adjusted"] >= computed["bootstrap_p_value"]).all()


def test_the_corrected_bootstrap_is_that_of_the_largest_t() -> None:
    rng = np.random.default_rng(14)
    values = rng.exponential(1, (60, 5))
    values[::3, 3] = np.nan
    values[2:, 4] = np.nan  # two values: too few to stand beside the others
    computed = bootstrap_family_test(values, 0.7, 500, seed=3)
    picks = np.random.default_rng(3).multinomial(60, np.full(60, 1 / 60), size=500)
    largest = np.full(500, -np.inf)
    observed = []
    for column in range(4):
        own = values[:, column]
        kept = own[~np.isnan(own)]
        observed.append((kept.mean() - 0.7) / (kept.std(ddof=1) / np.sqrt(len(kept))))
        for number, pick in enumerate(picks):
            drawn = np.repeat(own, pick)
            drawn = drawn[~np.isnan(drawn)]
            largest[number] = max(
                largest[number],
                (drawn.mean() - kept.mean()) / (drawn.std(ddof=1) / np.sqrt(len(drawn))),
            )
    expected = [(1 + (largest >= t).sum()) / 501 for t in observed]
    assert computed.p_adjusted[:4] == pytest.approx(expected, abs=1.01 / 501)
    assert computed.p_adjusted[4] == 1
    assert computed.p_value[4] < 1
    assert bootstrap_family_test(np.full((5, 2), 3.0), 2.0).p_adjusted.tolist() == [0, 0]


# --- overlaps and the rest ------------------------------------------------------------------------


def test_overlap_tests_against_all_permutations() -> None:
    rng = np.random.default_rng(9)
    members = rng.random((2, 4, 3)) < 0.5
    members[..., 2] = members[..., 0]  # the same heads
    flat = members.reshape(8, 3)
    anywhere, in_layer = overlap_test(members), stratified_overlap_test(members)
    for a, b in itertools.combinations(range(3), 2):
        computed = (flat[:, a] & flat[:, b]).sum()
        chosen = [set(c) for c in itertools.combinations(range(8), flat[:, b].sum())]
        hits = [sum(flat[i, a] for i in c) >= computed for c in chosen]
        assert anywhere[a, b] == anywhere[b, a] == pytest.approx(np.mean(hits))
        within = [
            c
            for c in chosen
            if all(
                len([i for i in c if i // 4 == layer]) == members[layer, :, b].sum()
                for layer in range(2)
            )
        ]
        assert in_layer[a, b] == pytest.approx(
            np.mean([sum(flat[i, a] for i in c) >= computed for c in within])
        )
    assert np.isnan(np.diag(anywhere)).all()
    assert np.isnan(overlap_test(np.zeros((3, 2), bool))).all()


def test_counts_shares_and_correlations() -> None:
    rng = np.random.default_rng(10)
    true = rng.uniform(1, 6, (3, 4, 4))
    computed = decide(simulate(rng, 100, true, 0.3), 3.0, bootstrap=50)
    assert 0 < computed["has_role"].sum() < computed["has_role"].size
    has = computed["has_role"].reshape(12, 4)
    for a in range(4):
        for b in range(4):
            both, either = (has[:, a] & has[:, b]).sum(), (has[:, a] | has[:, b]).sum()
            assert computed["overlap"][a, b] == both
            assert computed["jaccard"][a, b] == pytest.approx(both / either)
            assert computed["share"][a, b] == pytest.approx(both / has[:, a].sum())
    assert computed["p_holm"] == pytest.approx(holm(computed["p_value"]))
    assert computed["p_fdr"] == pytest.approx(benjamini_hochberg(computed["p_value"]))
    assert computed["per_layer"].tolist() == computed["has_role"].sum(1).tolist()
    assert computed["coarse_skills"].tolist() == computed["has_role"].sum(-1).tolist()
    assert (
        computed["skills"].tolist() == computed["has_role"][..., 2].tolist()
    )  # of the nine only block is here
    assert (
        computed["sweep"][list(significance.THRESHOLDS).index(3.0)].tolist() == has.sum(0).tolist()
    )
    assert (np.diff(computed["sweep"], axis=0) <= 0).all()
    assert computed["histogram"].sum(-1).tolist() == np.full((3, 4, 4), 100).tolist()
    scores = simulate(np.random.default_rng(10), 100, true, 0.3)
    again = decide(scores, 3.0)
    expected = scipy.stats.spearmanr(scores.mean(0)[..., 0].ravel(), scores.mean(0)[..., 1].ravel())
    assert again["spearman"][0, 1] == pytest.approx(expected.statistic)
    assert again["spearman_p_value"][0, 1] == pytest.approx(expected.pvalue)
    low = significance.EDGES[:-1]
    column = scores[:, 1, 2, 3]
    assert again["histogram"][1, 2, 3].tolist() == [
        int(((column >= a) & (column < b)).sum())
        for a, b in zip(low, significance.EDGES[1:], strict=True)
    ]


# --- what a user can get wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sieves": "locale"}, "Did you mean 'local'"),
        ({"tau": 0}, "`tau` must be a number above 0"),
        ({"tau": "three"}, "`tau` must be a number"),
        ({"tau_floor": -1}, "`tau_floor` must be a number of at least 0"),
        ({"min_effect": -0.1}, "`min_effect` must be a number of at least 0"),
        ({"random_models": -1}, "`random_models` must be at least 0"),
        ({"sieves": "delimiter"}, "`tau` is computed from the scores of local, syntactic, block"),
        ({"sieves": "rare,cls"}, "`tau` is computed from"),
        ({"alpha": 1.5}, "`alpha` must lie between"),
        ({"correction": "bonferroni"}, "holm"),
        ({"bootstrap": -1}, "at least 0"),
        ({"plugin": "none.py"}, "no file 'none.py'"),
    ],
)
def test_bad_parameters(parameters: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make_analysis("roles", parameters)


def test_what_the_corpus_lacks_is_named_and_nan() -> None:
    planted = planted_model([["uniform", "sep"]], words=["the", "cat"])
    atlas = make_atlas(opened(planted), Corpus.from_texts(["the cat", "cat cat the"]), ["roles"])
    roles = atlas["roles"]
    assert roles.attrs["matched_nothing"] == "question_mark"
    assert (
        atlas.provenance["left_out"]["roles"]["role=question_mark"]
        == "no token pairs of this type in the corpus"
    )
    assert set(roles.attrs["roles_not_computed"].split(", ")) == {
        "syntactic",
        "nsubj",
        "dobj",
        "amod",
        "advmod",
        "block",
        "same_word:other_segment",
        "siblings",
        "previous",
        "duplicate",
        "induction",
        "sink",
    }
    assert roles["bias"].sel(role="syntactic").isnull().all()
    assert roles["bias"].sel(role="delimiter").notnull().all()
    assert not roles["has_role"].sel(role="syntactic").any()
    with pytest.raises(MissingAnnotationError, match="no dependencies and words: use a treebank"):
        make_atlas(
            opened(planted),
            Corpus.from_texts(["the cat"]),
            ["roles"],
            parameters={"roles": {"sieves": "nsubj", "tau": 3}},
        )
    with pytest.raises(ParameterError, match="no relation in this corpus 'nsubjj'"):
        make_atlas(
            opened(planted_model([["uniform"]], words=["a"])),
            Corpus.from_examples(demo_examples(2)),
            ["roles"],
            parameters={"roles": {"sieves": "relation:nsubjj,local"}},
        )


def test_a_registered_sieve_is_picked_up() -> None:
    @sieve("cats", "cats")
    def cats(i, j):
        return j.piece == "cat"

    try:
        planted = planted_model([["uniform", "self"]], words=["the", "cat"])
        roles = make_atlas(
            opened(planted), Corpus.from_texts(["the cat", "the the cat"]), ["roles"]
        )["roles"]
        assert roles["bias"].sel(role="cats", head=0).values == pytest.approx(1)
        assert roles["bias"].sel(role="cats", head=1).values == pytest.approx(
            1
        )  # one of n tokens looks at the cat, with n times the average
        assert str(roles["about"].sel(role="cats").values) == "cats"
    finally:
        forget_sieve("cats")
