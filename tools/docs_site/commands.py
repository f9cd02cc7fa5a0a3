"""The command line, from the commands themselves."""

from __future__ import annotations

import re
from typing import Any

import typer
import typer.main

from docs_site.docstrings import table
from headwise.cli import app


def page() -> str:
    """Markdown: every command with its arguments, options and examples."""
    group: Any = typer.main.get_command(app)
    lines = [
        "# The command line",
        "Made from the commands themselves; `headwise COMMAND --help` says the same. Exit codes: 0; 2 for what you can "
        "fix, in one sentence; 3 where something failed unexpectedly and the rest was kept; 130 and 143 after SIGINT "
        "and SIGTERM. `--debug` with any command shows the traceback behind an error.",
    ]
    lines.append(
        table(
            ("command", ""), [(f"[{n}](#{n})", _first(c.help)) for n, c in group.commands.items()]
        )
    )
    for name, command in group.commands.items():
        lines += [f"## {name} {{#{name}}}", _help(command.help or ""), *_parameters(name, command)]
    return "\n\n".join(lines) + "\n"


def _first(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").split("\n\n")[0]).replace("\b", "")


def _help(text: str) -> str:
    """Paragraphs as they are, commands as blocks, without marks for the terminal."""
    words = re.sub(r"\[/?(?:dim|bold|italic)\]", "", text.replace("\b", ""))
    runs: list[tuple[bool, list[str]]] = []
    for paragraph in filter(None, map(str.strip, re.split(r"\n\s*\n", words))):
        code, line = paragraph.startswith("headwise "), re.sub(r"\s+", " ", paragraph)
        if not runs or not code or not runs[-1][0]:
            runs.append((code, []))
        runs[-1][1].append(line)
    return "\n\n".join(
        "```\n" + "\n".join(own) + "\n```" if code else " ".join(own) for code, own in runs
    )


def _parameters(name: str, command: Any) -> list[str]:
    """Two tables, in the words of `--help`."""
    context = typer.Context(command, info_name=name)
    arguments, options = [], []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        record = parameter.get_help_record(context) or (parameter.human_readable_name, "")
        shown, meaning = (re.sub(r"\s+", " ", part) for part in record)
        row = (f"`{shown.replace(' <bool>', '')}`", meaning)
        (arguments if parameter.param_type_name == "argument" else options).append(row)
    return [
        table((what, ""), rows)
        for what, rows in (("argument", arguments), ("option", options))
        if rows
    ]
