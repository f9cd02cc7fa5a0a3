"""The network and the classifier that comes with headwise: shape, size, tricks that change nothing,
planted maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from headwise.analyses.patterns import PATTERNS, classify_maps, load_classifier
from headwise.analyses.patterns import network as network_module
from headwise.analyses.patterns.maps import CHANNELS, SIZE
from headwise.analyses.patterns.network import PatternNetwork
from headwise.core.errors import InputError, ParameterError


def some_maps(count: int, n: int) -> torch.Tensor:
    return (3 * torch.randn(count, n, n, generator=torch.Generator().manual_seed(0))).softmax(-1)


def test_eight_convolutions_with_relu() -> None:
    layers = list(PatternNetwork().convolutions)
    assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == 8
    assert sum(isinstance(layer, nn.ReLU) for layer in layers) == 8
    assert PatternNetwork()(torch.rand(3, len(CHANNELS), SIZE, SIZE)).shape == (3, len(PATTERNS))


def test_shipped_weights_are_small() -> None:
    folder = Path(network_module.__file__).parent
    assert (folder / network_module.WEIGHTS).stat().st_size < 1_000_000


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="cannot be read as a pattern classifier"):
        load_classifier(tmp_path / "x")
    save_file({"a": torch.zeros(1)}, tmp_path / "y")
    with pytest.raises(InputError, match="no pattern classifier of this version"):
        load_classifier(tmp_path / "y")


def test_a_damaged_classifier_is_refused(tmp_path: Path) -> None:
    with safe_open(Path(network_module.__file__).parent / network_module.WEIGHTS, "pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    lacking = {
        name: value for name, value in tensors.items() if not name.endswith("classify.weight")
    }
    cut = tensors | {
        name: value[:-1] for name, value in tensors.items() if name.endswith("classify.weight")
    }
    unnamed = {key: value for key, value in about.items() if key != "networks"}
    for number, (weights, said) in enumerate([(lacking, about), (cut, about), (tensors, unnamed)]):
        save_file(weights, tmp_path / str(number), metadata=said)
        with pytest.raises(InputError, match="is a damaged pattern classifier"):
            load_classifier(tmp_path / str(number))


def test_batching_changes_nothing() -> None:
    maps = some_maps(5, 40)
    together = classify_maps(maps.reshape(1, 5, 40, 40), causal=False)
    assert together.shape == (1, 5, len(PATTERNS))
    torch.testing.assert_close(together.sum(-1), torch.ones(1, 5))
    for k in range(5):
        torch.testing.assert_close(
            classify_maps(maps[k], causal=False), together[0, k], atol=1e-5, rtol=1e-4
        )


def test_rows_need_not_sum_to_one() -> None:
    maps = some_maps(3, 25)
    torch.testing.assert_close(
        classify_maps(maps * 7, causal=True), classify_maps(maps, causal=True), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(3, 4),
        torch.zeros(2, 3, 4),
        torch.zeros(4),
        torch.zeros(0, 0),
        -torch.ones(4, 4),
        torch.full((4, 4), torch.nan),
    ],
)
def test_what_is_no_map_is_refused(bad: torch.Tensor) -> None:
    with pytest.raises(ParameterError, match="`maps` must"):
        classify_maps(bad, causal=False)


def planted(n: int, causal: bool) -> dict[str, np.ndarray]:
    """Maps that nobody would call otherwise, on a little noise."""
    rng = np.random.default_rng(n)
    noise = rng.dirichlet(np.full(n, 0.5), n)
    previous = np.eye(n, k=-1)
    previous[0, 0] = 1
    stripe = np.zeros((n, n))
    stripe[:, 0] = 1
    half = n // 2
    block = np.zeros((n, n))
    block[:half, :half], block[half:, half:] = (
        rng.dirichlet(np.full(half, 2.0), half),
        rng.dirichlet(np.full(n - half, 2.0), n - half),
    )
    made = {
        "vertical": stripe,
        "diagonal": previous,
        "vertical+diagonal": 0.6 * stripe + 0.4 * previous,
        "block": block,
    }
    made = {name: 0.93 * a + 0.07 * noise for name, a in made.items()}
    if causal:
        made = {name: np.tril(a) for name, a in made.items()}
        made = {name: a / a.sum(-1, keepdims=True) for name, a in made.items()}
    return made


@pytest.mark.parametrize("n", [24, 40, 64, 90, 128, 256])
@pytest.mark.parametrize(
    ("name", "causal"),
    [
        ("vertical", False),
        ("diagonal", False),
        ("block", False),
        ("vertical", True),
        ("diagonal", True),
    ],
)
def test_planted_maps_get_their_names(n: int, name: str, causal: bool) -> None:
    said = classify_maps(torch.tensor(planted(n, causal)[name]), causal)
    assert PATTERNS[int(said.argmax())] == name, said


@pytest.mark.parametrize("n", [24, 40, 64, 90, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_a_stripe_and_a_diagonal_together_look_more_like_both_than_either_alone(
    n: int, causal: bool
) -> None:
    both = PATTERNS.index("vertical+diagonal")
    said = {
        name: float(classify_maps(torch.tensor(a), causal)[both])
        for name, a in planted(n, causal).items()
    }
    assert said["vertical+diagonal"] > 2 * max(said["vertical"], said["diagonal"])
