"""Attack every reader with edited inputs, and with the large ones that once hurt; print what each
took.

    python benchmarks/fuzz_readers.py [--inputs 10000] [--only conllu,tar] [--skip-large]

Each reader gets its inputs in a process of its own. It must raise nothing but sentences (`faults`
0), no input may take more than 5 seconds (of processor time, so that other work on the machine does
not count), and no process more than 1 GB. What is read is tokenized too, by two tokenizers. The
first faults are printed with the seed of their input: `--only NAME --start SEED --inputs 1` makes
one again."""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import lzma
import multiprocessing
import os
import random
import resource
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fuzz.reader_inputs import (
    CONLL2012,
    KINDS,
    LEXUNIT,
    PAYLOADS,
    TARGETS,
    Target,
    attack,
    edited,
    tar,
)
from headwise.core.errors import HeadwiseError
from headwise.text import Spec, open_corpus
from headwise.text.encode import Encoder
from text.tiny_tokenizers import bert_like, gpt2_like

SECONDS, BYTES = 5.0, 1 << 30


def used() -> int:
    """The most memory this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def encoder() -> Callable[[object], object]:
    """What is done with an example that was read."""
    both = [Encoder(bert_like(), 64), Encoder(gpt2_like(), 64)]
    return lambda example: [one.encode(example) for one in both]


def input_of(target: Target, seed: int) -> bytes:
    """The input of a number: a right one after one to six edits."""
    rng = random.Random(f"{target.name} {seed}")
    edits = [
        (rng.choice(KINDS), rng.random(), rng.random(), rng.randrange(len(PAYLOADS)))
        for _ in range(1 + min(rng.randrange(6), rng.randrange(6)))
    ]
    return edited(rng.choice(target.seeds), edits)


def fuzz(name: str, start: int, count: int, answers: multiprocessing.Queue) -> None:
    """Attack one reader."""
    target, use = TARGETS[name], encoder()
    before = used()
    read, faults, longest = 0, [], (0.0, 0)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(start, start + count):
            content = input_of(target, seed)
            began = time.process_time()
            try:
                read += attack(target, content, Path(folder), use) == "read"
            except Exception:
                faults.append((seed, traceback.format_exc(limit=-3)[-1500:]))
            longest = max(longest, (time.process_time() - began, seed))
    answers.put((read, faults, longest, used(), before))


# --- large inputs, each once found to have no end or to take gigabytes ----------------------------


def write(name: str, data: bytes) -> Callable[[Path], str]:
    """A file of this content."""

    def put(folder: Path) -> str:
        (folder / name).write_bytes(data)
        return str(folder / name)

    return put


def bomb(
    name: str, opener: Callable[..., io.BufferedIOBase], unit: bytes, size: int
) -> Callable[[Path], str]:
    """A compressed file of one unit, again and again."""

    def put(folder: Path) -> str:
        block = unit * ((1 << 20) // len(unit))
        with opener(folder / name, "wb") as out:
            for _ in range(size // len(block)):
                out.write(block)
        return str(folder / name)

    return put


def fifo(folder: Path) -> str:
    os.mkfifo(folder / "a.txt")
    return str(folder / "a.txt")


def huge_member(name: str) -> Callable[[Path], str]:
    """An archive whose member says that it has 2^60 bytes."""
    whole = bytearray(tar((name, b"One.\n\nTwo.\n"), form=tarfile.GNU_FORMAT))
    entry = tarfile.TarInfo(name)
    entry.size = 1 << 60
    whole[:512] = entry.tobuf(tarfile.GNU_FORMAT)
    return write("a.tar", bytes(whole))


def xml(folder: Path) -> str:
    (folder / "lu").mkdir()
    (folder / "frame").mkdir()
    text = LEXUNIT.replace("<subCorpus>", "<subCorpus>" + "<a>" * 100_000)
    (folder / "lu" / "lu1.xml").write_text(text)
    return f"framenet:{folder}"


def laughs(folder: Path) -> str:
    (folder / "lu").mkdir()
    (folder / "frame").mkdir()
    names = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "ha" * 100}">' for n in range(9)]
    (folder / "lu" / "lu1.xml").write_text(f"<!DOCTYPE a [{''.join(names)}]><a>&e8;</a>")
    return f"framenet:{folder}"


def chain(words: int) -> str:
    """Words each headed by the next, with mentions from each to the last: the head of all is the
    last."""
    rows = [
        f"{n}\tw\t_\tX\t_\t_\t{n + 1 if n < words else 0}\tdep\t_\tEntity=(e{n}-x"
        + ("".join(f"e{m})" for m in range(words, 0, -1)) if n == words else "")
        for n in range(1, words + 1)
    ]
    body = "\n".join(rows).replace(f"(e{words}-xe{words})", f"(e{words}-x)")
    return f"# newdoc id = a\n# global.Entity = eid-etype\n{body}\n"


def flat(words: int) -> str:
    """CoNLL-2012 with mentions from each word to the last, none of which is a constituent."""
    row = "x 0 {} w IN * - - - - * - {}\n"
    ends = "|".join(f"{n})" for n in range(words - 1))
    body = "".join(row.format(n, f"({n}") for n in range(words - 1)) + row.format(words - 1, ends)
    return f"#begin document (x); part 0\n{body}#end document\n"


WIDE = 30_000
LARGE: dict[str, Callable[[Path], str | Spec]] = {
    "#begin document and 1 MB of spaces": write(
        "a.conll", b"#begin document" + b" " * 1_000_000 + b"x(\n0\ta\t_\n"
    ),
    "#begin document and 1 MB of brackets": write(
        "a.conll", b"#begin document" + b"(;" * 500_000 + b"\n0\ta\t_\n"
    ),
    "coreference marks, 1 MB without bracket": write(
        "a.conll", b"0\ta\t" + b"1" * 1_000_000 + b"\n"
    ),
    "coreference marks, 1 MB of openings": write("a.conll", b"0\ta\t" + b"(1" * 500_000 + b"\n"),
    "20,000 nested mentions over a chain": lambda folder: (
        "gum:" + write("a.conllu", chain(20_000).encode())(folder)
    ),
    "90,000 mentions that are no constituents": write("a.conll", flat(90_000).encode()),
    "constituents 100,000 deep": write(
        "a.conll", CONLL2012.replace("(TOP", "(A" * 100_000 + "(TOP", 1).encode()
    ),
    "FrameNet, 30,000 targets by 30,000 elements": write(
        "a.jsonl",
        json.dumps(
            {"frame": "F", "text": "a b", "target": [[0, 1]] * WIDE, "fe": [["E", 0, 1]] * WIDE}
        ).encode(),
    ),
    "FrameNet, 30,000 elements over 99,000 words": write(
        "a.jsonl",
        json.dumps(
            {
                "frame": "F",
                "text": "a " * 99_000,
                "target": [[0, 1]],
                "fe": [["E", 0, 198_000]] * 30_000,
            }
        ).encode(),
    ),
    "one line of 0.25 MB": write("a.txt", b"word " * 52_000),
    "one line of 4 MB": write("a.txt", b"word " * 800_000),
    "a pair of 0.25 MB each": write(
        "a.tsv", b"text1\ttext2\n" + b"word " * 52_000 + b"\t" + b"dog " * 64_000
    ),
    "one line of 4 MB, limits raised": lambda folder: Spec(
        write("a.txt", b"word " * 800_000)(folder), {"max_line": 1 << 23, "max_text": 1 << 23}
    ),
    "one word of 0.25 MB": write("a.txt", b"w" * 260_000),
    "0.5 MB of combining marks": write("a.txt", b"a" + "\u0301".encode() * 260_000),
    "a paragraph of 1,000,000 lines": write("a.txt", b"a\n\nb\n" + b"word\n" * 1_000_000),
    "a sentence of 1,000,000 words": write(
        "a.conllu", b"".join(b"%d\tw\t_\t_\t_\t_\t_\t_\t_\t_\n" % n for n in range(1, 1_000_001))
    ),
    "a document of 1,000,000 words": write(
        "a.conll", b"".join(b"%d\tw\t_\n" % n for n in range(1_000_000))
    ),
    "1,000,000 comment lines": write("a.conllu", b"# text = x\n" * 1_000_000),
    "20,000,000 blank lines": write("a.txt", b"\n" * 20_000_000),
    "JSON 1,000,000 deep": write("a.jsonl", b"[" * 1_000_000),
    "JSON, 300,000 empty lists": write("a.jsonl", b'{"words": [' + b"[]," * 300_000 + b"[]]}"),
    "a quote never closed": write("a.csv", b'text,label\n"' + b"a,b\n" * 1_000_000),
    "a number of 1,000,000 digits": write(
        "a.jsonl", b'{"text": "a", "label": ' + b"9" * 1_000_000 + b"}"
    ),
    "XML 100,000 deep": xml,
    "XML, a billion laughs": laughs,
    "gz, 1 GB of zeros": bomb("a.txt.gz", gzip.open, b"\0", 1 << 30),
    "gz, 1 GB of line ends": bomb("a.jsonl.gz", gzip.open, b"\n", 1 << 30),
    "gz, 256 MB of short rows": bomb("a.jsonl.gz", gzip.open, b'{"text": "a"}\n', 1 << 28),
    "xz, 256 MB of zeros": bomb("a.txt.xz", lzma.open, b"\0", 1 << 28),
    "bz2, 128 MB of line ends": bomb("a.txt.bz2", bz2.open, b"\n", 1 << 27),
    "a pipe": fifo,
    "/dev/zero": lambda folder: "txt:/dev/zero",
    "/dev/zero in a tar's clothes": lambda folder: (
        (folder / "a.tar").symlink_to("/dev/zero") or str(folder / "a.tar")
    ),
    "tar, a wanted member of 2^60 bytes": huge_member("a.txt"),
    "tar, another member of 2^60 bytes": lambda folder: "txt:" + huge_member("a.pdf")(folder),
}


def large(name: str, folder: str, spec: str | Spec, answers: multiprocessing.Queue) -> None:
    """Read one large input, and tokenize what it gives."""
    use = encoder()
    before, began = used(), time.process_time()
    fault, said = "", ""
    try:
        count = 0
        for example in open_corpus(spec):
            if count < 1000:
                use(example)
            count += 1
        said = f"read: {count:,} examples"
    except HeadwiseError as error:
        said = str(error).replace(folder, "")
    except Exception:
        fault = traceback.format_exc(limit=-3)[-1500:]
    answers.put((said, fault, time.process_time() - began, used(), before))


def in_process(work: Callable[..., None], *arguments: object, wait: float) -> tuple | None:
    """What a process answers; None where it does not within the time."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=work, args=(*arguments, answers))
    process.start()
    try:
        return answers.get(timeout=wait)
    except Exception:
        return None
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--skip-large", action="store_true")
    options = parser.parse_args()
    encoder()  # made once, before the processes
    failed = False
    print(
        f"{'reader':14} {'inputs':>7} {'read':>6} {'faults':>6} {'longest s':>9} {'most MB':>8} {'of it own':>9}"
    )
    for name in options.only.split(",") if options.only else TARGETS:
        found = in_process(fuzz, name, options.start, options.inputs, wait=3600)
        if found is None:
            print(f"{name:14} did not end")
            failed = True
            continue
        read, faults, (longest, seed), most, before = found
        print(
            f"{name:14} {options.inputs:7,} {read:6,} {len(faults):6} {longest:9.2f} {most / 1e6:8.0f} "
            f"{(most - before) / 1e6:9.0f}{f'  (seed {seed})' if longest > SECONDS else ''}",
            flush=True,
        )
        failed |= bool(faults) or longest > SECONDS or most > BYTES
        for number, said in faults[:3]:
            print(f"  seed {number}: {said}")
    if not options.skip_large and not options.only:
        print(f"\n{'large input':46} {'s':>6} {'MB':>6}  what was said")
        for name, make in LARGE.items():
            with tempfile.TemporaryDirectory() as folder:
                found = in_process(large, name, folder, make(Path(folder)), wait=60)
            if found is None:
                print(f"{name:46} did not end in a minute")
                failed = True
                continue
            said, fault, seconds, most, before = found
            print(
                f"{name:46} {seconds:6.2f} {(most - before) / 1e6:6.0f}  {(fault or said)[:160]}",
                flush=True,
            )
            failed |= bool(fault) or seconds > SECONDS or most > BYTES
    sys.exit(failed)


if __name__ == "__main__":
    main()
