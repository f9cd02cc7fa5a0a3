"""The gallery: every figure that headwise draws of the built-in model, and of the planted decoder
for what is asked of decoders. `python tools/docs_site/gallery.py` makes it (minutes); the site
shows what is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from docs_site.cache import KEPT, state_of_the_source  # noqa: E402

LIMIT = 60  # examples: enough for every figure, in about two minutes


def folder() -> Path:
    """Where the pictures lie: a folder of the environment's, or one that goes with this state of
    the source."""
    given = os.environ.get("HEADWISE_DOCS_GALLERY")
    return Path(given) if given else KEPT / f"gallery-{state_of_the_source()}"


def pictures_of() -> dict[str, Path]:
    """Every picture by its name (`surface-entropy`)."""
    return {path.stem: path for path in sorted(folder().glob("*.png"))}


def make(atlas: Path = ROOT / "atlas") -> Path:
    """Draw everything, from the atlas that `make atlas` wrote where there is one, else from a small
    one."""
    out = folder()
    if (out / "done").exists():
        return out
    from docs_site.analyses import asked_of_decoders, planted_results
    from headwise.atlas import Atlas
    from headwise.core.version import __version__

    if (
        not (atlas / "atlas.nc").exists()
        or Atlas.load(atlas / "atlas.nc").provenance["headwise"] != __version__
    ):
        atlas = KEPT / "atlas"
        command = [
            sys.executable,
            "-m",
            "headwise",
            "atlas",
            "--limit",
            str(LIMIT),
            "--out",
            str(atlas),
            "--overwrite",
        ]
        subprocess.run(command, check=True)
    for old in KEPT.glob("gallery-*"):
        shutil.rmtree(old)
    out.mkdir(parents=True)
    loaded = Atlas.load(atlas / "atlas.nc")
    for name in loaded:
        draw(name, loaded[name], out)
    for name, dataset in planted_results(asked_of_decoders()).items():
        draw(name, dataset, out)
    (out / "done").touch()
    return out


def draw(group: str, dataset: object, out: Path) -> None:
    """All figures of a group, as pictures of a size fit for a page."""
    from matplotlib import pyplot

    from headwise.plots import style
    from headwise.plots.registry import figures_for

    for spec in figures_for(group):
        for drawn in spec.draw(dataset):  # type: ignore[arg-type]
            with style.context():
                drawn.figure.savefig(out / f"{group}-{drawn.name}.png", dpi=110)
            pyplot.close(drawn.figure)


def page() -> str:
    """Markdown: the pictures, by analysis."""
    from docs_site.analyses import own_analyses
    from headwise.plots.registry import figures_for

    found = pictures_of()
    lines = [
        "# Gallery",
        "Every figure of `headwise atlas`, made by this site's build from the built-in model on the built-in corpus; "
        "those of decoders from a decoder whose heads are planted. Each is in the folder of an atlas as SVG, PDF and "
        "PNG with its numbers as CSV. How to read one: the page of its analysis.",
    ]
    if not found:
        lines.append("This build has no pictures: `make docs` makes them.")
    for name in own_analyses():
        own = [
            (key, spec) for spec in figures_for(name) for key in found if _is(key, name, spec.name)
        ]
        if own:
            lines.append(f"## [{name}](analyses/{name}.md)")
        lines += [f"### {spec.title}\n\n![{spec.title}](gallery/{key}.png)" for key, spec in own]
    return "\n\n".join(lines) + "\n"


def _is(key: str, group: str, figure: str) -> bool:
    return key == f"{group}-{figure}" or key.startswith(f"{group}-{figure}-")


if __name__ == "__main__":
    print(make())
