"""The residual stream as a graph: exact paths against a plain loop with hooks by module names, edge
attribution against differences, circuits against both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from headwise.core.errors import ModelError, ParameterError
from headwise.models import HeadModel, residual_graph
from headwise.models.residual_graph import ROLES, Edges, ResidualGraph, pull_through_norm
from headwise.models.structure import Norm

LAYERS = 3
HEADS = 4
WIDTH = 32
D_HEAD = 8
TOKENS = 6
PLAIN = {
    "vocab_size": 60,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
UNGROUPED = {"num_key_value_heads": HEADS, "head_dim": D_HEAD}
GROUPED = {"num_key_value_heads": 2, "head_dim": D_HEAD}
OPT = {
    "vocab_size": 60,
    "hidden_size": WIDTH,
    "word_embed_proj_dim": WIDTH,
    "ffn_dim": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 40,
}
GPT2 = {
    "vocab_size": 60,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": 40,
    "initializer_range": 0.08,
}


@dataclass(frozen=True)
class Names:
    """Where an architecture keeps its parts: what the plain loop is written with."""

    classes: tuple[str, str]
    config: dict[str, Any]
    layers: str
    norm: str
    attention: str
    projections: tuple[str, str, str]
    output: str
    # The module whose output the layer adds, for heads and for the feed-forward part.
    added: str
    feed_norm: str
    feed: str
    feed_added: str
    final: str
    parallel: bool = False


LLAMA = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ARCHITECTURES = {
    "llama": Names(
        ("LlamaConfig", "LlamaForCausalLM"),
        PLAIN | UNGROUPED,
        layers="model.layers",
        norm="input_layernorm",
        attention="self_attn",
        projections=LLAMA,
        output="self_attn.o_proj",
        added="self_attn.o_proj",
        feed_norm="post_attention_layernorm",
        feed="mlp",
        feed_added="mlp",
        final="model.norm",
    ),
    "qwen3": Names(
        ("Qwen3Config", "Qwen3ForCausalLM"),
        PLAIN | UNGROUPED,
        layers="model.layers",
        norm="input_layernorm",
        attention="self_attn",
        projections=LLAMA,
        output="self_attn.o_proj",
        added="self_attn.o_proj",
        feed_norm="post_attention_layernorm",
        feed="mlp",
        feed_added="mlp",
        final="model.norm",
    ),
    "gemma2": Names(
        ("Gemma2Config", "Gemma2ForCausalLM"),
        # Caps so low that they change most scores and logits.
        PLAIN
        | UNGROUPED
        | {
            "query_pre_attn_scalar": D_HEAD,
            "sliding_window": 4,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 0.5,
        },
        layers="model.layers",
        norm="input_layernorm",
        attention="self_attn",
        projections=LLAMA,
        output="self_attn.o_proj",
        added="post_attention_layernorm",
        feed_norm="pre_feedforward_layernorm",
        feed="mlp",
        feed_added="post_feedforward_layernorm",
        final="model.norm",
    ),
    "gemma3": Names(
        ("Gemma3TextConfig", "Gemma3ForCausalLM"),
        PLAIN | UNGROUPED | {"query_pre_attn_scalar": D_HEAD, "sliding_window": 4},
        layers="model.layers",
        norm="input_layernorm",
        attention="self_attn",
        projections=LLAMA,
        output="self_attn.o_proj",
        added="post_attention_layernorm",
        feed_norm="pre_feedforward_layernorm",
        feed="mlp",
        feed_added="post_feedforward_layernorm",
        final="model.norm",
    ),
    "gpt2": Names(
        ("GPT2Config", "GPT2LMHeadModel"),
        GPT2,
        layers="transformer.h",
        norm="ln_1",
        attention="attn",
        projections=("attn.c_attn", "attn.c_attn", "attn.c_attn"),
        output="attn.c_proj",
        added="attn.c_proj",
        feed_norm="ln_2",
        feed="mlp",
        feed_added="mlp",
        final="transformer.ln_f",
    ),
    "neox": Names(
        ("GPTNeoXConfig", "GPTNeoXForCausalLM"),
        PLAIN,
        layers="gpt_neox.layers",
        norm="input_layernorm",
        attention="attention",
        projections=("attention.query_key_value",) * 3,
        output="attention.dense",
        added="attention.dense",
        feed_norm="post_attention_layernorm",
        feed="mlp",
        feed_added="mlp",
        final="gpt_neox.final_layer_norm",
        parallel=True,
    ),
    "opt": Names(
        ("OPTConfig", "OPTForCausalLM"),
        OPT,
        layers="model.decoder.layers",
        norm="self_attn_layer_norm",
        attention="self_attn",
        projections=LLAMA,
        output="self_attn.out_proj",
        added="self_attn.out_proj",
        feed_norm="final_layer_norm",
        feed="fc1",
        feed_added="fc2",
        final="model.decoder.final_layer_norm",
    ),
}


def make_module(classes: tuple[str, str], config: dict[str, Any]) -> nn.Module:
    """Return a random model that is far from symmetric: large weights, norms with gains."""
    torch.manual_seed(1)
    config_class, model_class = (getattr(transformers, name) for name in classes)
    module: nn.Module = model_class(config_class(**config)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    return module


def two_inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    clean = torch.randint(3, 60, (2, TOKENS), generator=generator)
    corrupted = clean.clone()
    corrupted[:, 1] = torch.randint(3, 60, (2,), generator=generator)
    corrupted[:, 3] = torch.randint(3, 60, (2,), generator=generator)
    corrupted[:, -1] = torch.randint(3, 60, (2,), generator=generator)
    return clean, corrupted


def metric(logits: Tensor) -> Tensor:
    return logits[:, 7] - logits[:, 9]


class Setting:
    """A model, its graph, and both runs of two inputs."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.model = HeadModel.open(module, tokenizer=None, device="cpu")
        self.graph = ResidualGraph(self.model)
        self.clean_ids, self.corrupted_ids = two_inputs()
        self.batch = self.model.batch(self.clean_ids)
        self.clean = self.graph.record(self.batch)
        self.corrupted = self.graph.record(self.model.batch(self.corrupted_ids))
        self.change = self.corrupted.contributions - self.clean.contributions


