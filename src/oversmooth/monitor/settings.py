"""What is to be seen and how often, looked at before anything else: no model is needed to refuse it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oversmooth.monitor import alarm as alarms_module
from oversmooth.monitor import sinks as sinks_module
from oversmooth.monitor.alarm import Alarm
from oversmooth.monitor.names import TOKENS
from oversmooth.monitor.sinks import Sink
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

DEFAULT_TOKENS = ("hfc_lfc", "cos", "effective_rank")
RANKS = ("effective_rank", "stable_rank", "sigma_ratio", "rank_one_distance")
_OF_CADENCES = {
    "parts": ("change_attention", "change_mlp", "change_norm", "change_other"),
    "spectra": ("negative_share", "rho_smooth", "asymmetry"),
    "dominance": ("smoothing_share",),
    "joined": ("joined_rho_smooth", "joined_rho_rough"),
    "steering": ("strength", "room", "verified"),
    "gradients": ("gradient_norm", "gradient_hfc"),
}
_OF_TRAINERS = (
    "blocks", "tokens", "ranks", "parts", "spectra", "dominance", "joined", "steering", "gradients", "loss", "alarms",
    "sinks", "name", "stack", "heads", "together", "scaler",
)  # fmt: skip
"""What a trainer's callback takes for the monitor."""


@dataclass(frozen=True)
class Wanted:
    """What is to be seen."""

    every: int
    passing: bool
    tokens: tuple[str, ...]
    ranks: int
    """Inputs whose ranks are computed; 0 where none is asked for."""
    cadences: dict[str, int]
    """Looks between parts, spectra, dominance, joined spectra, promises of steering and gradients; 0: never."""
    alarms: list[Alarm]
    sinks: list[Sink]
    together: bool | None

    @property
    def metrics(self) -> set[str]:
        """The names of all that may be seen."""
        return {*self.tokens, *(name for what, names in _OF_CADENCES.items() if self.cadences[what] for name in names)}


def checked(
    *,
    every: Any,
    passing: Any = False,
    tokens: Any = DEFAULT_TOKENS,
    ranks: Any = 4,
    parts: Any = 0,
    spectra: Any = 0,
    dominance: Any = 0,
    joined: Any = 0,
    gradients: Any = 0,
    steering: Any = 1,
    loss: Callable[..., Any] | None = None,
    alarms: Any = (),
    sinks: Any = (),
    together: Any = None,
    scaler: Any = None,
) -> Wanted:
    """The settings of a `Monitor`, each refused in a sentence if it will not do."""
    given = _metrics(tokens)
    cadences = {
        "parts": parts, "spectra": spectra, "dominance": dominance, "joined": joined, "steering": steering,
        "gradients": gradients,
    }  # fmt: skip
    wanted = Wanted(
        every=arguments.whole(every, "every", least=1),
        passing=arguments.flag(passing, "passing"),
        tokens=given,
        ranks=arguments.whole(ranks, "ranks") if set(given) & set(RANKS) else 0,
        cadences={what: _cadence(looks, what) for what, looks in cadences.items()},
        alarms=alarms_module.checked(alarms),
        sinks=sinks_module.checked(sinks),
        together=None if together is None else arguments.flag(together, "together"),
    )
    if loss is not None and not callable(loss):
        raise InputError(f"loss is {arguments.shown(loss)}; give a function of what the model gives and the probe")
    if scaler is not None and scaler is not False and not callable(getattr(scaler, "get_scale", None)):
        raise InputError(f"scaler is {arguments.shown(scaler)}; give torch's GradScaler, or False")
    if given and set(given) <= set(RANKS) and not wanted.ranks:
        raise InputError("ranks is 0 and tokens ask for ranks alone; give the number of inputs to compute them of")
    if wanted.passing and (needy := [what for what in ("parts", "dominance", "joined") if wanted.cadences[what]]):
        what = {"joined": "joined spectra"}.get(needy[0], needy[0])
        raise InputError(f"{what} cannot be seen in the passing batch; give a probe, or leave them out")
    if wanted.passing and "abs_cos" in given:
        raise InputError("abs_cos cannot be seen in the passing batch; give a probe, or choose 'cos'")
    for alarm in wanted.alarms:
        if alarm.metric not in wanted.metrics:
            raise InputError(
                f"an alarm is for {alarm.metric}, which is not watched; choose one of "
                f"{', '.join(sorted(wanted.metrics))}, or have it watched"
            )
    return wanted


def check_callback(who: str, every: Any, passing: Any, settings: Mapping[str, Any]) -> None:
    """Refuse, where a callback is made, settings that the monitor would refuse when a training has begun.

    Args:
        who: the callback's name.
        every: steps between looks.
        passing: whether the training batch is watched.
        settings: the others, by name.
    """
    for name in settings:
        if name not in _OF_TRAINERS:
            near = difflib.get_close_matches(name, ("every", "probe", "passing", "inputs", "history", *_OF_TRAINERS), 1)
            remedy = f"did you mean {near[0]!r}?" if near else f"choose among {', '.join(_OF_TRAINERS)}"
            raise InputError(f"{who} has no setting {name!r}; {remedy}")
    for name in ("blocks", "stack"):
        if not isinstance(settings.get(name), (str, type(None))):
            raise InputError(f"{name} is {arguments.shown(settings[name])}; give part of the names of modules as text")
    if settings.get("heads") is not None:
        arguments.whole(settings["heads"], "heads", least=1)
    checked(
        every=every,
        passing=passing,
        **{name: value for name, value in settings.items() if name not in ("blocks", "stack", "heads", "name")},
    )


def _cadence(looks: Any, what: str) -> int:
    return arguments.whole(int(looks) if isinstance(looks, bool) else looks, what)


def _metrics(names: Any) -> tuple[str, ...]:
    if not isinstance(names, (str, Sequence, set, frozenset)):
        raise InputError(f"tokens is {arguments.shown(names)}; give names of metrics, such as ('cos', 'hfc_lfc')")
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        arguments.choice(name, "one of tokens", TOKENS)
    return given
