"""Fine-tuning for the published tables on one GPU: reference scores, starts and poolings, several
trainings side by side, models packed small.

    PYTHONPATH=src:demo-model/src python benchmarks/gpu_finetune.py --shared FOLDER --out OUT [--jobs 6] [--only
    reference,starts,poolings,frozen,models]
    PYTHONPATH=src:demo-model/src python benchmarks/gpu_finetune.py --unpack OUT/MRPC.delta.safetensors.gz --to
    MODEL [--base MODEL]

FOLDER holds `data/glue`; the built-in model is trained. A small model leaves a GPU waiting for the
processor, so several processes train at once; each training is one call of
`headwise.experiments.finetuning.finetune`, so the numbers are those of the command line. Packed
models are the difference to the base model, int8 rows with a scale, compressed."""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import multiprocessing
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from headwise.models.demo import demo_model_path

REFERENCE = {"MRPC": "accuracy 82.6, F1 87.5", "RTE": "accuracy 65.7", "STS-B": "Pearson 88.6"}
STEP = 4  # a difference is stored in steps of a quarter of its row's root mean square: 7 % of it is lost
# rows that moved less than this share of their size (tokens never seen, moved by decay alone) are
# stored as zero
UNTOUCHED = 1e-3


def jobs(
    args: argparse.Namespace, chosen: dict[str, dict[str, Any]], ready: bool
) -> Iterator[dict[str, Any]]:
    """The trainings, longest first; those that need a ranking of heads come once it is there."""
    only = set(args.only.split(","))
    if not ready:
        if "models" in only:
            yield {
                "task": "SST-2",
                "seeds": [0],
                "epochs": args.sst2_epochs,
                "learning_rate": args.rate,
                "pack": True,
            }
            yield {"task": "QNLI", "seeds": [0], "learning_rate": args.rate, "pack": True}
        for seed in range(args.seeds if "reference" in only else 1):
            for task in REFERENCE:
                pack = seed == 0 and "models" in only
                if "reference" in only or pack:
                    yield {"task": task, "seeds": [seed], "learning_rate": args.rate, "pack": pack}
        if "starts" in only:
            for start, task, seed in product(("random", "none"), REFERENCE, range(args.seeds)):
                yield {"task": task, "seeds": [seed], "start": start, "learning_rate": args.rate}
        return
    for start in [
        s for s, name in (("pretrained", "poolings"), ("frozen", "frozen")) if name in only
    ]:
        for seed in range(args.pooling_seeds):
            for task in ("STS-B", "MRPC"):
                for pooling, detail in (
                    ("last_layer", {}),
                    ("best_layer", {"layer": chosen[task]["layer"]}),
                    ("top_heads", {"heads": chosen[task]["heads"]}),
                ):
                    rate = args.jo_rate if start == "pretrained" else None
                    yield {
                        "task": task,
                        "seeds": [seed],
                        "recipe": "jo",
                        "pooling": pooling,
                        "start": start,
                        "learning_rate": rate,
                        **detail,
                    }


def perform(
    job: dict[str, Any], shared: str, out: str, device: str, limit: int | None, half: bool
) -> dict[str, Any]:
    """One training in a process of its own folder."""
    from headwise.experiments.finetuning import FinetuneOptions, finetune
    from headwise.text.tasks import read_task

    torch.set_num_threads(2)
    began = time.perf_counter()
    options = dict(job)
    task, pack = options.pop("task"), options.pop("pack", False)
    data = Path(shared, "data", "glue")
    model = demo_model_path()
    with tempfile.TemporaryDirectory() as folder:
        saved = "all" if pack else "none"
        chosen = FinetuneOptions(
            device=device, half=half, checkpoints=False, save_models=saved, **options
        )
        [record] = finetune(model, read_task(task, data=data, limit=limit), folder, options=chosen)
        found = asdict(record)
        if pack:
            trained = Path(folder, record.folder, "model")
            packed = Path(out, f"{task}.delta.safetensors.gz")
            pack_model(trained, model, packed)
            found["packed"] = {
                "file": packed.name,
                "bytes": packed.stat().st_size,
                "metrics": score_packed(
                    packed, model, Path(folder, "again"), task, data, device, limit
                ),
            }
    return {**found, "job_seconds": round(time.perf_counter() - began, 1)}


# --- packing --------------------------------------------------------------------------------------


def pack_model(trained: Path, base: Path, packed: Path) -> None:
    """Write the difference of a fine-tuned model to its base; weights the base does not have are
    stored as they are."""
    before = load_file(base / "model.safetensors")
    tensors: dict[str, torch.Tensor] = {}
    for name, value in load_file(trained / "model.safetensors").items():
        if name not in before or value.ndim != 2:
            tensors[name] = value.float()
            continue
        delta = value.float() - before[name].float()
        size = delta.square().mean(1).sqrt()
        scale = torch.where(
            size > UNTOUCHED * before[name].float().square().mean(1).sqrt(),
            size / STEP,
            torch.zeros_like(size),
        )
        rows = torch.where(
            scale[:, None] > 0, delta / scale.clamp(min=1e-30)[:, None], torch.zeros_like(delta)
        )
        tensors[name] = rows.round().clamp(-127, 127).to(torch.int8)
        tensors[f"{name}.scale"] = scale
    content = save(tensors, metadata={"config": (trained / "config.json").read_text()})
    packed.parent.mkdir(parents=True, exist_ok=True)
    # Run lengths and Huffman codes are all there is to gain in noise and zero rows, and they take
    # no time.
    coder = zlib.compressobj(9, zlib.DEFLATED, 31, 9, zlib.Z_RLE)
    packed.write_bytes(coder.compress(content) + coder.flush())


