"""Conversations in `surface`: the mass on each role, by plain loops; nothing is added where there
are none."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import transformers

from headwise import Corpus, Example, HeadModel, make_atlas
from headwise.analyses.surface.analysis import Surface
from headwise.plots.registry import figures_for

sys.path.insert(0, str(Path(__file__).parents[2] / "text"))
from tiny_tokenizers import gpt2_like

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
TALKS = [
    Example(messages=(("user", "the dog ran"), ("assistant", "the cat ran"))),
    Example(messages=(("user", "dog"), ("assistant", "the dog ran the cat"), ("user", "cat"))),
]
ROLES = ("system", "user", "assistant", "tool", "template")


def opened() -> HeadModel:
    tokenizer = copy.deepcopy(gpt2_like())  # others use it too
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=len(tokenizer), n_positions=128
    )
    config.bos_token_id = config.eos_token_id = 0
    return HeadModel.open(transformers.GPT2LMHeadModel(config).eval(), tokenizer=tokenizer)


def test_mass_on_each_role_by_plain_loops() -> None:
    model = opened()
    plain = Example(
        text="the dog ran"
    )  # no conversation: left out of these means, not of the others
    found = make_atlas(model, Corpus.from_examples([*TALKS, plain], "talks"), [Surface()])[
        "surface"
    ]
    whole, rest, even = [], [], []
    for example in TALKS:
        row = model.encode(example)
        maps = model.trace(row).attention[0].double().numpy()
        n = maps.shape[-1]
        of = np.array([[float(row.role(name)[j] and j > 0) for name in ROLES] for j in range(n)])
        whole.append(np.mean([maps[:, :, i] @ of for i in range(n)], axis=0))
        left = maps[:, :, 1:, 1:] / maps[:, :, 1:, 1:].sum(-1, keepdims=True)
        rest.append(np.mean([left[:, :, i] @ of[1:] for i in range(n - 1)], axis=0))
        even.append(np.mean([of[: i + 1].mean(0) for i in range(n)], axis=0))
    said = [1, 2, 4]  # nobody speaks as system or tool
    for name, values in (("role_mass", whole), ("role_mass_rest", rest)):
        np.testing.assert_allclose(
            found[name].values[..., said], np.mean(values, 0)[..., said], atol=1e-5
        )
        assert (found[f"{name}_n"].values[..., said] == 2).all()
    np.testing.assert_allclose(
        found["role_mass_uniform"].values[0, said], np.mean(even, 0)[said], atol=1e-6
    )
    assert found["role_mass"].sel(role=["system", "tool"]).isnull().all()
    assert (found["mass_n"].sel(token_type="other") == 3).all()
    assert any(line.startswith("Most attention to assistant") for line in Surface().summary(found))
    assert [
        drawn
        for spec in figures_for("surface")
        if spec.name == "roles"
        for drawn in spec.draw(found)
    ]


def test_nothing_is_added_without_conversations() -> None:
    found = make_atlas(
        opened(), Corpus.from_examples([Example(text="the dog ran")], "plain"), [Surface()]
    )["surface"]
    assert "role_mass" not in found
    assert "role" not in found.dims
