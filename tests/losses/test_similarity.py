"""The losses of FedSKD: values by hand, a float64 numpy reference, and invariances."""

import numpy as np
import pytest
import torch
from torch import Tensor

from losses import (
    batch_similarity_loss,
    position_similarity_loss,
    region_similarity_loss,
    similarity_distillation_loss,
    similarity_terms,
)

# Two networks of different widths on one grid, four stages each, as ResNets have them.
STAGES = [((4, 3), (8, 8)), ((6, 5), (4, 4)), ((8, 7), (2, 2)), ((10, 9), (1, 1))]


def tap(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A post-ReLU feature map."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).relu()


def networks(batch: int = 4, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[Tensor]]:
    dam = [tap(batch, widths[0], *grid, seed=i, dtype=dtype) + 0.05 for i, (widths, grid) in enumerate(STAGES)]
    ktm = [tap(batch, widths[1], *grid, seed=9 + i, dtype=dtype) + 0.05 for i, (widths, grid) in enumerate(STAGES)]
    return dam, ktm


def pattern(rows: np.ndarray) -> np.ndarray:
    gram = rows @ rows.T
    return np.sqrt(len(rows)) * gram / np.maximum(np.linalg.norm(gram, axis=1, keepdims=True), 1e-12)


def reference(dam_rows: list[np.ndarray], ktm_rows: list[np.ndarray]) -> float:
    """The printed formula: mean over taps of the squared distance of the n×n patterns over n²."""
    distances = [
        np.square(pattern(d) - pattern(k)).sum() / len(d) ** 2 for d, k in zip(dam_rows, ktm_rows, strict=True)
    ]
    return float(np.mean(distances))


def sample_rows(taps: list[Tensor]) -> list[np.ndarray]:
    return [t.numpy().reshape(t.shape[0], -1) for t in taps]


def position_rows(taps: list[Tensor]) -> list[np.ndarray]:
    return [np.moveaxis(t.numpy().reshape(*t.shape[:2], -1), 2, 0).reshape(-1, t.shape[0] * t.shape[1]) for t in taps]


def region_rows(tap: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Means over the regions; a region that is not there has the mean zero."""
    return np.stack([(tap * mask).sum((2, 3)).ravel() / (mask.sum() or 1) for mask in masks])


def interpolated(tap: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """Linear interpolation with half-pixel centres, one axis at a time."""
    for axis, size in enumerate(grid, start=2):
        centres = np.clip((np.arange(size) + 0.5) * tap.shape[axis] / size - 0.5, 0, tap.shape[axis] - 1)
        low = np.floor(centres).astype(int)
        high = np.minimum(low + 1, tap.shape[axis] - 1)
        weight = (centres - low).reshape([-1 if i == axis else 1 for i in range(tap.ndim)])
        tap = tap.take(low, axis) * (1 - weight) + tap.take(high, axis) * weight
    return tap


@pytest.mark.parametrize(
    ("loss", "shape", "options"),
    [
        (batch_similarity_loss, (2, 1, 2), {}),
        (position_similarity_loss, (1, 2, 2), {}),
        (region_similarity_loss, (1, 2, 2), {"masks": torch.eye(2)}),
    ],
)
def test_the_terms_by_hand(loss, shape, options):
    # Two items alike against two that are different: every cosine is 1/√2, so 2/2 · 2 · (1 - 1/√2).
    alike, different = torch.ones(shape), torch.eye(2).reshape(shape)
    assert loss([alike], [different], **options).item() == pytest.approx(2 - 2**0.5, rel=1e-6)


def test_batch_is_the_printed_formula():
    dam, ktm = networks()
    expected = reference(sample_rows(dam), sample_rows(ktm))
    assert batch_similarity_loss(dam, ktm).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["auto", "direct", "linear"])
def test_position_is_the_printed_formula(form):
    dam, ktm = networks(batch=2)
    expected = reference(position_rows(dam), position_rows(ktm))
    assert position_similarity_loss(dam, ktm, form=form).item() == pytest.approx(expected, rel=1e-12)


def test_region_is_the_printed_formula():
    dam, ktm = [tap(2, 4, 6, 6, seed=1)], [tap(2, 3, 6, 6, seed=2)]
    masks = torch.rand(5, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = reference([region_rows(dam[0].numpy(), masks.numpy())], [region_rows(ktm[0].numpy(), masks.numpy())])
    assert region_similarity_loss(dam, ktm, masks=masks).item() == pytest.approx(expected, rel=1e-12)


def test_batch_is_b_times_the_similarity_preserving_loss():
    def similarity_preserving(student: Tensor, teacher: Tensor) -> Tensor:
        # Tung and Mori 2019: row-normalised Gram matrices of the flattened activations, squared distance over b².
        grams = [torch.einsum("ik,jk->ij", x.flatten(1), x.flatten(1)) for x in (student, teacher)]
        rows = [gram / gram.pow(2).sum(dim=1, keepdim=True).sqrt() for gram in grams]
        return (rows[0] - rows[1]).pow(2).sum() / student.shape[0] ** 2

    dam, ktm = tap(5, 4, 3, 3, seed=4), tap(5, 6, 2, 2, seed=5)
    torch.testing.assert_close(batch_similarity_loss([dam], [ktm]), 5 * similarity_preserving(dam, ktm))


@pytest.mark.parametrize(
    ("dam_space", "ktm_space"), [((9,), (6,)), ((8, 4), (4, 6)), ((4, 6, 5), (4, 3, 7)), ((7, 7), (7, 7))]
)
def test_grids_are_resized_to_the_element_wise_smaller_one(dam_space, ktm_space):
    dam, ktm = tap(2, 3, *dam_space, seed=8), tap(2, 4, *ktm_space, seed=9)
    grid = tuple(map(min, dam_space, ktm_space))
    rows = [position_rows([torch.from_numpy(interpolated(x.numpy(), grid))]) for x in (dam, ktm)]
    assert position_similarity_loss([dam], [ktm]).item() == pytest.approx(reference(*rows), rel=1e-10)


def test_masks_are_area_averaged_to_each_networks_own_grid():
    dam, ktm = tap(2, 3, 4, 4, seed=10), tap(2, 5, 2, 2, seed=11)
    labels = torch.randint(3, (8, 8), generator=torch.Generator().manual_seed(12))
    masks = torch.nn.functional.one_hot(labels).permute(2, 0, 1)
    rows = []
    for network, factor in ((dam, 2), (ktm, 4)):
        blocks = masks.numpy().reshape(3, 8 // factor, factor, 8 // factor, factor).mean((2, 4))
        rows.append([region_rows(network.numpy(), blocks)])
    loss = region_similarity_loss([dam], [ktm], masks=masks)
    assert loss.item() == pytest.approx(reference(*rows), rel=1e-12)
    assert region_similarity_loss([dam], [ktm], masks=masks.bool()) == loss


@pytest.mark.parametrize("dims", [1, 3])
def test_regions_in_one_and_three_dimensions(dims):
    dam, ktm = tap(2, 3, 8, seed=10), tap(2, 5, 4, seed=11)
    masks = torch.rand(3, 16, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    rows = []
    for network, factor in ((dam, 2), (ktm, 4)):
        blocks = masks.numpy().reshape(3, 16 // factor, factor).mean(2)
        rows.append([region_rows(network.numpy()[..., None], blocks[..., None])])
    if dims == 3:
        dam, ktm, masks = dam[..., None, None], ktm[..., None, None], masks[..., None, None]
    assert region_similarity_loss([dam], [ktm], masks=masks).item() == pytest.approx(reference(*rows), rel=1e-12)


def test_a_region_lost_on_either_grid_is_dropped_for_both():
    dam, ktm = tap(2, 3, 64, 64, seed=13), tap(2, 5, 2, 2, seed=14)
    masks = torch.zeros(3, 64, 64)
    masks[0, :32] = 1
    masks[1, 32:] = 1
    masks[2, 0, 0] = 1  # one cell of the DAM's grid, 1/1024 of a cell of the KTM's
    two_regions = region_similarity_loss([dam], [ktm], masks=masks[:2]).item()
    assert region_similarity_loss([dam], [ktm], masks=masks).item() == pytest.approx(two_regions, rel=1e-12)
    masks[2, 0, 1] = 1  # 2/1024: kept
    assert region_similarity_loss([dam], [ktm], masks=masks).item() != pytest.approx(two_regions, rel=1e-3)


def test_without_any_region_the_term_is_zero_and_the_graph_holds():
    dam, ktm = tap(2, 3, 4, 4, seed=15).requires_grad_(), tap(2, 3, 4, 4, seed=16).requires_grad_()
    loss = region_similarity_loss([dam], [ktm], masks=torch.zeros(2, 4, 4))
    loss.backward()
    assert loss == 0
    assert not dam.grad.any()


def test_masks_of_each_sample():
    dam, ktm = [tap(2, 3, 4, 4, seed=17)], [tap(2, 5, 4, 4, seed=18)]
    masks = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(19), dtype=torch.float64)
    shared = region_similarity_loss(dam, ktm, masks=masks)
    torch.testing.assert_close(region_similarity_loss(dam, ktm, masks=masks.expand(2, 3, 4, 4)), shared)
    own = torch.stack([masks, masks.flip(1)])
    own[1, 2] = 0  # the second sample lacks the third region
    rows = []
    for network in (dam, ktm):
        samples = [region_rows(network[0][[i]].numpy(), own[i].numpy()) for i in range(2)]
        rows.append([np.concatenate(samples, axis=1)])
    assert region_similarity_loss(dam, ktm, masks=own).item() == pytest.approx(reference(*rows), rel=1e-12)


def test_gradcheck_through_every_term_into_both_networks():
    dam = [tap(2, 2, 4, 3, seed=23) + 0.1, tap(2, 3, 2, 2, seed=24) + 0.1]
    ktm = [tap(2, 1, 3, 4, seed=25) + 0.1, tap(2, 2, 1, 2, seed=26) + 0.1]
    masks = torch.rand(3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(27))
    taps = [t.requires_grad_() for t in (*dam, *ktm)]
    for form in ("direct", "linear"):
        assert torch.autograd.gradcheck(
            lambda *t, form=form: similarity_distillation_loss(t[:2], t[2:], masks=masks, form=form), taps
        )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: 1e-3 * t, id="scale"),
        pytest.param(lambda t: t[:, torch.randperm(t.shape[1])], id="channel permutation"),
        pytest.param(
            lambda t: torch.einsum(
                "ij,bj...->bi...", torch.linalg.qr(torch.randn(t.shape[1], t.shape[1]).to(t.dtype))[0], t
            ),
            id="orthogonal mixing of channels",
        ),
    ],
)
def test_what_one_network_may_do_alone_without_being_noticed(change):
    dam, ktm = networks()
    masks = torch.rand(3, 8, 8, dtype=torch.float64)
    before = similarity_terms(dam, ktm, masks=masks)
    after = similarity_terms([change(t) for t in dam], ktm, masks=masks)
    assert list(after) == ["batch", "position", "region"]
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)


def test_what_both_must_do_together():
    dam, ktm = networks()
    before = similarity_terms(dam, ktm)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(similarity_terms([t[order] for t in dam], [t[order] for t in ktm]), before)
    turned = similarity_terms([t.flip(2) for t in dam], [t.flip(2) for t in ktm])
    torch.testing.assert_close(turned, before)
    alone = similarity_terms([t[order].flip(2) for t in dam], ktm)
    assert all(not torch.isclose(alone[term], before[term], rtol=1e-3) for term in before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_network_agrees_with_itself(dtype):
    dam, _ = networks(dtype=dtype)
    terms = similarity_terms(dam, dam, masks=torch.rand(3, 8, 8))
    assert all(abs(term) < 1e-6 for term in terms.values())


def test_the_loss_is_the_sum_of_its_terms_and_flows_into_both_networks():
    dam, ktm = networks()
    for t in (*dam, *ktm):
        t.requires_grad_()
    masks = torch.rand(3, 8, 8)
    terms = similarity_terms(dam, ktm, masks=masks)
    loss = similarity_distillation_loss(dam, ktm, masks=masks)
    assert loss == sum(terms.values())
    assert terms["batch"] == batch_similarity_loss(dam, ktm)
    assert terms["position"] == position_similarity_loss(dam, ktm)
    assert terms["region"] == region_similarity_loss(dam, ktm, masks=masks)
    loss.backward()
    assert all(t.grad.abs().max() > 0 for t in (*dam, *ktm))


def test_without_masks_there_is_no_region_term():
    dam, ktm = networks()
    assert list(similarity_terms(dam, ktm)) == ["batch", "position"]
    assert list(similarity_terms(dam, ktm, terms=["position"])) == ["position"]


def test_taps_are_matched_from_the_deepest_backwards():
    dam, ktm = networks()
    assert batch_similarity_loss(dam, ktm[2:]) == batch_similarity_loss(dam[2:], ktm[2:])
    assert position_similarity_loss(dam[1:], ktm) == position_similarity_loss(dam[1:], ktm[1:])


def test_taps_chosen_for_an_ablation_count_from_the_shallowest_matched_one():
    dam, ktm = networks()
    chosen = similarity_distillation_loss(dam, ktm, taps=(3, 4))
    assert chosen == similarity_distillation_loss(dam[2:], ktm[2:])
    assert similarity_distillation_loss(dam, ktm[2:], taps=[1]) == similarity_distillation_loss([dam[2]], [ktm[2]])


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_batch_of_one_gives_zero_and_the_graph_holds(value):
    dam, ktm = torch.full((1, 2, 3), value, requires_grad=True), torch.zeros(1, 2, 3, requires_grad=True)
    loss = batch_similarity_loss([dam], [ktm])
    loss.backward()
    assert loss == 0
    assert not dam.grad.any()
    assert not ktm.grad.any()


def test_dead_features_are_finite_forwards_and_backwards():
    dam, ktm = networks(dtype=torch.float32)
    dam[0][:, :, 2:5] = 0  # positions
    ktm[1][1] = 0  # a sample
    dam[3].zero_()  # a stage
    for t in (*dam, *ktm):
        t.requires_grad_()
    similarity_distillation_loss(dam, ktm, masks=torch.ones(2, 8, 8)).backward()
    # The literal form has gradients of 1e11 here.
    assert all(t.grad.abs().max() < 10 for t in (*dam, *ktm))


@pytest.mark.parametrize("form", ["direct", "linear"])
def test_autocast_does_not_reach_the_arithmetic(form):
    dam, ktm = networks(dtype=torch.float32)
    ktm[1] = tap(4, 5, 3, 5, seed=30, dtype=torch.float32)  # also through the interpolation
    masks = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(31))

    def value_and_gradients() -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (*dam, *ktm)]
        loss = similarity_distillation_loss(leaves[:4], leaves[4:], masks=masks, form=form)
        return loss, *torch.autograd.grad(loss, leaves)

    expected = value_and_gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        computed = value_and_gradients()
    assert computed[0].dtype == torch.float32
    assert all(torch.equal(c, e) for c, e in zip(computed, expected, strict=True))


def test_half_precision_taps_are_computed_in_float32():
    dam, ktm = networks(dtype=torch.bfloat16)
    leaf = dam[0].requires_grad_()
    loss = similarity_distillation_loss(dam, ktm)
    loss.backward()
    widened = similarity_distillation_loss([t.detach().float() for t in dam], [t.float() for t in ktm])
    assert loss == widened
    assert loss.dtype == torch.float32
    assert leaf.grad.dtype == torch.bfloat16


def test_double_accumulation_holds_where_float32_is_spent():
    dam = [tap(2, 3, 20, 20, seed=32, dtype=torch.float32) + 0.5]
    ktm = [dam[0] + 1e-4 * tap(2, 3, 20, 20, seed=33, dtype=torch.float32)]
    exact = position_similarity_loss([dam[0].double()], [ktm[0].double()], form="direct").item()
    assert exact < 1e-8
    loss = position_similarity_loss(dam, ktm, form="linear", accumulate=torch.float64)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=1e-6)
    assert position_similarity_loss(dam, ktm, form="linear").item() != pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize(
    ("dam", "ktm", "message"),
    [
        ([], [torch.ones(2, 1, 1)], "there is no tap to compare: 0 of the DAM, 1 of the KTM"),
        ([torch.ones(2, 3)], [torch.ones(2, 1, 1)], r"DAM tap 1 of 1 must be .* not \(2, 3\)"),
        ([torch.ones(2, 1, 1)], [torch.ones(2, 1, 1).int()], r"KTM tap 1 of 1 must be .* of torch.int32"),
        ([torch.ones(2, 1, 1)], [torch.ones(2, 1, 0)], "must be a non-empty"),
        ([torch.ones(2, 1, 1)], [torch.ones(3, 1, 1)], "the DAM saw a batch of 2, the KTM one of 3"),
    ],
)
def test_taps_that_do_not_fit_are_named(dam, ktm, message):
    for loss in (batch_similarity_loss, position_similarity_loss, similarity_distillation_loss):
        with pytest.raises(ValueError, match=message):
            loss(dam, ktm)


def test_spatial_dimensions_that_differ_are_named():
    plane, volume = [torch.ones(2, 1, 2, 2)], [torch.ones(2, 1, 2, 2, 2)]
    assert batch_similarity_loss(plane, volume) == 0
    with pytest.raises(ValueError, match="DAM's taps have 2 spatial dimensions, the KTM's 3"):
        position_similarity_loss(plane, volume)
    with pytest.raises(ValueError, match="DAM's taps have 2 spatial dimensions, the KTM's 3"):
        region_similarity_loss(plane, volume, masks=torch.ones(1, 2, 2))


@pytest.mark.parametrize("shape", [(2, 2), (3, 1, 2, 2), (0, 2, 2), (2, 1, 1, 2, 2)])
def test_masks_that_do_not_fit_are_named(shape):
    taps = [torch.ones(2, 1, 2, 2)]
    with pytest.raises(ValueError, match=r"masks must be a non-empty \(r, \*space\).* b = 2, and 2 spatial"):
        region_similarity_loss(taps, taps, masks=torch.ones(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"terms": ["batch", "pixel"]}, r"terms \('batch', 'pixel'\) must be distinct and among"),
        ({"terms": ["batch", "batch"]}, "must be distinct"),
        ({"terms": ["region"]}, "nothing to compute without masks"),
        ({"terms": []}, "nothing to compute"),
        ({"taps": (0,)}, r"taps \(0,\) must be distinct and among 1 to 4"),
        ({"taps": (5,)}, "among 1 to 4"),
        ({"taps": (2, 2)}, "must be distinct"),
        ({"taps": ()}, "at least one"),
        ({"form": "blocked"}, "form 'blocked' must be one of auto, direct, linear"),
        ({"accumulate": torch.bfloat16}, "accumulate must be torch.float32 or torch.float64, not torch.bfloat16"),
    ],
)
def test_options_that_do_not_exist_are_named(options, message):
    dam, ktm = networks()
    with pytest.raises(ValueError, match=message):
        similarity_distillation_loss(dam, ktm, **options)
