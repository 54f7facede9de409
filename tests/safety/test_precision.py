"""What is computed of a model has float32's rounding, whatever the user lets a GPU round products to."""

import pytest
import torch
from support import watched
from support.interpreters import python

import oversmooth
from oversmooth.safety.precision import float32_products
from oversmooth.steering import Spectral, steer, verify


@pytest.fixture
def rough():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("rough")
def test_diagnoses_looks_and_checks_compute_in_float32(monkeypatch):
    model, seen = watched.Known(depth=2).eval(), []
    model.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    oversmooth.diagnose(model, watched.probe())
    oversmooth.Monitor(model, probe=watched.probe()).snapshot(1)
    assert set(seen) == {"highest"}
    assert torch.get_float32_matmul_precision() == "medium"
    steer(model, Spectral("sharpen"))
    product, heard = torch.linalg.svdvals, []
    monkeypatch.setattr(
        torch.linalg, "svdvals", lambda *a: heard.append(torch.get_float32_matmul_precision()) or product(*a)
    )
    verify(model)
    assert set(heard) == {"highest"}
    assert torch.get_float32_matmul_precision() == "medium"


def test_it_is_put_back_after_an_error():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ValueError, match="inside"), float32_products("medium"):
        raise ValueError("inside")
    assert torch.get_float32_matmul_precision() == before


def test_a_setting_by_backend_is_left_alone():
    """In a process of its own: torch refuses to be asked the old way from then on."""
    code = (
        "import torch; from oversmooth.safety.precision import float32_products as f\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "with f('highest'): assert torch.backends.cuda.matmul.fp32_precision == 'tf32'\n"
        "assert torch.backends.cuda.matmul.fp32_precision == 'tf32'\n"
    )
    assert python("-c", code).returncode == 0
