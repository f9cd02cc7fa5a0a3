"""Stop commands at random moments, repeat them, and compare every byte with an undisturbed run.

    python benchmarks/kill_resume.py [--kill 100] [--term 30] [--int 30] [--commands
    atlas,run,probe] python benchmarks/kill_resume.py --backend ray --kill 15 --workers-killed 15
    --term 0 --int 0 --quick

Every trial runs a command in an empty folder, stops it with a signal, and repeats the command until
it ends (which is stopped once more in every third trial). Half of the signals come after a random
time, half at a random write: between the bytes and the name of a file, where a half-written one
would show. All files must then be those of the undisturbed run, byte for byte, figures and page
included, and nothing else may lie there. SIGTERM and SIGINT must end with 143 and 130 and one sentence.

With --quick only the first figure of each group is drawn, as SVG and not laid out: drawing is
nearly all of the time.

With --backend ray every command that is stopped has two workers on a cluster that is started for
all of them, and goes on with workers or without, in turn; --workers-killed counts trials in which a
worker is killed at a random moment and the command is not, so that it must end by itself.

Commands run in a fork of this process, which has imported everything: a trial takes a second, not
ten."""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

COMMANDS = (
    *("atlas", "run", "probe", "ablate", "compare", "finetune"),
    *("patch", "prune", "circuit", "knockout", "cache", "track", "reproduce"),
)
ALONE = ("finetune", "prune", "reproduce")  # these have no workers
WORKERS = "worker"  # what is killed in place of the command
STOPPING = {signal.SIGINT, signal.SIGTERM}
DECODER_LENGTH = 48  # tokens of the long texts of `cache`
PHASES = ("start", "shards", "experiments", "save", "figures", "page", "end")


@dataclass(frozen=True)
class Trial:
    """One call of a command: where it was when it ended, and how."""

    code: int  # minus the signal's number where a signal ended it
    seconds: float
    writes: list[str]
    said: str

    @property
    def phase(self) -> str:
        """The phase it ended in, told by the last file it wrote."""
        if self.code in (0, 3):
            return "end"
        last = self.writes[-1] if self.writes else ""
        for pattern, phase in (
            (r"index\.html|\.headwise-files", "page"),
            (r"\.svg|\.pdf|\.png|\.csv|section-|sample\.safetensors", "figures"),
            (r"\.nc$|written\.checkpoint|results\.json|predictions|model/", "save"),
            (r"shard-|batch-", "shards"),
            (r"\.checkpoint", "experiments"),
        ):
            if re.search(pattern, last):
                return phase
        return "start"


def call(
    arguments: list[str],
    log: Path,
    *,
    how: int = 0,
    after: float | None = None,
    at: int | None = None,
    head: int | None = None,
) -> Trial:
    """Run a command in a fork; the signal `how` comes `after` some seconds, or `at` the so-manieth
    write. With the process of a `head` of Ray, a worker there is killed in its place, once there is
    one."""
    for path in (log, log.with_suffix(".err"), log.with_suffix(".killed")):
        path.unlink(missing_ok=True)
    began = time.perf_counter()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    child = os.fork()
    if child == 0:
        _child(arguments, log, how if at is not None else 0, at or 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    if after is not None:
        deadline = began + after
        while time.perf_counter() < deadline:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.002)
        with suppress(ProcessLookupError):
            if head is None:
                os.kill(child, how)
            elif victim := _a_worker(head, child):
                os.kill(victim, signal.SIGKILL)
                log.with_suffix(".killed").touch()
    _, status = os.waitpid(child, 0)
    writes = log.read_text().split("\n")[:-1] if log.exists() else []
    said = log.with_suffix(".err").read_text() if log.with_suffix(".err").exists() else ""
    return Trial(os.waitstatus_to_exitcode(status), time.perf_counter() - began, writes, said)


