"""The built-in demo model: unpacked once into the cache, checked by hash, safe when several
processes start at once."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from headwise.core.errors import HeadwiseError, MissingExtraError, ModelError, OutputError
from headwise.core.files import CACHE_VARIABLE, cache_dir

PACKED = "model.int8.safetensors"
UNPACKED = "model.safetensors"
RECORD = "headwise-unpacked.json"  # the hash of every file of an unpacked folder
LAYOUT = "1"  # part of the cache key: raise it when unpacking writes other bytes
ABANDONED_AFTER = (
    24 * 3600
)  # seconds after which the temporary folder of a killed process is swept away


class MissingDemoModelError(MissingExtraError):
    """The distribution `headwise-wiki-bert` is not installed."""

    def __init__(self) -> None:
        HeadwiseError.__init__(
            self,
            "The demo model needs the package 'headwise-wiki-bert', which is not installed: pip install "
            "headwise-wiki-bert "
            "(in a checkout of headwise: pip install ./demo-model), or name a model of your own.",
        )


def unpack(source: Path, target: Path) -> None:
    """Write a packed model (int8 rows with a float32 scale each) as an ordinary Hugging Face folder
    in float32.

    In `model.int8.safetensors` a matrix `name` is stored as int8 `name` and float32 `name.scale`,
    one scale per row: `value = int8 × scale`. Vectors are stored as they are. The other files are
    copied, `config.json` with dtype float32."""
    try:
        packed = load_file(source / PACKED)
        weights = {
            name: value.float() * packed[f"{name}.scale"].float()[:, None]
            if f"{name}.scale" in packed
            else value.float()
            for name, value in packed.items()
            if not name.endswith(".scale")
        }
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except (OSError, SafetensorError, ValueError, IndexError, RuntimeError) as error:
        raise ModelError(
            f"{source}: the packed model cannot be read ({error}); install it again."
        ) from error
    config.pop("torch_dtype", None)
    config["dtype"] = "float32"
    try:
        target.mkdir(parents=True, exist_ok=True)
        save_file(weights, target / UNPACKED, metadata={"format": "pt"})
        (target / "config.json").write_text(
            json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
        for file in sorted(source.iterdir()):
            if file.is_file() and file.name not in (PACKED, "config.json"):
                shutil.copyfile(file, target / file.name)
        (target / UNPACKED).chmod(
            0o644
        )  # safetensors writes for the owner alone; a cache may be shared
    except (
        OSError,
        SafetensorError,
    ) as error:  # safetensors reports a full disk as an error of its own
        raise _cannot_write(target, error) from error


def packed_model_path() -> Path:
    """The folder of the installed demo model's packed files."""
    try:
        module = importlib.import_module("headwise_wiki_bert")
    except ImportError as error:
        raise MissingDemoModelError from error
    return Path(module.path())


def demo_model_path() -> Path:
    """The demo model as an ordinary Hugging Face folder, unpacked into the cache when first asked
    for.

    The folder's name holds the hash of the packed files, and the hash of every unpacked file is
    recorded in it and checked at each call: a damaged cache is rebuilt. Processes that start
    together each unpack into a folder of their own; the first to finish gives its name to the
    result, the others throw theirs away."""
    source = packed_model_path()
    target = cache_dir() / "models" / f"wiki-bert-{_packed_digest(source)[:16]}"
    if _is_sound(target):
        return target
    temporary = _temporary_beside(target)
    try:
        unpack(source, temporary)
        _write_record(temporary)
        _install(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not _is_sound(target):
        raise OutputError(
            f"{target}: what was unpacked there reads back changed; check the disk, or set "
            f"{CACHE_VARIABLE} to a folder on another one."
        )
    return target


def _packed_digest(source: Path) -> str:
    digest = hashlib.sha256(LAYOUT.encode())
    try:
        for file in sorted(source.iterdir()):
            if file.is_file():
                digest.update(f"{file.name}\0{_sha256(file)}\0".encode())
    except OSError as error:
        raise ModelError(
            f"{source}: the packed demo model cannot be read ({error.strerror}); install headwise-wiki-bert again."
        ) from error
    return digest.hexdigest()


def _temporary_beside(target: Path) -> Path:
    """A folder of our own next to the target (a rename is atomic only within one file system)."""
    prefix = f".{target.name}-"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f"{prefix}*"):
            if time.time() - left.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    except (
        FileNotFoundError
    ):  # another process swept the same leftover folder between our two looks at it
        return Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    except OSError as error:
        raise _cannot_write(target.parent, error) from error


def _install(temporary: Path, target: Path) -> None:
    """Give the finished folder its name; where another process was first, keep a sound result and
    mend a damaged one.

    Mending replaces file by file, record last: every process writes the same bytes, so that at each
    moment a file is either its damaged or its sound self, and a process that reads the folder
    meanwhile never finds it gone."""
    try:
        temporary.chmod(0o755)
        os.rename(temporary, target)
        return
    except OSError as error:
        if not target.is_dir():
            raise _cannot_write(target, error) from error
    if _is_sound(target):
        return
    try:
        for name in [
            *sorted(file.name for file in temporary.iterdir() if file.name != RECORD),
            RECORD,
        ]:
            os.replace(temporary / name, target / name)
    except OSError as error:
        raise _cannot_write(target, error) from error


def _write_record(folder: Path) -> None:
    record = {file.name: _sha256(file) for file in sorted(folder.iterdir())}
    try:
        (folder / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _is_sound(folder: Path) -> bool:
    """Whether every recorded file is there with its recorded hash."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return UNPACKED in record and all(
            _sha256(folder / name) == digest for name, digest in record.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _sha256(file: Path) -> str:
    """The hash of a file; a file that nobody has written since is not read again by this
    process."""
    about = file.stat()
    return _hashed(
        file, (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    )


@lru_cache(maxsize=64)
def _hashed(file: Path, written: tuple[int, ...]) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _cannot_write(folder: Path, error: Exception) -> OutputError:
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(
        f"{folder}: the demo model cannot be unpacked there ({reason}); free some space or set "
        f"{CACHE_VARIABLE} to a folder that can be written."
    )
