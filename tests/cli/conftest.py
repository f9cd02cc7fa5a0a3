"""What the tests of the command line share: a small model, a small corpus, and a way to call
headwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headwise import cli
from headwise.testing import planted_model

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ","]


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, " ".join(err.split())


@pytest.fixture
def headwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call the command line as a user would."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    planted = planted_model([["previous", "next", "uniform"], ["sep", "cls", "self"]], words=WORDS)
    folder = tmp_path_factory.mktemp("model") / "planted"
    planted.model.save_pretrained(folder)
    planted.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.txt"
    path.write_text(
        "the cat saw a dog .\n\na dog sleeps .\n\nthe dog saw the cat , the dog sleeps\n"
    )
    return path
