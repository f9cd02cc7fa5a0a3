"""Folders that are replaced as a whole: written beside, then swapped. Nothing is deleted that
headwise did not write."""

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
from headwise.core.files import TEMPORARY_ENDING, alive, temporary_name, write_atomically

# A folder that is being replaced has such an ending until the new one is in its place.
OLD_ENDING = ".headwise-old"

MANIFEST = (
    ".headwise-files.json"  # what headwise wrote into a folder: all that it may ever remove from it
)


def files_in(folder: Path) -> list[str]:
    """Return the files below a folder as sorted relative paths, without the manifest."""
    names = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name != MANIFEST and (path.is_symlink() or not path.is_dir()):
            names.append(name)
    return sorted(names)


def written_before(folder: Path) -> set[str]:
    """Return the files that headwise wrote into a folder, as its manifest says; none if there is no
    manifest."""
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


def reject_sources(target: Path, sources: Iterable[Path], *, working: bool = True) -> None:
    """Raise an error if a target is, or contains, what is read; with `working` (for folders) also
    if it is, or contains, the working folder."""
    target_path = target.expanduser().resolve()
    needed_paths = list(sources)
    if working:
        needed_paths.insert(0, Path.cwd())
    for source in needed_paths:
        needed = source.expanduser().resolve()
        if target_path == needed:
            raise OutputError(
                f"{target} is read by this command, or is the working folder; "
                "choose another output path.",
                option="out",
            )
        if target_path in needed.parents:
            raise OutputError(
                f"{target} holds {source}, which is still needed; choose another output path.",
                option="out",
            )


def reject_existing(path: Path, may_replace: bool) -> None:
    """Raise an error if a file exists and may not be replaced, or cannot be written."""
    if path.is_dir():
        raise OutputError(
            f"{path} is a folder, not a file; choose another output path.", option="out"
        )
    if path.exists() and not path.is_file():
        # Renaming a new file onto it would take a device, a pipe or a socket away from the system.
        raise OutputError(
            f"{path} is a device, a pipe or a socket, not a file; choose another output path.",
            option="out",
        )
    if path.exists() and not may_replace:
        raise _exists(path)
    check_writable(path.parent)


def _exists(path: Path) -> OutputError:
    return OutputError(
        f"{path} exists; pass overwrite=True to replace it, or choose another output path.",
        option="overwrite",
    )


def reject_unsafe(target: Path, overwrite: bool, sources: Iterable[Path] = ()) -> None:
    """Raise an error before any work if a folder must not be written.

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
    reject_sources(target, sources)
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target} is not a folder; choose another output path.", option="out")
    names = files_in(target)
    if names and not overwrite:
        raise _exists(target)
    if names and not written_before(target):
        first_names = ", ".join(names[:3])
        if len(names) > 3:
            first_names += " …"
        raise OutputError(
            f"{target} holds files that headwise did not write ({first_names}), which it does not "
            "delete; "
            "choose another output path.",
            option="out",
        )


@contextmanager
def new_folder(
    target: Path, *, overwrite: bool = False, sources: Iterable[Path] = (), run: str = ""
) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` once the block has ended well; an error changes
    nothing.

    Of an earlier result only the files named in its manifest are deleted; what a user put there is
    kept. See `reject_unsafe` for the parameters; `run` goes into the manifest, so that the
    work which wrote the folder recognises its own result."""
    _recover(target)
    reject_unsafe(target, overwrite, sources)
    beside = temporary_name(target)
    before = target.with_name(f".{target.name}.{os.getpid()}{OLD_ENDING}")
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
            _copy_user_files(target, beside, written_before(target))
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
        # By now it holds only what the manifest named, and what has been copied.
        shutil.rmtree(before)


def _recover(target: Path) -> None:
    """Repair what an interrupted process left: delete half a new folder, put back an old one that
    was about to be replaced, delete one that was replaced."""
    if not target.parent.is_dir():
        return
    for path in target.parent.glob(f".{glob.escape(target.name)}.*"):
        match = re.fullmatch(
            rf"\.(\d+)({TEMPORARY_ENDING}|{OLD_ENDING})", path.name.removeprefix(f".{target.name}")
        )
        if match is None or not path.is_dir() or alive(int(match[1])):
            continue
        if match[2] == OLD_ENDING and not target.exists():
            os.replace(path, target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _copy_user_files(target: Path, beside: Path, written: set[str]) -> None:
    """Copy what a user put into the earlier result into the new one."""
    for name in files_in(target):
        if name in written:
            continue
        if (beside / name).exists():
            raise OutputError(
                f"{target / name} was not written by headwise and would be replaced; move it away first."
            )
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(target / name, beside / name, follow_symlinks=False)


def check_writable(folder: Path) -> None:
    """Raise an error before any work if results cannot be written to a folder."""
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
