"""Ways to make a model smooth or sharpen, on any model that anatomy knows.

steer(model, Spectral("sharpen"))      attach a method, in place
unsteer(model)                         remove it, exactly
fold(model)                            leave plain weights that compute the same, where weights alone can
verify(model)                          compute, not assume, that the spectral constraint holds
suggest(model, inputs)                 the least strength of NeuTRENO at which nothing smooths
ramp(model, to=0.6, steps=1000)        raise the strength while a trained model is fine-tuned
"""

from oversmooth.steering.apply import fold, steer, unsteer, verify
from oversmooth.steering.methods.attnscale import AttnScale
from oversmooth.steering.methods.base import Method
from oversmooth.steering.methods.centred import Centred
from oversmooth.steering.methods.contranorm import ContraNorm
from oversmooth.steering.methods.featscale import FeatScale
from oversmooth.steering.methods.gated import GatedAttention
from oversmooth.steering.methods.inversion import Inversion
from oversmooth.steering.methods.laplacian import Laplacian
from oversmooth.steering.methods.layernorm_scaling import LayerNormScaling
from oversmooth.steering.methods.neutreno import NeuTRENO
from oversmooth.steering.methods.orthogonal_update import OrthogonalUpdate
from oversmooth.steering.methods.registry import METHODS, register
from oversmooth.steering.methods.spectral import Spectral
from oversmooth.steering.methods.value_residual import ValueResidual
from oversmooth.steering.ramps import ramp
from oversmooth.steering.record import steering_of
from oversmooth.steering.saving import save_steered
from oversmooth.steering.suggestion import suggest

__all__ = [
    "METHODS", "AttnScale", "Centred", "ContraNorm", "FeatScale", "GatedAttention", "Inversion", "Laplacian",
    "LayerNormScaling", "Method", "NeuTRENO", "OrthogonalUpdate", "Spectral", "ValueResidual", "fold", "ramp",
    "register", "save_steered", "steer", "steering_of", "suggest", "unsteer", "verify",
]  # fmt: skip