def unpack_model(packed: Path, base: Path, target: Path) -> None:
    """Write a packed model as an ordinary folder, with the base model's tokenizer."""
    target.mkdir(parents=True, exist_ok=True)
    plain = target / "delta.safetensors"
    plain.write_bytes((lzma if packed.suffix == ".xz" else gzip).decompress(packed.read_bytes()))
    stored = load_file(plain)
    with safe_open(plain, "pt") as file:
        config = file.metadata()["config"]
    before = load_file(base / "model.safetensors")
    weights = {
        name: before[name].float() + value.float() * stored[f"{name}.scale"][:, None]
        if f"{name}.scale" in stored
        else value
        for name, value in stored.items()
        if not name.endswith(".scale")
    }
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    plain.unlink()
    for file in base.iterdir():
        if file.name.startswith(("tokenizer", "vocab", "special_tokens")):
            shutil.copy(file, target / file.name)
    (target / "config.json").write_text(config)


def score_packed(
    packed: Path, base: Path, folder: Path, task: str, data: Path, device: str, limit: int | None
) -> dict[str, float]:
    """The dev scores of the packed model, to see what packing costs."""
    from headwise.experiments.finetuning import open_classifier
    from headwise.experiments.finetuning.data import encode_rows
    from headwise.experiments.finetuning.options import MAX_LENGTH
    from headwise.experiments.finetuning.train import predict
    from headwise.text.tasks import read_task, score

    unpack_model(packed, base, folder)
    model, tokenizer = open_classifier(folder, device)
    found = read_task(task, data=data, limit=limit)
    rows = encode_rows(found.dev, found.targets(found.dev), tokenizer, MAX_LENGTH)
    return score(found.metrics, rows.targets, predict(model, found, rows))


# --- all of it ------------------------------------------------------------------------------------


def rank(shared: Path, device: str, limit: int | None) -> dict[str, dict[str, Any]]:
    """Best layer and twelve best heads for each task, by probes on its training part."""
    from headwise.experiments.finetuning.rank import rank_heads
    from headwise.models import HeadModel
    from headwise.text.tasks import read_task

    chosen = {}
    with HeadModel.open(device=device, max_length=128) as model:
        for name in ("MRPC", "STS-B"):
            ranking = rank_heads(model, read_task(name, data=shared / "data" / "glue", limit=limit))
            chosen[name] = {
                "layer": ranking.layer,
                "heads": ranking.top(model.heads),
                "scores": ranking.scores[: model.heads],
                "layer_scores": ranking.layer_scores,
            }
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=6, help="trainings at once")
    parser.add_argument(
        "--only",
        default="reference,starts,poolings,models",
        help="of reference, starts, poolings, frozen, models",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pooling-seeds", type=int, default=5)
    parser.add_argument(
        "--rate",
        type=float,
        default=None,
        help="learning rate of the reference trainings instead of the recipe's",
    )
    parser.add_argument("--jo-rate", type=float, default=None)
    parser.add_argument("--sst2-epochs", type=int, default=1)
    parser.add_argument(
        "--limit", type=int, default=None, help="examples of each part, for a trial"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--half", action="store_true", help="bfloat16 where that is safe")
    parser.add_argument("--unpack", type=Path)
    parser.add_argument("--base", type=Path, help="default: the built-in model")
    parser.add_argument("--to", type=Path)
    args = parser.parse_args()
    if args.unpack:
        unpack_model(args.unpack, args.base or demo_model_path(), args.to)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    began, records, chosen = time.perf_counter(), [], {}

    def keep(record: dict[str, Any]) -> None:
        from headwise.experiments.finetuning.results import TrainingRecord, summary

        records.append(record)
        scores = " ".join(f"{name} {100 * value:.1f}" for name, value in record["metrics"].items())
        packed = (
            f" packed {record['packed']['bytes'] / 2**20:.1f} MiB {record['packed']['metrics']}"
            if "packed" in record
            else ""
        )
        print(
            f"[{time.perf_counter() - began:5.0f} s] {record['task']} {record['pooling']} {record['start']} "
            f"{record['recipe']} seed {record['seed']}: {scores}"
            f" ({record['job_seconds']} s){packed}",
            flush=True,
        )
        plain = [
            TrainingRecord(**{k: v for k, v in r.items() if k not in ("packed", "job_seconds")})
            for r in records
        ]
        content = {
            "format": 1,
            "records": records,
            "summary": summary(plain),
            "chosen": chosen,
            "reference": REFERENCE,
            "device": args.device,
            "torch": torch.__version__,
        }
        (args.out / "results.json").write_text(json.dumps(content, indent=1))

    context = multiprocessing.get_context("spawn")
    fixed = (str(args.shared), str(args.out), args.device, args.limit, args.half)
    with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        futures = [pool.submit(perform, job, *fixed) for job in jobs(args, chosen, ready=False)]
        if {"poolings", "frozen"} & set(args.only.split(",")):
            chosen = rank(args.shared, args.device, args.limit)
            print(f"[{time.perf_counter() - began:5.0f} s] ranked: {chosen}", flush=True)
            futures += [pool.submit(perform, job, *fixed) for job in jobs(args, chosen, ready=True)]
        for future in as_completed(futures):
            try:
                keep(future.result())
            except Exception as error:  # one training that fails must not cost the others
                print(f"failed: {type(error).__name__}: {error}", flush=True)
    from headwise.experiments.finetuning.results import table

    content = json.loads((args.out / "results.json").read_text())
    for row in table(content["summary"]):
        print("\t".join(row))
    print(f"all: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
