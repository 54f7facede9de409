"""Strengths learned with everything else frozen, from 0, where the model is what it was.

AdamW without decay, in eval mode: no dropout, and no statistics of batches are moved. What the last step leaves is the
result: nothing is chosen by how well it did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode
from oversmooth.steering import Method, steer, unsteer
from oversmooth.steering.methods.registry import method_named
from oversmooth_papers.tuning.labelled import Labelled

DEFAULT_METHODS = ("neutreno", "featscale", "attnscale", "valueresidual")
_AS_LEARNED = {"neutreno": "strength=0,learned,per=head", "featscale": "low=0,high=0,learned"}
_OTHERS = "strength=0,learned"
OnStep = Callable[[int], None]


@dataclass(frozen=True)
class TuningSettings:
    """How strengths are learned and tested."""

    folds: int = 5
    epochs: int = 1
    steps: int | None = None
    """Of AdamW in each fold; None: as many as the epochs have."""
    lr: float = 0.01
    batch: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        arguments.whole(self.folds, "folds", least=2)
        arguments.whole(self.epochs, "epochs", least=1)
        arguments.whole(1 if self.steps is None else self.steps, "steps", least=1)
        arguments.whole(self.batch, "batch", least=1)
        arguments.seed(self.seed)
        if arguments.number(self.lr, "lr", "give a finite number above 0") <= 0:
            raise InputError(f"lr is {self.lr}; give a finite number above 0")

    def steps_on(self, images: int) -> int:
        """Of AdamW, for so many images to learn from."""
        return self.steps if self.steps is not None else self.epochs * max(1, images // self.batch)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def tuning_method(text: str) -> Method:
    """A method by its name, with strengths that are learned from 0; or ``NAME:setting=value,...``.

    Raises `InputError` for one that has no strength to learn.

    >>> print(tuning_method("neutreno"))
    NeuTRENO(strength=0.0, learned=True, per='head')
    """
    name, colon, _ = text.partition(":")
    method, learned = method_named(text), f"{name}:{_AS_LEARNED.get(name.lower(), _OTHERS)}"
    if method.place == "weights":
        raise InputError(f"{name} changes weights, and tuning leaves them as they are; choose a method with a strength")
    if not colon:
        method = method_named(learned)
    if not getattr(method, "learned", False):
        raise InputError(f"{text} learns nothing; add learned, as in {learned}")
    return method


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, and no parameter that is there now learns; afterwards modes, flags and gradients are as
    before.
    """
    before = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    with in_eval_mode(model):
        try:
            for parameter, _, _ in before:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter, learns, gradient in before:
                parameter.requires_grad_(learns)
                parameter.grad = gradient


@contextmanager
def steered(model: nn.Module, method: Method, *, keep: bool = False) -> Iterator[dict[str, nn.Parameter]]:
    """The frozen model with the method on it, and the strengths by name.

    The method is taken off after the block, or, with keep, only if the block fails.
    """
    with frozen(model):
        steer(model, method)
        try:
            yield strengths_of(model, method)
        except BaseException:
            unsteer(model)
            raise
        if not keep:
            unsteer(model)


def strengths_of(model: nn.Module, method: Method) -> dict[str, nn.Parameter]:
    """The parameters that learn in a model that was frozen and then steered; raises `InputError` unless all are 0."""
    strengths = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not strengths:
        raise InputError(f"{method} has no strength to learn in this model; choose another method")
    if any(bool(parameter.detach().any()) for parameter in strengths.values()):
        raise InputError(f"{method} does not start from the model as it is; give it strengths of 0")
    return strengths


def scores(model: nn.Module, data: Labelled, rows: Tensor) -> Tensor:
    """What the classifier says of some images, ``(rows, classes)``."""
    parameter = next(model.parameters())
    images = data.images[rows].to(parameter.device, parameter.dtype)
    made = model(**{data.argument: images})
    return getattr(made, "logits", made)


def learn(
    model: nn.Module,
    strengths: dict[str, nn.Parameter],
    data: Labelled,
    rows: Tensor,
    settings: TuningSettings,
    *,
    seed: int,
    on_step: OnStep = lambda _step: None,
) -> None:
    """Learn the strengths of a model, steered and frozen but for them, on some of the images.

    rows ``(m,)``: which may be seen. settings: the steps of AdamW, its learning rate, the same at every step, and the
    images a step. seed: of their order. on_step: receives the number of each step. Raises `InputError` if strengths are
    not finite any more.
    """
    optimiser = torch.optim.AdamW(strengths.values(), lr=settings.lr, weight_decay=0.0)
    for step, part in enumerate(batches_of(rows, settings.batch, settings.steps_on(len(rows)), seed), 1):
        optimiser.zero_grad(set_to_none=True)
        out = scores(model, data, part)
        error = nn.functional.cross_entropy(out.float(), data.labels[part].to(out.device))
        error.backward()
        optimiser.step()
        if not all(bool(parameter.isfinite().all()) for parameter in strengths.values()):
            what = f"the loss is {float(error.detach())} at step {step} with a learning rate of {settings.lr:g}"
            raise InputError(f"{what}, and strengths are not finite; give a lower --lr")
        on_step(step)
    optimiser.zero_grad(set_to_none=True)


def tune(
    model: nn.Module,
    method: Method,
    data: Labelled,
    settings: TuningSettings,
    on_step: OnStep = lambda _step: None,
) -> None:
    """Put a method with strengths that are learned from 0 on a classifier, and learn them on all of the images.

    The method stays on; the weights stay as they are. A model for which it fails is unsteered again.
    """
    with steered(model, method, keep=True) as strengths:
        learn(model, strengths, data, torch.arange(len(data)), settings, seed=settings.seed, on_step=on_step)


def batches_of(rows: Tensor, batch: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Every image once, in a random order, before any comes again; short batches are left out, unless all are."""
    generator = torch.Generator().manual_seed(seed)
    batch = min(batch, len(rows))
    a_pass = len(rows) // batch
    for step in range(steps):
        if step % a_pass == 0:
            order = rows[torch.randperm(len(rows), generator=generator)]
        first = step % a_pass * batch
        yield order[first : first + batch]
