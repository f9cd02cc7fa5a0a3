"""Other readings of mixing, each against a slow computation of its own: plain loops, networkx,
hooks on the weights' own modules, and autograd through transformers' eager attention."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cosine
from torch import Tensor

from headwise import Corpus
from headwise.analyses.attribution import MIXING_METHODS, contributions, mixing
from headwise.analyses.attribution.analysis import Attribution
from headwise.analyses.attribution.mixing_methods.norms import _block_inputs, block_parts
from headwise.core.errors import ModelError, ParameterError
from headwise.models import HeadModel
from headwise.plots.registry import figures_for
from headwise.run import RunOptions, run_analyses
from headwise.testing.models import random_model
from headwise.text.example import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SEQ2SEQ, SUPPORTED, build, ids_batch

LENGTHS = (6, 4)
# Where the parts of a layer are, in the words of its own file.
VALUE = {"bert": "attention.self.value", "llama": "self_attn.v_proj", "gemma2": "self_attn.v_proj"}
PROJECTION = {
    "bert": "attention.output.dense",
    "llama": "self_attn.o_proj",
    "gemma2": "self_attn.o_proj",
}


def opened(name: str, ending: str | None = None) -> HeadModel:
    config, model_class, arguments = (SUPPORTED | SEQ2SEQ)[name]
    module = build(
        config, model_class.replace("Model", ending) if ending else model_class, arguments
    )
    torch.manual_seed(1)
    with (
        torch.no_grad()
    ):  # gains and biases that are not one and zero, and attention that is not even
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.15))
    return HeadModel.open(module)


def rows_of(raw: np.ndarray) -> np.ndarray:
    return raw / np.maximum(raw.sum(-1, keepdims=True), 1e-300)


def maps_of(model: HeadModel) -> Tensor:
    found = model.trace(ids_batch(LENGTHS)).attention
    assert found is not None
    return found.double()


# --- rollout and flow -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_rollout_and_flow_by_hand(name: str) -> None:
    import networkx as nx  # not where every process that collects tests would wait for it

    model = opened(name)
    attention = maps_of(model)
    rolled, flowed = (mixing(model, ids_batch(LENGTHS), reading) for reading in ("rollout", "flow"))
    for e, n in enumerate(LENGTHS):
        graph, so_far = nx.DiGraph(), np.eye(n)
        for layer in range(model.layers):
            maps = attention[e, layer, :, :n, :n].numpy()
            step = 0.5 * maps.mean(0) + 0.5 * np.eye(n)
            step /= step.sum(-1, keepdims=True)
            raw = np.zeros((1 + model.heads, n, n))
            for which, last in enumerate((step, *maps)):
                for j in range(n):
                    whole = graph.copy()
                    whole.add_weighted_edges_from(
                        [((layer, i), "sink", last[j, i]) for i in range(n) if last[j, i] > 0],
                        weight="capacity",
                    )
                    for i in range(n):
                        if whole.has_node((0, i)) and nx.has_path(whole, (0, i), "sink"):
                            raw[which, j, i] = nx.maximum_flow_value(whole, (0, i), "sink")
            np.testing.assert_allclose(flowed.layers[e, layer, :n, :n], rows_of(raw[0]), atol=1e-6)
            np.testing.assert_allclose(
                flowed.heads[e, layer, :, :n, :n], rows_of(raw[1:]), atol=1e-6
            )
            so_far = step @ so_far
            np.testing.assert_allclose(rolled.layers[e, layer, :n, :n], so_far, atol=1e-6)
            graph.add_weighted_edges_from(
                [
                    ((layer, i), (layer + 1, j), step[j, i])
                    for i in range(n)
                    for j in range(n)
                    if step[j, i] > 0
                ],
                weight="capacity",
            )


# --- norms ----------------------------------------------------------------------------------------


# What gives the output of the attention block: a norm of the sum, or what is added to what entered.
LEAVES = {
    "bert": "attention.output.LayerNorm",
    "gpt1": "ln_1",
    "bart": "self_attn_layer_norm",
    "albert": "albert_layers.0.attention.LayerNorm",
    "llama": "self_attn.o_proj",
    "gemma2": "post_attention_layernorm",
    "gpt-neox": "attention.dense",
}


@pytest.mark.parametrize("name", LEAVES)
def test_parts_of_an_attention_block_sum_to_what_leaves_it(name: str) -> None:
    """What the tokens add, with what the biases add, is the block's own output, seen by a hook."""
    model, batch = opened(name), ids_batch((5, 5))
    block, inputs = _block_inputs(model, batch)[0]
    where = model.sites.entries[0].get_submodule(LEAVES[name])
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(module, args, out) -> None:
        seen.append((args[0].detach().double(), out.detach().double()))

    hook = where.register_forward_hook(keep)
    model.forward(batch)
    hook.remove()
    taken, left = seen[0]
    bias = getattr(block.projection, "bias", None)
    bias = torch.zeros(model.hidden).double() if bias is None else bias.detach().double()
    summed = name in ("bert", "gpt1", "bart", "albert")
    if summed:
        scale = (taken.var(-1, unbiased=False, keepdim=True) + where.eps).sqrt()
        bias = (
            where.weight.detach().double() * (bias - bias.mean()) / scale
            + where.bias.detach().double()
        )
    else:
        left = left + inputs.hidden
    assert (block.summed is not None) == summed
    assert torch.allclose(block_parts(block, inputs).sum(2) + bias, left, atol=2e-5)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_norms_with_residual_and_norm_by_hand(name: str) -> None:
    model, batch = opened(name), ids_batch(LENGTHS)
    attention, hidden = (
        maps_of(model).numpy(),
        model.trace(batch, {"hidden"}).hidden.double().numpy(),
    )
    found = mixing(model, batch, "norm").layers.numpy()
    groups = model.heads // model.kv_heads
    for layer, entry in enumerate(model.sites.entries):
        module, size = entry.get_submodule(PROJECTION[name]), model.d_head
        matrix = module.weight.detach().double().numpy()
        values: list[Tensor] = []
        hook = entry.get_submodule(VALUE[name]).register_forward_hook(
            lambda m, a, out, to=values: to.append(out)
        )
        model.forward(batch)
        hook.remove()
        value = values[0].detach().double().numpy()
        for e, n in enumerate(LENGTHS):
            raw = np.zeros((n, n))
            for j in range(n):
                parts = np.zeros((n, model.hidden))
                for i in range(n):
                    for h in range(model.heads):
                        v = value[e, i, (h // groups) * size : (h // groups + 1) * size]
                        parts[i] += attention[e, layer, h, j, i] * (
                            matrix[:, h * size : (h + 1) * size] @ v
                        )
                parts[j] += hidden[e, layer, j]
                if name == "bert":
                    norm = entry.attention.output.LayerNorm
                    whole = parts.sum(0) + module.bias.detach().double().numpy()
                    parts = (
                        norm.weight.detach().double().numpy()
                        * (parts - parts.mean(-1, keepdims=True))
                        / whole.std()
                    )
                raw[j] = np.sqrt((parts**2).sum(-1))
            np.testing.assert_allclose(found[e, layer, :n, :n], rows_of(raw), atol=1e-5)


def test_a_block_that_is_not_known_has_no_norms_by_layer() -> None:
    found = mixing(opened("mobilebert"), ids_batch(LENGTHS), "norm")
    assert found.layers is None
    assert "not by layer" in found.note
    assert found.heads is not None


# --- value zeroing --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_value_zeroing_by_hooks(name: str) -> None:
    """Only hooks on the model's own linear maps: values zeroed where they are made, or, of one
    head, taken out of what the output projection gets."""
    model = opened(name)
    attention = maps_of(model)
    found = mixing(model, ids_batch(LENGTHS), "value_zeroing")
    size, groups = model.d_head, model.heads // model.kv_heads
    for e, n in enumerate(LENGTHS):
        batch = ids_batch(LENGTHS).select([e])
        for layer in (0, model.layers - 1):
            entry = model.sites.entries[layer]
            value, projection = (
                entry.get_submodule(VALUE[name]),
                entry.get_submodule(PROJECTION[name]),
            )

            def output(entry=entry, batch=batch) -> np.ndarray:
                kept: list[Tensor] = []
                hook = entry.register_forward_hook(
                    lambda m, a, out: kept.append(out if torch.is_tensor(out) else out[0])
                )
                model.forward(batch)
                hook.remove()
                return kept[0][0].double().numpy()

            values: list[Tensor] = []
            hook = value.register_forward_hook(
                lambda m, a, out, to=values: to.append(out[0].clone())
            )
            clean = output()
            hook.remove()
            raw, raw_head = np.zeros((n, n)), np.zeros((n, n))
            for i in range(n):

                def zero(module, args, out, i=i):
                    out = out.clone()
                    out[:, i] = 0
                    return out

                def without(module, args, i=i, layer=layer, values=values, e=e):
                    joined = args[0].clone()  # head 2 alone
                    v = values[0][i, (2 // groups) * size : (2 // groups + 1) * size]
                    weight = attention[e, layer, 2, :, i].float()
                    joined[0, :, 2 * size : 3 * size] -= weight[:, None] * v
                    return (joined,)

                for kept, make in (
                    (raw, lambda: value.register_forward_hook(zero)),  # noqa: B023
                    (raw_head, lambda: projection.register_forward_pre_hook(without)),  # noqa: B023
                ):
                    hook = make()
                    moved = output()
                    hook.remove()
                    for j in range(i if model.causal else 0, n):
                        kept[j, i] = cosine(moved[j], clean[j])
            assert raw.max() > 1e-4
            np.testing.assert_allclose(found.layers[e, layer, :n, :n], rows_of(raw), atol=2e-4)
            np.testing.assert_allclose(
                found.heads[e, layer, 2, :n, :n], rows_of(raw_head), atol=2e-3
            )


# --- gradient-weighted attention ------------------------------------------------------------------


@pytest.mark.parametrize(("name", "ending"), [("bert", "ForMaskedLM"), ("llama", "ForCausalLM")])
def test_gradient_weighted_attention_by_autograd(name: str, ending: str) -> None:
    with opened(name, ending) as model:
        found = mixing(model, ids_batch(LENGTHS), "chefer")
        module, layers, heads = model.module, model.layers, model.heads
    module.set_attn_implementation("eager")
    for e, n in enumerate(LENGTHS):
        for t in range(n):
            output = module(input_ids=ids_batch(LENGTHS).ids[e : e + 1, :n], output_attentions=True)
            chosen = output.logits[0, t].max()
            gradients = torch.autograd.grad(chosen, output.attentions, allow_unused=True)
            relevance = np.eye(n)
            for layer in range(layers):
                maps = output.attentions[layer][0].detach().double().numpy()
                gradient = (
                    np.zeros_like(maps)
                    if gradients[layer] is None
                    else gradients[layer][0].double().numpy()
                )
                weighted = np.maximum(maps * gradient, 0)
                rows = np.stack([weighted[h] @ relevance for h in range(heads)])[:, t]
                relevance = relevance + weighted.mean(0) @ relevance
                np.testing.assert_allclose(
                    found.heads[e, layer, :, t, :n], rows_of(rows), atol=1e-4
                )
                np.testing.assert_allclose(
                    found.layers[e, layer, t, :n], rows_of(relevance[t]), atol=1e-5
                )


def test_a_classifier_has_one_target_and_a_bare_model_none() -> None:
    with opened("bert", "ForSequenceClassification") as model:
        found = mixing(model, ids_batch(LENGTHS), "chefer")
        module, layers = model.module, model.layers
    assert "class" in found.note
    module.set_attn_implementation("eager")
    output = module(input_ids=ids_batch(LENGTHS).ids[1:, :4], output_attentions=True)
    gradients = torch.autograd.grad(output.logits.max(), output.attentions)
    relevance = np.eye(4)
    for layer in range(layers):
        weighted = (
            (output.attentions[layer] * gradients[layer])[0].detach().double().clamp(min=0).numpy()
        )
        relevance = relevance + weighted.mean(0) @ relevance
        np.testing.assert_allclose(found.layers[1, layer, :4, :4], rows_of(relevance), atol=1e-5)
    with opened("bert") as bare, pytest.raises(ModelError, match="no logits"):
        mixing(bare, ids_batch(LENGTHS), "chefer")


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", MIXING_METHODS)
@pytest.mark.parametrize("causal", [False, True])
def test_rows_are_shares_of_what_is_visible_whatever_the_batch(reading: str, causal: bool) -> None:
    module, tokenizer = random_model(causal=causal)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        texts = ["the cat saw", "a dog saw the small house"]
        both, alone = mixing(model, texts, reading), mixing(model, texts[0], reading)
        n = alone.layers.shape[-1]
        for together, apart in ((both.heads, alone.heads), (both.layers, alone.layers)):
            assert torch.allclose(together[:1, ..., :n, :n], apart, atol=1e-5)
            assert float(together[:1, ..., n:].abs().max()) == 0
            sums = apart.sum(-1)
            assert (sums == 0).logical_or((sums - 1).abs() < 1e-9).all()
            assert (apart >= 0).all()
            if causal:
                assert float(apart.triu(1).max()) == 0


def test_asking_for_some_heads_gives_those() -> None:
    module, tokenizer = random_model()
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        for reading in ("flow", "value_zeroing"):
            every = mixing(model, "the cat saw the dog", reading).heads
            some = mixing(model, "the cat saw the dog", reading, heads=["L1H1"]).heads
            assert torch.allclose(some[:, 1, 1], every[:, 1, 1])
            assert mixing(model, "the cat", reading, heads=[]).heads is None
        with pytest.raises(ParameterError, match="reading"):
            mixing(model, "the cat", "rolling")
        with pytest.raises(ParameterError, match="There is no head"):
            mixing(model, "the cat", "flow", heads=["L9H9"])


@pytest.mark.parametrize(
    "name", ["xlnet", "deberta", "t5", "gpt-oss", "deepseek-v3", "mixtral", "modernbert", "falcon"]
)
def test_other_architectures(name: str) -> None:
    model = HeadModel.open(build(*(SUPPORTED | SEQ2SEQ)[name]))
    for reading in ("rollout", "norm", "value_zeroing"):
        found = mixing(model, ids_batch(LENGTHS), reading)
        for maps in (found.heads, found.layers):
            if maps is not None:
                sums = maps.sum(-1)[
                    ids_batch(LENGTHS)
                    .attention_mask.view(2, *(1,) * (maps.ndim - 3), -1)
                    .expand(maps.shape[:-1])
                ]
                assert (sums < 1e-6).logical_or((sums - 1).abs() < 1e-6).all()


# --- in the analysis ------------------------------------------------------------------------------


@pytest.mark.usefixtures("not_laid_out")
@pytest.mark.parametrize("causal", [False, True])
def test_the_analysis_sets_readings_side_by_side(causal: bool, tmp_path: Path) -> None:
    """Distances, what stays, and rank correlations of every two readings, by plain loops over the
    texts."""
    texts = ["the old teacher saw a cat", "a dog saw the small house", "she sleeps ."]
    module, tokenizer = random_model(causal=causal, layers=2, heads=2, d_head=10)
    model = HeadModel.open(module, tokenizer=tokenizer)
    asked = Attribution(method="exact", patterns=0, readings=tuple(MIXING_METHODS))
    corpus = Corpus.from_examples([Example(text=text) for text in texts], "few")
    found = run_analyses(model, corpus, [asked], tmp_path, RunOptions(full=True))["attribution"]
    assert list(found["source"].values) == ["attention", "previous_layer", "input", *MIXING_METHODS]
    kept: dict[str, list[np.ndarray]] = {}
    for text in texts:
        read = {name: mixing(model, text, name) for name in MIXING_METHODS}
        layers = {name: one.layers[0].numpy() for name, one in read.items()}
        layers["input"] = contributions(model, text, layer_output=True).layers[0].numpy()
        heads = {name: one.heads[0].numpy() for name, one in read.items()}
        n = layers["input"].shape[-1]
        away = np.abs(np.arange(n)[:, None] - np.arange(n))
        for name in MIXING_METHODS:
            kept.setdefault(f"{name} distance", []).append((layers[name] * away).sum(-1).mean(-1))
            kept.setdefault(f"{name} own", []).append(
                np.diagonal(layers[name], axis1=1, axis2=2).mean(-1)
            )
            kept.setdefault(f"{name} mixed", []).append(
                _ranked(layers[name], layers["input"], causal).mean(-1)
            )
        flat = _ranked(heads["flow"], heads["value_zeroing"], causal).reshape(2, -1)
        kept.setdefault("between", []).append(np.nanmean(flat, -1))
    for name in MIXING_METHODS:
        of = found.sel(layer_source=name)
        for what in ("distance", "own"):
            np.testing.assert_allclose(
                of[f"mixed_{what}"], np.mean(kept[f"{name} {what}"], 0), atol=1e-5
            )
        np.testing.assert_allclose(
            of["mixed_between"].sel(layer_source_b="input"),
            np.nanmean(kept[f"{name} mixed"], 0),
            atol=1e-4,
        )
        assert (of["mixed_own_n"] == 3).all()
    pair = found["between"].sel(source="flow", source_b="value_zeroing")
    np.testing.assert_allclose(pair, np.mean(kept["between"], 0), atol=1e-4)
    np.testing.assert_array_equal(
        pair, found["between"].sel(source="value_zeroing", source_b="flow")
    )
    assert found["between_low"].notnull().any()
    assert np.isfinite(found["mean_distance"]).all()
    drawn = [
        spec
        for spec in figures_for("attribution")
        if spec.name in ("mixing", "between") and not causal
    ]
    assert all(spec.draw(found) for spec in drawn)


def _ranked(a: np.ndarray, b: np.ndarray, causal: bool) -> np.ndarray:
    """Spearman's correlation of rows of at least three visible tokens, NaN where a row is constant
    or shorter."""
    rows = a.shape[-1]
    out = np.full(a.shape[:-1], np.nan)
    for place in np.ndindex(*a.shape[:-2]):
        for j in range(2 if causal else 0, rows):
            seen = slice(0, j + 1 if causal else rows)
            x, y = a[(*place, j, seen)], b[(*place, j, seen)]
            if np.ptp(x) > 1e-9 and np.ptp(y) > 1e-9:
                out[(*place, j)] = stats.spearmanr(x, y)[0]
    return out if not causal or a.ndim == 4 else out[:, 2:]


def test_a_long_input_has_no_flow_by_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.analyses.attribution.state.MAX_FLOWS", 10)
    module, tokenizer = random_model(layers=1, heads=2)
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_examples(
        [Example(text="the cat saw"), Example(text="she sleeps .")], "few"
    )
    asked = Attribution(method="exact", patterns=0, readings=("flow",))
    found = run_analyses(model, corpus, [asked], tmp_path, RunOptions(full=True))["attribution"]
    assert found["own"].sel(source="flow").isnull().all()
    assert found["mixed_own"].sel(layer_source="flow").notnull().all()
    assert "only by layer" in found.attrs["flow_reading"]
    with pytest.raises(ParameterError, match="readings"):
        Attribution(readings=("rolling",))
    with pytest.raises(ParameterError, match="twice"):
        Attribution(readings=("flow", "flow"))
