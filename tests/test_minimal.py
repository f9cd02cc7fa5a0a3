"""The small install stays small: `import headwise` is light, and nothing but the core dependencies
is needed to import everything."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _python(code: str) -> str:
    # Nothing here is garbage, and to look for it takes seconds.
    code = f"import gc; gc.disable()\n{code}\ngc.freeze()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_headwise_and_its_command_line_is_light() -> None:
    loaded = _python("import headwise, headwise.cli.main, sys; print(*sys.modules)").split()
    assert not {
        "torch",
        "transformers",
        "xarray",
        "matplotlib",
        "scipy",
        "sklearn",
        "statsmodels",
    } & set(loaded)


def test_everything_imports_without_any_extra() -> None:
    core = {
        re.split(r"[<>=\[]", line)[0].lower()
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    }
    extras = [
        "spacy",
        "datasets",
        "fastapi",
        "uvicorn",
        "ray",
        "sentence_transformers",
        "nltk",
        "accelerate",
        "gguf",
    ]
    assert not set(extras) & core, "an extra became a core dependency: take it off this list"
    # transformers itself looks for some of these, so only headwise's own imports are refused.
    code = f"""
import builtins, importlib, pkgutil, sys
import headwise
real = builtins.__import__
def guarded(name, globals=None, *rest, **more):
    owner = (globals or {{}}).get("__name__", "")
    if owner.startswith("headwise") and name.split(".")[0] in {extras!r}:
        raise ImportError(f"{{owner}} imports {{name}} at import time")
    return real(name, globals, *rest, **more)
builtins.__import__ = guarded
assert len(headwise.known_analyses()) > 20
assert "transformers.modeling_utils" not in sys.modules, "who lists analyses waits for transformers' models"
for module in pkgutil.walk_packages(headwise.__path__, "headwise."):
    if module.name.rsplit(".", 1)[1] not in ("kernels", "launch", "kernel", "divergence_kernel"):  # they need a GPU
        importlib.import_module(module.name)
print("all imported")
"""
    assert "all imported" in _python(code)


def test_public_names_are_few_and_exist() -> None:
    import headwise

    assert len(headwise.__all__) <= 40
    for name in headwise.__all__:
        assert getattr(headwise, name) is not None
