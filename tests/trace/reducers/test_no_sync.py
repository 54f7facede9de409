"""No reducer waits for the device before its end.

Under fake tensors nothing has a value: `bool`, `item`, `tolist`, `nonzero` and boolean indexing raise. What would wait
on a GPU in other ways is forbidden by name.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from oversmooth.monitor.reduced import band_norms
from oversmooth.safety import arguments
from oversmooth.trace.reducers.sites import SiteMetrics

WAITS = {
    "_linalg_eigh", "_linalg_svd", "_linalg_check_errors", "linalg_eig", "linalg_pinv", "linalg_eigvals",
    "_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "median", "nanmedian",
    "kthvalue", "randn", "rand", "randperm", "normal_", "uniform_", "bernoulli_", "multinomial",
}  # fmt: skip
"""`use_deterministic_algorithms` refuses the order statistics; random numbers would change what trainings draw."""


class Names(TorchDispatchMode):
    """Refuses operators by name, and copies from one device to another."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in WAITS, f"{name} waits for the device"
        out = func(*args, **(kwargs or {}))
        devices = {one.device for one in (*args, out) if isinstance(one, torch.Tensor) and one.ndim}
        assert len(devices) <= 1, f"{name} copies between {devices}"
        return out


CASES = [
    ((2, 20, 12), torch.float32, False),
    ((3, 7, 40), torch.bfloat16, True),
    ((1, 5000, 8), torch.bfloat16, True),
    ((2, 1100, 1030), torch.float32, True),
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("shape", "dtype", "masked"), CASES)
def test_updates_wait_for_nothing(device, dtype, masked, shape, monkeypatch):
    """On meta, where tokens are otherwise refused, tensors that are made on the CPU by mistake are seen."""
    monkeypatch.setattr(arguments, "_check_holds_numbers", lambda *_: None)
    numbers = SiteMetrics(ranks=2 if min(shape[1:]) > 1024 else 0, directions=True)
    with FakeTensorMode(), Names():
        x = torch.empty(shape, dtype=dtype, device=device)
        mask = torch.empty(shape[:2], dtype=torch.bool, device=device) if masked else None
        for site in range(2):
            numbers.update(site, x, mask)
        band_norms(x, mask)
    moments = {"count", "log_hfc", "log_lfc", "cos", "abs_cos", "ratios", "positions"}
    sketch = {"grams", "squares"} | ({"lanczos", "side"} if numbers.ranks else set())
    for wanted, table in ((moments, numbers.rows), (sketch, numbers.ranked)):
        for row in (row for rows in table.values() for row in rows):
            assert wanted <= set(row)
            assert all(value.device.type == device and value.numel() <= 5000 for value in row.values())
    assert len(numbers.ranked) == 2


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: bool(x.any()),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.linalg.eigvalsh(x @ x.mT),
        lambda x: torch.linalg.pinv(x),
        lambda x: x.cpu(),
    ],
)
def test_what_waits_is_seen(waits):
    """The check itself."""
    refused = (AssertionError, DataDependentOutputException, DynamicOutputShapeException, RuntimeError)
    with FakeTensorMode(), Names(), pytest.raises(refused):
        waits(torch.empty(4, 4, device="meta"))
