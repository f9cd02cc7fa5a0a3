"""Put a report of `headwise reproduce` among the docs: its Markdown, with its figures as small
pictures.

    python tools/publish_report.py REPORT [REPORT ...] [--docs docs/reproductions] [--drop PATTERN]
    python tools/publish_report.py --index

REPORT is what `headwise reproduce PAPER --out REPORT` wrote. The page keeps every word and number
of `report.md`; a figure becomes a WebP of at most 800 pixels (the report itself has SVG, PDF and
PNG). `--docs docs/reproductions/MODEL` puts the reports of another model there, and `--drop
'pande2021-fig3*'` (repeatable) leaves out pictures, with a line in their place. The claims with
their verdicts are kept in `docs/reproductions/claims/PAPER-MODEL.json`, and `--index` writes those
of all published reports, by models, as `index.md` (as `headwise reproduce --summary` does): the
folders of earlier reports need not be there any more."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from PIL import Image

from headwise.experiments.reproduction.summary import summarize_reports

WIDTH = 800
REPRODUCTIONS = Path("docs/reproductions")
CLAIMS = REPRODUCTIONS / "claims"
CLAIM_FIELDS = ("key", "where", "quote", "printed", "verdict", "why")
BUILT_IN = "wiki-bert-3"


def publish(report: Path, docs: Path, drop: Sequence[str] = ()) -> Path:
    """Write the page and the pictures of one report, without those whose names match a pattern of
    `drop`; returns the page."""
    paper = json.loads((report / "report.json").read_text(encoding="utf-8"))["paper"]["key"]
    text = (report / "report.md").read_text(encoding="utf-8")
    pictures = docs / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob(f"{paper}-*.webp"):
        old.unlink()

    def small(match: re.Match[str]) -> str:
        title, name = match.groups()
        if any(fnmatch(name, pattern) for pattern in drop):
            return f"(Picture left out here: {title}.)"
        with Image.open(report / "figures" / f"{name}.png") as picture:
            height = round(picture.height * WIDTH / picture.width)
            shown = picture.convert("RGB")
            if picture.width > WIDTH:
                shown = shown.resize((WIDTH, height), Image.Resampling.LANCZOS)
            shown.save(pictures / f"{name}.webp", quality=55, method=6)
        return f"![{title}](figures/{name}.webp)"

    write_claims(report)
    page = docs / f"{paper}.md"
    image = r"!\[(.*?)\]\(figures/([\w.-]+)\.svg\)"
    page.write_text(re.sub(image, small, text), encoding="utf-8")
    return page


def write_claims(report: Path, claims: Path = CLAIMS) -> Path:
    """Keep what the index needs of a report: paper, model, sample size, and verdicts."""
    facts = json.loads((report / "report.json").read_text(encoding="utf-8"))
    kept = {
        "paper": {name: facts["paper"][name] for name in ("key", "short")},
        "model": {"name": facts["model"]["name"]},
        "options": {name: facts["options"][name] for name in ("quick", "scale")},
        "claims": [{name: claim[name] for name in CLAIM_FIELDS} for claim in facts["claims"]],
    }
    claims.mkdir(parents=True, exist_ok=True)
    path = claims / f"{kept['paper']['key']}-{kept['model']['name']}.json"
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def publish_index(claims: Path = CLAIMS) -> Path:
    """Write the claims of all published reports, by models; returns the page."""
    reports = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(claims.glob("*.json"))
    ]
    # The built-in model has the first column.
    reports.sort(key=lambda facts: (facts["paper"]["key"], facts["model"]["name"] != BUILT_IN))
    page = claims.parent / "index.md"
    summary = summarize_reports(reports)
    page.write_text(summary.markdown("Claims of five papers, by models"), encoding="utf-8")
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, nargs="*")
    parser.add_argument("--docs", type=Path, default=REPRODUCTIONS)
    parser.add_argument("--drop", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--index", action="store_true")
    arguments = parser.parse_args()
    if arguments.index:
        print(publish_index())
    else:
        for folder in arguments.report:
            print(publish(folder, arguments.docs, arguments.drop))
