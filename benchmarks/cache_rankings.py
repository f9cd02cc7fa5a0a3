"""Which ranking of key/value heads keeps a short cache best: the tables of SmolLM2-135M in
docs/how-to/cache.md.

    python benchmarks/cache_rankings.py HuggingFaceTB/SmolLM2-135M --corpus articles.jsonl.gz \\
        --length 2048 --documents 16 --needles 8 --effect-texts 4 --random-needles \\
        --work work-2048 --write

    python benchmarks/cache_rankings.py HuggingFaceTB/SmolLM2-135M --corpus articles.jsonl.gz \\
        --length 8192 --documents 5 --ranking-texts 2 --needles 3 --effect-texts 2 \\
        --effect-length 2048 --random-texts 1 --random-shares 0.75 --random-needles \\
        --choices "output error=0,0.5,0.75,0.9" "retrieval=0.25" "effect=0.25" \\
        "uniform window=0.25,0.5" --work work-8192 --write

    python benchmarks/cache_rankings.py HuggingFaceTB/SmolLM2-135M --corpus articles.jsonl.gz \\
        --length 2048 --documents 16 --needles 8 --effect-texts 4 --shares 0.25 0.5 \\
        --needles-only --needles-against-random 4 --work needles-2048 --write

    python benchmarks/cache_rankings.py HuggingFaceTB/SmolLM2-135M --corpus articles.jsonl.gz \\
        --length 2048 --documents 16 --needles 8 --effect-texts 4 --gates 100 --gates-length 512 \\
        --choices "learned gates=0.25,0.5" --random-shares 0.25 --random-needles \\
        --work gates-2048 --write
    (the same with --shares 0.25 0.5 --needles-only --needles-against-random 4
    --names "learned gates" for their needles)

    python benchmarks/cache_rankings.py HuggingFaceTB/SmolLM2-135M --corpus articles.jsonl.gz \\
        --length 8192 --skip 2 --documents 3 --intact --work intact-8192

Heads are ranked on every second text, or on the first `--ranking-texts`; all choices are judged on
the others. Every ranking is compared with the same random choices (on the first `--random-texts`
texts and needles), and with a uniform window of the same memory. An interrupted run resumes: repeat
the command with the same `--work`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import headwise
from headwise.experiments.cache.gates import learn_cache_gates
from headwise.experiments.cache.options import EFFECT, GATES, CacheOptions
from headwise.experiments.cache.result import UNIFORM
from headwise.experiments.cache.run import (
    GATES_OPEN,
    CacheStudy,
    MeasureEffect,
    as_batch,
    long_texts,
)
from headwise.models.kv_cache import CachePattern
from headwise.models.short_context import LongTextModel, sliding_layers
from headwise.run import Job
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import sample_interval

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "cache.md"


def report(what: str, done: int, total: int) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what} {done}/{total}", flush=True)


def measure(given: argparse.Namespace) -> str:
    options = CacheOptions(
        documents=max(given.documents, 4),  # no fewer are allowed; with --rankings all judge
        length=given.length,
        window=given.window,
        needles=given.needles,
        random=given.random,
        # On the beginnings of texts effects are measured apart.
        effects=given.effect_texts if given.effect_length is None else 0,
        recipes=given.recipes,
    )
    with (
        headwise.HeadModel.open(given.model, device=given.device) as model,
        Job.in_folder(given.work, progress=report) as job,
    ):
        corpus = headwise.open_corpus(given.corpus, prose=True)
        long = long_texts(model, corpus, given.skip + given.documents, options.length)
        if not long.documents_apart:
            raise SystemExit("The corpus has too few long documents.")
        texts = long.texts[given.skip :]
        digest = sha256(b"".join(text.tobytes() for text in texts)).hexdigest()
        if given.intact:
            return intact_losses(given, LongTextModel(model, options.sink, options.window), texts)
        job.begin({"texts": digest, "window": options.window, "sink": options.sink})
        study = CacheStudy(job, model, texts, options, sliding_layers(model))
        if given.ranking_texts is not None:
            study.ranking_texts = texts[: given.ranking_texts]
            study.judging_texts = texts[given.ranking_texts :]
        if given.rankings is None:
            _, error = study.measure_distant()
            rankings = {name: scores.mean(0) for name, scores in study.rankings(error).items()}
            if given.effect_length is not None:
                rankings[EFFECT] = effects_on_beginnings(given, study)
            if given.gates:
                rankings[GATES] = gates_of_beginnings(given, study)
            np.savez(given.work.with_suffix(".npz"), **rankings)
        else:
            study.judging_texts = texts
            with np.load(given.rankings) as stored:
                rankings = {name: stored[name] for name in stored.files}
        if given.names:
            rankings = {name: rankings[name] for name in given.names}
        if given.needles_only:
            return needles_against_random(given, study, rankings)
        patterns: dict[tuple[str, float], Any] = {}
        for name, share in choices(given, rankings):
            if name == UNIFORM:
                patterns[name, share] = study.uniform(share)
            else:
                patterns[name, share] = (study.choose(rankings[name], share), options.window)
        judged = study.judge("judged", list(patterns.values()), study.judging_texts)
        everything = (np.ones_like(study.free), options.window)
        found = None
        trials = study.trials(study.judging_texts)
        if trials:
            found = study.find_needles("needles", [everything, *patterns.values()], trials)
        random_rises = {}
        random_found = {}
        for share in given.shares if given.random_shares is None else given.random_shares:
            random = study.random_patterns(share)
            if random:
                few = study.judging_texts[: given.random_texts]
                random_rises[share] = study.judge(f"random-{share:g}", random, few)["rise"]
        for share in given.random_needles:
            random = study.random_patterns(share)
            few_trials = trials[: given.random_texts]
            name = f"random-needles-{share:g}"
            random_found[share] = study.find_needles(name, random, few_trials)
        result = Result(given, model, study, patterns, judged, found, random_rises, random_found)
        return result.text()


def choices(given: argparse.Namespace, rankings: dict[str, np.ndarray]) -> list[tuple[str, float]]:
    """Return which rankings are judged at which shares of whole heads, share by share."""
    pairs = []
    if given.choices is None:
        for share in given.shares:
            pairs += [(name, share) for name in [*rankings, UNIFORM]]
        return pairs
    for choice in given.choices:
        name, _, shares = choice.partition("=")
        if name not in rankings and name != UNIFORM:
            raise SystemExit(f"There is no ranking '{name}' here, only {', '.join(rankings)}.")
        pairs += [(name, float(share)) for share in shares.split(",")]
    return sorted(pairs, key=lambda pair: pair[1])


def effects_on_beginnings(given: argparse.Namespace, study: CacheStudy) -> np.ndarray:
    """Return the effect of each key/value head on the first tokens of the ranking texts.

    Gradients of a whole text of 8,192 tokens take more memory than a small machine has."""
    texts = [ids[: given.effect_length] for ids in study.ranking_texts[: given.effect_texts]]
    measure_effect = MeasureEffect(study.long_model, study.free)
    parts = study.job.each("effects of beginnings", measure_effect, texts)
    return np.mean([part["effect"] for part in parts], axis=0)


def intact_losses(
    given: argparse.Namespace, long_model: LongTextModel, texts: Sequence[np.ndarray]
) -> str:
    """Return what the intact model loses on the last eighth of texts, read after the whole text and
    after the eighth before it alone: whether it uses, or suffers from, a long context."""
    scored = given.length // 8
    model = long_model.model
    everything = long_model.short(np.ones((model.layers, model.kv_heads), bool))
    losses = []
    for ids in texts:
        row = []
        for length in (len(ids), 2 * scored):
            batch = as_batch(model, ids[-length:])
            hidden = long_model.hidden(batch, everything)
            loss, _, _ = long_model.compare(batch, hidden, [], length - scored - 1)
            row.append(loss)
        losses.append(row)
        report("intact", len(losses), len(texts))
    whole, near = np.array(losses).T
    return (
        f"Loss of the intact model on the last {scored:,} of {given.length:,} tokens, {len(texts)} "
        f"texts: {interval(whole, 3)} nats after the whole text, {interval(near, 3)} after the "
        f"{scored:,} tokens before them alone; difference {interval(whole - near, 3, sign='+')}."
    )


def gates_of_beginnings(given: argparse.Namespace, study: CacheStudy) -> np.ndarray:
    """Return how open the learned gate of each key/value head ends, a quarter of them open, learned
    on the first tokens of the ranking texts."""

    def measure() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        batches = [as_batch(study.model, ids[: given.gates_length]) for ids in study.ranking_texts]
        n_open = round(GATES_OPEN * study.free.sum())
        openness = learn_cache_gates(
            study.long_model, batches, study.free, n_open, steps=given.gates, report=report
        )
        return {"openness": openness}, {}

    return study.job.checkpoint("gates of beginnings", measure).arrays["openness"]


def needles_against_random(
    given: argparse.Namespace, study: CacheStudy, rankings: dict[str, np.ndarray]
) -> str:
    """Return the table of needles alone: every ranking against random choices of as many heads, on
    the same needles.

    The loss is not judged: two thirds of the passes of a whole table are for it."""
    trials = study.trials(study.judging_texts)[: given.needles_against_random]
    window = study.options.window
    names = "".join(f"-{name}" for name in given.names or ())
    lines = ["| choice | share whole | needles: own / random, % | p |", "|---|---|---|---|"]
    for share in given.shares:
        own = [(study.choose(scores, share), window) for scores in rankings.values()]
        found = study.find_needles(f"needles-{share:g}{names}", own, trials)
        random = study.random_patterns(share)
        drawn = study.find_needles(f"random-needles-{share:g}", random, trials)
        for place, name in enumerate(rankings):
            cells = [name, f"{share:g}", *compare_needles(found[:, place], drawn)]
            lines.append("| " + " | ".join(cells) + " |")
    head = (
        f"Needles at {given.length:,} tokens, against {given.random} random choices of as many heads, "
        f"all on the first {len(trials)} needles (smallest and largest of the choices in brackets); p: "
        f"the share of choices at least as good, the ranking's own among them "
        f"({1 / (given.random + 1):.3f} is the smallest possible):"
    )
    return head + "\n\n" + "\n".join(lines)


def compare_needles(own: np.ndarray, drawn: np.ndarray) -> list[str]:
    """Return the cells of a table: needles of a choice `[needle]` and of random ones `[needle, draw]`,
    and p."""
    mean = own.mean()
    means = drawn.mean(0)
    p = (1 + (means >= mean).sum()) / (1 + len(means))
    return [
        f"{100 * mean:.0f} / {100 * means.mean():.0f} ({100 * means.min():.0f} to "
        f"{100 * means.max():.0f})",
        f"{p:.3f}",
    ]


class Result:
    """What was measured, and its tables."""

    def __init__(
        self,
        given: argparse.Namespace,
        model: headwise.HeadModel,
        study: CacheStudy,
        patterns: dict[tuple[str, float], Any],
        judged: dict[str, np.ndarray],
        found: np.ndarray | None,
        random_rises: dict[float, np.ndarray],
        random_found: dict[float, np.ndarray],
    ) -> None:
        self.given = given
        self.study = study
        self.names = list(patterns)
        self.rises = judged["rise"]
        self.divergences = judged["divergence"]
        self.found = found
        self.random_rises = random_rises
        self.random_found = random_found
        self.kilobytes = []
        per_token = 2 * model.d_head * model.kv_heads * model.layers * model.dtype.itemsize
        for whole, window in patterns.values():
            pattern = CachePattern(whole, study.options.sink, window, study.sliding)
            held = pattern.tokens_held(given.length) / given.length
            self.kilobytes.append(per_token * held / 1024)

    def text(self) -> str:
        facts = f"At {self.given.length:,} tokens: "
        if self.given.rankings is None:
            n_ranking = len(self.study.ranking_texts)
            effect = f"{min(self.given.effect_texts, n_ranking)} of them"
            if self.given.effect_length is not None:
                effect = f"the first {self.given.effect_length:,} tokens of {effect}"
            if self.given.gates:
                effect += (
                    f"; gates: {self.given.gates} steps on the first {self.given.gates_length:,} "
                    "tokens"
                )
            facts += (
                f"{n_ranking} texts to rank (effect: {effect}), {len(self.rises)} others to judge"
            )
        else:
            facts += f"heads ranked on the shorter texts above, {len(self.rises)} others to judge"
        if self.found is not None:
            facts += (
                f", {len(self.found)} needles ({100 * self.found[:, 0].mean():.0f} % of their tokens "
                "predicted with all heads whole)"
            )
        parts = [facts + ":", self.curve()]
        # With five texts the smallest p of two sides is 0.06.
        best = self.best_rankings()
        if len(self.rises) > 5 and best:
            parts.append("\n".join(best))
        compared = self.comparison()
        if compared:
            draws = next(iter(self.random_rises.values())).shape
            parts.append(
                f"Against {draws[1]} random choices of as many heads, all on the first {draws[0]} of "
                "the judging texts"
                + (" and needles" if self.random_found else "")
                + "; p: the share of choices at least as good, the ranking's own among them "
                f"({1 / (draws[1] + 1):.3f} is the smallest possible); uniform window: sign-flip "
                "test that the ranking is better, one side, over all judging texts (needles):"
            )
            parts.append(compared)
        return "\n\n".join(parts)

    def curve(self) -> str:
        lines = [
            "| choice of whole heads | share whole | KiB per token | rise of the loss, nats | "
            "divergence, nats | needles, % |",
            "|---|---|---|---|---|---|",
        ]
        printed_none = False
        for place, (name, share) in enumerate(self.names):
            if share == 0:
                if printed_none:
                    continue
                printed_none = True
                name = "none"
            needles = "-"
            if self.found is not None:
                needles = interval(100 * self.found[:, 1 + place], 0, low=0, high=100)
            cells = [
                name,
                f"{share:g}",
                f"{self.kilobytes[place]:.1f}",
                interval(self.rises[:, place], 3, sign="+"),
                interval(self.divergences[:, place], 3, low=0),
                needles,
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def best_rankings(self) -> list[str]:
        """Return sentences that say which ranking is best at each share, and how surely."""
        lines = []
        shares = {share: None for name, share in self.names if 0 < share < 1}
        for share in shares:
            places = {
                name: place
                for place, (name, at) in enumerate(self.names)
                if at == share and name != UNIFORM
            }
            measures = [("lowest loss", -self.rises)]
            if self.found is not None:
                measures.append(("most tokens of needles", self.found[:, 1:]))
            if len(places) < 2:
                continue
            for what, values in measures:
                best = max(places, key=lambda name: values[:, places[name]].mean())
                others = []
                for name, place in places.items():
                    if name != best:
                        better = values[:, places[best]] - values[:, place]
                        others.append(f"{name} {min(1.0, 2 * paired_p(better)):.3f}")
                lines.append(
                    f"- {share:g} whole, {what}: **{best}** (against the others, sign-flip test, two "
                    f"sides, p: {', '.join(others)})."
                )
        return lines

    def comparison(self) -> str:
        head = ["choice", "share whole", "loss saved against none, nats", "loss: own / random", "p"]
        if self.random_found:
            head += ["needles: own / random, %", "p"]
        head += ["loss against uniform window, p", "needles against uniform window, p"]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        none = next((place for place, (_, share) in enumerate(self.names) if share == 0), None)
        for place, (name, share) in enumerate(self.names):
            if name == UNIFORM or share not in self.random_rises:
                continue
            drawn = self.random_rises[share]
            own = self.rises[: len(drawn), place].mean()
            means = drawn.mean(0)
            p = (1 + (means <= own).sum()) / (1 + len(means))
            saved = "-"
            if none is not None:
                saved = interval(self.rises[:, none] - self.rises[:, place], 3, sign="+")
            loss_p = needle_p = "-"
            if (UNIFORM, share) in self.names:
                uniform = self.names.index((UNIFORM, share))
                loss_p = f"{paired_p(self.rises[:, uniform] - self.rises[:, place]):.3f}"
            if self.found is not None and loss_p != "-":
                better = self.found[:, 1 + place] - self.found[:, 1 + uniform]
                needle_p = f"{paired_p(better):.3f}"
            cells = [
                name,
                f"{share:g}",
                saved,
                f"{own:+.3f} / {means.mean():+.3f} ({means.min():+.3f} to {means.max():+.3f})".replace(
                    "-", "−"
                ),
                f"{p:.3f}",
                *self.needle_cells(place, share),
                loss_p,
                needle_p,
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) if len(lines) > 2 else ""

    def needle_cells(self, place: int, share: float) -> list[str]:
        if not self.random_found:
            return []
        if share not in self.random_found or self.found is None:
            return ["-", "-"]
        drawn = self.random_found[share]
        return compare_needles(self.found[: len(drawn), 1 + place], drawn)


def paired_p(better: np.ndarray) -> float:
    return float(sign_flip_test(better[:, None]).p_value[0])


def interval(
    values: np.ndarray,
    digits: int,
    *,
    sign: str = "",
    low: float = -np.inf,
    high: float = np.inf,
) -> str:
    """Return mean and 95 % interval of a sample; the ends are kept within what is possible."""
    mean, lower, upper = sample_interval(values[:, None])
    cells = [mean[0], max(float(lower[0]), low), min(float(upper[0]), high)]
    shown = [f"{cell:{sign}.{digits}f}" for cell in cells]
    return f"{shown[0]} ({shown[1]} to {shown[2]})".replace("-", "−")


def write(section: str, text: str) -> None:
    """Put a text between its marks in the page."""
    mark = f"<!-- made by benchmarks/cache_rankings.py {section} -->\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(mark)
    if not rest:
        raise SystemExit(f"{PAGE} has no mark {mark!r}")
    ending = rest[rest.index("<!-- end -->") :]
    PAGE.write_text(f"{before}{mark}\n{text}\n\n{ending}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--corpus", required=True, help="long texts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--needles", type=int, default=8)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.25, 0.5])
    parser.add_argument(
        "--choices",
        nargs="*",
        metavar="RANKING=SHARE,...",
        help="which rankings are judged at which shares; by default all at all",
    )
    parser.add_argument("--ranking-texts", type=int, help="how many rank; by default every second")
    parser.add_argument("--effect-texts", type=int, default=6)
    parser.add_argument(
        "--effect-length", type=int, help="measure effects on so many first tokens of each text"
    )
    parser.add_argument("--gates", type=int, default=0, help="learn gates in so many steps")
    parser.add_argument(
        "--gates-length", type=int, help="learn them on so many first tokens of each text"
    )
    parser.add_argument("--no-recipes", dest="recipes", action="store_false")
    parser.add_argument("--random", type=int, default=20)
    parser.add_argument("--random-texts", type=int, default=2)
    parser.add_argument(
        "--random-shares", type=float, nargs="*", help="shares of the random choices; default: all"
    )
    parser.add_argument("--random-needles", type=float, nargs="*", default=[0.25, 0.5])
    parser.add_argument(
        "--needles-only",
        action="store_true",
        help="only the table of needles against random choices",
    )
    parser.add_argument(
        "--needles-against-random", type=int, default=4, help="how many needles that table has"
    )
    parser.add_argument(
        "--intact", action="store_true", help="only the loss of the intact model, by its context"
    )
    parser.add_argument(
        "--rankings",
        type=Path,
        help="scores of an earlier run (its --work with .npz); all texts judge",
    )
    parser.add_argument("--names", nargs="*", help="which of these rankings; default: all")
    parser.add_argument("--skip", type=int, default=0, help="texts of the corpus that are left out")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--write", action="store_true", help="into docs/how-to/cache.md")
    given = parser.parse_args()
    text = measure(given)
    print(text)
    if given.write:
        section = f"--length {given.length}"
        if given.gates:
            section += f" --gates {given.gates}"
        if given.needles_only:
            section += " --needles-only"
        write(section, text)


if __name__ == "__main__":
    main()
