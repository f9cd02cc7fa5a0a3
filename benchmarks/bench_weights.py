"""Weights in bfloat16 and in int8 against float32: the time of a pass, in turns in the same run, and
how much the attention of a head changes.

python benchmarks/bench_weights.py [MODEL] [--examples 32] [--repeats 5]

int8 is torch's dynamic quantization: one scale for each weight matrix, and one for what enters it,
found in each call.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings

import torch
from transformers import AutoModel

from common import report_ratio
from headwise import HeadModel
from headwise.models.demo import demo_model_path
from headwise.text.demo import builtin_corpus
from headwise.text.encode import collate


def int8_model(model: HeadModel) -> HeadModel:
    """Return the model with all its matrices in int8."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch moves this function into a package of its own
        quantized = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(model.module), {torch.nn.Linear}, dtype=torch.qint8
        )
    return HeadModel.open(quantized, tokenizer=model.tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(demo_model_path()))
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)

    model = HeadModel.open(AutoModel.from_pretrained(options.model), tokenizer=options.model)
    half = HeadModel.open(copy.deepcopy(model.module).bfloat16(), tokenizer=model.tokenizer)
    models = {"float32": model, "bfloat16": half, "int8": int8_model(model)}

    rows = []
    for index, example in enumerate(builtin_corpus(prose=True)):
        row = model.encoder.encode(example, index)
        if row is not None:
            rows.append(row)
        if len(rows) == options.examples:
            break
    batch = collate(rows, model.pad_id)

    times: dict[str, list[float]] = {name: [] for name in models}
    with torch.no_grad():
        for repeat in range(options.repeats + 1):
            for name, given in models.items():
                began = time.process_time()
                given.forward(batch)
                if repeat:  # the first warms up
                    times[name].append(time.process_time() - began)
        attention = {}
        for name, given in models.items():
            weights = given.trace(batch, {"attention"}).attention
            assert weights is not None
            attention[name] = weights.float()

    # The mean over all rows of what a head gives to the first token, and to the previous one.
    lengths = torch.as_tensor(batch.lengths)
    is_row = torch.arange(1, batch.ids.shape[1]) < lengths[:, None]
    for name in ("bfloat16", "int8"):
        report_ratio(
            f"a pass with {name} weights", min(times[name]), "float32", min(times["float32"])
        )
        for what, of in (("first", _to_first), ("previous", _to_previous)):
            change = _head_means(of(attention[name]), is_row)
            change -= _head_means(of(attention["float32"]), is_row)
            print(
                f"{name}, share of the {what} token: largest difference of a head "
                f"{change.abs().max():.4f}, mean {change.abs().mean():.4f}"
            )


def _to_first(attention: torch.Tensor) -> torch.Tensor:
    return attention[..., 1:, 0]


def _to_previous(attention: torch.Tensor) -> torch.Tensor:
    return attention.diagonal(-1, -2, -1)


def _head_means(weights: torch.Tensor, is_row: torch.Tensor) -> torch.Tensor:
    """Return the means of `[example, layer, head, row]` over the rows of all examples."""
    counted = weights * is_row[:, None, None]
    return counted.sum((0, 3)) / is_row.sum()


if __name__ == "__main__":
    main()
