"""A strength that changes step by step while a trained model is fine-tuned, instead of all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from oversmooth.anatomy.steered import STEERED
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.typed import typed
from oversmooth.steering.apply import steered
from oversmooth.steering.layer_hooks import LayerHooks
from oversmooth.steering.methods.base import Method, MethodWithStrength, Part
from oversmooth.steering.record import Steering, recompile, steering_of


@dataclasses.dataclass
class _Schedule:
    """What a checkpoint keeps of a ramp."""

    method: str
    start: float
    to: float
    steps: int
    done: int

    def __post_init__(self) -> None:
        if not 0 <= self.done <= self.steps or self.steps < 1:
            raise ValueError(f"{self.done} of {self.steps} steps are done")

    @property
    def strength(self) -> float:
        if self.done >= self.steps:
            return self.to
        return self.start + (self.to - self.start) * (self.done / self.steps)


class Ramp:
    """The strength of one method of a steered module on its way; made by `ramp`."""

    def __init__(self, model: nn.Module, steering: Steering, schedule: _Schedule) -> None:
        self._model, self._steering, self._schedule = model, steering, schedule
        steering.ramps += 1
        self._turn = steering.ramps

    @property
    def strength(self) -> float:
        """The strength that acts now, in every layer."""
        return self._schedule.strength

    @property
    def done(self) -> bool:
        """Whether it has arrived: further steps do nothing."""
        return self._schedule.done >= self._schedule.steps

    def step(self) -> None:
        """One step further; call it once after every step of the optimiser.

        Raises:
            InputError: the model is no longer steered as it was, or another ramp took over.
        """
        self._check()
        if not self.done:
            self._schedule.done += 1
            self._set()

    def state_dict(self) -> dict[str, Any]:
        """Where it is, in plain numbers, for a checkpoint."""
        return dataclasses.asdict(self._schedule)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where another ramp was; its start, end and number of steps replace those of this one.

        Args:
            state: from `state_dict`.

        Raises:
            InputError: it is of another method, or no such state.
        """
        self._check()
        try:
            schedule: _Schedule = typed(_Schedule, state)
        except ValueError as error:
            raise InputError(f"this is no state of a ramp ({error}); pass the result of Ramp.state_dict") from None
        if schedule.method != self._schedule.method:
            raise InputError(
                f"this is the state of a ramp of {schedule.method!r} and not of {self._schedule.method}; make the ramp "
                "of the same method"
            )
        self._schedule = schedule
        self._set()

    def __repr__(self) -> str:
        c = self._schedule
        return f"Ramp({c.method}, strength={c.strength:g}, from {c.start:g} to {c.to:g}, step {c.done} of {c.steps})"

    def _check(self) -> None:
        if steering_of(self._model) is not self._steering:
            raise InputError("the model is no longer steered as it was when the ramp was made; make another ramp")
        if self._turn != self._steering.ramps:
            raise InputError("another ramp was made of this model since; step that one")

    @torch.no_grad()
    def _set(self) -> None:
        for method, _, part in _parts(self._steering, self._schedule.method):
            _strength_buffer(part, method).fill_(self.strength)
        # What save_pretrained writes; everything else asks the parts.
        written = getattr(getattr(self._model, "config", None), "oversmooth", None)
        for settings in written["methods"] if isinstance(written, dict) else ():
            if settings["method"] == self._schedule.method:
                settings["strength"] = self.strength


def ramp(model: nn.Module, to: float = 0.6, steps: int = 1000, *, method: str | None = None) -> Ramp:
    """Change the strength of a steered model linearly, from its present value to another, over optimiser steps.

    A trained model loses most of its accuracy when a full strength is applied at once. Along a ramp, fine-tuning adapts
    it step by step. A model that is steered with strength 0 starts as it was::

        steer(model, NeuTRENO(0.0))
        rising = ramp(model, to=0.6, steps=1000)
        for batch in batches:
            ...
            optimiser.step()
            rising.step()

    Compiled code follows without compiling again, and so do CUDA graphs that are captured after this call. What is
    saved or diagnosed has the strength that acts then.

    Args:
        model: steered by a method with a strength that is not learned.
        to: the strength in the end, which may be lower than the present one.
        steps: after how many it is reached.
        method: name of the method, where several have a strength.

    Returns:
        The ramp; call its `step` once per optimiser step.

    Raises:
        InputError: the model is not steered, or its method has no strength that can be set.
    """
    inside, steering = steered(model)
    end, steps = float(arguments.number(to, "to")), arguments.whole(steps, "steps", least=1)
    chosen = _chosen(steering, method)
    dataclasses.replace(chosen, strength=end)  # refuses what the method does not take
    name = type(chosen).__name__
    if not _parts(steering, name):
        steering.attach(inside, [chosen])
    hold_strengths(inside)
    for _, _, part in _parts(steering, name):
        _strength_buffer(part, chosen)
    recompile()
    return Ramp(inside, steering, _Schedule(name, float(chosen.strength), end, steps, 0))


