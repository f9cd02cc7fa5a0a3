"""Hops: how many functions of headwise a newcomer meets on the way through one task.

Each function that runs is counted once, whatever it is called how often; lambdas, comprehensions
and bodies of classes and modules do not count. The task runs twice and the second run is counted:
imports and what is computed once in a process are left out.

    python benchmarks/hops.py attention          # model.attention(text, "L3H5")
    python benchmarks/hops.py atlas              # headwise atlas --analyses surface --limit 4
    python benchmarks/hops.py atlas --list       # every function, by module
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import headwise

PACKAGE = Path(headwise.__file__).resolve().parent
TEXT = "The chef who saw the waiters was tired because she had worked all night."


def functions_of(task: Callable[[], Any]) -> set[CodeType]:
    """The functions of headwise that run during `task`, in this process and its threads."""
    codes: set[CodeType] = set()

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(on_event)
    sys.setprofile(on_event)
    try:
        task()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    functions = set()
    for code in codes:
        # Templates of the page are compiled to functions too; a reader meets them as HTML.
        is_ours = code.co_filename.startswith(str(PACKAGE)) and code.co_filename.endswith(".py")
        if is_ours and not code.co_name.startswith("<"):
            functions.add(code)
    return functions


def attention_task() -> Callable[[], Any]:
    model = headwise.HeadModel.from_pretrained()
    return lambda: model.attention(TEXT, "L3H5")


def atlas_task() -> Callable[[], Any]:
    from headwise.cli.main import main
    from headwise.page import parallel

    # Sections of a page are drawn in other processes, where nothing would be counted.
    parallel.FEWEST = sys.maxsize

    def make_atlas() -> None:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--analyses", "surface", "--limit", "4", "--out", f"{folder}/atlas"]
            sys.argv = ["headwise", "atlas", *options]
            with contextlib.suppress(SystemExit):
                main()

    return make_atlas


TASKS = {"attention": attention_task, "atlas": atlas_task}


def print_hops() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--list", action="store_true", help="print every function, by module")
    options = parser.parse_args()

    task = TASKS[options.task]()
    task()
    functions = functions_of(task)

    names_by_module = collections.defaultdict(list)
    for code in functions:
        module = str(Path(code.co_filename).relative_to(PACKAGE))
        names_by_module[module].append(f"{code.co_qualname}:{code.co_firstlineno}")

    counts: collections.Counter[str] = collections.Counter()
    for module, names in names_by_module.items():
        counts[module.split("/")[0]] += len(names)

    if options.list:
        for module, names in sorted(names_by_module.items()):
            print(f"{module} ({len(names)})")
            for name in sorted(names):
                print(f"    {name}")
    print(f"{options.task}: {len(functions)} functions in {len(names_by_module)} modules")
    print(", ".join(f"{package} {count}" for package, count in counts.most_common()))


if __name__ == "__main__":
    print_hops()
