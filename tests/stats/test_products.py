"""Products by oneDNN are those of torch, wherever they are used, and only where they can be."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from headwise.stats import products

ROWS, WIDTH, OUTPUTS = 40, 160, 130


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Use oneDNN whatever the processor; return the shapes of the products that it computed."""
    if not torch.backends.mkldnn.is_available() or not products._agrees():
        pytest.skip("this torch has no products of oneDNN")
    shapes: list[tuple[int, ...]] = []
    multiply = products._multiply

    def count(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        shapes.append(tuple(x.shape))
        return multiply(x, weight, bias)

    monkeypatch.setattr(products, "_multiply", count)
    monkeypatch.setattr(products, "is_faster", lambda: True)
    return shapes


def operands(gradients: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, ROWS, WIDTH, generator=generator)
    weight = torch.randn(OUTPUTS, WIDTH, generator=generator)
    bias = torch.randn(OUTPUTS, generator=generator)
    for tensor in (x, weight, bias):
        tensor.requires_grad_(gradients)
    return x, weight, bias


def assert_close(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_products_are_those_of_torch(multiplied: list[tuple[int, ...]]) -> None:
    x, weight, bias = operands()
    assert_close(products.linear(x, weight, bias), functional.linear(x, weight, bias))
    assert_close(products.linear(x, weight), functional.linear(x, weight))
    # Operands in another layout: a transposed weight, every second row.
    assert_close(products.matmul(x, weight.T), x @ weight.T)
    assert_close(products.linear(x[:, ::2], weight), functional.linear(x[:, ::2], weight))
    assert len(multiplied) == 4


def test_derivatives_are_those_of_torch(multiplied: list[tuple[int, ...]]) -> None:
    x, weight, bias = operands(gradients=True)
    direction = torch.linspace(-1, 1, 2 * ROWS * OUTPUTS).reshape(2, ROWS, OUTPUTS)
    several = torch.stack([direction, -direction])

    def gradients(linear: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        product = linear(x, weight, bias)
        first = torch.autograd.grad((product * direction).sum(), (x, weight, bias))
        square = linear(x, weight, bias).square().sum()
        (once,) = torch.autograd.grad(square, x, create_graph=True)
        second = torch.autograd.grad((once * x.detach()).sum(), (weight, bias))
        together = torch.autograd.grad(
            linear(x, weight, bias), (x, weight), several, is_grads_batched=True
        )
        return [*first, *second, *together]

    expected = gradients(functional.linear)
    assert not multiplied
    for one, other in zip(gradients(products.linear), expected, strict=True):
        scale = other.abs().max().clamp(min=1)
        assert_close(one / scale, other / scale)
    assert len(multiplied) > 3


def test_only_some_gradients(multiplied: list[tuple[int, ...]]) -> None:
    x, weight, bias = operands()
    x.requires_grad_(True)
    products.linear(x, weight, bias).sum().backward()
    assert x.grad is not None
    assert_close(x.grad, weight.sum(0).expand_as(x))
    assert weight.grad is None
    with torch.no_grad():
        assert not products.linear(x, weight, bias).requires_grad


def test_torch_multiplies_what_onednn_cannot(multiplied: list[tuple[int, ...]]) -> None:
    x, weight, _ = operands()
    expected = functional.linear(x, weight)
    assert products.linear(x.double(), weight.double()).dtype == torch.float64
    assert products.linear(x.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    assert_close(products.linear(x[0, :1], weight), expected[0, :1])  # few rows
    assert_close(torch.func.vmap(lambda row: products.linear(row, weight))(x), expected)
    _, tangent = torch.func.jvp(lambda value: products.linear(value, weight), (x,), (x,))
    assert_close(tangent, expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        tangent = torch.autograd.forward_ad.unpack_dual(products.linear(dual, weight)).tangent
        assert_close(tangent, expected)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        products.linear(x, weight[:, 1:])
    assert not multiplied


def test_products_of_models_are_replaced_in_the_block_and_its_thread(
    multiplied: list[tuple[int, ...]],
) -> None:
    x, weight, bias = operands()
    layer = torch.nn.Linear(WIDTH, OUTPUTS)
    with torch.no_grad():
        expected = layer(x)
        with products.faster_products():
            assert_close(layer(x), expected)
            assert len(multiplied) == 1
            assert_close(torch.addmm(bias, x[0], weight.T), bias + x[0] @ weight.T)
            # Scaled products are torch's own.
            assert_close(torch.addmm(bias, x[0], weight.T, alpha=2), bias + 2 * (x[0] @ weight.T))
            assert_close(x @ weight.T, functional.linear(x, weight))
            n_before = len(multiplied)
            elsewhere = threading.Thread(target=layer, args=(x,))
            elsewhere.start()
            elsewhere.join()
            assert len(multiplied) == n_before > 4
        layer(x)
    assert len(multiplied) == n_before


def test_nothing_changes_where_onednn_is_no_faster(
    monkeypatch: pytest.MonkeyPatch, multiplied: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(products, "is_faster", lambda: False)
    x, weight, _ = operands()
    with products.faster_products():
        assert torch.equal(products.linear(x, weight), functional.linear(x, weight))
    assert not multiplied
