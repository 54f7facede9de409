"""Whether a steered model keeps its promises: computed from the weights that it uses, not assumed."""

from __future__ import annotations

from torch import Tensor, nn

from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.safety.errors import InputError
from oversmooth.safety.precision import float32_products
from oversmooth.steering.promises import Verification, kept
from oversmooth.steering.record import steering_of


@float32_products("highest")
def verify(model: nn.Module, attention: dict[str, Tensor] | None = None) -> Verification:
    """Compute the spectra that steering promised, and report what does not hold.

    Args:
        model: steered.
        attention: ``(..., heads, n, n)`` by the name of the layer: A of some inputs. It decides how near the flip to
            smoothing is (−2/(1 + a) for a real spectrum, of the mixture of query heads that share a value head);
            without it −1 is the bound that is safe for any attention.

    Returns:
        The spectra and problems of each layer; true where every promise holds.

    Raises:
        InputError: the model is not steered.
    """
    inside = unwrapped(check_is_module(model))
    steering = steering_of(inside)
    if steering is None:
        raise InputError(f"this {type(inside).__name__} is not steered; there is nothing to verify")
    steering.check_projections()
    return kept(steering.reparametrized, list(steering.sites.values()), attention or {})
