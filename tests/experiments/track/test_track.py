"""`headwise.track`: a head that is planted at a known step, random weights, resuming, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import headwise
from headwise.core.errors import ModelError, OutputError, ParameterError
from headwise.experiments.track import births, run, series
from headwise.testing import planted_decoder, random_model

LENGTH = 40
STEPS = (0, 100, 200, 300, 400, 500)
BORN_AT = 300
# How much of the planted weights each model has: all of it from step 300 on.
PLANTED_SHARES = (0.0, 0.01, 0.02, 1.0, 1.0, 1.0)
ANALYSES = ("surface", "sinks", "induction")
SMALL_INDUCTION = {"induction": {"length": 16, "sequences": 6, "disable": 0, "confirm": 2}}


def save_series(folder: Path, modules: Sequence[torch.nn.Module], tokenizer: object) -> Path:
    for step, module in zip(STEPS, modules, strict=True):
        module.save_pretrained(folder / f"step-{step}")  # type: ignore[operator]
        tokenizer.save_pretrained(folder / f"step-{step}")  # type: ignore[attr-defined]
    return folder


def write_texts(path: Path, words: Sequence[str]) -> Path:
    random = np.random.default_rng(0)
    rows = []
    for number in range(12):
        text = " ".join(random.choice(words, LENGTH))
        rows.append(json.dumps({"text": text, "document": f"text {number}"}))
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights between random ones and those of the planted decoder."""
    folder = tmp_path_factory.mktemp("planted")
    decoder = planted_decoder(max_length=LENGTH + 8)
    modules = []
    for number, share in enumerate(PLANTED_SHARES):
        torch.manual_seed(number)
        module = deepcopy(decoder.model)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                # Positions and tokens keep their codes: what is born are the heads.
                if "attn" in name:
                    noise = torch.randn_like(parameter) * 0.02
                    parameter.mul_(share).add_(noise * (1 - share))
        modules.append(module)
    write_texts(folder / "texts.jsonl", [f"word{number}" for number in range(40)])
    return save_series(folder, modules, decoder.tokenizer)


@pytest.fixture(scope="module")
def tracked(planted: Path) -> xr.Dataset:
    return headwise.track(
        [planted / "step-*"],
        planted / "texts.jsonl",
        ANALYSES,
        parameters=SMALL_INDUCTION,
        device="cpu",
    )


def test_planted_heads_are_born_at_their_step(tracked: xr.Dataset) -> None:
    decoder = planted_decoder(max_length=LENGTH + 8)
    assert tracked["step"].values.tolist() == list(STEPS)
    table = births(tracked).set_index(["head", "behaviour"])
    for name, behaviour in (
        ("previous", "previous token"),
        ("induction", "induction"),
        ("duplicate", "duplicate"),
        ("sink", "first token"),
    ):
        layer, head = decoder.where(name)
        birth = table.loc[(f"L{layer}H{head}", behaviour)]
        assert birth["born_by"] == BORN_AT
        assert birth["born_after"] == 200
        assert (birth["earliest"], birth["latest"]) == (BORN_AT, BORN_AT)
        assert birth["after"] > birth["before"] + 0.4
        assert birth["p"] < 0.05
    # The idle head attends to all tokens alike before and after: nothing is born in it.
    layer, head = decoder.where("idle")
    assert f"L{layer}H{head}" not in table.index.get_level_values("head")
    where_induction = decoder.where("induction")
    labels = tracked["label"].values[(slice(None), *where_induction)]
    assert labels[-1] == "induction"
    assert "induction" not in labels[:3]
    assert tracked["label_since"].values[where_induction] == BORN_AT


def test_measures_are_those_of_single_atlases(planted: Path, tracked: xr.Dataset) -> None:
    step = 400
    atlas = headwise.make_atlas(
        planted / f"step-{step}",
        planted / "texts.jsonl",
        ["surface", "sinks"],
        full=True,
        device="cpu",
    )
    one = tracked.sel(step=step)
    entropy = atlas["surface"]["entropy"].transpose("layer", "head").values
    np.testing.assert_allclose(one["value"].sel(measure="surface.entropy"), entropy, rtol=1e-5)
    first_low = atlas["sinks"]["first_low"].transpose("layer", "head").values
    np.testing.assert_allclose(one["low"].sel(measure="sinks.first"), first_low, rtol=1e-5)
    shares = atlas["surface"]["position"].transpose("layer", "head", ...).values
    np.testing.assert_allclose(
        one["value"].sel(measure="surface.position.-1"), shares[..., 0], rtol=1e-5
    )


def test_the_loss_is_that_of_transformers(planted: Path, tracked: xr.Dataset) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = planted / "step-500"
    module = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    losses = []
    for line in (planted / "texts.jsonl").read_text().splitlines():
        ids = tokenizer(json.loads(line)["text"], return_tensors="pt")["input_ids"]
        if ids[0, 0] != tokenizer.bos_token_id:
            ids = torch.cat([torch.tensor([[tokenizer.bos_token_id]]), ids], 1)
        with torch.no_grad():
            losses.append(float(module(input_ids=ids, labels=ids).loss))
    assert float(tracked["loss"].sel(step=500)) == pytest.approx(np.mean(losses), rel=1e-4)
    assert (tracked["loss_low"] <= tracked["loss"]).all()


