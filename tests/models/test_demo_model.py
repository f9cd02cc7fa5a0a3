"""The demo model's cache: right weights, one folder, however many processes start and whatever has
happened to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from headwise.core.errors import MissingExtraError, ModelError, OutputError
from headwise.core.files import cache_dir
from headwise.models import demo

SOURCE = Path(demo.__file__).parents[2]


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny packed model, importable as the real distribution is, and an empty cache."""
    package = tmp_path / "site" / "headwise_wiki_bert"
    data = package / "data"
    data.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from pathlib import Path\ndef path():\n    return Path(__file__).parent / 'data'\n"
    )
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "layer.weight": torch.randint(-127, 128, (6, 4), generator=generator, dtype=torch.int8),
        "layer.weight.scale": torch.rand(6, generator=generator),
        "layer.bias": torch.rand(6, generator=generator),
    }
    save_file(tensors, data / demo.PACKED)
    (data / "config.json").write_text(json.dumps({"model_type": "bert", "dtype": "float16"}))
    (data / "vocab.txt").write_text("[PAD]\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), str(SOURCE)]))
    monkeypatch.delitem(sys.modules, "headwise_wiki_bert", raising=False)
    yield data
    sys.modules.pop("headwise_wiki_bert", None)


def expected(data: Path) -> dict[str, list]:
    """The weights by plain Python arithmetic in float64."""
    raw = load_file(data / demo.PACKED)
    matrix = [
        [int(v) * float(s) for v in row]
        for row, s in zip(
            raw["layer.weight"].tolist(), raw["layer.weight.scale"].tolist(), strict=True
        )
    ]
    return {"layer.weight": matrix, "layer.bias": raw["layer.bias"].tolist()}


def assert_right(folder: Path, data: Path) -> None:
    weights = load_file(folder / demo.UNPACKED)
    assert set(weights) == {"layer.weight", "layer.bias"}
    for name, value in expected(data).items():
        assert weights[name].dtype == torch.float32
        torch.testing.assert_close(
            weights[name].double(), torch.tensor(value, dtype=torch.float64), rtol=1e-6, atol=0
        )
    assert json.loads((folder / "config.json").read_text()) == {
        "model_type": "bert",
        "dtype": "float32",
    }
    assert (folder / "vocab.txt").read_text() == "[PAD]\n"
    assert not (folder / demo.PACKED).exists()


def folders(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "models").iterdir())


