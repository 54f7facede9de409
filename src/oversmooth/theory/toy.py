"""Small random transformers whose behaviour the theory predicts, and the presets that `oversmooth simulate` shows.

A case draws attention and weights whose H has eigenvalues in a given range, predicts from spectra what depth does, and
then applies the layers to compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory import Dominance, centre_features, dominance, flip_threshold, fold_norm, simulate
from oversmooth.theory.simulate import MOST_LAYERS, Norm, Simulation

# The flip: the ends of its range of eigenvalues, in multiples of the threshold.
_BEYOND_FLIP = (1.6, 1.2)
# With a norm the ratio cannot be followed below the rounding of float64.
_ALL_BUT_ZERO = 1e-10
_LARGEST = 1e6
_WITHIN = f"give a number within ±{_LARGEST:g}"
_MOST_ENTRIES = 1 << 29  # of attention: 4 GiB
_MOST_WIDTH = 8192  # a d by d matrix is made orthogonal, which takes d³


@dataclass(frozen=True)
class ToyModel:
    """One setting of the toy model; `run` draws it, predicts what depth does, and applies it."""

    name: str
    tokens: int = 32
    width: int = 16
    heads: int = 1
    layers: int = 100
    eigenvalues: tuple[float, float] | None = (-1.0, 1.0)
    """Range of H's eigenvalues, drawn uniformly; None: beyond the flip of the attention that was drawn."""
    residual: bool = True
    norm: Norm = "none"
    gamma: float = 1.0
    neutreno: float = 0.0
    causal: bool = False
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        most = dict(width=_MOST_WIDTH, layers=MOST_LAYERS, seed=2**63 - 1)
        for name, least in dict(tokens=2, width=1, heads=1, layers=4, draws=1, seed=0).items():
            number = arguments.whole(getattr(self, name), name, least=least)
            if number > most.get(name, number):
                raise InputError(f"{name} is {number:,}; give {most[name]:,} or less")
        for name in ("gamma", "neutreno"):
            arguments.number(getattr(self, name), name, _WITHIN, least=-_LARGEST, most=_LARGEST)
        if self.width % self.heads:
            raise InputError(f"width {self.width} cannot be split among {self.heads} heads; choose a multiple")
        if self.norm != "none" and self.width < 2:
            raise InputError("a LayerNorm over 1 feature leaves nothing; give --width 2 or more")
        low, high = self.eigenvalues or (0.0, 0.0)
        if not -_LARGEST <= low <= high <= _LARGEST:
            raise InputError(f"the eigenvalues run from {low} to {high}; {_WITHIN}, the smaller end first")
        entries = self.draws * max(self.heads * self.tokens**2, self.width**2, self.tokens * self.width)
        if entries > _MOST_ENTRIES:
            raise InputError(
                f"{self.tokens} tokens need {entries * 8 / 2**30:,.0f} GiB with {self.heads} heads, width {self.width} "
                f"and {self.draws} draws; give less"
            )
        if self.gamma == 0:
            raise InputError("gamma is 0, which makes every token zero; give its sign, such as 1 or -1")
        if self.gamma != 1 and self.norm == "none":
            raise InputError(f"gamma is {self.gamma} but there is no norm to take it; give --norm pre or post as well")

    def run(self, progress: Callable[[int], None] | None = None) -> ToyOutcome:
        """Draw, predict and apply.

        Args:
            progress: called with the number of layers done.
        """
        X, A, W_V, W_O = self._draw()
        observed = simulate(
            *(X, A, W_V, W_O, self.layers),
            residual=self.residual,
            neutreno=self.neutreno,
            norm=self.norm,
            gamma=self.gamma,
            every=max(1, self.layers // 1000),
            progress=progress,
        )
        if self.norm == "pre":
            W_V = fold_norm(W_V, self.gamma)
        elif self.norm == "post":
            W_V, W_O = centre_features(W_V, W_O)
        prediction = dominance(A, W_V, W_O, residual=self.residual, neutreno=self.neutreno)
        return ToyOutcome(self, prediction, observed)

    def _draw(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """X ``(draws, n, d)``, A ``(draws, heads, n, n)``, W_V ``(draws, heads, d, k)``, W_O with d and k swapped."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(self.draws, *shape, dtype=torch.float64, generator=generator)

        n, d, heads = self.tokens, self.width, self.heads
        k = d // heads
        q, key = normal(heads, n, k), normal(heads, n, k)
        scores = q @ key.mT / math.sqrt(k)
        if self.causal:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
        A = scores.softmax(-1)
        V = torch.linalg.qr(normal(d, d)).Q
        low, high = self.eigenvalues or tuple(b * float(flip_threshold(A).min()) for b in _BEYOND_FLIP)
        if not math.isfinite(low):
            raise InputError("this attention never flips back to smoothing; draw another with --seed, or more --tokens")
        share = torch.rand(self.draws, d, dtype=torch.float64, generator=generator)
        # H = V Λ Vᵀ with heads on slices of one orthogonal V: Λ has the eigenvalues of each head and of all together.
        W_V = V.unflatten(-1, (heads, k)).movedim(-2, -3)
        W_O = W_V.mT * (low + (high - low) * share).reshape(self.draws, heads, k, 1)
        return normal(n, d), A, W_V, W_O


@dataclass(frozen=True)
class ToyOutcome:
    """What was predicted of a case and what happened, ``(draws,)`` each."""

    case: ToyModel
    prediction: Dominance
    observed: Simulation

    @property
    def predicted(self) -> list[str]:
        """The verdict: "smooth", "rough", "tie", "undecided", or "open" where the spectra do not decide.

        That is NeuTRENO under a norm: the norm keeps X from outgrowing V⁰, which the linear update does not model.
        """
        if self.case.norm != "none" and self.case.neutreno:
            return ["open"] * self.case.draws
        return self.prediction.verdict

    @property
    def happened(self) -> list[str]:
        """What HFC/LFC shows: "smooth" where it ends below its start and still falls or is all but zero, else "rough".

        It falls if its highest value in the last quarter is below that in the quarter before, so that turning does not
        count.
        """
        ratio = self.observed.log_hfc_lfc
        quarter = max(1, len(ratio) // 4)
        falls = ratio[-quarter:].amax(0) < ratio[-2 * quarter : -quarter].amax(0) + math.log(0.98)
        smooth = (ratio[-1] < ratio[0]) & (falls | (ratio[-1] < math.log(_ALL_BUT_ZERO)))
        return ["smooth" if s else "rough" for s in smooth.tolist()]

    @property
    def agrees(self) -> list[bool | None]:
        """Whether what happened was predicted; None where nothing was predicted."""
        pairs = zip(self.predicted, self.happened, strict=True)
        return [None if verdict in ("tie", "undecided", "open") else verdict == seen for verdict, seen in pairs]

    @property
    def notions(self) -> dict[str, list[str]]:
        """What the spectra say about the three notions.

        With a norm, rank and angle are open where the rough part wins: the limit of the linear update is not that of
        the normed one.
        """
        notions = self.prediction.notions
        if self.case.norm == "none":
            return notions
        smooth = ["open"] * self.case.draws if self.case.neutreno else notions["input_convergence"]
        unsure = [answer if answer == "holds" else "open" for answer in smooth]
        return {"input_convergence": smooth, "angle_convergence": unsure, "rank_collapse": unsure}

    @property
    def predicted_rate(self) -> Tensor | None:
        """The factor per layer by which HFC/LFC falls where smoothing wins; None with a norm or a tie."""
        p = self.prediction
        if self.case.norm != "none" or {"tie", "undecided"} & set(self.predicted):
            return None
        return torch.where(p.smoothing, p.rho_rough.clamp(min=p.rough_floor) / p.rho_smooth, 1.0)

    @property
    def seen_rate(self) -> Tensor | None:
        """The observed factor; None where the ratio has reached the rounding of float64, as it can with a norm."""
        floor = math.log(_ALL_BUT_ZERO) if self.case.norm != "none" else -math.inf
        return None if bool((self.observed.log_hfc_lfc[-1] < floor).any()) else self.observed.rate


_SECTION_3 = {
    "smoothing": ToyModel("smoothing", eigenvalues=(0.1, 1.0)),
    "sharpening": ToyModel("sharpening", eigenvalues=(-1.0, -0.1)),
    "flip": ToyModel("flip", eigenvalues=None),
    "no-residual": ToyModel("no-residual", eigenvalues=(-1.0, -0.1), residual=False),
}
_FIGURE_4 = {
    f"{norm}-ln{sign}": ToyModel(
        f"{norm}-ln{sign}", eigenvalues=(0.1, 1.0), norm=norm, gamma=gamma, draws=10, layers=200
    )
    for norm in ("post", "pre")
    for sign, gamma in (("+", 1.0), ("-", -1.0))
}
OWN = "your case"
PRESETS: dict[str, list[ToyModel]] = {
    "cases": list(_SECTION_3.values()),
    **{name: [case] for name, case in _SECTION_3.items()},
    "figure4": list(_FIGURE_4.values()),
    **{name: [case] for name, case in _FIGURE_4.items()},
}
"""What `oversmooth simulate --preset` knows: the four cases of THEORY §3, and Dovonon et al.'s figure 4."""


def with_options(cases: list[ToyModel], **options: object) -> list[ToyModel]:
    """The same cases with these settings; those that are None are ignored."""
    given = {name: value for name, value in options.items() if value is not None}
    # A preset whose substance was changed is no longer what it is called.
    if {"eigenvalues", "residual", "norm", "gamma", "neutreno"} & set(given):
        cases = [replace(case, name=case.name if case.name == OWN else f"{case.name}, changed") for case in cases]
    return [replace(case, **given) for case in cases]  # type: ignore[arg-type]