@pytest.mark.parametrize("causal", [True, False])
def test_nothing_is_born_in_random_weights(causal: bool, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(30)]
    modules = []
    for number in range(len(STEPS)):
        module, tokenizer = random_model(
            causal=causal, layers=2, heads=4, d_head=16, words=words, seed=number
        )
        modules.append(module)
    save_series(tmp_path, modules, tokenizer)
    texts = write_texts(tmp_path / "texts.jsonl", words)
    result = headwise.track(
        [tmp_path / "step-*"], texts, ANALYSES, parameters=SMALL_INDUCTION, device="cpu"
    )
    assert births(result).empty


def test_killed_and_resumed_gives_the_same_bytes(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def track(name: str) -> None:
        headwise.track(
            [planted / "step-*"],
            planted / "texts.jsonl",
            ("surface",),
            device="cpu",
            random=2,
            out=tmp_path / name,
        )

    track("whole.nc")
    measure = run.MeasureModel.__call__
    measured: list[int] = []

    def stop_at_the_fourth(self, unit):
        measured.append(unit.number)
        if len(measured) == 4:
            raise KeyboardInterrupt
        return measure(self, unit)

    monkeypatch.setattr(run.MeasureModel, "__call__", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        track("parts.nc")
    assert not (tmp_path / "parts.nc").exists()
    measured.clear()
    measured += [0] * 4  # never stopped again
    track("parts.nc")
    assert measured[4:] == [3, 4, 5, 5, 5]  # three models were not measured again
    assert (tmp_path / "parts.nc").read_bytes() == (tmp_path / "whole.nc").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"parts.nc", "whole.nc"}


def test_models_of_another_shape_are_rejected(planted: Path, tmp_path: Path) -> None:
    module, tokenizer = random_model(causal=True, layers=3, heads=3)
    module.save_pretrained(tmp_path / "other-600")
    tokenizer.save_pretrained(tmp_path / "other-600")
    with pytest.raises(ModelError, match=r"one shape: '.*other-600' has layers 3, '.*' has 2"):
        headwise.track([planted / "step-*", tmp_path / "other-600"])


def test_another_tokenizer_is_rejected(planted: Path, tmp_path: Path) -> None:
    from shutil import copytree

    copytree(planted / "step-500", tmp_path / "step-600")
    file = tmp_path / "step-600" / "tokenizer.json"
    file.write_text(file.read_text().replace('"word1"', '"swap"').replace('"word2"', '"word1"'))
    with pytest.raises(ModelError, match=r"tokenizer of '.*step-600' differs"):
        headwise.track(
            [planted / "step-*", tmp_path / "step-600"],
            planted / "texts.jsonl",
            ("surface",),
            device="cpu",
        )


def test_names_of_series(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="at least 4 models; 2 were named"):
        headwise.track([planted / "step-0", planted / "step-100"])
    with pytest.raises(ModelError, match=r"No folder with a config.json matches"):
        headwise.track([planted / "nothing-*"])
    with pytest.raises(ParameterError, match="`steps` has 2 numbers for 6 models"):
        headwise.track([planted / "step-*"], steps=(1, 2))
    with pytest.raises(ParameterError, match="named twice"):
        headwise.track([planted / "step-*", planted / "step-0"])

    requested = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        requested.append((name, revision))
        return str(planted / str(revision))

    monkeypatch.setattr(series.huggingface_hub, "snapshot_download", download)
    names = [f"group/model@step-{step}" for step in (300, 0, 100, 200)]
    opened = series.open_series(names)
    assert [model.step for model in opened] == [0, 100, 200, 300]
    assert sorted(requested)[-1] == ("group/model", "step-300")

    def fail(*_: object, **__: object) -> str:
        raise OSError("no route to the hub\nsecond line")

    monkeypatch.setattr(series.huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        ModelError, match=r"'group/model' at revision 'step-0' .*no route to the hub\)"
    ):
        series.open_series(names)


def test_the_command_writes_result_figures_and_page(planted: Path, tmp_path: Path) -> None:
    from headwise.cli.main import whole_command

    arguments = ["track", str(planted / "step-*"), "--corpus", str(planted / "texts.jsonl")]
    arguments += ["--analyses", "surface,sinks", "--random", "3", "--device", "cpu"]
    arguments += ["--out", str(tmp_path / "growth")]
    with pytest.raises(SystemExit) as stopped:
        whole_command()(arguments)
    assert not stopped.value.code
    folder = tmp_path / "growth"
    result = headwise.Atlas.load(folder / "track.nc")["track"]
    assert result.sizes["step"] == 6
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert names == {"track-steps", "track-curves"}
    page = (folder / "index.html").read_text()
    assert 'id="step"' in page
    assert "previous token" in page
    assert page.count("data:image/svg+xml") == 2
    with pytest.raises(OutputError, match="exists"):
        whole_command()(arguments)
