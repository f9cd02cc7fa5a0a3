"""Build wheel and sdist, check them, install the wheel where there is no source tree, and run it
there.

    python tools/check_package.py [--out dist] [--index]

The wheel is built from the sdist, so that both are whole. Without `--index` nothing is asked of the
network: the dependencies are those of this environment. With it, pip takes them from its index, as
a user's would."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Run in the new environment: the version is everywhere the same, and everything that is not code
# came along.
CHECK = """
import atexit, gc, json, sys
from importlib.metadata import version
from pathlib import Path

gc.disable()  # nothing here lives long enough to need it
atexit.register(gc.freeze)
import headwise
from headwise.cli.main import app
from headwise.page import sections
from headwise.plots import style
from typer.testing import CliRunner

# Drawing each figure three times, and finding where everything has room, would be most of the time.
sections.FORMATS = ("svg",)
style.finish = lambda figure: figure.set_layout_engine(None) or figure
assert Path(headwise.__file__).is_relative_to(sys.prefix), headwise.__file__
said = CliRunner().invoke(app, ["--version"]).output.split()[-1]
done = CliRunner().invoke(app, ["atlas", "--analyses", "patterns", "--limit", "3", "--out", "small"])
assert done.exit_code == 0, (done.output, done.exception)
provenance = headwise.Atlas.load("small").provenance
assert Path("small/index.html").stat().st_size > 100_000
print(json.dumps([version("headwise"), said, provenance["headwise"], headwise.__version__]))
"""


def build(out: Path) -> tuple[Path, Path]:
    """Wheel and sdist; `twine check` refuses a description that an index could not show."""
    quiet = {"stdout": subprocess.DEVNULL}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, env=_plain(), **quiet)  # type: ignore[call-overload]
    (wheel,), (sdist,) = out.glob("headwise-*.whl"), out.glob("headwise-*.tar.gz")
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)],
        check=True,
        **quiet,
    )  # type: ignore[call-overload]
    return wheel, sdist


def install(wheel: Path, folder: Path, index: bool = False) -> Path:
    """The Python of a new environment that has the wheel."""
    venv.create(folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    # With the pip of this environment: to give the new one its own takes longer than all that it
    # does.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-compile",
    ]
    pip += ["--disable-pip-version-check"]
    if index:
        pip += ["-c", str(ROOT / "constraints.txt"), str(ROOT / "demo-model")]
    else:
        pip += ["--no-deps", "--no-index"]
        own = Path(
            subprocess.check_output(
                [str(python), "-c", "import site; print(site.getsitepackages()[0])"], text=True
            ).strip()
        )
        # Behind its own packages; as a plain path, so that an editable headwise there is not seen.
        (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([*pip, str(wheel)], check=True, env=_plain())
    return python


def run(python: Path, folder: Path) -> list[str]:
    """The versions that the installed package says, in four places."""
    import json

    done = subprocess.run(
        [str(python), "-c", CHECK],
        cwd=folder,
        env=_plain(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"The installed package does not work:\n{done.stdout}{done.stderr}")
    versions: list[str] = json.loads(done.stdout.splitlines()[-1])
    return versions


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--index", action="store_true", help="take dependencies from pip's index")
    given = parser.parse_args()
    for old in (*given.out.glob("headwise-*.whl"), *given.out.glob("headwise-*.tar.gz")):
        old.unlink()
    wheel, sdist = build(given.out)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        versions = run(install(wheel, folder / "venv", given.index), folder)
    assert len(set(versions)) == 1, versions
    for path in (wheel, sdist):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    print(f"headwise {versions[0]}: installed without the source tree, and ran")


if __name__ == "__main__":
    main()
