"""`python tools/train_demo_model STEP --help`; the README beside this file names the steps."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
# Instead of this folder: a module `tokenize` found there would hide that of the standard library.
sys.path[0] = str(TOOLS)

STEPS = ("tokenize", "train", "evaluate", "pack")

if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
    sys.exit(f"usage: python tools/train_demo_model {{{','.join(STEPS)}}} ...")
step = importlib.import_module(f"train_demo_model.{sys.argv[1]}")
step.main(sys.argv[2:])
