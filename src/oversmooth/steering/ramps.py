"""A strength that changes step by step while a trained model is fine-tuned, instead of all at once."""

from __future__ import annotations

import dataclasses
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

    @property
    def strength(self) -> float:
        """The strength that acts now, in every layer."""
        return self._schedule.strength

    @property
    def done(self) -> bool:
        """Whether it has arrived: further steps do nothing."""
        return self._schedule.done >= self._schedule.steps

    def step(self) -> None:
        """One step further; call it once after every step of the optimiser."""
        if not self.done:
            self._schedule.done += 1
            self._set()

    def state_dict(self) -> dict[str, Any]:
        """Where it is, in plain numbers, for a checkpoint."""
        return dataclasses.asdict(self._schedule)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where another ramp was, by its `state_dict`, with its start, end and number of steps."""
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

    @torch.no_grad()
    def _set(self) -> None:
        if steering_of(self._model) is not self._steering:
            raise InputError("the model is no longer steered as it was when the ramp was made; make another ramp")
        for method, _, part in parts_of(self._steering, self._schedule.method):
            strength_buffer(part, method).fill_(self.strength)
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
    if not parts_of(steering, name):
        steering.attach(inside, [chosen])
    hold_strengths(inside)
    for _, _, part in parts_of(steering, name):
        strength_buffer(part, chosen)
    recompile()
    return Ramp(inside, steering, _Schedule(name, float(chosen.strength), end, steps, 0))


def hold_strengths(model: nn.Module) -> None:
    """Hold every fixed strength of a model, and of steered modules inside it, as an array that can be filled: what is
    compiled or captured afterwards reads them anew in every pass. No number changes.
    """
    for module, steering in steerings(model):
        for method, hooks, part in parts_of(steering):
            if isinstance(method, MethodWithStrength) and isinstance(vars(part).get("strength"), float):
                part.let_ramp(next(module.get_submodule(hooks.layer.name).parameters()).device)


def steerings(model: nn.Module) -> list[tuple[nn.Module, Steering]]:
    """Of a model and of the modules inside it."""
    return [(module, module.__dict__[STEERED]) for module in model.modules() if STEERED in module.__dict__]


def _chosen(steering: Steering, name: str | None) -> MethodWithStrength:
    able = [m for m in steering.methods if isinstance(m, MethodWithStrength) and not m.learned]
    if name is not None:
        able = [method for method in able if type(method).__name__.lower() == str(name).lower()]
    if len(able) != 1:
        named = "" if name is None else f" and the name {arguments.shown(name)}"
        raise InputError(
            f"{len(able) or 'none'} of {' and '.join(map(str, steering.methods))} have a strength that is not learned"
            f"{named}; steer with one that has, such as NeuTRENO(0.0), or choose it with method="
        )
    return able[0]


def strength_buffer(part: Part, method: Method) -> torch.Tensor:
    """The array ``()`` that holds a fixed strength, after `hold_strengths`."""
    if part.ramped is None:
        raise InputError(
            f"{type(method).__name__} keeps its strength elsewhere than in its parts; let them hold it as "
            "number_or_parameter does"
        )
    assert isinstance(part.strength, torch.Tensor)
    return part.strength


def parts_of(steering: Steering, method: str | None = None) -> list[tuple[Method, LayerHooks, Part]]:
    """The parts of one method, by its name, or of all."""
    found = [(one.methods[at], one, part) for one in steering.hooks.values() for at, part in one.parts.items()]
    return [entry for entry in found if method in (None, type(entry[0]).__name__)]
