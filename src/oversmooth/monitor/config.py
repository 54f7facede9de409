"""What a monitor records and how often, checked as a whole: no model is needed to refuse a setting."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from oversmooth.monitor import alarm as alarms_module
from oversmooth.monitor import sinks as sinks_module
from oversmooth.monitor.names import TOKENS
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

RANKS = ("effective_rank", "stable_rank", "sigma_ratio", "rank_one_distance")
_NAMES = {
    "parts": ("change_attention", "change_mlp", "change_norm", "change_other"),
    "spectra": ("negative_share", "rho_smooth", "asymmetry"),
    "dominance": ("smoothing_share", "sink_rate", "sink_attention"),
    "joined": ("joined_rho_smooth", "joined_rho_rough"),
    "steering": ("strength", "room", "verified"),
    "gradients": ("gradient_norm", "gradient_hfc"),
}
"""By setting that says how often: what it adds to a snapshot."""
ATTENTION = {
    "parts": "changes by part", "dominance": "shares of dominance", "joined": "joined spectra", "spectra": "spectra",
}  # fmt: skip
"""By setting: what needs attention that is known, in words; all but the last a probe, too."""


@dataclass(frozen=True)
class MonitorConfig:
    """What a `Monitor` records; ``Monitor(model, probe, spectra=10)`` makes one of its keywords.

    "In every so many snapshots" means: 1 in each, 10 in every tenth, 0 never.
    """

    every: int = 100
    """Steps between snapshots; there is also one after the first step."""
    use_training_batch: bool = False
    """Record the training batch during training's own forward pass, in place of a probe. The monitor has to be made
    before the model is compiled."""
    tokens: Sequence[str] = ("hfc_lfc", "cos", "effective_rank")
    """Metrics of tokens: hfc_lfc, cos, abs_cos, effective_rank, stable_rank, sigma_ratio, rank_one_distance. hfc_lfc is
    the geometric mean over inputs, where a diagnosis has the arithmetic one."""
    ranks: int = 4
    """Inputs whose ranks are computed, the first ones."""
    parts: int = 0
    """Change by sublayer (attention, MLP, norm) in every so many snapshots."""
    spectra: int = 0
    """Spectra of H (negative share, ρ_smooth, asymmetry) in every so many snapshots."""
    dominance: int = 0
    """The share of heads whose smoothing eigenvalue dominates, the share whose attention sink is the first token, and
    the mean attention to it, in every so many snapshots."""
    joined: int = 0
    """ρ_smooth and ρ_rough of all heads jointly, for the probe's first input, in every so many snapshots; seconds each.
    """
    steering: int = 1
    """Of a steered model: its strength in each snapshot, and distance to the flip and whether constraints hold in every
    so many."""
    gradients: int = 0
    """Norm of the gradient after each block and its share of HFC, in every so many snapshots: of the training batch, or
    of a probe that comes with a loss."""
    loss: Callable[[Any, Any], Tensor] | None = None
    """A function of (what the model returns, the probe), for a model that returns no loss itself."""
    alarms: Any = ()
    """One `Alarm` or several."""
    sinks: Any = ()
    """Loggers: of `oversmooth.monitor` TensorBoard, WandB or JSONLines, or functions of (step, values)."""
    blocks: str | None = None
    """Names of the blocks, such as "layers.*", of a model whose attention is not known."""
    stack: str | None = None
    """Part of the name of the stack of blocks, where the model has several."""
    heads: int | None = None
    """The number of heads, where the model does not say."""
    name: str | None = None
    """Of the run, on pages."""
    together: bool | None = None
    """Average snapshots over all processes, each of which must then have a monitor. None: where weights are sharded."""
    scaler: Any = None
    """torch's GradScaler, whose scale is divided out of gradients of the training batch. False: none is used. None: not
    known; the norm of gradients is then left out under autocast."""

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {}
        for name in ("every", "ranks", *_NAMES):
            value = getattr(self, name)
            value = int(value) if name in _NAMES and isinstance(value, bool) else value
            checked[name] = arguments.whole(value, name, least=name == "every")
        checked["use_training_batch"] = arguments.flag(self.use_training_batch, "use_training_batch")
        checked["tokens"] = _metrics(self.tokens)
        checked["alarms"], checked["sinks"] = alarms_module.checked(self.alarms), sinks_module.checked(self.sinks)
        if self.heads is not None:
            checked["heads"] = arguments.whole(self.heads, "heads", least=1)
        if self.together is not None:
            checked["together"] = arguments.flag(self.together, "together")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name in ("blocks", "stack"):
            if not isinstance(getattr(self, name), (str, type(None))):
                shown = arguments.shown(getattr(self, name))
                raise InputError(f"{name} is {shown}; give part of the names of modules as text")
        if self.loss is not None and not callable(self.loss):
            raise InputError(
                f"loss is {arguments.shown(self.loss)}; give a function of what the model returns and the probe"
            )
        if not (self.scaler is None or self.scaler is False or hasattr(self.scaler, "get_scale")):
            raise InputError(f"scaler is {arguments.shown(self.scaler)}; give torch's GradScaler, or False")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse settings that contradict each other."""
        if self.tokens and set(self.tokens) <= set(RANKS) and not self.ranks:
            raise InputError("ranks is 0 and tokens ask for ranks alone; give the number of inputs to compute them of")
        for what in ("parts", "dominance", "joined"):
            if self.use_training_batch and getattr(self, what):
                raise InputError(
                    f"{ATTENTION[what]} cannot be had of the training batch; give a probe, or leave it out"
                )
        recorded = {*self.tokens, *(name for what, names in _NAMES.items() if getattr(self, what) for name in names)}
        for alarm in self.alarms:
            if alarm.metric not in recorded:
                off = next((what for what, names in _NAMES.items() if alarm.metric in names), None)
                remedy = f"pass {off}=10" if off else f"choose one of {', '.join(sorted(recorded))}"
                raise InputError(f"an alarm is for {alarm.metric}, which is not recorded; {remedy}")

    @property
    def ranked(self) -> int:
        """Inputs whose ranks are computed; 0 where no metric of rank is asked for."""
        return self.ranks if {*self.tokens} & {*RANKS} else 0

    def due(self, nth: int) -> dict[str, bool]:
        """Which of what is not in each snapshot is in the n-th, by setting."""
        return {what: (cadence := getattr(self, what)) > 0 and nth % cadence == 0 for what in _NAMES}


