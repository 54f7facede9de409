"""One training step: batch, forward, backward, clip, the optimiser at the schedule's learning rate.

On a GPU the model is compiled and the step is one CUDA graph. The graph reads its inputs from tensors at fixed
addresses: the number of the step, the epoch's order, the random numbers. On a CPU, and with several processes, the same
code runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth.steering.ramps import hold_strengths
from oversmooth.steering.record import never_run
from oversmooth_papers import compiling, cuda_graphs
from oversmooth_papers.engine.draws import Draws
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.strengths import fill_strengths, held_strengths
from oversmooth_papers.engine.task import Batch, Forward, Task

_MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq", "step"), "sgd": ("momentum_buffer",)}
_A_STEP = 64  # bytes of its learning rate, in all the forms it is kept in


class Step:
    """Call ``step.begin_epoch()``, then ``step.run()`` ``step.steps`` times."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        device: torch.device,
        ranks: Ranks | None = None,
        *,
        compiled: bool | None = None,
    ) -> None:
        """model is on the device; compiled: by default on a GPU."""
        recipe, on_gpu = task.recipe, device.type == "cuda"
        self.task, self.recipe, self.model, self.device = task, recipe, model, device
        self.ranks = ranks or Ranks()
        self.asked_to_compile = on_gpu and task.compiles if compiled is None else compiled
        self.compiled = self.asked_to_compile
        self.steps = task.examples // recipe.batch
        if not self.steps:  # before a feed makes room for a batch
            few = f"{task.examples:,} examples are less than one batch of {recipe.batch}"
            raise InputError(f"{few}; give a smaller batch or more data")
        self.total = recipe.total_epochs * self.steps
        schedule = f"the schedule of {recipe.total_epochs:,} epochs, {self.total:,} steps,"
        check_fits(_A_STEP * self.total, schedule, "give fewer epochs")
        rates = recipe.learning_rates(self.steps)
        self.rates, self._rates = rates.tolist(), rates.float().to(device)
        self.feed = task.feed(device, self.ranks, compiled=self.compiled)
        self.draws = Draws(recipe, device, self.ranks.rank)
        self.done = 0  # steps so far; `position` is the same number for the graph
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(self.steps, device=device)  # this epoch's; reading one makes the step wait
        # The first step whose loss or gradient was not finite, or −1. It, and what follows it, changes no weight.
        self.failed = torch.full((1,), -1, dtype=torch.int64, device=device)
        hold_strengths(model)  # also without a ramp: a run is the same whether or not it takes another's step over
        self.rising = RisingStrengths(model, max(1, round(recipe.ramp * self.total))) if recipe.ramp else None
        self.set_strengths()
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(self.named.values())
        self.beside = task.beside(model)
        self.lr = torch.zeros((), device=device)
        self.optimiser = self._optimiser()
        run: nn.Module = model if self.ranks.world == 1 else nn.parallel.DistributedDataParallel(model)
        # What a user should know of this step.
        self.remarks: list[str] = [] if (said := getattr(self.feed, "remark", None)) is None else [said]
        self._forward: Forward = self._compile(run) if self.compiled else run
        self._replay: Callable[[], None] | None = None
        if on_gpu and self.ranks.world == 1:
            before, drawn = self.state(), torch.cuda.get_rng_state(device)
            self._replay = cuda_graphs.captured(self.body)
            self.load(before)  # capturing ran some steps
            torch.cuda.set_rng_state(drawn, device)

    def _compile(self, run: nn.Module) -> Forward:
        """The compiled model; the model itself, and a remark, where compiled code computes something else."""
        with (
            torch.no_grad(),
            self.draws.of_model(self.done),
        ):  # eagerly once: steering checks attention's mask on real numbers
            self.loss(self.task.blank(min(2, self.recipe.batch), self.device), self.model)
        if self.ranks.world > 1:  # whose gradients all processes would have to ask for
            return compiling.compiled(run)
        generator = torch.Generator(self.device).manual_seed(0)
        self.feed.reorder(generator)
        self.feed.draw(generator)
        if self.rising is not None:
            self.rising.set(torch.full_like(self.position, self.total))  # a method that acts not yet shows nothing
        batch = self.batch()

        def numbers(forward: Forward, half: bool) -> compiling.Numbers:
            outputs: list[Tensor] = []

            def recorded(*given: Any, **named: Any) -> Any:
                out = forward(*given, **named)
                if isinstance(out, Tensor):
                    outputs.append(out.detach().float().reshape(out.shape[0] if out.ndim else 1, -1))
                return out

            with self.draws.of_model(self.done):
                loss = self.loss(batch, recorded, half=half)
                found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            # Where a weight is not used, compiled code may give zeros.
            gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True)]
            return compiling.Numbers(outputs, gradients)

        half, draws = self.recipe.autocasts(self.device.type), self.recipe.draws_in_forward
        forward, remark = compiling.checked(run, numbers, half=half, draws=draws)
        self.set_strengths()
        self.remarks += [] if remark is None else [remark]
        self.compiled = forward is not run
        return forward

    def _optimiser(self) -> torch.optim.Optimizer:
        """With its moments, which it would make at the first step: `state` and `load` find them at any time."""
        recipe, on_gpu = self.recipe, self.device.type == "cuda"
        settings: dict[str, Any] = dict(lr=self.lr if on_gpu else recipe.lr, weight_decay=recipe.weight_decay)
        if on_gpu:
            settings["fused"] = True
        decayed: dict[str, Any] = {"params": [p for name, p in self.named.items() if recipe.decays(name, p)]}
        bare = {"params": [p for name, p in self.named.items() if not recipe.decays(name, p)], "weight_decay": 0.0}
        groups = [group for group in (decayed, bare) if group["params"]]
        optimiser: torch.optim.Optimizer
        if recipe.optimiser == "sgd":
            optimiser = torch.optim.SGD(groups, momentum=recipe.momentum, **settings)
        else:
            optimiser = torch.optim.AdamW(groups, capturable=on_gpu, **settings)
        where = self.device if on_gpu else None
        for parameter in self.parameters:
            for kind in _MOMENTS[recipe.optimiser]:
                count = kind == "step"
                moment = torch.zeros((), device=where) if count else torch.zeros_like(parameter, requires_grad=False)
                optimiser.state[parameter][kind] = moment
        return optimiser

    def begin_epoch(self) -> None:
        self.draws.before_epoch = self.draws.order.get_state()
        self.feed.reorder(self.draws.order)

    def seek(self, inside: int) -> None:
        """The next batch is this one of the epoch; nothing to do for a feed that has all of them at hand."""
        if (seek := getattr(self.feed, "seek", None)) is not None:
            seek(inside)

    def run(self) -> None:
        # Outside the graph, as small kernels, so that the generator's state is an ordinary one, to be saved.
        self.feed.draw(self.draws.augment)
        with self.draws.of_model(self.done):
            (self._replay or self.body)()
        self.done += 1

    def body(self) -> None:
        batch = self.batch()
        if self.device.type == "cuda":
            self.lr.copy_(self._rates.index_select(0, self.position.clamp(max=self.total - 1))[0])
        else:
            for group in self.optimiser.param_groups:
                group["lr"] = self.rates[self.done]
        loss = self.loss(batch, self._forward)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip or float("inf"))
        self._update(~(loss.detach().isfinite() & norm.isfinite()))
        self.losses.index_copy_(0, self.position % self.steps, loss.detach().view(1).float())
        self.position.add_(1)
        self.set_strengths()

    def set_strengths(self) -> None:
        """Those of `position`: between steps the model is as it will meet the next, or as it stays after the last."""
        if self.rising is not None:
            self.rising.set(self.position)

    def _update(self, bad: Tensor) -> None:
        """The optimiser's step, unless something is not finite now or was before."""
        self.failed.copy_(torch.where(bad & (self.failed < 0), self.position, self.failed))
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            # What fused optimisers look at for gradient scaling: 1 leaves weights and moments as they are.
            self.optimiser.found_inf = (self.failed >= 0).float()[0]  # type: ignore[attr-defined]
        if on_gpu or int(self.failed) < 0:
            self.optimiser.step()
            self.task.after_update(self.model)
        # None, also inside the graph, whose own memory they have: backward then writes them, and adds to nothing.
        self.optimiser.zero_grad()

    def batch(self) -> Batch:
        """This process's part of the batch at `position`."""
        return self.feed.batch(self.position % self.steps)

    def loss(self, batch: Batch, forward: Forward, *, half: bool | None = None) -> Tensor:
        """half: in half precision; by default as the recipe says."""
        half = self.recipe.autocasts(self.device.type) if half is None else half
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            return self.task.loss(forward, batch)

    def _tensors(self) -> dict[str, Tensor]:
        """All that a step changes, but for the states of generators: the very tensors that the graph reads."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.named.items():
            moments = self.optimiser.state[parameter]
            tensors |= {f"{kind}.{name}": moments[kind] for kind in _MOMENTS[self.recipe.optimiser]}
        tensors |= {f"beside.{name}": value for name, value in self.beside.items()}
        return tensors | {"position": self.position, "losses": self.losses, "failed": self.failed}

    def state(self) -> dict[str, Tensor]:
        """Everything that decides the steps to come, as copies on the CPU."""
        arrays = self._tensors() | self.draws.state(inside=bool(self.done % self.steps))
        return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in arrays.items()}

    @torch.no_grad()
    def load(self, arrays: dict[str, Tensor]) -> None:
        """What `state` gave, into the tensors that are there."""
        for name, value in self._tensors().items():
            value.copy_(arrays[name])
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        self.set_strengths()
        self.done = int(arrays["position"])
        self.draws.load(arrays)
        self._order_again()

    def _order_again(self) -> None:
        """The order of the epoch it is in, by the generator as it is now; between two epochs `begin_epoch` draws it."""
        if inside := self.done % self.steps:
            self.begin_epoch()
            self.seek(inside)

    def draw_anew(self, attempt: int) -> None:
        """Go on from here with other random numbers: another order of the data and other draws."""
        self.draws.seed(attempt)
        self._order_again()

    def begin_again(self, task: Task) -> bool:
        """Go to the beginning of another task's run, if that differs in the seed or in strengths alone; whether it did.

        On a GPU building a step means compiling and capturing, which takes as long as many epochs of a small model.
        Nothing of it depends on a seed or a strength: weights, moments, strengths and the states of generators lie in
        tensors, and are filled again.
        """
        if type(self.task) is not type(task) or not task.has_data_of(self.task) or self.beside:
            return False
        # As plain fields: a recipe between the two may be one that is invalid, such as a ramp without a strength.
        may_differ = {"seed": task.recipe.seed, "variant": task.recipe.variant}
        if {**self.recipe.to_dict(), **may_differ} != task.recipe.to_dict():
            return False
        with never_run():  # its weights are all that is wanted
            fresh = task.model()
        unsaved = {name for name, _ in fresh.named_buffers()} - set(fresh.state_dict())
        if any(not torch.equal(fresh.get_buffer(name), self.model.get_buffer(name).cpu()) for name in unsaved):
            return False  # drawn with the seed, and not saved with the weights
        if not fill_strengths(self.model, task.recipe.methods()):
            return False
        self.task, self.recipe, self.draws.recipe = task, task.recipe, task.recipe
        if self.rising is not None:
            self.rising.take_ends()
        arrays = {name: torch.zeros_like(value) for name, value in self.state().items()}
        arrays |= {f"model.{name}": value for name, value in fresh.state_dict().items()}
        arrays["failed"].fill_(-1)
        self.draws.seed(0)
        self.load(arrays | self.draws.state(inside=False))
        return True


class RisingStrengths:
    """``rising.set(position)``: all fixed strengths of a model, evenly from 0 to what they were when this was made.

    What acts is a function of the steps that are done. So there is nothing to save, and a CUDA graph computes it from
    the number of the step. Learned strengths are not changed. steps: after how many the ends are reached.
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.steps = steps
        self._acting = held_strengths(model)
        self._ends = [strength.clone() for strength in self._acting]

    def share(self, done: int) -> float:
        return min(1.0, done / self.steps)

    @torch.no_grad()
    def set(self, position: Tensor) -> None:
        """In place, without waiting for the device. position ``(1,)``: steps that are done."""
        share = (position.double() / self.steps).clamp(max=1.0)[0]
        for acting, end in zip(self._acting, self._ends, strict=True):
            torch.mul(end, share, out=acting)

    def take_ends(self) -> None:
        """The strengths as they are now become the ends, in the very tensors that the graph reads."""
        for acting, end in zip(self._acting, self._ends, strict=True):
            end.copy_(acting)
