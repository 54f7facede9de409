"""steer, unsteer, fold and verify: methods on a live model, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy
from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.anatomy.steered import STEERED, steered_module
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.precision import float32_products
from oversmooth.safety.signals import delay_signals
from oversmooth.steering.layer_names import Layers, chosen_layers
from oversmooth.steering.methods.base import Method
from oversmooth.steering.record import Steering, steering_of
from oversmooth.steering.reparametrized import check_products, weights_of_all
from oversmooth.steering.spectrum_checks import Verification

MARKER = "oversmooth_steered_open_with_oversmooth"
"""A weight that a stock model does not have. Without this package transformers reports it on loading a steered
checkpoint, and timm refuses the file; without this weight the others would fit, and nothing would be reported.
"""


def steer(
    model: nn.Module,
    method: Method | Sequence[Method],
    layers: Layers = "all",
    *,
    stack: str | None = None,
    heads: int | None = None,
) -> nn.Module:
    """Put one method, or several that act at different points, on some layers of a model, in place.

    The model has other parameters afterwards: create its optimiser again.

    Args:
        model: any that `anatomy.locate` knows.
        method: one, or a list.
        layers: "all", "first half", "last half", indices in the stack (negative ones from its end), or a function
            (index, layer) -> bool.
        stack, heads: for `anatomy.locate`.

    Returns:
        The model.

    Raises:
        InputError: the model is steered already, or a layer cannot take a method.
    """
    inside = unwrapped(check_is_module(model))
    methods = _checked_methods(method)
    if (steering := steering_of(inside)) is not None:
        raise InputError(
            f"this {type(inside).__name__} is already steered by {' and '.join(map(str, steering.methods))}; "
            "call oversmooth.unsteer first, and pass all methods at once"
        )
    anatomy = locate(inside, stack=stack, heads=heads)
    chosen = chosen_layers(layers, anatomy)
    for one in methods:
        for index in chosen:
            if why := one.refusal(anatomy.layers[index], anatomy):
                raise InputError(
                    f"{type(one).__name__} cannot act on layer {index} ({anatomy.layers[index].name}): {why}"
                )
    first = anatomy.layers[0].name
    for one in methods:
        if one.uses_first_values and chosen == [0] and all(layer.name != first for layer in anatomy.layers[1:]):
            raise InputError(f"{one} acts in every layer but the first, and no other was chosen; choose later ones")
    put_on(inside, Steering(inside, methods, chosen, heads, anatomy))
    return model


def _check_modules(model: nn.Module, anatomy: Anatomy, chosen: list[int], methods: list[Method]) -> None:
    """Refuse steered layers that share a module, and weights that Spectral cannot reparametrize."""
    touched = {*chosen} | ({0} if any(one.uses_first_values for one in methods) else set())
    modules = dict(model.named_modules(remove_duplicate=False))
    names: dict[int, tuple[int, str]] = {}
    for index, layer in enumerate(anatomy):
        earlier, name = names.setdefault(id(modules[layer.name]), (index, layer.name))
        if name != layer.name and touched & {earlier, index}:
            raise InputError(
                f"layers {earlier} and {index} are one module under two names ({name} and {layer.name}); give each a "
                "copy of its own"
            )
    for index in chosen if any(one.place == "weights" for one in methods) else ():
        layer = anatomy.layers[index]
        for owner, weight in (layer.value_module, layer.output_module):
            if modules[owner]._parameters.get(weight) is None:
                raise InputError(
                    f"{owner}.{weight} of layer {index} is computed from other weights, by a parametrization; "
                    "remove it first (torch.nn.utils.parametrize.remove_parametrizations)"
                )
        check_products(index, layer, modules[layer.value_module[0]], modules[layer.output_module[0]])


def put_on(model: nn.Module, steering: Steering) -> Steering:
    """Attach what a record says. The parameters of a loaded one are loaded afterwards.

    Raises:
        InputError: a layer cannot take it; the model is left as it was.
    """
    _check_modules(model, steering.anatomy, steering.layers, steering.methods_given)
    try:
        steering.attach(model, [method for method in steering.methods_given if not method.changes_nothing()])
        with delay_signals():
            model.__dict__[STEERED] = steering
            if hasattr(model, "save_pretrained") or hasattr(model, "pretrained_cfg"):
                device = next((p.device for p in model.parameters()), None)
                model.register_buffer(MARKER, torch.zeros((), device=device))
            write_config(model, steering.settings())
    except BaseException:
        take_off(model, steering)
        raise
    return steering


@delay_signals()  # a model is steered or not, and knows it
def take_off(model: nn.Module, steering: Steering, *, fold: bool = False) -> None:
    """Remove steering in place, even where the weights left are not those that a loaded model once had."""
    steering.detach(model, fold=fold)
    if model.__dict__.pop(STEERED, None) is not None:
        model._buffers.pop(MARKER, None)
        write_config(model, None)


def unsteer(model: nn.Module) -> nn.Module:
    """Undo `steer` exactly, in place: the original weights, and nothing that was added.

    Args:
        model: steered.

    Returns:
        The model.

    Raises:
        InputError: it is not steered, or was loaded steered, without its original weights.
    """
    inside, steering = steered(model)
    if steering.restored and steering.reparametrized:
        raise InputError("this model was loaded steered, without its original weights; fold it instead")
    take_off(inside, steering)
    return model


def fold(model: nn.Module) -> nn.Module:
    """Turn a steered model into a stock model with the same outputs, in place, if weights can express its methods.

    Args:
        model: steered.

    Returns:
        The model.

    Raises:
        InputError: it is not steered, or weights cannot express a method.
    """
    inside, steering = steered(model)
    for method in steering.methods:
        if method.why_no_fold and not method.changes_nothing():
            raise InputError(
                f"{method} cannot be folded: {method.why_no_fold} cannot be expressed as weights; keep the model "
                "steered, or call oversmooth.unsteer"
            )
    steering.check_projections()
    with torch.no_grad():
        weights_of_all(steering.reparametrized, check=True)
    take_off(inside, steering, fold=True)
    return model


def fold_if_possible(model: nn.Module) -> bool:
    """Fold a model whose steering weights alone can do; whether it is a plain one now."""
    steering = steering_of(model)
    if steering is not None and not any(method.why_no_fold for method in steering.methods):
        fold(model)
    return steering_of(model) is None


@float32_products("highest")
def verify(model: nn.Module, attention: dict[str, Tensor] | None = None) -> Verification:
    """Compute the spectra that steering constrains, and report violations.

    Args:
        model: steered.
        attention: ``(..., heads, n, n)`` by the name of the layer: A of some inputs. It decides how near the flip to
            smoothing is (−2/(1 + a) for a real spectrum, of the mixture of query heads that share a value head);
            without it the bound is −1, which is safe for any attention.

    Returns:
        The spectra, margin and problems of each layer; true where every constraint holds.

    Raises:
        InputError: the model is not steered.
    """
    _, steering = steered(model)
    steering.check_projections()
    return steering.verify(attention or {})


def steered(model: nn.Module) -> tuple[nn.Module, Steering]:
    """The module that `steer` was called with, this one or one inside it, and what was done to it."""
    inside = steered_module(check_is_module(model))
    if inside is None:
        raise InputError(f"this {type(unwrapped(model)).__name__} is not steered; steer it first")
    return inside, inside.__dict__[STEERED]


def write_config(model: nn.Module, settings: dict[str, Any] | None) -> None:
    """Settings in a Hugging Face model's configuration, so that save_pretrained writes them; None takes them away."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return
    if settings is not None:
        config.oversmooth = settings
    elif hasattr(config, "oversmooth"):
        del config.oversmooth


def _checked_methods(method: Method | Sequence[Method]) -> list[Any]:
    methods = list(method) if isinstance(method, (list, tuple)) else [method]
    if not methods:
        raise InputError("there is no method; give one of oversmooth.steering, such as NeuTRENO(0.6)")
    by_place: dict[str, Method] = {}
    for one in methods:
        if not isinstance(one, Method):
            raise InputError(
                f"{arguments.shown(one)} is no method; give one of oversmooth.steering, such as NeuTRENO(0.6)"
            )
        if one.place in by_place:
            raise InputError(
                f"{by_place[one.place]} and {one} both act on {one.place}, and their order would matter; "
                "use one of them"
            )
        by_place[one.place] = one
    return methods
