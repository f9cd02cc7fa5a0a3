"""The table of parsing probes (Clark et al. 2019, Table 3) on all training sentences of English
EWT, several seeds.

    PYTHONPATH=src python benchmarks/table_tree_probe.py --data .work [--device cuda] [--seeds 3]
    [--out .work/table]

`--data` holds `en_ewt-ud-train.conllu.xz`, `en_ewt-ud-dev.conllu.xz` and, for GloVe,
`glove_6B_100d_bertvocab_f16.npz` (without it the model's own embeddings are the word vectors). The
model is the built-in one, or `--model FOLDER`; nothing is downloaded. 10 % of the training
sentences are kept for the search of rates and for stopping; the test part is dev. Prints a Markdown
table, and writes it with the arrays to `--out`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import xarray as xr

from headwise.analyses.contract import make_analysis
from headwise.models import HeadModel
from headwise.run import RunCallbacks, run_analyses
from headwise.text import open_corpus

PAPER = {"attention_words": 77, "attention": 61, "distance_words": 58, "right_branching": 26}
PAPER["random_attention_words"] = 30


def table(found: xr.Dataset) -> str:
    """The probes from best to worst, as Markdown."""
    lines = [
        "| probe | UAS (95 % interval) | deviation over seeds | rate | epochs | ended by itself | paper (PTB) |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name in found["probe"].values[found["uas"].values.argsort()[::-1]]:
        one = found.sel(probe=name)
        uas, low, high, spread = (
            100 * float(one[f"uas{end}"]) for end in ("", "_low", "_high", "_deviation")
        )
        rate, epochs = float(one["learning_rate"]), int(one["epochs"])
        lines.append(
            f"| {str(name).replace('_', ' ')} | {uas:.1f} ({low:.1f} to {high:.1f}) | {spread:.2f} | {rate:.2g} | "
            f"{epochs} | {'yes' if bool(one['converged']) else 'no'} | {PAPER[str(name)]} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(".work"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train-sentences", type=int, default=0, help="0 for all")
    parser.add_argument("--test-sentences", type=int, default=0, help="0 for all")
    parser.add_argument("--out", type=Path, default=Path(".work/tree_probe"))
    args = parser.parse_args()
    train, test = (args.data / f"en_ewt-ud-{part}.conllu.xz" for part in ("train", "dev"))
    glove = args.data / "glove_6B_100d_bertvocab_f16.npz"
    parameters = {
        "train": str(train),
        "train_sentences": args.train_sentences,
        "test_sentences": args.test_sentences,
        "vectors": str(glove) if glove.is_file() else "model",
        "seeds": args.seeds,
    }
    began = time.perf_counter()
    shown: dict[str, float] = {}

    def tell(what: str, done: int, total: int) -> None:
        if what not in shown or time.perf_counter() - shown[what] > 20:
            shown[what] = time.perf_counter()
            print(f"{time.perf_counter() - began:7.0f} s  {what} {done}/{total}", flush=True)

    analysis = make_analysis("tree_probe", parameters)
    with (
        HeadModel.open(args.model, device=args.device) as model,
        tempfile.TemporaryDirectory(dir=args.data) as folder,
    ):
        corpus = open_corpus(str(test), tokenizer=model.tokenizer)
        found = run_analyses(model, corpus, [analysis], folder, callbacks=RunCallbacks(tell))[
            "tree_probe"
        ]
    seconds = time.perf_counter() - began
    counts = ", ".join(
        f"{found.attrs[f'sentences_{part}']:,} {part}" for part in ("train", "validation", "test")
    )
    text = f"{table(found)}\n\nSentences: {counts}; {args.seeds} seeds; {args.device}; {seconds:.0f} s.\n"
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "table.md").write_text(text)
    found.to_netcdf(args.out / "tree_probe.nc")


if __name__ == "__main__":
    main()
