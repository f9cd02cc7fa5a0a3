"""Options of readers on the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from headwise.cli.main import app
from headwise.cli.options import TextOptions
from headwise.core.errors import ParameterError
from headwise.text import Spec, open_corpus


def test_options_become_a_spec():
    assert TextOptions("a.txt").spec() == "a.txt"
    assert TextOptions().spec() is None
    given = ("split=lines", "documents=true", "max_line=5", "skip_links=appos,pred")
    options = {
        "split": "lines",
        "documents": True,
        "max_line": 5,
        "skip_links": "appos,pred",
        "text_field": "body",
    }
    assert TextOptions("a.txt", given, "body").spec() == Spec("a.txt", options)
    with pytest.raises(ParameterError, match="--reader takes name=value; it is 'split'"):
        TextOptions("a.txt", ("split",)).spec()
    with pytest.raises(ParameterError, match="name it with --corpus"):
        TextOptions(None, ("split=lines",)).spec()


@pytest.mark.parametrize("command", ["atlas", "run", "ablate", "compare", "draw", "prune"])
def test_every_command_with_a_corpus_has_them(command):
    said = (
        CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    )
    assert "--reader" in said
    assert "--text-field" in said


def test_they_reach_the_reader(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text('id,body,label\n1,"Dogs, they bark.",x\n2,Cats do not.,y\n')
    assert [e.text for e in open_corpus(TextOptions(str(table), text_field="body").spec())] == [
        "Dogs, they bark.",
        "Cats do not.",
    ]
    wrong = [
        "run",
        "surface",
        "--corpus",
        str(table),
        "--text-field",
        "nobody",
        "--out",
        str(tmp_path / "x.nc"),
    ]
    result = CliRunner().invoke(app, wrong)
    assert "a.csv:1: there is no field 'nobody' (text_field); there are: id, body, label" in str(
        result.exception
    )
