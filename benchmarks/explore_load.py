"""The explorer under many clients at once: counts of answers, the slowest, and whether memory stays
flat.

    python benchmarks/explore_load.py [--clients 50] [--seconds 60] [--model FOLDER]

Each client asks again as soon as it is answered (after a 503, as soon as the page would): mostly
for attention, one in ten times for one head, one in fifty for attribution. Memory is the server's,
after a warm-up and at the end."""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

TEXT = "the old man who lived near a river gave his daughter one book about war because she had asked for it"


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def question(chance: random.Random) -> tuple[str, dict[str, object]]:
    text = " ".join(chance.choices(TEXT.split(), k=chance.randint(5, 28)))
    asked: dict[str, object] = {"text": text}
    if chance.random() < 0.5:
        asked["disabled"] = [f"L{chance.randrange(2)}H{chance.randrange(2)}"]
    kind = chance.random()
    if kind < 0.02:
        return "attribution", {**asked, "head": "L1H1", "token": 2}
    return ("head", {**asked, "head": "L1H0"}) if kind < 0.12 else ("look", asked)


async def ask(port: int, path: str, content: dict[str, object]) -> int:
    """The status of one answer, read to its end."""
    body = json.dumps(content).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
        )
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        got = await reader.read()
    finally:
        writer.close()
    top, _, rest = got.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", top.lower())
    if length is None or len(rest) != int(length[1]):
        return 0
    return int(top.split(b" ", 2)[1])


async def client(
    number: int, address: str, until: float, counts: collections.Counter[str], slow: list[float]
) -> None:
    chance, place = random.Random(number), urlsplit(address)
    while time.monotonic() < until:
        path, content = question(chance)
        begun = time.monotonic()
        try:
            status = await ask(place.port or 0, f"{place.path}{path}", content)
        except OSError as error:
            status, _ = 0, counts.update([f"{type(error).__name__}"])
        counts[str(status)] += 1
        if status == 200:
            counts[path] += 1
            slow.append(time.monotonic() - begun)
        else:
            await asyncio.sleep(0.25)


async def crowd(
    address: str, clients: int, seconds: float
) -> tuple[collections.Counter[str], list[float]]:
    counts: collections.Counter[str] = collections.Counter()
    slow: list[float] = []
    until = time.monotonic() + seconds
    await asyncio.gather(
        *(client(number, address, until, counts, slow) for number in range(clients))
    )
    return counts, slow


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", help="a folder or hub name; nothing for the built-in model")
    given = parser.parse_args()
    words = [
        sys.executable,
        "-m",
        "headwise",
        "explore",
        "--no-browser",
        *filter(None, [given.model]),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+/", server.stdout.readline())
            assert found, "the server said no address"
            asyncio.run(crowd(found[0], given.clients, min(10.0, given.seconds / 4)))  # warm-up
            before = resident(server.pid)
            counts, slow = asyncio.run(crowd(found[0], given.clients, given.seconds))
            after = resident(server.pid)
        finally:
            server.terminate()
    others = {
        key: n
        for key, n in counts.items()
        if key not in ("200", "503", "look", "head", "attribution")
    }
    slow.sort()
    print(f"| {given.clients} clients, {given.seconds:.0f} s | |")
    print("|---|---|")
    print(f"| answered (200) | {counts['200']:,} ({counts['look']:,} attention, {counts['head']:,} one head, "
          f"{counts['attribution']:,} attribution) |")  # fmt: skip
    print(f"| told to come again (503) | {counts['503']:,} |")
    print(f"| anything else | {others or 'none'} |")
    print(f"| median and slowest answer | {slow[len(slow) // 2]:.2f} s, {slow[-1]:.2f} s |")
    print(f"| memory of the server before and after | {before:.0f} MiB, {after:.0f} MiB |")


if __name__ == "__main__":
    main()