@pytest.fixture(scope="module", params=ARCHITECTURES)
def named(request: pytest.FixtureRequest) -> tuple[Setting, Names]:
    names = ARCHITECTURES[request.param]
    return Setting(make_module(names.classes, names.config)), names


@pytest.fixture(scope="module")
def grouped() -> Setting:
    return Setting(make_module(("LlamaConfig", "LlamaForCausalLM"), PLAIN | GROUPED))


# --- the plain loop -------------------------------------------------------------------------------


class PlainLoop:
    """Path patching as one would write it by hand: hooks on modules that are known by name."""

    def __init__(self, setting: Setting, names: Names) -> None:
        self.setting = setting
        self.names = names
        self.module = setting.module
        self.layers = list(self.module.get_submodule(names.layers))

    def part(self, layer: int, name: str) -> nn.Module:
        return self.layers[layer].get_submodule(name)

    @contextmanager
    def hooks(self, *hooks: tuple[nn.Module, str, Callable[..., Any]]) -> Iterator[None]:
        with ExitStack() as stack:
            for module, when, hook in hooks:
                if when == "before":
                    handle = module.register_forward_pre_hook(hook)
                else:
                    handle = module.register_forward_hook(hook)
                stack.callback(handle.remove)
            yield

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        last: Tensor = self.module(input_ids=ids).logits[:, -1]
        return last

    def written(self, ids: Tensor, sender: str) -> Tensor:
        """Return what a sender adds to the stream."""
        kept: list[Tensor] = []

        def keep_input(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            kept.append(args[0].clone())

        def keep_output(module: nn.Module, args: Any, output: Any) -> None:
            kept.append((output if isinstance(output, Tensor) else output[0]).clone())

        names = self.names
        if sender == "embedding":
            first = self.part(0, names.norm)
            with self.hooks((first, "before", keep_input)):
                self.logits(ids)
            return kept[0]
        layer, head = parse(sender)
        if head is None:
            with self.hooks((self.part(layer, names.feed_added), "after", keep_output)):
                self.logits(ids)
            return kept[0].view(*ids.shape, WIDTH)
        projection = self.part(layer, names.output)
        with self.hooks((projection, "before", keep_input)):
            self.logits(ids)
        joined = kept[0].view(*ids.shape, HEADS * D_HEAD)
        alone = torch.zeros_like(joined)
        columns = slice(head * D_HEAD, (head + 1) * D_HEAD)
        alone[..., columns] = joined[..., columns]
        with torch.no_grad():
            bias = projection(torch.zeros_like(alone))
            contribution: Tensor = projection(alone) - bias
            if names.added != names.output:  # a norm after the projection, at the scale of the sum
                norm = self.part(layer, names.added)
                whole = projection(joined)
                scale = (whole.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
                contribution = contribution * scale * (1 + norm.weight)
        return contribution

    def patched(self, sender: str, receiver: str, change: Tensor) -> Tensor:
        """Return the logits when one edge carries a changed term."""
        names = self.names
        ids = self.setting.clean_ids
        if receiver == "logits":
            final = self.module.get_submodule(names.final)
            with self.hooks((final, "before", lambda module, args: (args[0] + change,))):
                return self.logits(ids)
        node, _, role = receiver.partition(".")
        layer, head = parse(node)
        if head is None:
            norm = self.part(layer, names.feed_norm)

            def add(module: nn.Module, args: Any) -> Any:
                return (args[0] + change.reshape(args[0].shape),)

            with self.hooks((norm, "before", add)):
                return self.logits(ids)
        # What the projection of the head would give for the changed stream...
        streams: list[Tensor] = []
        norm = self.part(layer, names.norm)
        with self.hooks((norm, "before", lambda module, args: streams.append(args[0].clone()))):
            self.logits(ids)
        projection = self.part(layer, names.projections[ROLES.index(role)])
        with torch.no_grad():
            changed = projection(norm(streams[0] + change))

        # ... takes the place of what it gives, in the channels of that head and role alone.
        def replace(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            output = output.clone()
            channels = self.channels(head, role)
            output[..., channels] = changed[..., channels]
            return output

        with self.hooks((projection, "after", replace)):
            return self.logits(ids)

    def channels(self, head: int, role: str) -> slice:
        """Return the outputs of the projection that are one head's query, key or value."""
        start = head * D_HEAD
        if self.names.classes[1] == "GPT2LMHeadModel":  # all queries, all keys, all values
            start += ROLES.index(role) * HEADS * D_HEAD
        if self.names.classes[1] == "GPTNeoXForCausalLM":  # by head: query, key, value
            start = (3 * head + ROLES.index(role)) * D_HEAD
        return slice(start, start + D_HEAD)


def parse(node: str) -> tuple[int, int | None]:
    layer, _, head = node.removeprefix("L").removesuffix("MLP").partition("H")
    return int(layer), int(head) if head else None


def some_edges(names: Names) -> list[tuple[str, str]]:
    edges = [
        ("embedding", "L0H1.query"),
        ("embedding", "L0H2.key"),
        ("embedding", "L0H3.value"),
        ("embedding", "L1MLP"),
        ("embedding", "logits"),
        ("L0H1", "L1H2.query"),
        ("L0H1", "L2H0.key"),
        ("L0H3", "L1H1.value"),
        ("L0MLP", "L1H0.key"),
        ("L0MLP", "L2MLP"),
        ("L1H2", "L2MLP"),
        ("L1H2", "logits"),
        ("L2MLP", "logits"),
    ]
    if not names.parallel:
        edges.append(("L1H3", "L1MLP"))
    return edges


def test_exact_paths_are_those_of_a_plain_loop(named: tuple[Setting, Names]) -> None:
    setting, names = named
    loop = PlainLoop(setting, names)
    graph = setting.graph
    for sender, receiver in some_edges(names):
        clean = loop.written(setting.clean_ids, sender)
        change = loop.written(setting.corrupted_ids, sender) - clean
        edge = graph.edges.number(sender, receiver)
        number = int(graph.edges.senders[edge])
        torch.testing.assert_close(setting.change[:, number], change, atol=1e-5, rtol=1e-5)
        expected = loop.patched(sender, receiver, change)
        logits = graph.patched_path(setting.batch, edge, change)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        is_changed = (expected - setting.clean.logits).abs().max() > 1e-4
        assert is_changed, f"{sender} -> {receiver} carries nothing in this test"


def test_a_parallel_mlp_does_not_read_its_layers_heads(named: tuple[Setting, Names]) -> None:
    setting, names = named
    assert setting.graph.edges.mlp_after_heads == (not names.parallel,) * LAYERS


# --- first order ----------------------------------------------------------------------------------


def test_edge_attribution_is_the_gradient_formula_edge_by_edge(
    named: tuple[Setting, Names],
) -> None:
    check_first_order(named[0])


def test_grouped_keys_have_an_edge_for_each_query_head(grouped: Setting) -> None:
    check_first_order(grouped)


def check_first_order(setting: Setting) -> None:
    """Compare edges with central differences along the exact path."""
    graph = setting.graph
    effects = graph.edge_attribution(setting.batch, setting.change, metric)
    assert effects.shape == (2, len(graph.edges))
    random = np.random.default_rng(0)
    step = 0.02
    for edge in random.choice(len(graph.edges), 25, replace=False):
        change = setting.change[:, int(graph.edges.senders[edge])]
        plus = metric(graph.patched_path(setting.batch, int(edge), step * change))
        minus = metric(graph.patched_path(setting.batch, int(edge), -step * change))
        torch.testing.assert_close(
            effects[:, edge],
            (plus - minus) / (2 * step),
            atol=2e-3 * float(effects.abs().max()) + 1e-4,
            rtol=2e-2,
            msg=lambda text, edge=edge: f"{graph.edges.name(int(edge))}: {text}",
        )


def test_held_norms_keep_their_scale(grouped: Setting) -> None:
    graph = grouped.graph
    held = graph.edge_attribution(grouped.batch, grouped.change, metric, hold_norms=True)
    norm = grouped.module.get_submodule("model.norm")
    matrix = grouped.module.get_output_embeddings().weight
    scale = (grouped.clean.final[:, -1].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    direction = (matrix[7] - matrix[9]) * norm.weight / scale
    # Only the last token reaches the logits, and linearly so if the scale is held.
    expected = (grouped.change[:, :, -1] * direction[:, None]).sum(-1)
    into_logits = graph.edges.receivers == graph.edges.n_senders
    torch.testing.assert_close(held[:, into_logits], expected.detach(), atol=1e-5, rtol=1e-4)
    free = graph.edge_attribution(grouped.batch, grouped.change, metric)
    assert (free - held).abs().max() > 1e-3


def test_the_edges_out_of_a_node_add_up_to_its_attribution(grouped: Setting) -> None:
    graph = grouped.graph
    effects = graph.edge_attribution(grouped.batch, grouped.change, metric)
    outputs: dict[int, Tensor] = {}
    layers = grouped.module.get_submodule("model.layers")
    with ExitStack() as stack, torch.enable_grad():
        for layer in range(LAYERS):

            def keep(module: nn.Module, args: Any, output: Tensor, layer: int = layer) -> None:
                output.retain_grad()
                outputs[layer] = output

            stack.callback(layers[layer].mlp.register_forward_hook(keep).remove)
        logits = grouped.module(input_ids=grouped.clean_ids).logits[:, -1]
        metric(logits).sum().backward()
    for layer in range(LAYERS):
        sender = graph.edges.mlp(layer)
        gradient = outputs[layer].grad
        assert gradient is not None
        expected = (grouped.change[:, sender] * gradient).sum((1, 2))
        total = effects[:, graph.edges.senders == sender].sum(1)
        torch.testing.assert_close(total, expected, atol=1e-5, rtol=1e-4)
    grouped.module.zero_grad()


def test_points_are_averaged(grouped: Setting) -> None:
    graph = grouped.graph
    first = grouped.clean.contributions[:, 0]
    second = grouped.corrupted.contributions[:, 0]
    at_first = graph.edge_attribution(grouped.batch, grouped.change, metric, [first])
    at_second = graph.edge_attribution(grouped.batch, grouped.change, metric, [second])
    both = graph.edge_attribution(grouped.batch, grouped.change, metric, [first, second])
    torch.testing.assert_close(both, (at_first + at_second) / 2)
    here = graph.edge_attribution(grouped.batch, grouped.change, metric)
    torch.testing.assert_close(at_first, here, atol=1e-5, rtol=1e-4)


def test_many_points_are_taken_in_portions(
    grouped: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = grouped.graph
    first = grouped.clean.contributions[:, 0]
    second = grouped.corrupted.contributions[:, 0]
    points = [first, (first + second) / 2, second]
    at_once = graph.edge_attribution(grouped.batch, grouped.change, metric, points)
    monkeypatch.setattr(residual_graph, "POINTS_AT_ONCE", 2)
    in_portions = graph.edge_attribution(grouped.batch, grouped.change, metric, points)
    torch.testing.assert_close(in_portions, at_once)


def test_products_are_the_same_token_by_token() -> None:
    # Token by token is how a GPU computes them.
    torch.manual_seed(0)
    change = torch.randn(2, 5, 7, WIDTH).double()  # example, sender, token
    by_unit = torch.randn(3, 2, 7, WIDTH).double()  # unit, example, token
    expected = torch.einsum("estw,uetw->esu", change, by_unit)
    # Some of the senders, as layers below the last have.
    for n_senders in (5, 3):
        for by_token in (False, True):
            products = residual_graph._products(change[:, :n_senders], by_unit, by_token=by_token)
            torch.testing.assert_close(products, expected[:, :n_senders])


@pytest.mark.parametrize("centred", [False, True])
def test_the_gradient_goes_through_a_norm_as_autograd_says(centred: bool) -> None:
    torch.manual_seed(0)
    gain = torch.randn(WIDTH).double()
    norm = Norm(nn.Identity(), gain, torch.randn(WIDTH).double(), centred, 1e-5)
    stream = torch.randn(3, WIDTH).double().requires_grad_()
    gradient = torch.randn(3, WIDTH).double()
    output = norm.middle(stream) / norm.scale(stream) * norm.gain + norm.bias
    (expected,) = torch.autograd.grad(output, stream, gradient)
    pulled = pull_through_norm(norm, gradient, stream.detach())
    torch.testing.assert_close(pulled, expected)
    held = pull_through_norm(norm, gradient, stream.detach(), hold_scale=True)
    assert (held - expected).abs().max() > 1e-3


# --- circuits -------------------------------------------------------------------------------------


def check_circuits(setting: Setting) -> None:
    graph = setting.graph
    runs = (setting.batch, setting.clean, setting.corrupted)
    every = np.ones(len(graph.edges), bool)
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(graph.run_circuit(*runs, every), setting.clean.logits, **close)
    torch.testing.assert_close(graph.run_circuit(*runs, ~every), setting.corrupted.logits, **close)
    random = np.random.default_rng(0)
    for edge in random.choice(len(graph.edges), 12, replace=False):
        live = every.copy()
        live[edge] = False
        sender = int(graph.edges.senders[edge])
        expected = graph.patched_path(setting.batch, int(edge), setting.change[:, sender])
        torch.testing.assert_close(graph.run_circuit(*runs, live), expected, **close)


def test_a_circuit_without_one_edge_is_the_exact_path(named: tuple[Setting, Names]) -> None:
    check_circuits(named[0])


def test_circuits_with_grouped_keys(grouped: Setting) -> None:
    check_circuits(grouped)


def test_edges_without_a_path_change_nothing(grouped: Setting) -> None:
    graph = grouped.graph
    random = np.random.default_rng(3)
    live = random.random(len(graph.edges)) < 0.3
    connected = graph.edges.connected(live)
    assert 0 < connected.sum() < live.sum()
    runs = (grouped.batch, grouped.clean, grouped.corrupted)
    torch.testing.assert_close(
        graph.run_circuit(*runs, live), graph.run_circuit(*runs, connected), atol=1e-5, rtol=1e-4
    )


def test_connected_edges_lie_on_a_path() -> None:
    edges = Edges(2, 1, (True, True), (True, True))
    live = np.zeros(len(edges), bool)
    path = [("embedding", "L0MLP"), ("L0MLP", "L1H0.key"), ("L1H0", "logits")]
    loose = [("L0H0", "L1H0.key"), ("embedding", "L1MLP"), ("L1MLP", "logits")]
    for sender, receiver in [*path, *loose[:2]]:
        live[edges.number(sender, receiver)] = True
    kept = {edges.name(int(edge)) for edge in np.flatnonzero(edges.connected(live))}
    assert kept == {f"{sender} -> {receiver}" for sender, receiver in path}
    live[edges.number(*loose[2])] = True  # now the embedding reaches the logits by L1MLP too
    assert edges.connected(live).sum() == len(path) + 2


# --- names, layouts, refusals ---------------------------------------------------------------------


def test_every_edge_has_one_name() -> None:
    edges = Edges(3, 2, (True,) * 3, (True, False, True))
    names = [edges.name(edge) for edge in range(len(edges))]
    assert len(set(names)) == len(edges) == len(edges.senders) == len(edges.receivers)
    for edge, name in enumerate(names):
        sender, receiver = name.split(" -> ")
        assert edges.number(sender, receiver) == edge
    assert "L1H0 -> L1MLP" not in names  # parallel
    assert "L2H0 -> L2MLP" in names
    with pytest.raises(ParameterError, match=r"no edge from 'L1H0' to 'L0H1\.key'"):
        edges.number("L1H0", "L0H1.key")
    with pytest.raises(ParameterError, match="no sender 'L9H9'"):
        edges.number("L9H9", "logits")


def test_blocks_of_edges_are_in_the_order_of_their_names() -> None:
    edges = Edges(2, 2, (True, True), (True, True))
    numbers = edges.split(np.arange(len(edges)))
    for (kind, layer), block in numbers.items():
        for sender in range(block.shape[0]):
            for receiver in range(block.shape[1]):
                edge = int(block[sender, receiver])
                assert edges.senders[edge] == sender
                if kind == "heads":
                    role, head = divmod(receiver, 2)
                    expected = f"L{layer}H{head}.{ROLES[role]}"
                    assert edges.receiver_name(edge) == expected


def test_a_recording_takes_the_layout_of_another_input(grouped: Setting) -> None:
    positions = torch.tensor([[0, 1, -1, 2, 3, 5], [0, 1, 2, 3, 4, 5]])
    moved = grouped.corrupted.at(positions, grouped.clean)
    assert torch.equal(moved.contributions[0, :, 3], grouped.corrupted.contributions[0, :, 2])
    assert torch.equal(moved.contributions[0, :, 2], grouped.clean.contributions[0, :, 2])
    assert torch.equal(moved.final[1], grouped.corrupted.final[1])


@pytest.mark.parametrize(
    ("classes", "config", "reason"),
    [
        (("Olmo2Config", "Olmo2ForCausalLM"), PLAIN, "cannot be told apart"),
        (
            ("BloomConfig", "BloomForCausalLM"),
            {"vocab_size": 60, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4},
            "forms its attention weights itself",
        ),
        (("BertConfig", "BertModel"), PLAIN, "no language-modelling head"),
    ],
)
def test_models_that_are_no_such_graph_are_rejected_by_name(
    classes: tuple[str, str], config: dict[str, Any], reason: str
) -> None:
    module = make_module(classes, config)

    def read_inputs(model: HeadModel) -> object:
        return ResidualGraph(model).head_inputs

    with (
        HeadModel.open(module, tokenizer=None, device="cpu") as model,
        pytest.raises(ModelError, match=reason),
    ):
        read_inputs(model)