def hold_strengths(model: nn.Module) -> None:
    """Hold every fixed strength of a model, and of steered modules inside it, as an array that can be filled.

    What is compiled or captured afterwards reads them anew in every pass. No number changes.

    Args:
        model: steered or not.
    """
    for module, steering in _steerings(model):
        for method, hooks, part in _parts(steering):
            if isinstance(method, MethodWithStrength) and isinstance(vars(part).get("strength"), float):
                part.let_ramp(next(module.get_submodule(hooks.layer.name).parameters()).device)


def held_strengths(model: nn.Module) -> list[torch.Tensor]:
    """The arrays ``()`` that hold the fixed strengths of a model, one per part.

    Args:
        model: after `hold_strengths`.

    Raises:
        InputError: a method keeps its strength elsewhere than in its parts.
    """
    parts = [one for _, steering in _steerings(model) for one in _parts(steering)]
    return [
        _strength_buffer(part, method)
        for method, _, part in parts
        if isinstance(method, MethodWithStrength) and not method.learned
    ]


@torch.no_grad()
def fill_strengths(model: nn.Module, methods: Sequence[Method]) -> bool:
    """Give strengths that `hold_strengths` holds the values that these methods have.

    Args:
        model: steered by methods that differ from these in strengths above 0 alone.
        methods: in the same order.

    Returns:
        Whether the model is steered by these now; if not, nothing was changed.
    """
    changes: list[tuple[torch.Tensor, float]] = []
    steerings = [steering for _, steering in _steerings(model)]
    for steering in steerings:
        if len(steering.methods) != len(methods):
            return False
        for acting, wanted in zip(steering.methods, methods, strict=True):
            if acting == wanted:
                continue
            parts = [part for _, _, part in _parts(steering, type(acting).__name__)]
            if not (
                isinstance(acting, MethodWithStrength)
                and isinstance(wanted, MethodWithStrength)
                and parts  # none where the strength was 0
                and all(part.ramped is not None for part in parts)
                and wanted.strength
                and dataclasses.replace(acting, strength=wanted.strength) == wanted
            ):
                return False
            changes += [(_strength_buffer(part, acting), wanted.strength) for part in parts]
    for held, strength in changes:
        held.fill_(strength)
    return bool(steerings) or not methods


def _steerings(model: nn.Module) -> list[tuple[nn.Module, Steering]]:
    """Of a model and of the modules inside it."""
    return [(module, module.__dict__[STEERED]) for module in model.modules() if STEERED in module.__dict__]


def _chosen(steering: Steering, name: str | None) -> MethodWithStrength:
    acting = {type(method).__name__: method for method in steering.methods}
    able = {key: method for key, method in acting.items() if isinstance(method, MethodWithStrength)}
    if name is not None:
        choices = ", ".join(able) or "none"
        able = {key: method for key, method in able.items() if key.lower() == str(name).lower()}
        if not able:
            raise InputError(
                f"method is {arguments.shown(name)}; of those that steer this model these have one strength: {choices}"
            )
    if not able:
        raise InputError(
            f"{' and '.join(map(str, acting.values()))} has no single strength to ramp; steer with one that has, such "
            "as NeuTRENO"
        )
    fixed = [method for method in able.values() if not method.learned]
    if not fixed:
        raise InputError(
            f"the strength of {next(iter(able.values()))} is learned, so training moves it already; steer with "
            "learned=False"
        )
    if len(fixed) > 1:
        raise InputError(f"{' and '.join(map(str, fixed))} both have a strength; say which with method=")
    return fixed[0]


def _strength_buffer(part: Part, method: Method) -> torch.Tensor:
    if part.ramped is None:
        raise InputError(
            f"{type(method).__name__} keeps its strength elsewhere than in its parts; let them hold it as "
            "number_or_parameter does"
        )
    assert isinstance(part.strength, torch.Tensor)
    return part.strength


def _parts(steering: Steering, method: str | None = None) -> list[tuple[Method, LayerHooks, Part]]:
    """The parts of one method, by its name, or of all."""
    found = [(one.methods[at], one, part) for one in steering.hooks.values() for at, part in one.parts.items()]
    return [entry for entry in found if method in (None, type(entry[0]).__name__)]
