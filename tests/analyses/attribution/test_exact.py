"""Contributions by forward mode equal reverse mode on many architectures, and the closed form of
planted heads."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.analyses.attribution import ContributionOptions, contributions, tangent_rules
from headwise.analyses.attribution import forward as forward_module
from headwise.analyses.attribution import previous_layer as local_module
from headwise.analyses.attribution.forward import (
    exact_squared_norms,
    for_each_chunk,
    tangents_per_chunk,
)
from headwise.analyses.attribution.precision import matrix_products
from headwise.analyses.attribution.pushforward import (
    forward_mode,
    push_tangents,
    push_tangents_by_dual_numbers,
)
from headwise.analyses.attribution.reverse import reverse_squared_norms
from headwise.analyses.attribution.tangent_tensor import NoForwardDerivative, TangentTensor
from headwise.core.errors import HeadwiseError, ModelError, ParameterError
from headwise.models import HeadModel
from headwise.models.float32 import in_float32
from headwise.testing import contributions as closed_form
from headwise.testing import planted_model

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SEQ2SEQ, SUPPORTED, build, ids_batch, word_tokenizer

FEW = (
    "bert",
    "electra",
    "gpt2",
    "llama",
    "albert",
    "gemma2",
    "gpt-oss",
    "xlnet",
    "deberta",
    "bloom",
    "t5",
    "fsmt",
)
ALL = SUPPORTED | SEQ2SEQ
# By dual numbers a layer's own contributions go one tangent at a time, tokens × width of them.
NARROW = {"deepseek-v3": {"hidden_size": 8}}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def opened(name: str) -> HeadModel:
    return HeadModel.open(build(*ALL[name]))


def windowed(name: str) -> bool:
    """Whether some layers see only tokens nearby: then it takes more than four to see that."""
    return any(
        word in key
        for key in ALL[name][2]
        for word in ("window", "local_attention", "attention_types")
    )


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Norms of blocks, each to 1e-4 of itself (or of a millionth of the largest: rounding of what
    should be zero)."""
    a, b = found.double().sqrt(), expected.double().sqrt()
    assert ((a - b).abs() <= 1e-4 * b + 1e-5 * b.max()).all(), float(
        ((a - b).abs() / (b + 1e-3 * b.max())).max()
    )


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in ALL]
)
def test_exact_and_local_equal_reverse_with_padding(name: str) -> None:
    config, kind, arguments = ALL[name]
    model = HeadModel.open(build(config, kind, arguments | NARROW.get(name, {})))
    batch = ids_batch((5, 3) if name in FEW or windowed(name) else (3, 2))
    assert (forward_mode(model, batch) == "dual_numbers") == (name in NARROW)
    slow = reverse_squared_norms(model, batch, layer_output=True)
    fast = exact_squared_norms(model, batch, layer_output=True)
    same(fast.heads, slow.heads)
    assert slow.layers is not None
    assert fast.layers is not None
    same(fast.layers, slow.layers)
    same(
        local_module.previous_layer_squared_norms(model, batch),
        reverse_squared_norms(model, batch, source="previous_layer").heads,
    )
    real = int(batch.attention_mask[1].sum())
    assert (fast.heads[1, ..., real:] == 0).all()
    assert (fast.heads[1, ..., real:, :] == 0).all()
    if model.causal:
        assert (fast.heads.triu(1) == 0).all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt-oss"])
