"""What the check of averaging methods hands to code that is being compiled, and whose check a copy's is."""

import copy
import gc

import pytest
import torch

from oversmooth.steering import AttnScale, FeatScale, steer
from oversmooth.steering import guard as guards
from oversmooth.train.tasks.images.settings import Shape
from oversmooth.train.tasks.images.vit import ViT

SMALL = Shape(image=8, patch=4, classes=3, width=16, depth=2, heads=2)
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def _is_constant(value):
    if isinstance(value, (tuple, list)):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, int, str, type))


@pytest.mark.parametrize("looked", [False, True], ids=["at once", "after a pass as it is"])
@pytest.mark.parametrize("method", [AttnScale(0.3, learned=False), FeatScale(0.2, 0.1, learned=False)])
def test_compiled_code_asks_with_arrays_and_constants_alone(monkeypatch, method, looked):
    """torch 2.11 takes nothing else, and says so in an error of its own."""
    asked = []
    for name in ("_is_open", "_is_known", "_refusal_while_compiling"):
        own = getattr(guards, name)

        def listening(*given, own=own, name=name):
            asked.append((name, [value for value in given if not isinstance(value, torch.Tensor)]))
            return own(*given)

        vars(listening)["_dynamo_marked_constant"] = True
        monkeypatch.setattr(guards, name, listening)
    torch.manual_seed(0)
    model = steer(ViT(SMALL).eval(), method)
    if looked:
        with torch.no_grad():
            expected = model(X)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", dynamic=False)(X)
        expected = model(X)
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-6)
    assert asked
    assert all(_is_constant(given) for _, given in asked), asked
    assert any(name == "_refusal_while_compiling" for name, _ in asked) is not looked


def test_a_copy_has_a_check_of_its_own():
    model = steer(ViT(SMALL).eval(), AttnScale(0.3, learned=False))
    before = set(guards._GUARDS)
    other = copy.deepcopy(model)
    new = [guards._GUARDS[key] for key in set(guards._GUARDS) - before]
    assert {guard.layer.name for guard in new} == {"blocks.0.attn", "blocks.1.attn"}
    inside = dict(other.named_modules())
    assert all(guard.module is inside[guard.layer.name] for guard in new)
    keys = {guard.key for guard in new}
    del other, inside, new
    gc.collect()
    assert not keys & set(guards._GUARDS)  # none is kept alive
