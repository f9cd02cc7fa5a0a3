"""Conversations: rendered by the template of the tokenizer, a role for every token, words where
they are said."""

from __future__ import annotations

import copy
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_tokenizers import gpt2_like

from headwise import Corpus, Example, open_corpus
from headwise.analyses.features.predicates import parse_feature
from headwise.analyses.roles.sieves.tokens import token_axes
from headwise.core.errors import HeadwiseError
from headwise.text import template_limits
from headwise.text.chat import locate_contents, render
from headwise.text.encode import Encoder, collate
from headwise.text.readers.rows import example_of_row, row_of_example

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% else %} {{ m['content'] | trim }} {% endif %}{% endfor %}"
)
MESSAGES = (("system", "user"), ("user", " the dog user\n"), ("assistant", "the cat ran"))


def tokenizer(template: str) -> Any:
    made = copy.deepcopy(gpt2_like())
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = template
    return made


@pytest.mark.parametrize("template", [CHATML, LLAMA2])
def test_every_character_has_the_role_of_who_said_it(template: str) -> None:
    given, example = tokenizer(template), Example(messages=MESSAGES)
    row = Encoder(given, 200).encode(example)
    assert row is not None
    assert row.ids.tolist() == given.apply_chat_template(
        [{"role": role, "content": text} for role, text in MESSAGES],
        tokenize=True,
        return_dict=False,
    )
    for role, text in MESSAGES:
        said = given.decode(row.ids[row.role(role)])
        assert said.split() == text.split(), (
            role
        )  # also where a message says what the template says
        assert template != CHATML or said == text.strip(), (
            role
        )  # nothing of the template, not even a line feed
    everything = sum(
        row.role(name).astype(int) for name in ("system", "user", "assistant", "tool", "template")
    )
    assert (everything == 1).all()
    if template == CHATML:
        assert (row.role("template")[row.special]).all()
        assert row.special.sum() == 6


def test_roles_are_kinds_features_and_sieves() -> None:
    encoder = Encoder(tokenizer(CHATML), 200)
    rows = [encoder.encode(Example(messages=MESSAGES)), encoder.encode(Example(text="the dog"), 1)]
    batch = collate(rows)  # type: ignore[arg-type]
    assert batch.token_mask("user")[0].sum() == rows[0].role("user").sum() > 0  # type: ignore[union-attr]
    assert not batch.token_mask("user")[1].any()
    reply = parse_feature("reply: token=assistant|tool")
    assert reply.requires == {"roles"}
    assert np.array_equal(reply.tokens(rows[0]), rows[0].role("assistant"))  # type: ignore[arg-type, union-attr]
    i, j = token_axes(rows[0])  # type: ignore[arg-type]
    assert ((i.role == "assistant") & (j.role == "user")).sum() == (
        rows[0].role("assistant").sum() * rows[0].role("user").sum()  # type: ignore[union-attr]
    )
    assert set(token_axes(rows[1])[1].role[0]) == {""}  # type: ignore[arg-type]


def test_words_are_found_where_they_are_said() -> None:
    text = "\n".join(said for _, said in MESSAGES)
    words, spans, at = text.split(), [], 0
    for word in words:
        at = text.index(word, at)
        spans.append((at, at + len(word)))
        at += len(word)
    example = Example(messages=MESSAGES, words=tuple(words), spans=tuple(spans))
    given = tokenizer(CHATML)
    row = Encoder(given, 200).encode(example)
    assert row is not None
    assert row.aligned
    for number, word in enumerate(words):
        assert given.decode(row.ids[row.word == number]).strip() == word
    assert (row.word[row.role("template")] == -1).all()


def test_conversations_are_read_from_json_lines(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": "the dog"},
                {"role": "model", "content": [{"text": "a cat"}]},
            ]
        },
        {"messages": [{"role": "developer", "content": "stop"}], "text": "something else"},
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = list(open_corpus(str(path)))
    assert [e.messages for e in found] == [
        (("user", "the dog"), ("assistant", "a cat")),
        (("system", "stop"),),
    ]
    assert found[0].text == "the dog\na cat"
    assert "roles" in found[0].annotations
    again = example_of_row(json.loads(json.dumps(row_of_example(found[0]))), "row")
    assert again.fingerprint() == found[0].fingerprint()
    assert isinstance(Corpus.from_examples(found), Corpus)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Example(messages=(("usr", "hi"),)),
            "There is no role 'usr'. Did you mean 'user'?",
        ),
        (
            lambda: Example(messages=(("user", "hi"),), text="ho"),
            "must be the contents of its messages",
        ),
        (
            lambda: example_of_row({"messages": ["hi"]}, "row 1"),
            "row 1: a message must be {role, content}, not a text.",
        ),
        (lambda: render(gpt2_like(), Example(messages=(("user", "hi"),))), "has no chat template"),
        (
            lambda: render(
                tokenizer("{{ raise_exception('no system') }}"), Example(messages=(("user", "hi"),))
            ),
            "the chat template rejects the conversation: no system",
        ),
    ],
)
def test_what_is_no_conversation_is_said(make: Any, sentence: str) -> None:
    with pytest.raises(HeadwiseError) as caught:
        make()
    assert sentence in str(caught.value)


def test_long_conversations_take_linear_time() -> None:
    """Contents that repeat the template's own text, stripped or changed by the template."""
    contents = ["</s><s> "] * 400
    parts = ["<s>", *["</s><s>"] * 399, "</s>"]
    stripped = "".join(
        part + content.strip() for part, content in zip(parts, [*contents, ""], strict=True)
    )
    spans = locate_contents(stripped, parts, contents)
    assert spans is not None
    assert {stripped[start:end] for start, end in spans} == {"</s><s>"}
    upper = "".join(part + content for part, content in zip(parts, ["A"] * 400 + [""], strict=True))
    spans = locate_contents(upper, parts, ["a"] * 400)
    assert spans is not None
    assert {upper[start:end] for start, end in spans} == {"A"}
    assert locate_contents(upper + "x", parts, ["a"] * 400) is None


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set ns = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}{{ ns.x }}"
)
LONG = "{{ 'x' * 20000000 }}{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("template", [ENDLESS, DOUBLED, LONG])
def test_hostile_templates_end_in_a_sentence(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = partial(template_limits.limited, 1.0, 1 << 28)
    monkeypatch.setattr("headwise.text.chat.limited", limits)
    before = time.monotonic()
    with pytest.raises(HeadwiseError, match="damaged or hostile"):
        render(tokenizer(template), Example(messages=MESSAGES))
    assert time.monotonic() - before < 30
    # Nothing is left behind: the next conversation is rendered.
    assert render(tokenizer(CHATML), Example(messages=MESSAGES)).text


@pytest.mark.parametrize(
    "mark", ["\ue0000\ue001", "\ue000" + "9" * 5000 + "\ue001", "\ue0007\ue001", "\ue000"]
)
def test_marks_like_ours_in_template_and_messages(mark: str) -> None:
    template = f"{mark}{{% for m in messages %}}<{{{{ m['content'] }}}}>{{% endfor %}}{mark}"
    messages = (("user", f"{mark}hi"), ("assistant", mark))
    rendered = render(tokenizer(template), Example(messages=messages))
    said = [rendered.text[span.start : span.end] for span in rendered.messages]
    assert said == [f"{mark}hi", mark]
