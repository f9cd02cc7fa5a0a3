"""Folders that are replaced whole: written beside, then swapped; nothing goes that headwise did not
write."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headwise.core.errors import OutputError
from headwise.core.files import alive, temporary_name, write_atomically

MANIFEST = (
    ".headwise-files.json"  # what headwise wrote into a folder: all that it may ever remove from it
)


def files_in(folder: Path) -> list[str]:
    """Every file below a folder, by its path from there, sorted; the manifest itself is none."""
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(
        name for path in files if (name := path.relative_to(folder).as_posix()) != MANIFEST
    )


def written_before(folder: Path) -> set[str]:
    """The files that headwise itself wrote into a folder, as its manifest says; none where there is
    no manifest."""
    names = _read_manifest(folder).get("files")
    if not isinstance(names, list):
        return set()
    return {name for name in names if isinstance(name, str)}


def written_by(folder: Path) -> str:
    """Return the digest of the work that wrote a folder, as its manifest says; "" where unknown."""
    return str(_read_manifest(folder).get("run", ""))


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(manifest, dict):
        return {}
    return manifest


def refuse_sources(target: Path, sources: Iterable[Path], *, working: bool = True) -> None:
    """Refuse a target that is, or holds, what is read; with `working` (for folders) the working
    folder too."""
    place = target.expanduser().resolve()
    for source in (*((Path.cwd(),) if working else ()), *sources):
        needed = source.expanduser().resolve()
        if place == needed:
            raise OutputError(
                f"{target} is read by this command, or is the working folder; "
                "choose another output path.",
                option="out",
            )
        if place in needed.parents:
            raise OutputError(
                f"{target} holds {source}, which is still needed; choose another output path.",
                option="out",
            )


def refuse_existing(path: Path, may_replace: bool) -> None:
    """Refuse a file that is there, unless it may be replaced; find out, too, whether it can be
    written."""
    if path.is_dir():
        raise OutputError(
            f"{path} is a folder, not a file; choose another output path.", option="out"
        )
    if path.exists() and not may_replace:
        raise _exists(path)
    check_writable(path.parent)


def _exists(path: Path) -> OutputError:
    return OutputError(
        f"{path} exists; pass overwrite=True to replace it, or choose another output path.",
        option="overwrite",
    )


def refuse_unsafe(target: Path, overwrite: bool, sources: Iterable[Path] = ()) -> None:
    """Find out before any work that a folder must not be written.

    Parameters
    ----------
    target : Path
        Where the result goes.
    overwrite : bool
        Whether an earlier result of headwise there may be replaced.
    sources : iterable of Path, optional
        What is read: the model, the corpus. None of it may lie in the target, nor may the working
        folder.
    """
    refuse_sources(target, sources)
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(
            f"{target} is a file, not a folder; choose another output path.", option="out"
        )
    there = files_in(target)
    if there and not overwrite:
        raise _exists(target)
    if there and not written_before(target):
        some = ", ".join(there[:3]) + (" …" if len(there) > 3 else "")
        raise OutputError(
            f"{target} holds files that headwise did not write ({some}), which it does not delete; "
            "choose another output path.",
            option="out",
        )


@contextmanager
def new_folder(
    target: Path, *, overwrite: bool = False, sources: Iterable[Path] = (), run: str = ""
) -> Iterator[Path]:
    """An empty folder beside `target` that takes its place once the block has ended well; an error
    leaves all as is.

    Of an earlier result only the files named in its manifest go; what else a user put there is
    carried over. See `refuse_unsafe` for the parameters; `run` goes into the manifest, so that the
    work which wrote the folder recognises its own result."""
    _recover(target)
    refuse_unsafe(target, overwrite, sources)
    beside = temporary_name(target)
    before = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        beside.mkdir(parents=True)
        yield beside
        names = files_in(beside)
        for name in names:
            _to_disk(beside / name)
        manifest: dict[str, Any] = {"files": names}
        if run:
            manifest["run"] = run
        write_atomically(beside / MANIFEST, json.dumps(manifest, indent=1).encode())
        if target.exists():
            _carry_over(target, beside, written_before(target))
            os.replace(target, before)
        os.replace(beside, target)
    except OSError as error:
        if before.exists() and not target.exists():
            os.replace(before, target)
        raise OutputError(
            f"{target} cannot be written ({error.strerror or error}); free some space, "
            "or choose another output path.",
            option="out",
        ) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(beside)
    if before.exists():
        shutil.rmtree(
            before
        )  # by now it holds only what the manifest named, and copies of what was carried over


def _recover(target: Path) -> None:
    """Put right what a process that was killed left: half a new folder goes, an old one that was
    about to be replaced comes back, and one that was replaced goes."""
    for path in (
        target.parent.glob(f".{glob.escape(target.name)}.*") if target.parent.is_dir() else ()
    ):
        found = re.fullmatch(r"\.(\d+)\.(tmp|old)", path.name.removeprefix(f".{target.name}"))
        if found is None or not path.is_dir() or alive(int(found[1])):
            continue
        if found[2] == "old" and not target.exists():
            os.replace(path, target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _carry_over(target: Path, beside: Path, own: set[str]) -> None:
    """Copy what a user put into the earlier result into the new one."""
    for name in files_in(target):
        if name in own:
            continue
        if (beside / name).exists():
            raise OutputError(
                f"{target / name} was not written by headwise and would be replaced; move it away first."
            )
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(target / name, beside / name, follow_symlinks=False)


def check_writable(folder: Path) -> None:
    """Find out before any work that the results could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written to ({error.strerror or error}); "
            "choose another output path.",
            option="out",
        ) from error
