"""Maps of any length brought to one size: against slow loops, and stripes, diagonals and blocks
stay what they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.analyses.patterns.maps import SIZE, images, map_images, shrink, shrink_visible


def slow_shrink(a: np.ndarray) -> np.ndarray:
    n = len(a)
    out = np.zeros((SIZE, SIZE))
    if n <= SIZE:
        out[:n, :n] = a
        return out
    group = [t * SIZE // n for t in range(n)]
    sizes = [group.count(g) for g in range(SIZE)]
    for i in range(n):
        for j in range(n):
            out[group[i], group[j]] += a[i, j] / sizes[group[i]]
    return out


def random_maps(n: int, causal: bool = False, seed: int = 0) -> torch.Tensor:
    logits = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)) * 2
    if causal:
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


@pytest.mark.parametrize("n", [1, 7, 63, 64, 65, 100, 150])
def test_shrink_equals_loops_and_rows_sum_to_one(n: int) -> None:
    a = random_maps(n)
    got = shrink(a[None, None], torch.tensor([n]))[0, 0].numpy()
    np.testing.assert_allclose(got, slow_shrink(a.double().numpy()), atol=1e-6)
    np.testing.assert_allclose(got.sum(-1)[: min(n, SIZE)], 1, atol=1e-5)


def test_blocks_of_rows_add_up_and_padding_changes_nothing() -> None:
    lengths = torch.tensor([90, 40])
    weights = torch.zeros(2, 3, 90, 90)
    for head in range(3):
        weights[0, head] = random_maps(90, seed=head)
        weights[1, head, :40, :40] = random_maps(40, seed=head + 9)
    visible = torch.zeros(2, 1, 90, 90, dtype=torch.bool)
    visible[0], visible[1, :, :40, :40] = True, True
    whole, pairs = shrink(weights, lengths), shrink_visible(visible, lengths)
    parts = sum(shrink(weights[:, :, s : s + 30], lengths, s) for s in (0, 30, 60))
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(
        sum(shrink_visible(visible[:, :, s : s + 30], lengths, s) for s in (0, 30, 60)), pairs
    )
    alone = images(whole, pairs, lengths)[1, 2]
    torch.testing.assert_close(alone, map_images(weights[1, 2:, :40, :40], causal=False)[0])


def planted(n: int) -> dict[str, np.ndarray]:
    previous = np.eye(n, k=-1)
    previous[0, 0] = 1
    stripe = np.zeros((n, n))
    stripe[:, n // 3] = 1
    block = np.zeros((n, n))
    half = n // 2
    block[:half, :half], block[half:, half:] = 1 / half, 1 / (n - half)
    return {"previous": previous, "stripe": stripe, "block": block}


@pytest.mark.parametrize("n", [20, 64, 128, 300])
def test_shapes_survive(n: int) -> None:
    seen = {
        name: map_images(torch.tensor(a, dtype=torch.float32)[None], causal=False)[0]
        for name, a in planted(n).items()
    }
    diagonal = seen["previous"][1] ** 2
    scale = max(n, SIZE) / min(n, SIZE)  # a stretched cell is several places wide
    near = [float(diagonal[i, max(0, i - int(2 * scale)) : i + 1].max()) for i in range(SIZE)]
    assert min(near) >= 0.49  # the diagonal runs from end to end, at most shared between two groups
    far = np.abs(np.subtract.outer(np.arange(SIZE), np.arange(SIZE))) > 2 * scale + 1
    assert diagonal.numpy()[far].max() == 0
    stripe = seen["stripe"][1] ** 2
    assert torch.allclose(stripe.amax(-1), torch.ones(SIZE))
    assert (stripe > 0).any(0).sum() <= np.ceil(max(SIZE / n, 1))
    block = seen["block"][0]
    quarter = SIZE // 4
    assert block[quarter, quarter] > 0.9
    assert block[3 * quarter, quarter] == 0
    assert block[quarter, 3 * quarter] == 0


def test_channels_against_loops() -> None:
    n = SIZE
    a = random_maps(n, causal=True)
    got = map_images(a[None], causal=True)[0].double().numpy()
    w = a.double().numpy()
    visible = np.tril(np.ones((n, n), dtype=bool))
    ordered = np.sort(w[visible])[::-1]
    top = ordered[int(visible.sum() * 0.01)]
    np.testing.assert_allclose(got[0], np.sqrt(np.minimum(w / top, 1)), atol=1e-5)
    np.testing.assert_allclose(got[1], np.sqrt(w), atol=1e-5)
    np.testing.assert_array_equal(got[2], visible)
    for j in (0, 10, n - 1):
        np.testing.assert_allclose(
            got[3][:, j], np.sqrt(np.mean([w[i, j] for i in range(n) if visible[i, j]])), atol=1e-5
        )
    for offset in (0, -1, -20):
        mean = np.mean([w[i, i + offset] for i in range(-offset, n)])
        np.testing.assert_allclose(got[4].diagonal(offset), np.sqrt(mean), atol=1e-5)


def test_what_stands_ahead_of_a_causal_query_is_ignored() -> None:
    a = random_maps(30)
    kept = a.tril()
    torch.testing.assert_close(
        map_images(a[None], causal=True), map_images(kept[None], causal=True)
    )