def _a_worker(head: int, child: int) -> int | None:
    """A worker of a cluster, as soon as there is one; None where the command ended before."""
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        parents: dict[int, int] = {}
        workers: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):
                number = int(process.name)
                parents[number] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if (process / "cmdline").read_bytes().startswith(b"ray::Worker"):
                    workers.append(number)
        ours = [
            worker
            for worker in workers
            if parents.get(parents[worker]) == head or parents[worker] == head
        ]
        if ours:
            return random.choice(ours)
        time.sleep(0.05)
    return None


def _child(arguments: list[str], log: Path, how: int, at: int) -> None:
    """The command itself; never returns."""
    from headwise.__main__ import main as command
    from headwise.core.interrupts import Interrupted, say, watching_signals

    streams = [
        os.open(os.devnull, os.O_WRONLY),
        os.open(log.with_suffix(".err"), os.O_WRONLY | os.O_CREAT),
    ]
    os.dup2(streams[0], 1)
    os.dup2(streams[1], 2)
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    original, count = os.replace, 0

    def replace(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(
                os.getpid(), how
            )  # a file is whole under its temporary name, and has no other yet
        original(source, target)
        os.write(record, f"{target}\n".encode())

    os.replace = replace
    sys.argv = ["headwise", *arguments]
    code = 1
    try:
        with (
            watching_signals()
        ):  # as the command does first of all; a fork is not ready at once on a busy machine
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            command()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Interrupted as stopped:
        say(str(stopped))
        code = stopped.code
    finally:
        sys.stderr.flush()
        os._exit(code)


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def commands(base: Path) -> dict[str, list[str]]:
    """The commands on tiny models, with OUT for where their results go."""
    from headwise.testing import random_model
    from headwise.testing.corpora import battery_examples
    from headwise.testing.toy import toy_folder, toy_task

    # Two models to compare; all four are the checkpoints of `track`.
    for name, seed in (("a", 0), ("b", 1), ("c", 2), ("d", 3)):
        module, tokenizer = random_model(seed=seed)
        module.save_pretrained(base / name)  # type: ignore[operator]
        tokenizer.save_pretrained(base / name)
    rows = [e for e in battery_examples(4) if e.pair is None and e.words_pair is None]
    lines = [
        {"words": e.words, "heads": e.heads, "relations": e.relations, "upos": e.upos} for e in rows
    ]
    (base / "trees.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    parts = ["tr"] * 12 + ["va"] * 6 + ["te"] * 6
    labelled = zip(parts, rows, strict=False)
    (base / "pets.txt").write_text(
        "".join(f"{part}\t{e.label}\t{' '.join(e.words or ())}\n" for part, e in labelled)
    )
    toy = toy_folder(base / "toy")
    task = toy_task(48)
    for part in ("train", "dev"):
        told = "".join(f"{e.label}\t{e.text}\n" for e in getattr(task, part))
        (base / f"{part}.tsv").write_text("label\tsentence\n" + told)
    decoder, pairs, marked, long_texts = _decoder_files(base)
    a, b, trees = str(base / "a"), str(base / "b"), str(base / "trees.jsonl")
    few = [
        "--set",
        "tree_probe.epochs=1",
        "--set",
        "tree_probe.learning_rate=0.05",
    ]  # no search of a rate
    return {
        "atlas": [
            "atlas",
            a,
            "--corpus",
            trees,
            "--analyses",
            "surface,tree_probe",
            *few,
            "--out",
            "OUT/atlas",
        ],
        "run": [
            "run",
            "tree_probe",
            "--model",
            a,
            "--corpus",
            trees,
            *few,
            "--out",
            "OUT/tree_probe.nc",
        ],
        "probe": ["probe", str(base / "pets.txt"), "--model", a, "--out", "OUT/probing"],
        "ablate": [
            "ablate",
            a,
            "--corpus",
            trees,
            "--out",
            "OUT/ablation.nc",
            "--figures",
            "OUT/figures",
        ],
        "compare": [
            *(
                "compare",
                a,
                b,
                "--corpus",
                trees,
                "--analyses",
                "surface",
                "--out",
                "OUT/change.nc",
            ),
            *("--figures", "OUT/figures"),
        ],
        "finetune": [
            *(
                "finetune",
                str(toy),
                "--task",
                "toy",
                "--train",
                str(base / "train.tsv"),
                "--dev",
                str(base / "dev.tsv"),
            ),
            *(
                "--seeds",
                "2",
                "--epochs",
                "2",
                "--out",
                "OUT/tuned",
                "--figures",
                "OUT/figures",
                "--device",
                "cpu",
            ),
        ],
        "patch": [
            *("patch", decoder, "--pairs", pairs, "--device", "cpu"),
            *("--out", "OUT/patching.nc", "--figures", "OUT/figures"),
        ],
        "prune": [
            *("prune", a, "--heads", "L0H1,L1H0", "--zero", "--corpus", trees),
            *("--device", "cpu", "--out", "OUT/pruned"),
        ],
        "circuit": [
            *("circuit", decoder, "--pairs", pairs, "--random", "2", "--device", "cpu"),
            *("--out", "OUT/circuit.nc", "--figures", "OUT/figures"),
        ],
        "knockout": [
            *("knockout", decoder, "--texts", marked, "--window", "1", "--device", "cpu"),
            *("--out", "OUT/knockout.nc", "--figures", "OUT/figures"),
        ],
        "cache": [
            *("cache", decoder, "--corpus", long_texts, "--length", str(DECODER_LENGTH)),
            *("--sink", "1", "--window", "4", "--needles", "0", "--random", "3", "--keep", "0.5"),
            *("--device", "cpu", "--out", "OUT/cache.nc", "--pattern", "OUT/pattern.json"),
            *("--figures", "OUT/figures"),
        ],
        "track": [
            *("track", a, b, str(base / "c"), str(base / "d"), "--steps", "1,2,4,8"),
            *("--corpus", trees, "--analyses", "surface,offsets", "--device", "cpu"),
            *("--out", "OUT/track"),
        ],
        "reproduce": [
            *("reproduce", "clark2019", "--model", a, "--quick", "--only", "fig2,fig4"),
            *("--device", "cpu", "--out", "OUT/report"),
        ],
    }


def _decoder_files(base: Path) -> tuple[str, str, str, str]:
    """Write a planted decoder and what is read with it: pairs and marked texts that its induction
    head decides, and long texts."""
    from headwise.testing import planted_decoder

    decoder = planted_decoder(max_length=DECODER_LENGTH + 16)
    decoder.model.save_pretrained(base / "decoder")  # type: ignore[operator]
    decoder.tokenizer.save_pretrained(base / "decoder")
    rng = random.Random(0)
    vocabulary = [f"word{number}" for number in range(1, 12)]
    pairs = []
    marked = []
    long_texts = []
    for number in range(12):
        repeated, answer, wrong, *others = rng.sample(vocabulary, 7)
        before, after = others[0], " ".join(others[1:])
        pair = {
            "clean": f"{before} {repeated} {answer} {after} {repeated}",
            "corrupted": f"{before} {repeated} {wrong} {after} {repeated}",
            "answer": answer,
            "wrong": wrong,
        }
        pairs.append(pair)
        text = f"{before} {repeated} [[{answer}]] {after} {repeated}"
        marked.append({"text": text, "answer": answer})
        words = rng.choices(vocabulary, k=DECODER_LENGTH + 4)
        long_texts.append({"text": " ".join(words), "document": f"text {number}"})
    files = {"pairs": pairs, "marked": marked, "long": long_texts}
    for name, rows in files.items():
        lines = [json.dumps(row) + "\n" for row in rows]
        (base / f"{name}.jsonl").write_text("".join(lines))
    written = [str(base / f"{name}.jsonl") for name in files]
    return str(base / "decoder"), written[0], written[1], written[2]


def trials(
    counts: dict[str, int],
    chosen: list[str],
    seed: int = 0,
    quick: bool = False,
    quiet: bool = False,
    head: tuple[int, str] | None = None,
) -> Counter[tuple[str, str, str]]:
    """Stop and repeat so many times for each signal; an AssertionError at the first result that
    differs. With the process and the address of a head of Ray, by workers there."""
    gc.disable()  # while all is imported, nearly nothing is garbage
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg  # noqa: F401  (imported once, not in every fork)
    from PIL import Image
    from typer.testing import CliRunner

    from headwise.cli import app
    from headwise.experiments.all_figures import load_figures

    load_figures()
    # What a command imports on its way is imported here, and what there is stays: forks need not
    # look through it.
    CliRunner().invoke(app, ["list"])
    Image.preinit()
    gc.freeze()
    gc.enable()
    if quick:
        _draw_less()
    rng = random.Random(seed)
    table: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        known = commands(base)
        whole: dict[str, tuple[dict[str, bytes], Trial]] = {}

        def asked(name: str, out: Path, workers: bool = False) -> list[str]:
            on = (
                ["--backend", "ray", "--workers", "2", "--address", head[1]]
                if head and workers
                else []
            )
            return [argument.replace("OUT", str(out)) for argument in known[name]] + on

        for name in chosen:
            trial = call(asked(name, base / "whole" / name), base / "log")
            assert trial.code == 0, f"{name} did not end undisturbed: {trial.said}"
            whole[name] = files(base / "whole" / name), trial
            if head:
                trial = call(asked(name, base / "ray" / name, workers=True), base / "log")
                assert trial.code == 0, f"{name} did not end undisturbed with workers: {trial.said}"
                assert files(base / "ray" / name) == whole[name][0], (
                    f"{name} has other bytes with workers"
                )
                whole[name] = whole[name][0], trial
            if not quiet:
                print(
                    f"{name}: {len(whole[name][0])} files, {len(trial.writes)} writes, {trial.seconds:.1f} s",
                    flush=True,
                )
        order = [how for how, count in counts.items() for _ in range(count)]
        for number, how in enumerate(order):
            name = chosen[number % len(chosen)]
            expected, undisturbed = whole[name]
            out = base / "out"
            shutil.rmtree(out, ignore_errors=True)
            stops = 2 if number % 3 == 2 and how != WORKERS else 1
            for _ in range(stops):
                if rng.random() < 0.5:
                    when = {"after": rng.uniform(0, undisturbed.seconds)}
                else:
                    when = {"at": rng.randint(1, len(undisturbed.writes))}
                first = asked(name, out, workers=True)
                if how == WORKERS:
                    assert head is not None
                    when = {"after": rng.uniform(0, undisturbed.seconds)}
                    trial = call(first, base / "log", head=head[0], **when)  # type: ignore[arg-type]
                    assert trial.code == 0, (
                        f"trial {number}: {name} did not end without a worker: {trial.said}"
                    )
                    killed = (base / "log").with_suffix(".killed").exists()
                    table[name, how, "shards" if killed else "end"] += 1
                    continue
                trial = call(first, base / "log", how=getattr(signal, how), **when)  # type: ignore[arg-type]
                table[name, how, trial.phase] += 1
                if _is_refused(trial) and files(out) == expected:
                    break  # the first stop came after the end
                # Before its first checkpoint, and once its result is safe, a command keeps nothing
                # and promises nothing.
                wrote_checkpoint = any(".checkpoint" in path for path in trial.writes)
                keeps = wrote_checkpoint and any(out.rglob("*.checkpoint"))
                _check_end(trial, how, keeps, f"trial {number}, {name}, {how} {when}")
                if trial.phase == "end":
                    break
            if trial.phase != "end":
                done = (
                    files(out) == expected
                )  # all was written, and only what is printed was missing
                again = call(asked(name, out, workers=number % 2 == 0), base / "log")
                assert again.code == 0 or (done and _is_refused(again)), (
                    f"trial {number}: {name} did not end when repeated: {again.said}"
                )
            if head and not quiet:
                print(f"trial {number}: {name}, {how}, {trial.phase}", flush=True)
            found = files(out)
            differing = sorted(
                key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)
            )
            assert not differing, (
                f"trial {number}, {name}, {how} {when} in {trial.phase}: {', '.join(differing)} differ"
            )
    return table


def _draw_less() -> None:
    """From here on the first figure of each group, as SVG and not laid out, and those of the sample
    empty."""
    from matplotlib.figure import Figure

    import headwise.plots as plots
    from headwise.page import sections
    from headwise.plots import style

    def first(group: str) -> list[Any]:
        return original(group)[:1]

    original = plots.figures_for
    plots.figures_for = sections.figures_for = first
    plots.save_figure = partial(plots.save_figure, formats=["svg"])
    sections.FORMATS = ("svg",)

    def plain(figure: Any) -> Any:
        figure.set_layout_engine(None)
        return figure

    style.finish = plain
    sections.draw_heads = sections.draw_all_maps = lambda *_, **__: Figure(figsize=(1, 1))


def _is_refused(trial: Trial) -> bool:
    """Return whether a command ended at once because its result is there."""
    return trial.code == 2 and " exists; pass overwrite=True" in trial.said


def _check_end(trial: Trial, how: str, keeps: bool, where: str) -> None:
    if how == "SIGKILL" or trial.code in (
        0,
        -getattr(signal, how),
    ):  # before Python could watch, or after the end
        return
    assert trial.code == {"SIGTERM": 143, "SIGINT": 130}[how], (
        f"{where}: exit code {trial.code}: {trial.said}"
    )
    assert trial.said.count("Interrupted by") == 1, f"{where}: {trial.said}"
    if keeps:
        assert "repeat the command to resume" in trial.said, f"{where}: {trial.said}"
    assert "Traceback" not in trial.said, f"{where}: {trial.said}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kill", type=int, default=100)
    parser.add_argument("--term", type=int, default=30)
    parser.add_argument("--int", type=int, default=30)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--backend", choices=("local", "ray"), default="local")
    parser.add_argument("--workers-killed", type=int, default=0)
    options = parser.parse_args()
    counts = {"SIGKILL": options.kill, "SIGTERM": options.term, "SIGINT": options.int}
    counts |= {WORKERS: options.workers_killed} if options.backend == "ray" else {}
    names = [
        name
        for name in options.commands.split(",")
        if options.backend == "local" or name not in ALONE
    ]
    if options.backend == "local":
        table = trials(counts, names, options.seed, options.quick)
    else:
        os.environ["RAY_AUTH_MODE"] = "token"  # what `ray start` asks for by itself
        import ray  # noqa: F401  (once, not in every fork)

        from ray_workers import ENVIRONMENT, free_port, start_head

        port = free_port()
        cluster = start_head(port, ENVIRONMENT | {"RAY_AUTH_MODE": "token"})
        try:
            table = trials(
                counts, names, options.seed, options.quick, head=(cluster.pid, f"127.0.0.1:{port}")
            )
        finally:
            os.killpg(cluster.pid, signal.SIGKILL)
    print(
        "\n"
        + "command".ljust(10)
        + "signal".ljust(9)
        + "".join(phase.rjust(12) for phase in PHASES)
    )
    for name in names:
        for how in counts:
            cells = "".join(str(table[name, how, phase] or "").rjust(12) for phase in PHASES)
            print(name.ljust(10) + how.ljust(9) + cells)
    stopped = sum(count for (_, _, phase), count in table.items() if phase != "end")
    print(
        f"{sum(counts.values())} trials, {stopped} stops before the end: "
        "every result has the bytes of an undisturbed run"
    )


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
