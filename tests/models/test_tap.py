"""The tap itself: threads, sessions, blocks of rows, padding, precision, and what it refuses."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from tiny_models import SUPPORTED, build, ids_batch

from headwise.core.errors import ModelError, ParameterError
from headwise.models import AttentionRows, HeadModel, Layer
from headwise.models.forward_call import only_in_this_thread
from headwise.models.masks import RowMask
from headwise.models.structure import find_structure
from headwise.models.tap import SESSION, attention
from headwise.models.weights import head_weights


def test_two_threads_do_not_meet() -> None:
    models = [
        HeadModel.open(build(*SUPPORTED[name], seed=seed))
        for seed, name in enumerate(("bert", "llama"))
    ]
    batches = [ids_batch((11, 8, 5)), ids_batch((7, 6), seed=3)]
    alone = [m.trace(b, {"attention", "hidden"}) for m, b in zip(models, batches, strict=True)]
    shared = [
        (models[0], batches[0], alone[0]),
        (models[0], batches[1], models[0].trace(batches[1], {"attention", "hidden"})),
        (models[1], batches[1], alone[1]),
    ]
    gate = threading.Barrier(len(shared))
    wrong: list[str] = []

    def work(model: HeadModel, batch: object, expected: object) -> None:
        try:
            gate.wait()
            for _ in range(15):
                got = model.trace(batch, {"attention", "hidden"})  # type: ignore[arg-type]
                wrong.extend(
                    name
                    for name in ("attention", "hidden")
                    if not torch.allclose(getattr(got, name), getattr(expected, name), atol=1e-6)
                )
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=job) for job in shared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Meeting:
    """A watcher that keeps what it sees; at its first layer it runs `at_first`."""

    needs = frozenset({"attention"})

    def __init__(self, at_first: Callable[[], object]) -> None:
        self.at_first, self.seen = at_first, list[AttentionRows]()

    def on_rows(self, rows: AttentionRows) -> None:
        self.seen.append(rows)
        if rows.layer == 0:
            self.at_first()

    def on_layer(self, layer: Layer) -> None:
        pass

    def attention(self) -> torch.Tensor:
        return torch.stack([rows.weights for rows in self.seen], 1)


def test_models_in_the_middle_of_each_others_passes() -> None:
    """One is inside its first layer while the other begins, ends last, and a bystander runs a
    tapped module unwatched in between."""
    one, two = (HeadModel.open(build(*SUPPORTED["albert"], seed=seed)) for seed in (0, 1))
    batch, other = ids_batch(), ids_batch((6, 3), seed=5)
    expected, there = one.trace(batch).attention, two.trace(other).attention
    inside, done = threading.Event(), threading.Event()
    leaked: list[object] = []

    def second_is_inside() -> None:
        inside.set()
        done.wait(20)

    second = Meeting(second_is_inside)
    thread = threading.Thread(target=lambda: two.forward(other, second))

    def bystander() -> None:
        leaked.append(SESSION.get())
        one.module(input_ids=batch.ids)

    def begin_second() -> None:
        thread.start()
        assert inside.wait(20)
        unwatched = threading.Thread(target=bystander)
        unwatched.start()
        unwatched.join()

    first = Meeting(begin_second)
    one.forward(batch, first)
    done.set()
    thread.join()
    assert leaked == [None]
    assert [rows.layer for rows in first.seen] == [rows.layer for rows in second.seen] == [0, 1, 2]
    assert torch.equal(first.attention(), expected)  # type: ignore[arg-type]
    assert torch.equal(second.attention(), there)  # type: ignore[arg-type]


def test_hooks_leave_the_calls_of_another_thread_alone() -> None:
    """Whoever reads the weights of a model must not read another thread's pass, nor change it: here
    one of other tokens runs in the middle, and torch calls a hook without its keywords, as between
    the two steps of its removal."""
    model = HeadModel.open(build(*SUPPORTED["qwen3"]))
    structure = find_structure(model)
    alone = list(head_weights(model, structure))
    ids = ids_batch((9, 4), seed=7).ids
    with torch.no_grad():
        expected, during = model.module(input_ids=ids).last_hidden_state, list[torch.Tensor]()

    def elsewhere() -> None:
        with torch.no_grad():
            during.append(model.module(input_ids=ids).last_hidden_state)

    def run_elsewhere(*_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    entry = structure.blocks[0].module
    with entry.register_forward_pre_hook(run_elsewhere):
        watched = list(head_weights(model, find_structure(model)))
    assert len(during) > 2
    assert all(torch.equal(hidden, expected) for hidden in during)
    for mine, theirs in zip(watched, alone, strict=True):
        assert all(
            torch.equal(getattr(mine, name), getattr(theirs, name))
            for name in ("query", "key", "value", "output")
        )

    seen: list[object] = []
    hook = only_in_this_thread(lambda module, args, kwargs: seen.append(kwargs))
    thread = threading.Thread(target=hook, args=(entry, ()))
    thread.start()
    thread.join()
    hook(entry, (), {"mine": True})
    assert seen == [{"mine": True}]


def test_without_a_session_a_tapped_model_is_its_eager_self_and_generates() -> None:
    name, _, arguments = SUPPORTED["gpt-oss"]
    model = build(name, "GptOssForCausalLM", arguments)
    own = copy.deepcopy(model)
    HeadModel.open(model)
    batch = ids_batch((6,))
    with torch.no_grad():
        assert torch.equal(model(input_ids=batch.ids).logits, own(input_ids=batch.ids).logits)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(batch.ids, **options), own.generate(batch.ids, **options))


def test_closing_gives_the_module_back() -> None:
    for name in ("llama", "gpt1", "mpnet", "bloom"):
        model = build(*SUPPORTED[name])
        before = [set(vars(m)) for m in model.modules()]
        with HeadModel.open(model) as opened:
            opened.trace(ids_batch(pad_id=opened.pad_id), {"hidden"})
        assert model.config._attn_implementation == "eager"
        assert [set(vars(m)) for m in model.modules()] == before
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    "name", ["bert", "llama", "gemma2", "gpt-oss", "modernbert", "gpt1", "mpnet", "deberta-v2"]
)
@pytest.mark.parametrize("block_rows", [1, 3, 100])
def test_blocks_of_rows_change_nothing(name: str, block_rows: int) -> None:
    opened = HeadModel.open(build(*SUPPORTED[name]))
    batch = ids_batch(pad_id=opened.pad_id)
    needs = {"attention", "outputs", "hidden"}
    whole, blocked = opened.trace(batch, needs), opened.trace(batch, needs, block_rows=block_rows)
    for part in ("attention", "outputs", "hidden", "sink"):
        if getattr(whole, part) is not None:
            torch.testing.assert_close(
                getattr(blocked, part), getattr(whole, part), atol=1e-5, rtol=1e-5
            )
    assert torch.equal(blocked.visible, whole.visible)  # type: ignore[arg-type]


def test_blocks_come_in_order_and_the_limit_makes_them() -> None:
    opened = HeadModel.open(build(*SUPPORTED["llama"]))

    class Spans:
        needs = frozenset({"attention"})
        seen: ClassVar[list[tuple[int, int, int]]] = []

        def on_rows(self, rows: AttentionRows) -> None:
            assert rows.weights.shape[2] == rows.stop - rows.start
            self.seen.append((rows.layer, rows.start, rows.stop))

        def on_layer(self, layer: Layer) -> None:
            self.seen.append((layer.layer, -1, -1))

    opened.forward(ids_batch((11,)), Spans(), block_bytes=4 * 4 * 11 * 5)
    assert Spans.seen[:4] == [(0, 0, 5), (0, 5, 10), (0, 10, 11), (0, -1, -1)]


def test_a_long_input_never_has_a_square_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    name, cls, arguments = SUPPORTED["mistral"]
    opened = HeadModel.open(
        build(name, cls, arguments | {"max_position_embeddings": 600, "num_hidden_layers": 1})
    )
    batch = ids_batch((500, 400))
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not isinstance(result, RowMask):
                largest = max(largest, result.untyped_storage().nbytes())
            return result

    class Sum:
        needs = frozenset({"attention"})
        total = 0.0

        def on_rows(self, rows: AttentionRows) -> None:
            self.total += rows.weights.sum().item()

        def on_layer(self, layer: Layer) -> None:
            pass

    watcher = Sum()
    with Sizes():
        opened.forward(batch, watcher, block_rows=10)
    assert (
        largest <= 2 * 4 * 10 * 500 * 8
    )  # blocks of ten rows; not even one byte for each of 2 * 500 * 500 pairs
    assert watcher.total == pytest.approx(900 * 4, rel=1e-4)


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "opt", "mistral", "gpt-oss", "xlnet", "bloom", "mpnet"]
)
def test_padding_changes_nothing(name: str) -> None:
    opened = HeadModel.open(build(*SUPPORTED[name]))
    alone, padded = ids_batch((8,), opened.pad_id), ids_batch((8, 13), opened.pad_id)
    needs = {"attention", "outputs", "hidden"}
    one, two = opened.trace(alone, needs), opened.trace(padded, needs)
    torch.testing.assert_close(
        two.attention[0, ..., :8, :8], one.attention[0], atol=1e-5, rtol=1e-5
    )  # type: ignore[index]
    assert not two.attention[0, ..., 8:].any()  # type: ignore[index]
    assert not two.attention[0, ..., 8:, :].any()  # type: ignore[index]
    torch.testing.assert_close(two.outputs[0, ..., :8, :], one.outputs[0], atol=1e-5, rtol=1e-5)  # type: ignore[index]
    torch.testing.assert_close(two.hidden[0, :, :8], one.hidden[0], atol=1e-5, rtol=1e-5)  # type: ignore[index]
    assert torch.equal(two.visible[0, ..., :8, :8], one.visible[0])  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in ("bert", "llama", "gpt-oss")
        for dtype in (torch.float16, torch.bfloat16, torch.float64)
        if (name, dtype) != ("gpt-oss", torch.float64)
    ],
)
def test_precision(name: str, dtype: torch.dtype) -> None:
    model = build(*SUPPORTED[name]).to(dtype)
    own = copy.deepcopy(model)
    opened = HeadModel.open(model)
    batch = ids_batch()
    trace = opened.trace(batch, {"attention", "outputs"})
    with torch.no_grad():
        expected = own(
            input_ids=batch.ids,
            attention_mask=batch.attention_mask.long(),
            output_attentions=True,
            output_hidden_states=True,
        )
    attentions = torch.stack(expected.attentions, 1)
    wanted = torch.promote_types(dtype, torch.float32)
    assert trace.attention is not None
    assert trace.outputs is not None
    assert trace.attention.dtype == trace.outputs.dtype == wanted
    real = batch.attention_mask[:, None, None, :, None].expand_as(attentions)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-6}[dtype]
    torch.testing.assert_close(
        trace.attention[real], attentions.to(wanted)[real], atol=tolerance, rtol=0
    )
    sums = (trace.attention.sum(-1) + (0 if trace.sink is None else trace.sink))[
        batch.attention_mask[:, None, None].expand(attentions.shape[:-1])
    ]
    torch.testing.assert_close(
        sums, torch.ones_like(sums), atol=1e-6, rtol=0
    )  # not rounded to half before it is seen


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt-oss", "modernbert"])
def test_unwatched_passes_give_the_same_output(name: str) -> None:
    opened = HeadModel.open(build(*SUPPORTED[name]))
    batch = ids_batch()

    class Outputs:
        needs = frozenset({"outputs"})
        kept: ClassVar[list[torch.Tensor]] = []

        def on_rows(self, rows: AttentionRows) -> None:
            raise AssertionError("nobody asked for rows")

        def on_layer(self, layer: Layer) -> None:
            assert layer.outputs is not None
            assert layer.hidden is None
            self.kept.append(layer.outputs)

    watched = opened.trace(batch, {"attention", "outputs"}).outputs
    plain = opened.forward(batch, Outputs()).last_hidden_state
    blocked = opened.forward(batch, block_rows=3).last_hidden_state
    kept = torch.stack(Outputs.kept, 1)
    Outputs.kept.clear()
    real = batch.attention_mask
    torch.testing.assert_close(
        kept.transpose(2, 3)[:, :, real[0]],
        watched.transpose(2, 3)[:, :, real[0]],
        atol=1e-5,
        rtol=1e-5,
    )  # type: ignore[union-attr]
    torch.testing.assert_close(blocked[real], plain[real], atol=1e-4, rtol=1e-4)


def test_an_unknown_extra_is_refused_by_name() -> None:
    opened = HeadModel.open(build(*SUPPORTED["bert"]))
    module = opened.module.encoder.layer[0].attention.self
    tensor = torch.zeros(1, 4, 3, 8)

    class Any:
        def attend(self, call: object) -> tuple[torch.Tensor, None]:
            return tensor, None

        def by_rows(self, *sizes: int) -> bool:
            return False

    token = SESSION.set(Any())  # type: ignore[arg-type]
    try:
        with pytest.raises(ModelError, match="BertSelfAttention passes `block_indices`"):
            attention(module, tensor, tensor, tensor, None, block_indices=torch.zeros(1))
        attention(
            module, tensor, tensor, tensor, None, block_indices=None, position_ids=torch.zeros(1)
        )
    finally:
        SESSION.reset(token)


def test_another_computation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.bert import modeling_bert

    own = modeling_bert.eager_attention_forward

    def other(module, query, key, value, mask, **options):  # type: ignore[no-untyped-def]
        return own(module, query, key, value.roll(1, dims=2), mask, **options)

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", other)
    with pytest.raises(
        ModelError,
        match="BertSelfAttention computes its attention in a way that headwise does not reproduce",
    ):
        HeadModel.open(build(*SUPPORTED["bert"], scale=10))


def test_rounding_of_large_scores_is_no_other_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in bfloat16 rounds its scores before the softmax, which moves a weight by as much:
    SmolLM2 has scores of 14, and its outputs differ by up to 0.04 from those of exact scores."""
    from transformers.models.llama import modeling_llama

    module = build(*SUPPORTED["llama"], scale=3)
    for layer in module.base_model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 8
    module = module.to(torch.bfloat16)
    HeadModel.open(module).close()

    own = modeling_llama.eager_attention_forward

    def other(module, query, key, value, mask, **options):  # type: ignore[no-untyped-def]
        return own(module, query, key, value.roll(1, dims=2), mask, **options)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", other)
    with pytest.raises(ModelError, match="does not reproduce"):
        HeadModel.open(module)


