"""oversmooth: measure and predict how transformers mix their tokens with depth."""

from oversmooth import metrics, theory
from oversmooth.errors import InputError

__version__ = "0.1.0"
__all__ = ["InputError", "metrics", "theory"]
