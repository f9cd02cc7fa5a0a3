"""Explorers of small models, and their application called as a server calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
pytest.importorskip("uvicorn", reason="the extra `explore` is not installed")

from exploring import PORT, Client

from headwise import HeadModel
from headwise.core.loopback import Guard
from headwise.explore import Explorer
from headwise.explore.request_queue import RequestQueue
from headwise.explore.server import make_app
from headwise.testing.models import random_model


@pytest.fixture(scope="session")
def encoder() -> Iterator[HeadModel]:
    module, tokenizer = random_model()
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        yield model


@pytest.fixture(scope="session")
def decoder() -> Iterator[HeadModel]:
    module, tokenizer = random_model(causal=True)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        yield model


@pytest.fixture
def client(encoder: HeadModel, decoder: HeadModel) -> Iterator[Client]:
    guard = Guard(PORT)
    requests = RequestQueue()
    failures: list[Any] = []
    yield Client(
        make_app(Explorer([encoder, decoder]), guard, requests, failures.append), guard, failures
    )
    requests.close()
    assert not failures


@pytest.fixture(scope="session")
def little_bert(encoder: HeadModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as a folder, for processes of their own."""
    folder = tmp_path_factory.mktemp("models") / "little-bert"
    module, tokenizer = random_model()
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
