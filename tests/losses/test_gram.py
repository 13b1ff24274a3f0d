"""The kernel: both forms against each other and against autograd, the memory of the linear one, the precision guard."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from losses.gram import ExactProduct, _gram, cheaper_form, dissimilarity, exact_products, multiply

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


class Operations(TorchDispatchMode):
    """Remembers the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def matmul_precision() -> Iterator[None]:
    """Restores the process-wide switches after a test."""
    yield
    torch.set_float32_matmul_precision("highest")
    for backend in (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        backend.fp32_precision = "none"


def features(width: int, items: int, *, seed: int, relu: bool = True) -> Tensor:
    drawn = torch.randn(width, items, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn.relu() if relu else drawn).requires_grad_()


def literal(dam: Tensor, ktm: Tensor) -> Tensor:
    """The printed formula, differentiated by autograd; no row may be dead."""
    items = dam.shape[1]
    patterns = [items**0.5 * torch.nn.functional.normalize(x.mT @ x, dim=1, eps=1e-12) for x in (dam, ktm)]
    return (patterns[0] - patterns[1]).square().sum() / items**2


SHAPES = [(3, 5, 7), (5, 3, 7), (4, 4, 64), (16, 8, 8), (8, 32, 100), (2, 3, 1)]


@pytest.mark.parametrize("rows", [255, 256, 257, 384, 385, 500])
def test_a_symmetric_product_in_blocks_is_the_product(rows: int) -> None:
    matrix = torch.randn(rows, 70, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(_gram(matrix, matrix), matrix @ matrix.mT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["direct", "linear", "auto"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("dam_width", "ktm_width", "items"), SHAPES)
def test_value_and_gradient_are_those_of_the_literal_formula(dam_width, ktm_width, items, relu, form):
    dam = features(dam_width, items, seed=1, relu=relu)
    ktm = features(ktm_width, items, seed=2, relu=relu)
    if relu:
        with torch.no_grad():
            dam += 0.01
            ktm += 0.01
    value = dissimilarity(dam, ktm, form=form, dtype=torch.float64)
    expected = literal(dam, ktm)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    gradients = torch.autograd.grad(value, (dam, ktm))
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, (dam, ktm)), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("form", ["direct", "linear"])
def test_a_dead_row_counts_as_zero_and_takes_no_gradient_of_its_own(form):
    dam, ktm = features(3, 4, seed=5), features(3, 4, seed=6)
    with torch.no_grad():
        dam += 0.1
        ktm += 0.1
        dam[:, 0] = 0
        dam[:, 1] = 0
        ktm[:, 1] = 0
    value = dissimilarity(dam, ktm, form=form, dtype=torch.float64)
    # Item 0 is dead in one network and adds 1; item 1 is dead in both and adds 0; neither changes the others' cosines.
    alive = [dam[:, 2:].mT @ dam, ktm[:, 2:].mT @ ktm]
    cosine = torch.nn.functional.cosine_similarity(*alive, dim=1)
    torch.testing.assert_close(value, (1 + 2 * (1 - cosine).sum()) / 4)
    gradients = torch.autograd.grad(value, (dam, ktm))
    assert all(gradient.abs().max() < 10 for gradient in gradients)


@pytest.mark.parametrize("form", ["direct", "linear"])
def test_both_networks_dead_give_zero_and_zero_gradients(form):
    dam, ktm = torch.zeros(3, 4, requires_grad=True), torch.zeros(2, 4, requires_grad=True)
    value = dissimilarity(dam, ktm, form=form, dtype=torch.float32)
    value.backward()
    assert value == 0
    assert not dam.grad.any()
    assert not ktm.grad.any()


@pytest.mark.parametrize("form", ["direct", "linear"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_features_are_not_hidden(form, bad):
    dam, ktm = features(3, 4, seed=7).detach(), features(3, 4, seed=8).detach()
    dam[1, 2] = bad
    assert dissimilarity(dam, ktm, form=form, dtype=torch.float64).isnan()


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("form", ["direct", "linear"])
def test_float32_survives_any_scale(form, scale):
    dam, ktm = features(6, 9, seed=9).float(), features(5, 9, seed=10).float()
    expected = dissimilarity(dam, ktm, form=form, dtype=torch.float32)
    torch.testing.assert_close(dissimilarity(dam * scale, ktm, form=form, dtype=torch.float32), expected)


def test_the_cheaper_form_changes_at_three_items_a_channel():
    assert cheaper_form(3 * 512, 512, 512) == "direct"
    assert cheaper_form(3 * 512 + 1, 512, 512) == "linear"
    # ResNet-10 at 48³, batch 8, width 64: only stage 1 is linear.
    stages = [(13824, 512), (1728, 1024), (216, 2048), (27, 4096)]
    assert [cheaper_form(n, d, d) for n, d in stages] == ["linear", "direct", "direct", "direct"]


def test_the_linear_form_never_makes_a_square_matrix_of_positions():
    items, width = 300, 4
    dam, ktm = features(width, items, seed=11), features(width, items, seed=12)
    saved: list[int] = []
    with (
        LargestTensor() as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()) or tensor, lambda x: x),
    ):
        dissimilarity(dam, ktm, form="auto", dtype=torch.float64).backward()
    assert saved == [items * width, items * width]
    assert largest.elements == items * width
    with LargestTensor() as largest:
        dissimilarity(dam, ktm, form="direct", dtype=torch.float64).backward()
    assert largest.elements == items**2


def test_without_a_gradient_to_compute_none_is():
    dam, ktm = features(4, 50, seed=13).detach(), features(4, 50, seed=14).detach()
    value = dissimilarity(dam, ktm, form="linear", dtype=torch.float64)
    assert not value.requires_grad
    with torch.no_grad():
        assert dissimilarity(dam.requires_grad_(), ktm, form="linear", dtype=torch.float64) == value


def test_the_gradient_keeps_the_memory_layout_of_the_features():
    maps = torch.randn(4, 30, requires_grad=True)
    (gradient,) = torch.autograd.grad(dissimilarity(maps.mT, maps.mT * 2, form="direct", dtype=torch.float32), maps)
    assert gradient.is_contiguous()


def test_a_second_derivative_is_refused():
    dam = features(3, 4, seed=15)
    value = dissimilarity(dam, features(3, 4, seed=16), form="linear", dtype=torch.float64)
    (gradient,) = torch.autograd.grad(value, dam, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


def test_exact_product_and_its_gradient():
    tap = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(ExactProduct.apply(tap, weights), torch.einsum("bcs,bsr->bcr", tap, weights))
    assert torch.autograd.gradcheck(lambda x: ExactProduct.apply(x, weights), (tap,))
    assert torch.autograd.gradcheck(lambda x: ExactProduct.apply(x, weights[:1]), (tap,))


def test_autocast_is_off_inside_and_as_before_after():
    left, right = torch.randn(2, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with exact_products(CPU):
            assert (left @ right).dtype == torch.float32
        assert (left @ right).dtype == torch.bfloat16


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("wish", ["legacy high", "legacy medium", "new", "generic"])
def test_precision_shortcuts_are_off_inside_and_as_before_after(wish, device):
    matmul = torch.backends.mkldnn.matmul if device is CPU else torch.backends.cuda.matmul
    if wish == "new":
        matmul.fp32_precision = "tf32"
    elif wish == "generic":
        torch.backends.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision(wish.split()[1])
    before = matmul.fp32_precision
    assert before in ("tf32", "bf16")
    inside = []
    with contextlib.suppress(KeyError), exact_products(device):
        inside.append(matmul.fp32_precision)
        raise KeyError
    assert inside == ["ieee"]
    assert matmul.fp32_precision == before


@pytest.mark.usefixtures("matmul_precision")
def test_a_switch_that_is_off_is_not_touched():
    before = torch.backends.cuda.matmul.fp32_precision
    with exact_products(CUDA):
        assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize(
    ("form", "items", "widths"),
    [("direct", 80, (150, 200)), ("direct", 300, (90, 70)), ("linear", 1200, (270, 90))],
)
def test_large_float32_features_agree_with_float64_and_give_the_same_bits_again(form, items, widths):
    dam, ktm = (torch.rand(width, items, requires_grad=True) for width in widths)
    value = dissimilarity(dam, ktm, form=form, dtype=torch.float32)
    gradients = torch.autograd.grad(value, (dam, ktm))
    exact = dissimilarity(dam, ktm, form=form, dtype=torch.float64)
    torch.testing.assert_close(value.double(), exact, rtol=1e-3, atol=1e-8)
    for gradient, expected in zip(gradients, torch.autograd.grad(exact, (dam, ktm)), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-8)
    again = dissimilarity(dam, ktm, form=form, dtype=torch.float32)
    assert torch.equal(again, value)
    assert all(map(torch.equal, torch.autograd.grad(again, (dam, ktm)), gradients))


@pytest.mark.parametrize(
    ("left", "right", "chosen"),
    [
        (torch.randn(64, 90), torch.randn(90, 70), True),
        (torch.randn(90, 64).mT, torch.randn(70, 90).mT, True),
        (torch.randn(64, 90), torch.randn(90, 63), False),
        (torch.randn(64, 90)[:, :80], torch.randn(80, 70), False),
        (torch.randn(64, 90).double(), torch.randn(90, 70).double(), False),
    ],
    ids=["dense", "transposed", "short side", "part of another", "float64"],
)
def test_onednn_multiplies_what_suits_it(left, right, chosen):
    with Operations() as operations:
        product = multiply(left, right)
    assert ("mkldnn::_linear_pointwise" in operations.names) == chosen
    torch.testing.assert_close(product.double(), left.double() @ right.double(), rtol=1e-4, atol=1e-4)
