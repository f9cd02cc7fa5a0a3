"""All-head probing against one classifier per head in sequence, both with SentEval's settings, same
numbers, one run.

The reference is SentEval's `PyTorchClassifier` in our words: for each head and each penalty a
`torch.nn.Linear`, `torch.optim.RMSprop` with weight decay, shuffled batches, a look at the
validation part after each epoch, the best model kept, stop once more than `tenacity` looks brought
nothing better.

    python benchmarks/bench_probing.py [--examples 6000] [--heads 144] [--size 64] [--classes 2]
    [--threads 1] [--device cpu] [--sequential-heads N]
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import replace

import numpy as np
import torch

from headwise.probes import PENALTIES, ProbeSettings, fit_probes
from headwise.text.tasks import Split

WANTED = {"cpu": 8.0, "cuda": 50.0}


def synthetic(
    heads: int, examples: int, size: int, classes: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of heads that know the label more or less well: class means of growing distance in
    correlated noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, examples)
    vectors = random.normal(size=(heads, examples, size)).astype(np.float32)
    centres = random.normal(size=(heads, classes, size)).astype(np.float32)
    distance = np.linspace(0.0, 0.35, heads, dtype=np.float32)[:, None, None]
    vectors += (centres * distance)[:, labels]
    mixing = random.normal(size=(heads, size, size)).astype(np.float32) / np.float32(np.sqrt(size))
    return vectors @ mixing, labels


def one_classifier(
    train: torch.Tensor,
    labels: torch.Tensor,
    held_out: torch.Tensor,
    held_out_labels: torch.Tensor,
    classes: int,
    penalty: float,
    settings: ProbeSettings,
):
    """SentEval's fit of one classifier: (best validation accuracy, best model)."""
    order = np.random.RandomState(settings.seed)
    torch.manual_seed(settings.seed)
    model = torch.nn.Linear(train.shape[1], classes).to(train.device)
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=settings.learning_rate, weight_decay=penalty
    )
    best, best_model, waited = -1.0, model, 0
    for _ in range(settings.max_epochs):
        permutation = torch.from_numpy(order.permutation(len(train))).to(train.device)
        for start in range(0, len(train), settings.batch_size):
            rows = permutation[start : start + settings.batch_size]
            loss = loss_of(model(train[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = float((model(held_out).argmax(1) == held_out_labels).float().mean())
        if accuracy > best:
            best, best_model = accuracy, copy.deepcopy(model)
        else:
            if waited >= settings.tenacity:
                break
            waited += 1
    return best, best_model


def sequential(
    vectors: np.ndarray, labels: np.ndarray, split: Split, classes: int, settings: ProbeSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Validation and test accuracy of each head, one classifier after the other."""
    targets = torch.from_numpy(labels).to(settings.device)
    validation, test = [], []
    for head in vectors:
        mean, deviation = head[split.train].mean(0), head[split.train].std(0)
        scaled = torch.from_numpy((head - mean) / deviation).to(settings.device)
        parts = [
            (scaled[rows], targets[rows])
            for rows in (
                torch.from_numpy(split.train),
                torch.from_numpy(split.validation),
                torch.from_numpy(split.test),
            )
        ]
        fits = [
            one_classifier(*parts[0], *parts[1], classes, penalty, settings)
            for penalty in PENALTIES
        ]
        picked = max(range(len(fits)), key=lambda i: (fits[i][0], i))
        with torch.no_grad():
            right = fits[picked][1](parts[2][0]).argmax(1) == parts[2][1]
        validation.append(fits[picked][0])
        test.append(float(right.float().mean()))
    return np.array(validation), np.array(test)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--examples",
        type=int,
        default=6000,
        help="two thirds train, a sixth validates, a sixth tests",
    )
    parser.add_argument("--heads", type=int, default=144)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--sequential-heads",
        type=int,
        default=0,
        help="time only so many heads in sequence and scale up; 0 for all",
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    vectors, labels = synthetic(given.heads, given.examples, given.size, given.classes)
    cuts = np.split(np.arange(given.examples), [given.examples * 2 // 3, given.examples * 5 // 6])
    split = Split(*cuts)
    settings = ProbeSettings(device=given.device)
    some = given.sequential_heads or given.heads
    chosen = np.linspace(0, given.heads - 1, some).round().astype(int)
    fit_probes(vectors[:2], labels, split, settings)  # warm up
    sequential(vectors[:1], labels, split, given.classes, settings)

    # On the CPU, processor seconds: a busy machine then changes neither side.
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    start = clock()
    together = fit_probes(vectors, labels, split, settings)
    batched_seconds = clock() - start
    start = clock()
    validation, test = sequential(vectors[chosen], labels, split, given.classes, settings)
    sequential_seconds = (clock() - start) * given.heads / some

    ratio = sequential_seconds / batched_seconds
    difference = np.abs(together.test[chosen] - test)
    print(
        f"{given.heads} heads x {len(PENALTIES)} penalties, {given.examples} examples x {given.size}, "
        f"{given.classes} classes, {given.device}, {given.threads} thread(s)"
    )
    print(
        f"one by one     {sequential_seconds:8.2f} s"
        + ("" if some == given.heads else f"  (scaled up from {some} heads)")
    )
    print(f"all at once    {batched_seconds:8.2f} s")
    print(f"ratio          {ratio:8.1f} x   (wanted: {WANTED[given.device.split(':')[0]]:.0f} x)")
    print(
        f"test accuracy: mean {together.test[chosen].mean():.4f} and {test.mean():.4f}, largest difference of "
        f"a head {difference.max():.4f}"
    )
    others = [
        fit_probes(vectors[chosen], labels, split, replace(settings, seed=seed)).test
        for seed in (1, 2)
    ]
    spread = np.std([together.test[chosen], *others], axis=0, ddof=1)
    print(
        f"spread of a head's test accuracy over three seeds: mean {spread.mean():.4f}, largest {spread.max():.4f}"
    )
    print(
        f"validation accuracy: largest difference of a head "
        f"{np.abs(together.validation[chosen] - validation).max():.4f}"
    )


if __name__ == "__main__":
    main()
