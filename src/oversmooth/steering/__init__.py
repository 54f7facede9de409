"""Ways to make a model smooth or sharpen, on any model that anatomy knows; one file each.

steer(model, Spectral("sharpen"))      put a method on, in place
unsteer(model)                         take it off again, exactly
fold(model)                            leave plain weights that compute the same, where weights alone can
verify(model)                          compute, not assume, that the promised spectrum holds
"""

from oversmooth.anatomy.live import steering_of
from oversmooth.steering.apply import fold, steer, unsteer
from oversmooth.steering.attnscale import AttnScale
from oversmooth.steering.centred import Centred
from oversmooth.steering.contranorm import ContraNorm
from oversmooth.steering.featscale import FeatScale
from oversmooth.steering.laplacian import Laplacian
from oversmooth.steering.method import Method
from oversmooth.steering.neutreno import NeuTRENO
from oversmooth.steering.record import Steering
from oversmooth.steering.saving import load_steered, method_from, save_steered
from oversmooth.steering.spectral import Spectral
from oversmooth.steering.value_residual import ValueResidual
from oversmooth.steering.verify import Verification, verify

METHODS: dict[str, type[Method]] = {
    method.__name__: method
    for method in (Spectral, NeuTRENO, AttnScale, FeatScale, ContraNorm, ValueResidual, Centred, Laplacian)
}

__all__ = [
    "METHODS", "AttnScale", "Centred", "ContraNorm", "FeatScale", "Laplacian", "Method", "NeuTRENO", "Spectral",
    "Steering", "ValueResidual", "Verification", "fold", "load_steered", "method_from", "save_steered", "steer",
    "steering_of", "unsteer", "verify",
]  # fmt: skip