def test_cache_dir_follows_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    monkeypatch.delenv("HEADWISE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "headwise"


def test_unpack_writes_the_true_weights(packed: Path, tmp_path: Path) -> None:
    demo.unpack(packed, tmp_path / "out")
    assert_right(tmp_path / "out", packed)
    with safe_open(tmp_path / "out" / demo.UNPACKED, "pt") as file:
        assert file.metadata() == {"format": "pt"}  # without it transformers refuses the file


def test_second_call_finds_the_first_ones_folder(packed: Path) -> None:
    folder = demo.demo_model_path()
    assert_right(folder, packed)
    stamp = (folder / demo.UNPACKED).stat()
    assert demo.demo_model_path() == folder
    again = (folder / demo.UNPACKED).stat()
    assert (again.st_mtime_ns, again.st_ino) == (stamp.st_mtime_ns, stamp.st_ino)
    assert folders(cache_dir()) == [folder.name]


def test_another_packed_file_gets_another_folder(packed: Path) -> None:
    first = demo.demo_model_path()
    tensors = load_file(packed / demo.PACKED)
    save_file({**tensors, "layer.bias": tensors["layer.bias"] + 1}, packed / demo.PACKED)
    second = demo.demo_model_path()
    assert first != second
    assert_right(second, packed)


def flip_a_byte(folder: Path) -> None:
    file = folder / demo.UNPACKED
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut_the_weights(folder: Path) -> None:
    file = folder / demo.UNPACKED
    file.write_bytes(file.read_bytes()[:50])


def lose_the_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def spoil_the_record(folder: Path) -> None:
    (folder / demo.RECORD).write_text("{")


def empty_the_folder(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


DAMAGES = [flip_a_byte, cut_the_weights, lose_the_config, spoil_the_record, empty_the_folder]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_damage_is_seen_and_mended(packed: Path, damage) -> None:
    folder = demo.demo_model_path()
    damage(folder)
    assert demo.demo_model_path() == folder
    assert_right(folder, packed)
    assert folders(cache_dir()) == [folder.name]


WORKER = """
import os, sys
from headwise.models import demo
while sys.stdin.readline():
    children = []
    for _ in range(4):  # forks of one process: importing torch four times takes longer than all the rest
        children.append(os.fork())
        if not children[-1]:
            for _ in range(3):
                folder = demo.demo_model_path()
                assert demo._is_sound(folder), "not sound"
            os.write(1, f"{folder}\\n".encode())
            os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""


def test_four_processes_at_once(packed: Path) -> None:
    """With an empty cache, and then with a damaged one."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for _ in range(2):
            print(file=worker.stdin, flush=True)
            paths = [worker.stdout.readline().strip() for _ in range(4)]
            assert all(paths)
            assert len(set(paths)) == 1
            assert_right(Path(paths[0]), packed)
            assert len(folders(cache_dir())) == 1
            cut_the_weights(Path(paths[0]))
        worker.stdin.close()
        assert worker.wait(timeout=120) == 0


def test_the_loser_of_a_race_keeps_the_winners_folder(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_unpack = demo.unpack

    def slow_unpack(source: Path, target: Path) -> None:
        monkeypatch.setattr(demo, "unpack", real_unpack)
        demo.demo_model_path()  # another process is faster
        real_unpack(source, target)

    monkeypatch.setattr(demo, "unpack", slow_unpack)
    folder = demo.demo_model_path()
    assert_right(folder, packed)
    assert folders(cache_dir()) == [folder.name]


def test_leftovers_of_killed_processes_are_swept(packed: Path) -> None:
    folder = demo.demo_model_path()
    old, young = (folder.parent / f".{folder.name}-{name}" for name in ("old", "young"))
    for left in (old, young):
        left.mkdir()
    os.utime(old, (0, 0))
    lose_the_config(folder)
    demo.demo_model_path()
    assert folders(cache_dir()) == sorted([folder.name, young.name])


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headwise_wiki_bert", None)
    with pytest.raises(MissingExtraError, match=r"pip install headwise-wiki-bert.*demo-model"):
        demo.demo_model_path()


def test_cache_that_cannot_be_written(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(
        "HEADWISE_CACHE", str(tmp_path / "file")
    )  # works for root too, whom a read-only folder does not stop
    with pytest.raises(OutputError, match="HEADWISE_CACHE") as caught:
        demo.demo_model_path()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", ["save_file", "_write_record", "_install"])
def test_full_disk_leaves_nothing_behind(
    packed: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "save_file":
        monkeypatch.setattr(demo, "save_file", full)
    elif step == "_write_record":
        monkeypatch.setattr(Path, "write_text", full)
    else:
        monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OutputError, match=r"No space left on device.*HEADWISE_CACHE"):
        demo.demo_model_path()
    assert folders(cache_dir()) == []


@pytest.mark.parametrize("content", [b"", b"nonsense nonsense"], ids=["empty", "nonsense"])
def test_broken_packed_file(packed: Path, content: bytes) -> None:
    (packed / demo.PACKED).write_bytes(content)
    with pytest.raises(ModelError, match="install it again"):
        demo.demo_model_path()
    assert folders(cache_dir()) == []


@pytest.mark.real
def test_real_models_load(wiki_bert: Path, stories: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for folder, size in ((wiki_bert, (12, 12)), (stories, (6, 6))):
        model, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
        assert model.dtype == torch.float32
        assert (model.config.num_hidden_layers, model.config.num_attention_heads) == size
        assert not info["missing_keys"]
