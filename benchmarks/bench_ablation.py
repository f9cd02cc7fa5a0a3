"""Disabling all single heads in one run that shares the layers below the change, against one whole
evaluation for each head; same numbers, one run.

    python benchmarks/bench_ablation.py [--model FOLDER] [--examples 8] [--length 64] [--how
    uniform] [--threads 1] [--device cpu]

Without a model a BERT of the demo model's shape (12 layers of 12 heads, width 384) with random
weights is built. Sharing bounds the gain at 2 L / (L + 1), 1.85 for 12 layers."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from common import report_ratio
from headwise.experiments.ablation import ScoredClassifier, evaluate, single_heads
from headwise.experiments.finetuning import open_classifier
from headwise.experiments.finetuning.classifier import OwnClassifier
from headwise.testing.models import random_model
from headwise.text import Example
from headwise.text.tasks import Task

WANTED = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=None)
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--how", default="uniform")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.model:
        classifier, tokenizer = open_classifier(args.model, args.device)
    else:
        _, tokenizer = random_model()
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=1536,
            initializer_range=0.1,
        )
        classifier = OwnClassifier(
            BertForSequenceClassification(config).to(args.device).eval(), tokenizer
        )  # type: ignore[arg-type]
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    random = np.random.default_rng(0)
    dev = tuple(
        Example(text=" ".join(random.choice(words, args.length)), label=str(i % 2))
        for i in range(args.examples)
    )
    task = Task.of_parts("bench", (), dev)
    subject = ScoredClassifier(classifier, tokenizer, task, max_length=args.length)
    model = subject.model
    conditions = single_heads(model.layers, model.heads)

    clock = (
        time.perf_counter if args.device != "cpu" else time.process_time
    )  # processor time: other work on the machine does not count
    began = clock()
    shared = evaluate(subject, conditions, args.how)
    seconds = clock() - began
    began = clock()
    whole = np.zeros_like(shared.values)
    for i, condition in enumerate(
        conditions
    ):  # one evaluation of the dev set for each head, as users of the tap would write it
        for batch in subject.batches:
            logits = model.forward(
                batch, interventions={condition.heads[0]: args.how}, logits=True
            ).logits
            whole[i, batch.index] = logits.argmax(-1).cpu().numpy()
    reference = clock() - began
    assert shared.shared, shared.note
    assert np.array_equal(shared.values, whole), "the two ways differ"
    report_ratio(
        f"{len(conditions)} heads, shared prefix",
        seconds,
        f"{len(conditions)} whole evaluations",
        reference,
        wanted=f"{WANTED} x",
    )


if __name__ == "__main__":
    main()