def test_is_causal_without_a_mask_hides_the_future() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind(0)
    module = torch.nn.Module()
    output, weights = attention(module, query, key, value, None, is_causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(output.transpose(1, 2), expected)
    assert weights is not None
    assert not weights.triu(1).any()


def test_training_mode_is_left_as_it_was_and_dropout_is_off() -> None:
    model = build(*SUPPORTED["bert"]).train()
    opened = HeadModel.open(model)
    batch = ids_batch()
    first, second = opened.trace(batch).attention, opened.trace(batch).attention
    assert torch.equal(first, second)  # type: ignore[arg-type]
    assert all(m.training for m in model.modules())


def test_parameters_are_checked() -> None:
    opened = HeadModel.open(build(*SUPPORTED["bert"]))
    with pytest.raises(
        ParameterError, match=r"There is no tap 'attentions'\. Did you mean 'attention'"
    ):
        opened.trace(ids_batch(), {"attentions"})
    with pytest.raises(ParameterError, match="`block_rows` must be at least 1; it is 0"):
        opened.forward(ids_batch(), block_rows=0)
    with pytest.raises(ParameterError, match=r"HeadModel\.gradients"):
        opened.trace(ids_batch(), {"attention_gradient"})


def test_compiled_and_wrapped_modules_are_unwrapped() -> None:
    model = build(*SUPPORTED["bert"])
    assert HeadModel.open(torch.compile(model)).module is model  # type: ignore[arg-type]
    assert HeadModel.open(torch.nn.DataParallel(model)).module is model
    with pytest.raises(ModelError, match="A Linear is no model of transformers"):
        HeadModel.open(torch.nn.Linear(2, 2))


def test_gradient_checkpointing_does_not_hide_layers() -> None:
    model = build(*SUPPORTED["bert"]).train()
    model.gradient_checkpointing_enable()
    attention_maps = HeadModel.open(model).trace(ids_batch()).attention
    assert attention_maps is not None
    assert attention_maps.shape[1] == 3


def test_a_tap_that_was_taken_away_is_noticed() -> None:
    model = build(*SUPPORTED["bert"])
    first, second = HeadModel.open(model), HeadModel.open(model)
    second.forward(ids_batch())
    first.close()
    with pytest.raises(ModelError, match="The tap saw 0 of the 3 layers of BertModel"):
        second.forward(ids_batch())
