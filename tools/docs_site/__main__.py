"""`python tools/docs_site`: compute what the site shows of runs (minutes, kept in .work/docs),
before mkdocs builds."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(
    Path(__file__).parents[1]
)  # instead of this folder, whose modules are those of a package

from docs_site import analyses, architectures, gallery  # noqa: E402

analyses.pages()
architectures.page()
print(gallery.make())