def test_both_sums_over_dimensions_equal_reverse(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short inputs multiply Jacobians with vectors, those of more tokens than `d_head` with each
    other; both give the gradient's norms."""
    model = opened(name)
    taken = set()
    for kind in (local_module._JacobianVectors, local_module._JacobianGrams):
        products = kind._products

        def noting(self, *tangents, products=products, kind=kind):
            taken.add(kind)
            return products(self, *tangents)

        monkeypatch.setattr(kind, "_products", noting)
    for tokens in (model.d_head, model.d_head + 1):
        batch = ids_batch((tokens, 3))
        taken.clear()
        found = local_module.previous_layer_squared_norms(model, batch)
        is_short = tokens <= model.d_head
        kind = local_module._JacobianVectors if is_short else local_module._JacobianGrams
        assert taken == {kind}
        same(found, reverse_squared_norms(model, batch, source="previous_layer").heads)


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_one_jacobian_serves_all_tokens_of_an_encoder(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries, keys and values come from the layer's input alone: the closed form is taken, with
    the Jacobian of one token, and gives the gradient's norms."""
    model = opened(name)
    n_tokens_moved = []
    products = local_module._JacobianGrams._products

    def noting(self, query, key, value):
        n_tokens_moved.append(query.shape[-2])
        return products(self, query, key, value)

    monkeypatch.setattr(local_module._JacobianGrams, "_products", noting)
    batch = ids_batch((5, 3))
    found = local_module.previous_layer_squared_norms(model, batch)
    assert set(n_tokens_moved) == {1}
    same(found, reverse_squared_norms(model, batch, source="previous_layer").heads)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_reverse_is_the_jacobian(name: str) -> None:
    """The reference itself, against torch's own jacobian of the same pass with the input
    replaced."""
    model = opened(name)
    alone = ids_batch((4,))
    batch = alone.select(
        [0] * 2 * model.hidden
    )  # each input number moved up and down, all in one batch
    leaves: dict[str, torch.Tensor] = {}
    entry = model.sites.entries[0]

    def keep(m, args, kwargs) -> None:
        leaves["x"] = (args[0] if args else kwargs["hidden_states"]).detach()

    hook = entry.register_forward_pre_hook(keep, with_kwargs=True)
    model.trace(batch, {"outputs"})
    hook.remove()
    x = leaves["x"]

    def outputs(value: torch.Tensor) -> torch.Tensor:
        def swap(m, args, kwargs):
            return (
                ((value, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": value})
            )

        inner = entry.register_forward_pre_hook(swap, with_kwargs=True)
        try:
            with torch.no_grad():
                return model.trace(batch, {"outputs"}).outputs.double()
        finally:
            inner.remove()

    step, found = 1e-2, torch.zeros(model.layers, model.heads, 4, 4, dtype=torch.float64)
    for token in range(4):
        moved = torch.zeros_like(x)
        moved[:, token] = step * torch.cat([torch.eye(model.hidden), -torch.eye(model.hidden)])
        up, down = outputs(x + moved).chunk(2)
        found[..., token] = ((up - down) / (2 * step)).square().sum((0, -1))
    shares = found.sqrt() / found.sqrt().sum(-1, keepdim=True)
    given = contributions(model, alone, method="reverse").heads[0]
    assert (shares - given).abs().max() < 5e-3


@pytest.mark.parametrize("causal", [False, True])
def test_closed_form_of_planted_heads(causal: bool) -> None:
    planted = planted_model(
        [["previous", "uniform"], ["first", "offset:-2"], ["uniform", "previous"]],
        causal=causal,
        words=["a", "b", "c"],
        max_length=8,
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    rows = planted.encode(["a b c", "b a"])
    batch = model.batch(rows)
    deep = contributions(model, batch, layer_output=True)
    local = contributions(model, batch, "previous_layer")
    for e, row in enumerate(rows):
        n = len(row)
        expected = closed_form(planted, row)
        np.testing.assert_allclose(deep.heads[e, :, :, :n, :n], expected["input"], atol=1e-4)
        np.testing.assert_allclose(
            local.heads[e, :, :, :n, :n], expected["previous_layer"], atol=1e-4
        )
        np.testing.assert_allclose(deep.layers[e, :, :n, :n], expected["layer_input"], atol=1e-4)
    model.close()


def test_both_ways_to_push_agree_and_most_models_take_the_fast_one() -> None:
    model, batch = opened("gemma3"), ids_batch((6, 4))
    assert forward_mode(model, batch) == "tangent_tensor"
    tangents = torch.randn(3, 2, 6, model.hidden)
    seen: list[dict[int, torch.Tensor]] = [{}, {}]
    push_tangents(model, batch, tangents, lambda layer, moved: seen[0].__setitem__(layer, moved))
    push_tangents_by_dual_numbers(
        model, batch, tangents, lambda layer, moved: seen[1].__setitem__(layer, moved.clone())
    )
    for layer in range(model.layers):
        assert torch.allclose(seen[0][layer][:, 0], seen[1][layer][:, 0], atol=1e-4)
    assert forward_mode(opened("deepseek-v3"), batch) == "dual_numbers"


def test_the_fast_way_is_not_taken_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:

    wrong = tangent_rules.TANGENT_RULES["gelu"]
    monkeypatch.setitem(
        tangent_rules.TANGENT_RULES,
        "gelu",
        lambda f, a, k: TangentTensor((out := wrong(f, a, k)).primal, out.tangent * 1.1),
    )
    model, batch = opened("bert"), ids_batch((5,))
    assert forward_mode(model, batch) == "dual_numbers"
    same(exact_squared_norms(model, batch).heads, reverse_squared_norms(model, batch).heads)


def test_memory_decides_how_many_tangents_travel_and_nothing_else() -> None:
    model, batch = opened("bert"), ids_batch((2, 1))
    whole = exact_squared_norms(model, batch, layer_output=True)
    local = local_module.previous_layer_squared_norms(model, batch)
    assert (
        tangents_per_chunk(model, batch, 0.01)
        < tangents_per_chunk(model, batch, 1)
        < tangents_per_chunk(model, batch, 64)
    )
    for memory in (0.01, 0.3):
        part = exact_squared_norms(model, batch, layer_output=True, memory=memory)
        assert torch.allclose(part.heads, whole.heads, rtol=1e-4)
        assert torch.allclose(
            local_module.previous_layer_squared_norms(model, batch, memory=memory), local, rtol=1e-4
        )


class Living(TorchDispatchMode):
    """Counts the bytes of all storages alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self.known = 0, 0, set()

    def gone(self, key: int, size: int) -> None:
        self.live -= size
        self.known.discard(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known and storage.nbytes():
                    self.known.add(storage._cdata)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self.gone, storage._cdata, storage.nbytes())
        return out


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "xlnet", "deepseek-v3"])
def test_peak_memory_stays_below_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives at once while tangents travel is within the parameter, whatever the length of the
    input."""
    for module in (
        forward_module,
        local_module,
    ):  # three chunks show the peak as well as all of them
        monkeypatch.setattr(
            module,
            "for_each_chunk",
            lambda some, total, count, model: for_each_chunk(
                some, min(total, 3 * count), count, model
            ),
        )
    model, memory = opened(name), 1.0
    for tokens in (8, 16):
        batch = ids_batch((tokens,))
        forward_mode(model, batch)
        assert (
            tangents_per_chunk(model, batch, memory) < tokens * model.hidden
        )  # or nothing is bounded here
        results = (
            3 * 8 * model.layers * model.heads * tokens**2
        )  # float64: sums of squares, and two copies on their way out
        # By dual numbers a layer's own contributions go one tangent at a time: no memory, but too
        # long for a test.
        for work in (
            (exact_squared_norms, local_module.previous_layer_squared_norms)
            if forward_mode(model, batch) == "tangent_tensor"
            else (exact_squared_norms,)
        ):
            with Living() as living:
                work(model, batch, memory=memory)
            assert living.peak <= memory * 2**20 + results, (
                tokens,
                work.__name__,
                living.peak / 2**20,
            )


def test_the_products_of_a_long_input_are_formed_for_a_few_heads_at_a_time() -> None:
    model, batch = opened("llama"), ids_batch((12, 7))
    whole = local_module.previous_layer_squared_norms(model, batch)
    peaks = []
    for memory in (16.0, 0.05):
        with Living() as living:
            part = local_module.previous_layer_squared_norms(model, batch, memory=memory)
        peaks.append(living.peak)
        assert torch.allclose(part, whole, rtol=1e-4, atol=1e-9)
    assert peaks[1] < 0.6 * peaks[0]


def test_a_finished_pass_is_let_go_even_if_its_exception_is_kept() -> None:
    """Tangents of a chunk die with it: a wrapper around a layer that notes the exception must not
    keep them."""
    model, batch = opened("bert"), ids_batch((5,))
    forward_mode(model, batch)
    layer, kept, refs = model.sites.entries[-1], [], []
    forward = layer.forward

    def noting(*args, **kwargs):
        try:
            return forward(*args, **kwargs)
        except Exception as error:
            kept.append(error)
            raise

    def work() -> None:
        tangents = torch.randn(3, 1, 5, model.hidden)
        refs.append(weakref.ref(tangents))
        push_tangents(model, batch, tangents, lambda layer, moved: refs.append(weakref.ref(moved)))

    layer.forward = noting
    work()
    assert len(kept) == 1
    assert len(refs) == 1 + model.layers
    assert all(ref() is None for ref in refs)


def test_a_chunk_too_large_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.analyses.attribution import forward

    model, batch = opened("bert"), ids_batch((5,))
    whole = exact_squared_norms(model, batch).heads
    sizes = []
    real = forward.push_tangents

    def small(model, batch, tangents, heads, layers=None):
        sizes.append(len(tangents))
        if len(tangents) > 20:
            raise torch.OutOfMemoryError("no")
        real(model, batch, tangents, heads, layers)

    monkeypatch.setattr(forward, "push_tangents", small)
    assert torch.allclose(exact_squared_norms(model, batch).heads, whole, rtol=1e-4)
    assert max(sizes) > 20
    monkeypatch.setattr(
        forward, "push_tangents", lambda *a: (_ for _ in ()).throw(torch.OutOfMemoryError("no"))
    )
    with pytest.raises(ModelError, match="One tangent"):
        exact_squared_norms(model, batch)


def test_half_precision_is_computed_in_float32() -> None:
    module = build(*SUPPORTED["bert"])
    exact = contributions(
        HeadModel.open(build(*SUPPORTED["bert"]).to(torch.bfloat16).float()), ids_batch((5,))
    ).heads
    model = HeadModel.open(module.to(torch.bfloat16))
    found = contributions(model, ids_batch((5,)))
    assert torch.allclose(found.heads, exact, atol=1e-6)
    assert model.module.dtype == torch.bfloat16
    assert model.trace(ids_batch((5,))).attention is not None  # the tap is still there


def test_weights_in_half_precision_are_as_before_and_one_layer_is_converted_at_a_time() -> None:
    model = HeadModel.open(build(*SUPPORTED["bert"]).to(torch.bfloat16))
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    entries = list(model.sites.entries)
    n_converted = []

    def count(module, args) -> None:
        types = [next(entry.parameters()).dtype for entry in entries]
        n_converted.append(types.count(torch.float32))

    with in_float32(model):
        for entry in entries:
            entry.register_forward_pre_hook(count)
        contributions(model, ids_batch((5,)))
    assert set(n_converted) == {1}
    after = model.module.state_dict()
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert torch.equal(after[name], value)


def test_weights_that_cannot_be_converted_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HeadModel.open(build(*SUPPORTED["bert"]).to(torch.bfloat16))

    def quantised(self, *args):
        raise ValueError("`.to` is not supported for 8-bit models")

    monkeypatch.setattr(type(model.module), "to", quantised)
    model.module.is_quantized = True  # as transformers marks such a model
    with pytest.raises(
        ModelError, match=r"cannot be converted to float32 .* use an unquantised model"
    ):
        contributions(model, ids_batch((5,)))
    assert model.trace(ids_batch((5,))).attention is not None  # the tap is still there


def test_one_token_is_all_there_is() -> None:
    found = contributions(opened("bert"), ids_batch((1,)), layer_output=True)
    assert torch.allclose(found.heads, torch.ones_like(found.heads))
    assert found.layers is not None
    assert torch.allclose(found.layers, torch.ones_like(found.layers))
    assert torch.allclose(
        contributions(opened("gpt2"), ids_batch((1,)), "previous_layer").heads,
        torch.ones(1, dtype=torch.float64),
    )


def test_what_cannot_be_asked_for() -> None:
    model, batch = opened("bert"), ids_batch((4,))
    for wrong, words in (
        ({"source": "output"}, "source"),
        ({"method": "magic"}, "exact, sketch, reverse"),
    ):
        with pytest.raises(ParameterError, match=words):
            contributions(model, batch, **wrong)
    for wrong, words in (
        ({"error": 0.0}, "between 0 and 1"),
        ({"tangents": 1}, "at least 2"),
        ({"memory": 0}, "positive"),
    ):
        with pytest.raises(ParameterError, match=words):
            ContributionOptions(**wrong)
    cross = HeadModel.open(build(*SEQ2SEQ["bart"]), stack="cross")
    with pytest.raises(HeadwiseError, match="cross-attention"):
        contributions(cross, batch)


def test_texts_are_taken_too() -> None:
    model = HeadModel.open(build(*SUPPORTED["bert"]), tokenizer=word_tokenizer())
    assert contributions(model, "w1 w2 w3").heads.shape == (1, 3, 4, 5, 5)
    assert torch.allclose(
        contributions(model, ["w1 w2", "w3"]).heads.sum(-1)[0], torch.ones(1, dtype=torch.float64)
    )


def test_functions_a_bundle_knows() -> None:
    """Rules against torch's derivative of the same function, and functions without a rule."""
    x, t = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(5, 2, 3, 4, dtype=torch.float64)
    other, mask = torch.randn(2, 3, 4, dtype=torch.float64), torch.rand(2, 3, 4) > 0.5
    matrix = torch.randn(2, 4, 4, dtype=torch.float64)
    functions = [
        lambda y: y * 2 + other - y / other,
        lambda y: 3 - y * y,
        lambda y: torch.nn.functional.layer_norm(y, (4,), other[0, 0], other[0, 1]),
        lambda y: y.softmax(1),
        lambda y: torch.nn.functional.softmax(y, dim=-1),
        lambda y: y @ matrix,
        lambda y: other @ (y.transpose(1, 2) @ y),
        lambda y: y.transpose(-1, 0).reshape(4, 6).t().unsqueeze(0).squeeze(0).flatten(),
        lambda y: torch.cat([y, other, -y], dim=1),
        lambda y: torch.cat([torch.zeros(0, dtype=y.dtype), y.flatten()]),
        lambda y: y[:, 1:, None, ::2] * y[..., None, :2, :1],
        lambda y: y[torch.tensor([1, 0])],
        lambda y: y.masked_fill(mask, 1.0).pow(3).mean(-1, keepdim=True),
        lambda y: torch.where(mask, y, y.exp()),
        lambda y: torch.nn.functional.gelu(y, approximate="tanh").relu(),
        lambda y: torch.einsum("bij,bkj->bik", y, y),
        lambda y: y.clone().mul_(2).add_(y),
        lambda y: y.chunk(2, dim=-1)[1].repeat_interleave(2, dim=0),
        lambda y: torch.linalg.vector_norm(y, dim=-1),
        lambda y: y.expand(2, 2, 3, 4).sum(1) + y.mT.mT,
    ]
    for number, function in enumerate(functions):
        expected = torch.func.vmap(lambda d, f=function: torch.func.jvp(f, (x,), (d,))[1])(t)
        found = function(TangentTensor(x.clone(), t))
        assert torch.allclose(found.tangent, expected, atol=1e-10), number
        assert torch.allclose(found.primal, function(x), atol=1e-12), number
    moved = TangentTensor(x.clone(), t)
    moved[:, 0] = 1.0
    assert (moved.tangent[:, :, 0] == 0).all()
    assert torch.equal(moved.tangent[:, :, 1:], t[:, :, 1:])
    with pytest.raises(NoForwardDerivative):
        torch.zeros(2, 3, 4, dtype=torch.float64).add_(TangentTensor(x, t))


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "bloom"])
def test_half_precision_stays_close(name: str) -> None:
    """Contributions with tangents in half precision: no row is further than a thousandth in total
    variation."""
    model, batch = opened(name), ids_batch((6, 4))
    true = contributions(model, batch, layer_output=True)
    found = contributions(
        model, batch, layer_output=True, options=ContributionOptions(products="half")
    )
    assert forward_mode(model, batch) == "tangent_tensor"
    for ours, theirs in ((found.heads, true.heads), (found.layers, true.layers)):
        assert ours is not None
        assert theirs is not None
        apart = (ours - theirs).nan_to_num().abs().sum(-1) / 2
        assert 0 < apart.max() < 1e-3
    near = contributions(
        model, batch, "previous_layer", options=ContributionOptions(products="half")
    )
    torch.testing.assert_close(
        near.heads, contributions(model, batch, "previous_layer").heads, equal_nan=True
    )


def test_tangents_too_large_for_half_precision_go_in_single() -> None:
    model, batch = opened("bert"), ids_batch((5,))
    tangents = torch.full((1, 1, 5, model.hidden), 1e5)
    tangents[..., ::2] *= -1
    sums = []
    for kind in ("float32", "half"):
        found = forward_module.SquaredNormSums(model, batch, layer_output=False)
        with matrix_products(kind):
            found.add_tangents(tangents, torch.zeros(1, dtype=torch.int64))
        sums.append(found.heads)
    assert sums[1].isfinite().all()
    torch.testing.assert_close(sums[1], sums[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("kind", ["tf32", "half"])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_the_kernel_of_attention_gives_what_rules_give(name: str, kind: str) -> None:
    model = HeadModel.open(build(*ALL[name]), device="cuda")
    batch = ids_batch((6, 4))
    batch = batch if batch.ids.is_cuda else model.batch(batch.ids)
    true = contributions(model, batch)
    found = contributions(model, batch, options=ContributionOptions(products=kind))
    assert (found.heads - true.heads).nan_to_num().abs().sum(-1).max() / 2 < 1e-3
