"""One training step: augment, forward, backward, clip, AdamW at the schedule's learning rate.

On a GPU the model and the augmentation are compiled and the step is one CUDA graph, which takes everything it needs
from tensors that stay where they are: its number, the epoch's order, the random numbers. On a CPU, and with many
processes, the same lines run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth.train import cuda_graphs
from oversmooth.train.engine.ranks import Ranks
from oversmooth.train.engine.schedule import learning_rates
from oversmooth.train.tasks.images import mixing
from oversmooth.train.tasks.images.augment import AugmentDraws
from oversmooth.train.tasks.images.build import augment_of
from oversmooth.train.tasks.images.data import Images
from oversmooth.train.tasks.images.recipe import Recipe

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_A_STEP = 64  # bytes of its learning rate, in all the forms it is kept in


class Step:
    """``step.begin_epoch()``, then ``step.run()`` as often as ``step.steps``."""

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        images: Images,
        device: torch.device,
        ranks: Ranks | None = None,
        *,
        compiled: bool | None = None,
    ) -> None:
        """model and images are on the device; compiled: by default on a GPU."""
        self.recipe, self.model, self.device = recipe, model, device
        self.ranks = ranks or Ranks()
        self.steps = len(images) // recipe.batch
        if not self.steps:
            raise InputError(
                f"{len(images):,} images are less than one batch of {recipe.batch}; give a smaller batch or more images"
            )
        steps = recipe.total_epochs * self.steps
        named = f"warmup {recipe.warmup:,} and epochs {recipe.epochs:,}"
        check_fits(_A_STEP * steps, f"the schedule of {named}, {steps:,} steps,", "give fewer epochs")
        self.images, self.labels = images.images, images.labels
        self.places = self.ranks.places(recipe.batch).to(device)
        self.augment = augment_of(recipe).to(device)
        self.order_generator, self.generator = (torch.Generator(device).manual_seed(seed) for seed in _seeds(recipe))
        self.order_state = self.order_generator.get_state()
        """Of the order's generator before this epoch's order was drawn."""
        self.draws = self.augment.draw(recipe.batch, torch.Generator(device).manual_seed(0))
        self.order = torch.zeros(len(images), dtype=torch.int64, device=device)
        rates = learning_rates(recipe.lr, recipe.warmup * self.steps, recipe.epochs * self.steps)
        self.total = len(rates)
        self.rates, self._rates = rates.tolist(), rates.float().to(device)
        self.done = 0
        """Steps so far; `position` says the same to the graph."""
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(self.steps, device=device)
        """Of this epoch, on the device: reading one would make the step wait."""
        self.failed = torch.full((1,), -1, dtype=torch.int64, device=device)
        """The first step whose loss or gradient was not finite, or −1. It, and what follows it, changes no weight."""

        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(self.named.values())
        on_gpu = device.type == "cuda"
        self.lr = torch.zeros((), device=device)
        settings: dict[str, Any] = dict(fused=True, capturable=True) if on_gpu else {}
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=self.lr if on_gpu else recipe.lr, weight_decay=recipe.weight_decay, **settings
        )
        compiled = on_gpu if compiled is None else compiled
        self.compiled = compiled
        self._transform: Callable[..., tuple[Tensor, Tensor]] = (
            cuda_graphs.compiled(self._transformed) if compiled else self._transformed
        )
        run: nn.Module = model
        if self.ranks.world > 1:
            run = nn.parallel.DistributedDataParallel(model)
        self._forward: Callable[[Tensor], Tensor] = cuda_graphs.compiled(run) if compiled else run
        self._replay: Callable[[], None] | None = None
        if on_gpu and self.ranks.world == 1:
            before = self.state()
            self._replay = cuda_graphs.captured(self._body)
            self.load(before)  # capturing ran some steps

    def begin_epoch(self) -> None:
        """A new order of the images, from its generator."""
        self.order_state = self.order_generator.get_state()
        self.order.copy_(torch.randperm(len(self.order), generator=self.order_generator, device=self.device))

    def run(self) -> None:
        """The next step of the epoch."""
        # Outside the graph, as two small kernels, so that the generator's state is an ordinary one, to be saved.
        self.draws.refill(self.generator)
        if self._replay is not None:
            self._replay()
        else:
            self._body()
        self.done += 1

    def _body(self) -> None:
        x, targets = self.batch()
        if self.device.type == "cuda":
            self.lr.copy_(self._rates.index_select(0, self.position.clamp(max=self.total - 1))[0])
        else:
            self.optimiser.param_groups[0]["lr"] = self.rates[self.done]
        loss = self.loss(x, targets, self._forward)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip or float("inf"))
        self._update(~(loss.detach().isfinite() & norm.isfinite()))
        self.losses.index_copy_(0, self.position % self.steps, loss.detach().view(1).float())
        self.position.add_(1)

    def _update(self, bad: Tensor) -> None:
        """AdamW, unless something is not finite now or was before."""
        self.failed.copy_(torch.where(bad & (self.failed < 0), self.position, self.failed))
        if self.device.type == "cuda":
            # What fused optimisers look at for gradient scaling: 1 leaves weights and moments as they are.
            self.optimiser.found_inf = (self.failed >= 0).float()[0]  # type: ignore[attr-defined]
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=False)  # the graph's gradients must stay where they are
        else:
            if int(self.failed) < 0:
                self.optimiser.step()
            self.optimiser.zero_grad()

    def batch(self) -> tuple[Tensor, Tensor]:
        """This process's part of the batch at `position`, augmented with `draws`: images and soft targets."""
        rows = self.order.index_select(0, self.position % self.steps * self.recipe.batch + self.places)
        uniform, normal = self.draws.uniform, self.draws.normal
        if self.ranks.world > 1:
            own = uniform[: -mixing.UNIFORMS].view(self.recipe.batch, -1)[self.places]
            uniform, normal = torch.cat([own.flatten(), uniform[-mixing.UNIFORMS :]]), normal[self.places]
        return self._transform(self.images.index_select(0, rows), self.labels.index_select(0, rows), uniform, normal)

    def _transformed(self, images: Tensor, labels: Tensor, uniform: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        return self.augment.transform(images, labels, AugmentDraws(uniform, normal))

    def loss(self, x: Tensor, targets: Tensor, forward: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type)):
            return F.cross_entropy(forward(x), targets)

    def state(self) -> dict[str, Tensor]:
        """Everything that decides the steps to come, as copies on the CPU."""
        arrays = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.named.items():
            moments = self.optimiser.state.get(parameter) or _no_moments(parameter)
            arrays |= {f"{kind}.{name}": moments[kind] for kind in _MOMENTS}
        arrays |= {
            "position": self.position,
            "losses": self.losses,
            "failed": self.failed,
            # Inside an epoch its order is drawn again; between two of them the next one's comes.
            "generator.order": self.order_state if self.done % self.steps else self.order_generator.get_state(),
            "generator.augment": self.generator.get_state(),
        }
        return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in arrays.items()}

    @torch.no_grad()
    def load(self, arrays: dict[str, Tensor]) -> None:
        """What `state` gave, into the very tensors that the graph reads."""
        for name, value in self.model.state_dict().items():
            value.copy_(arrays[f"model.{name}"])
        for name, parameter in self.named.items():
            moments = self.optimiser.state[parameter]
            if not moments:
                moments.update(_no_moments(parameter, self.device if self.device.type == "cuda" else None))
            for kind in _MOMENTS:
                moments[kind].copy_(arrays[f"{kind}.{name}"])
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        self.position.copy_(arrays["position"])
        self.losses.copy_(arrays["losses"])
        self.failed.copy_(arrays["failed"])
        self.done = int(arrays["position"])
        self.order_generator.set_state(arrays["generator.order"])
        if self.done % self.steps:
            self.begin_epoch()  # the order of the epoch it is in
        else:
            self.order_state = self.order_generator.get_state()
        self.generator.set_state(arrays["generator.augment"])

    def draw_anew(self, attempt: int) -> None:
        """Go on from here with other random numbers: another order of the images and other augmentation."""
        for generator, seed in zip((self.order_generator, self.generator), _seeds(self.recipe, attempt), strict=True):
            generator.manual_seed(seed)
        self.order_state = self.order_generator.get_state()
        if self.done % self.steps:
            self.begin_epoch()


def _seeds(recipe: Recipe, attempt: int = 0) -> tuple[int, int]:
    """Of the order of the data and of its augmentation: apart, so that they do not repeat each other's numbers.

    attempt: above 0 for other numbers than a run of this or any likely seed has.
    """
    first = 2 * recipe.seed + (attempt << 40)
    return first, first + 1


def _no_moments(parameter: Tensor, device: torch.device | None = None) -> dict[str, Tensor]:
    zero = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {"exp_avg": zero, "exp_avg_sq": zero.clone(), "step": torch.zeros((), dtype=torch.float32, device=device)}
