"""`python tools/demo_corpus` writes the corpus that ships with headwise; `--help` tells what else
can be written."""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
sys.path[0] = str(
    TOOLS
)  # instead of this folder, so that its modules are found under their package's name

from demo_corpus.write import main  # noqa: E402

main()
