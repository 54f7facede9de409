"""Finite weights whose product is not: MKL's LAPACK ends the process on an infinite entry, so it never gets one."""

import functools
import inspect

import pytest
import torch
from support.families import FAMILIES

from oversmooth import InputError, diagnose, steer
from oversmooth.anatomy import locate
from oversmooth.diagnosis.weights import diagnose_weights
from oversmooth.steering import Spectral, verify
from oversmooth.steering.methods.orthogonal import completed
from oversmooth.steering.warm_start import nearest_basis
from oversmooth.theory import dominance, head_spectrum, joined_spectrum
from oversmooth.theory.bounds import head_verdicts

LAPACK = ("eig", "eigvals", "eigh", "eigvalsh", "svd", "svdvals", "qr", "pinv")


@pytest.fixture(autouse=True)
def referee(monkeypatch):
    """Ends a test where LAPACK is given what would end the process."""

    def watched(call, *arguments, **settings):
        assert all(bool(x.isfinite().all()) for x in arguments if isinstance(x, torch.Tensor)), inspect.stack()[2]
        return call(*arguments, **settings)

    for name in LAPACK:
        monkeypatch.setattr(torch.linalg, name, functools.partial(watched, getattr(torch.linalg, name)))
    norm = torch.linalg.matrix_norm

    def matrix_norm(x, ord="fro", *rest, **settings):
        return watched(norm, x, ord, *rest, **settings) if ord == 2 else norm(x, ord, *rest, **settings)

    monkeypatch.setattr(torch.linalg, "matrix_norm", matrix_norm)


INFINITE = "a product of weights is infinite or NaN; scale the weights down"


def large(name, factor=1e21):
    model = FAMILIES[name].make()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "_proj" in key or "attention" in key:
                p.mul_(factor)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return model


@pytest.mark.parametrize("name", ["Llama", "BERT"])
@pytest.mark.parametrize("joined", [True, False])
def test_spectra_by_weights_alone(name, joined):
    anatomy = locate(large(name))
    with pytest.raises(InputError, match=rf"^{anatomy.layers[0].name}: {INFINITE}"):
        diagnose_weights("x", anatomy, joined=joined)


@pytest.mark.parametrize("name", ["Llama", "BERT", "ViT"])
def test_a_diagnosis(name):
    with pytest.raises(InputError, match=r"infinite|NaN|finite"):
        diagnose(large(name), FAMILIES[name].inputs(), depth=2)


@pytest.mark.parametrize("form", ["symmetric", "general"])
@pytest.mark.parametrize("factor", [1e21, 1e160])
def test_steering(form, factor):
    model = FAMILIES["BERT"].make().double()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.mul_(factor if "attention" in key else 1.0)
    try:
        verify(steer(model, Spectral(form=form)))
    except InputError as error:
        said = str(error)
    else:
        said = "steered"  # in float64 such products are finite
    assert said == "steered" if factor == 1e21 else "encoder.layer.0.attention" in said, said


@pytest.mark.parametrize("call", [head_spectrum, joined_spectrum, head_verdicts])
def test_the_theory_of_weights(call):
    W = torch.full((1, 4, 2), 1e200, dtype=torch.float64)
    with pytest.raises(InputError, match=INFINITE):
        call(W, W.mT)


@pytest.mark.parametrize("per_head", [True, False])
def test_dominance(per_head):
    W = 1e25 * torch.eye(6).expand(2, 6, 6)
    A = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    with pytest.raises(InputError, match="scale the weights down"):
        dominance(A, W, W, per_head=per_head)


def test_parts_that_take_what_others_made():
    infinite = torch.full((4, 4), torch.inf, dtype=torch.float64)
    for call in (
        lambda: completed(infinite[:, :2]),
        lambda: nearest_basis(Spectral(), infinite[None, :, :2], infinite[None, :2], 1),
    ):
        with pytest.raises(InputError, match=INFINITE):
            call()