def configured(who: str, config: MonitorConfig | None, settings: Mapping[str, Any]) -> MonitorConfig:
    """A config, or the default one, with some of its fields set; ``passing`` is the earlier name of
    ``use_training_batch``. who: takes the settings, for the error.
    """
    settings = {"use_training_batch" if name == "passing" else name: value for name, value in settings.items()}
    known = [field.name for field in dataclasses.fields(MonitorConfig)]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, (*known, "probe", "history"), 1)
            remedy = f"did you mean {near[0]!r}?" if near else f"choose among {', '.join(known)}"
            raise InputError(f"{who} has no setting {name!r}; {remedy}")
    if not isinstance(config, (MonitorConfig, type(None))):
        raise InputError(f"config is {arguments.shown(config)}; give oversmooth.monitor.MonitorConfig(...)")
    return dataclasses.replace(config or MonitorConfig(), **settings)


def _metrics(names: Any) -> tuple[str, ...]:
    if not isinstance(names, (str, Sequence, set, frozenset)):
        raise InputError(f"tokens is {arguments.shown(names)}; give names of metrics, such as ('cos', 'hfc_lfc')")
    several = (names,) if isinstance(names, str) else tuple(names)
    return tuple(arguments.choice(name, "one of tokens", TOKENS) for name in several)
