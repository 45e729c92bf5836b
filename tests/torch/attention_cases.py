"""Calls of attention of many kinds, and how near to the definition each must come."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import sharpmax
from sharpmax import RowStatistics
from sharpmax.rows import LogitRows
from sharpmax.torch import attention, row_statistics
from sharpmax.torch.scores import Scores
from sharpmax.torch.tempered import hopper, products
from sharpmax.torch.tempered.fused import attend_by


@dataclass(frozen=True)
class Case:
    """Shapes and settings of a call; `mask` is the share of keys that a query sees.

    With `padding` it is the same keys for every query.
    """

    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    queries: int = 37
    keys: int = 37
    width: int = 16
    value_width: int = 16
    mask: float | None = None
    padding: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def tensors(self, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = [
            (self.batch, self.heads, self.queries, self.width),
            (self.batch, self.key_heads, self.keys, self.width),
            (self.batch, self.key_heads, self.keys, self.value_width),
        ]
        query, key, value = (
            (1.5 * torch.randn(shape, generator=generator)).to(device, dtype).requires_grad_()
            for shape in shapes
        )
        return query, key, value

    def arguments(self, device: str) -> dict[str, Any]:
        if self.mask is None:
            return self.settings
        generator = torch.Generator().manual_seed(1)
        queries = 1 if self.padding else self.queries
        seen = torch.rand(self.batch, 1, queries, self.keys, generator=generator)
        return {**self.settings, "mask": (seen < self.mask).to(device)}


causal = {"is_causal": True}
CASES = {
    "all keys": Case(),
    "causal": Case(settings=causal),
    "one query": Case(queries=1, keys=50, settings=causal),
    "one key": Case(keys=1),
    "more keys": Case(queries=20, keys=45, settings=causal),
    "more queries": Case(queries=45, keys=20, settings=causal),
    "grouped": Case(batch=2, heads=8, key_heads=2, settings=causal),
    "one key head": Case(heads=3, key_heads=1, queries=9),
    "other value width": Case(value_width=24, settings=causal),
    "odd width": Case(width=21, value_width=5),
    "window": Case(settings={"window": 5, **causal}),
    "window both ways": Case(queries=30, settings={"window": 4}),
    "mask": Case(batch=2, mask=0.6),
    "padding": Case(batch=2, mask=0.6, padding=True, settings=causal),
    "mask with empty rows": Case(mask=0.03, settings=causal),
    "softcap": Case(settings={"softcap": 3.0, **causal}),
    "everything": Case(
        batch=2,
        heads=4,
        mask=0.7,
        keys=60,
        settings={"softcap": 4.0, "window": 20, "scale": 0.4, **causal},
    ),
}
LARGE_CASES = {
    f"{width} wide, {name}": Case(
        heads=4, key_heads=2, queries=300, keys=keys, width=width, value_width=width, settings=s
    )
    for width in (16, 64, 80, 128, 256)
    for name, keys, s in [("causal", 300, causal), ("all", 517, {}), ("window", 300, {"window": 9})]
}


def visible(case: Case) -> Tensor:
    """Which keys each query sees, written down from the documentation."""
    distance = (
        torch.arange(case.queries)[:, None] + case.keys - case.queries - torch.arange(case.keys)
    )
    seen = torch.ones_like(distance, dtype=torch.bool)
    if case.settings.get("is_causal"):
        seen &= distance >= 0
    if window := case.settings.get("window"):
        seen &= distance.abs() < window
    mask = case.arguments("cpu").get("mask")
    return seen if mask is None else seen & mask


def materialised(case: Case, query: Tensor, key: Tensor) -> Tensor:
    """All logits at once, in the precision of the tensors."""
    key = key.repeat_interleave(case.heads // case.key_heads, dim=1)
    logits = (query @ key.mT) * case.settings.get("scale", 1 / math.sqrt(case.width))
    if softcap := case.settings.get("softcap"):
        logits = softcap * torch.tanh(logits / softcap)
    return logits


def sharpened(case: Case, query: Tensor, key: Tensor, value: Tensor, policy: Any) -> Tensor:
    """Attention by its definition, in the precision of the tensors."""
    logits = materialised(case, query, key)
    weights = sharpmax.softmax(logits, policy, where=visible(case).to(query.device))
    return weights @ value.repeat_interleave(case.heads // case.key_heads, dim=1)


def assert_statistics_fit(case: Case, dtype: torch.dtype, device: str, implementation: str) -> None:
    """Value and gradient: at most twice as far from float64 as the materialised form.

    A flash kernel on a GPU rounds Σ p·k to half precision as well as the logits: four times.
    """
    factor = 4 if implementation == "flash" and device == "cuda" else 2
    query, key, _ = case.tensors(dtype, device)
    arguments = case.arguments(device)
    try:
        statistics = row_statistics(query, key, implementation=implementation, **arguments)
    except NotImplementedError:
        return  # refusals have tests of their own
    exact_query, exact_key = (x.detach().double().requires_grad_() for x in (query, key))
    seen = visible(case).to(device)
    exact = RowStatistics.from_logits(materialised(case, exact_query, exact_key), where=seen)
    same = RowStatistics.from_logits(materialised(case, query, key), where=seen)
    grad = torch.randn(exact.lse.shape, dtype=torch.float64).to(device)
    assert torch.equal(statistics.length.double(), exact.length)

    for name in ("entropy", "lse") if implementation == "flash" else ("entropy", "lse", "max"):
        ours, theirs, truth = (getattr(x, name).double() for x in (statistics, same, exact))
        finite = truth.isfinite()
        assert torch.equal(ours[~finite], truth[~finite])
        allowed = factor * (theirs - truth)[finite].abs().max() + 1e-5
        assert (ours - truth)[finite].abs().max() <= allowed, name
        if name == "max":
            continue
        for leaf, exact_leaf in ((query, exact_query), (key, exact_key)):
            gradients = [
                torch.autograd.grad(
                    torch.where(finite, value, 0.0).mul(grad).sum(), x, retain_graph=True
                )[0].double()
                for value, x in ((ours, leaf), (theirs, leaf), (truth, exact_leaf))
            ]
            assert gradients[0].isfinite().all()
            allowed = factor * (gradients[1] - gradients[2]).norm()
            allowed += 1e-5 * gradients[2].norm() + 1e-5
            assert (gradients[0] - gradients[2]).norm() <= allowed, name


def assert_attention_fits(case: Case, dtype: torch.dtype, device: str, policy: Any) -> None:
    tensors = case.tensors(dtype, device)
    out = attention(*tensors, policy=policy, **case.arguments(device))
    exact_tensors = [x.detach().double().requires_grad_() for x in tensors]
    exact = sharpened(case, *exact_tensors, policy)
    same = sharpened(case, *tensors, policy)
    assert out.dtype == dtype
    assert out.shape == exact.shape
    unit = torch.finfo(dtype).eps
    allowed = 2 * (same.double() - exact).norm() + 4 * unit * exact.norm() + 1e-6
    assert (out.double() - exact).norm() <= allowed
    grad = torch.randn(exact.shape, dtype=torch.float64).to(device)
    ours = torch.autograd.grad(out.double(), tensors, grad)
    theirs = torch.autograd.grad(same.double(), tensors, grad)
    truth = torch.autograd.grad(exact, exact_tensors, grad)
    for x, y, z in zip(ours, theirs, truth, strict=True):
        assert x.isfinite().all()
        allowed = 2 * (y.double() - z).norm() + 16 * unit * z.norm() + 1e-4
        assert (x.double() - z).norm() <= allowed


def assert_tempered_fits(case: Case, dtype: torch.dtype, device: str, kernels: str) -> None:
    """Attention at a given β by a fused kernel: value and gradients, by β too."""
    tensors = case.tensors(dtype, device)
    query, key, value = tensors
    settings = {"is_causal": False, "mask": None, "window": None, "softcap": None, "scale": None}
    scores = Scores.of(query, key, **settings | case.arguments(device))
    generator = torch.Generator().manual_seed(2)
    beta = 0.5 + 2 * torch.rand(scores.shape, generator=generator)
    beta = beta.to(device).requires_grad_()
    seen = visible(case).to(device)

    def defined(query: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
        logits = materialised(case, query, key)
        weights = LogitRows.of(logits, where=seen).softmax(beta.to(query.dtype))
        return weights @ value.repeat_interleave(case.heads // case.key_heads, dim=1)

    inputs = (*tensors, beta)
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    maximum = RowStatistics.from_logits(materialised(case, query, key).float(), where=seen).max
    if kernels == "hopper" and hopper.refusal(scores, value, beta, maximum):
        return
    if kernels == "products":
        out = products.attend(scores, value, beta, None)
    else:
        out = attend_by(kernels, scores, value, beta, maximum.detach())
    outs = [
        out,
        defined(*inputs),
        defined(*exact_inputs),
    ]
    grad = torch.randn(outs[2].shape, dtype=torch.float64).to(device)
    unit = torch.finfo(dtype).eps
    gradients = [
        torch.autograd.grad(out.double(), leaves, grad)
        for out, leaves in zip(outs, (inputs, inputs, exact_inputs), strict=True)
    ]
    for ours, theirs, truth in [outs, *zip(*gradients, strict=True)]:
        assert ours.isfinite().all()
        allowed = 2 * (theirs.double() - truth).norm() + 16 * unit * truth.norm() + 1e-4
        assert (ours.double() - truth).norm() <= allowed


def poison_fresh_memory(monkeypatch: Any) -> None:
    """Let fresh memory hold NaN, so that what a kernel leaves unwritten is seen."""

    def poisoned(make: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

        return made

    for place, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(place, name, poisoned(getattr(place, name)))
