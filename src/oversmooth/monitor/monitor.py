"""Smoothing watched while a model trains: when to look, what to look at, where it goes. The training is as without."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.anatomy.steered import steered_as
from oversmooth.monitor import looks
from oversmooth.monitor.alarm import Alarm, Crossing
from oversmooth.monitor.gauge import Gauge
from oversmooth.monitor.history import History
from oversmooth.monitor.hooks import check_not_compiled
from oversmooth.monitor.joined import JoinedSpectra
from oversmooth.monitor.looks import Probe, eyes_of
from oversmooth.monitor.names import Row, keys
from oversmooth.monitor.processes import fingerprint, mean_over, processes, rank
from oversmooth.monitor.settings import DEFAULT_TOKENS, checked
from oversmooth.monitor.sinks import Guarded
from oversmooth.monitor.warning import say
from oversmooth.results.facts import plain
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.precision import float32_products
from oversmooth.safety.untouched import Rewritten, caches_of_their_own


class Monitor:
    """Looks at a model every so many steps of its training, which is bit for bit what it would be without.

    ::

        monitor = oversmooth.Monitor(model, probe=batch, every=100)
        for batch in loader:
            ...
            optimizer.step()
            monitor.step()
        monitor.history.to_pandas()
        monitor.to_html("film.html")

    A look that fails warns once, with the reason, and the training goes on. In several processes each has a monitor, or
    the first alone; where weights are sharded, and where ``together`` is said, each must have one.

    Args:
        model: what is trained; wrapped or compiled as it may be, before or after.
        probe: a fixed batch that the model takes: a tensor, a dict of its arguments, or a tuple of them. A look is then
            a pass of its own, in eval mode and without gradients.
        every: looks are made after the first step and after every so many.
        passing: watch the training batch as it passes, without a pass of its own, in place of a probe. The monitor has
            to be made before the model is compiled.
        blocks: names of the blocks, such as "layers.*", for a model whose attention is not known.
        tokens: which metrics of tokens, of hfc_lfc, cos, abs_cos, effective_rank, stable_rank, sigma_ratio and
            rank_one_distance. hfc_lfc is the geometric mean over inputs, where a diagnosis has the arithmetic one.
        ranks: inputs whose ranks are computed, the first ones.
        parts: change by part (attention, MLP, norm) in every so many looks; 0: never.
        spectra: spectra of H (negative share, ρ_smooth, asymmetry) in every so many looks; 0: never.
        dominance: the share of heads whose smoothing eigenvalue dominates, in every so many looks; 0: never.
        joined: ρ_smooth and ρ_rough of all heads together, for the probe's first input, in every so many looks; 0:
            never. A thread computes them on copies, and they are in the first look after it is done, with the step they
            are of as ``joined_step``.
        steering: of a steered model, its strength in every look, and distance to the flip and whether promises hold in
            every so many; 0: never.
        gradients: norm of the gradient after each block and its share of HFC in every so many looks; 0: never. From
            the passing batch, or from a probe that comes with a loss.
        loss: a function of (what the model gives, the probe), where the model does not give a loss itself.
        alarms: each an `Alarm`.
        sinks: where looks go: of `oversmooth.monitor` TensorBoard, WandB or JSONLines, or functions of (step, values).
        history: a file of JSON lines, or the directory for one; None: memory alone.
        resume: go on with what that file holds.
        start: the number of steps done already, where a training is resumed: looks after it give way. None: all that
            the file holds stays, and counting goes on after its last look.
        name: of the run, on pages.
        stack: part of the name of the stack of blocks, where the model has several.
        heads: the number of heads, where the model does not say.
        together: average looks over all processes; each must then have a monitor. None: where weights are sharded.
        scaler: torch's GradScaler, where one is used: its scale is divided out of gradients of the passing batch.
            False: none is used; None: where this process has one, the norm of gradients is left out.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any = None,
        every: int = 100,
        *,
        passing: bool = False,
        blocks: str | None = None,
        tokens: Sequence[str] = DEFAULT_TOKENS,
        ranks: int = 4,
        parts: int = 0,
        spectra: int = 0,
        dominance: int = 0,
        joined: int = 0,
        steering: int = 1,
        gradients: int = 0,
        loss: Callable[[Any, Any], Tensor] | None = None,
        alarms: Alarm | Iterable[Alarm] = (),
        sinks: Any = (),
        history: str | os.PathLike[str] | None = None,
        resume: bool = False,
        start: int | None = None,
        name: str | None = None,
        stack: str | None = None,
        heads: int | None = None,
        together: bool | None = None,
        scaler: Any = None,
    ) -> None:
        wanted = checked(
            every=every, passing=passing, tokens=tokens, ranks=ranks, parts=parts, spectra=spectra, dominance=dominance,
            joined=joined, gradients=gradients, steering=steering, loss=loss, alarms=alarms, sinks=sinks,
            together=together, scaler=scaler,
        )  # fmt: skip
        self.every, self.tokens, self.ranks, self.cadences = wanted.every, wanted.tokens, wanted.ranks, wanted.cadences
        self.together = wanted.together
        self.sinks = Guarded(wanted.sinks, self._warn)
        self.alarms = [alarm.fresh() for alarm in wanted.alarms]
        self.steps = 0 if start is None else arguments.whole(start, "start")
        """Steps done so far."""
        if (probe is None) != wanted.passing:
            raise InputError(
                "there is a probe and the passing batch is to be watched; choose one of them"
                if wanted.passing
                else "there is no probe; give probe=batch, a batch that the model takes, or passing=True"
            )
        inside = unwrapped(check_is_module(model))
        if wanted.passing:
            check_not_compiled(model)
            if wanted.together is None and processes() > 1 and any(alarm.then == "stop" for alarm in self.alarms):
                raise InputError(
                    "an alarm stops the training, and each process watches a batch of its own: some would stop and the "
                    "others wait for them; give together=True, with a monitor in each process"
                )
        self.eyes = eyes_of(inside, blocks, stack, heads)
        if self.eyes.anatomy is None:
            words = {"parts": "changes by part", "dominance": "shares of dominance", "joined": "joined spectra"}
            for what in ("parts", "spectra", "dominance", "joined"):
                if self.cadences[what]:
                    self.eyes.known(words.get(what, what))
        self.probe = None if probe is None else Probe(probe, loss)
        self._joined = JoinedSpectra()
        self.should_stop = False
        """Whether an alarm asked for the training to stop."""
        self.crossings: list[Crossing] = []
        """Alarms that went off."""
        self.failures: list[str] = []
        """Why looks failed, each reason once."""
        first = rank() == 0
        self.history = History(history if first else None, resume=resume)
        self.history.about = {
            **self.history.about,
            "model": type(inside).__name__,
            "blocks": [block for block, _ in self.eyes.blocks],
            "every": self.every,
            "from": "passing batch" if wanted.passing else "probe",
        } | ({} if name is None else {"name": str(name)})
        if resume and start is None:
            if processes() > 1:
                raise InputError(
                    "resume is said without start, and only the first process knows what the history holds; give "
                    "start=, the number of steps done, in every process"
                )
            self.steps = self.history.rows[-1]["step"] if self.history.rows else 0
        self._looks = self._looks_until(self.steps)
        """Looks that were due so far, and those made by hand."""
        self.history.cut(self.steps)
        self._remind()
        self._unchanged: tuple[Any, int] | None = None
        self.gauge = None
        if wanted.passing:
            for alarm in self.alarms:
                alarm.check_depth(len(self.eyes.blocks))
            gradual = bool(self.cadences["gradients"])
            self.gauge = Gauge(inside, self.eyes.blocks, ranks=self.ranks, gradients=gradual, scaler=scaler)
            self.gauge.arm(self._is_due(self.steps + 1))

    def restart(self, history: str | os.PathLike[str] | None, step: int) -> None:
        """Begin to count and to write, for a trainer that says late where; what a file holds up to the step stays.

        Args:
            history: a file of JSON lines; None: memory alone.
            step: steps done already.
        """
        about = self.history.about
        self.history = History(history if rank() == 0 else None, resume=step > 0)
        self.history.about = about
        self.load_state_dict({"steps": step})

    def _remind(self) -> None:
        """Alarms compare with the first look of the run, which may have been before a restart."""
        self.alarms = [alarm.fresh() for alarm in self.alarms]
        for row in self.history.rows:
            for alarm in self.alarms:
                alarm.look(row)

    def _is_due(self, step: int) -> bool:
        return step == 1 or step % self.every == 0

    def _looks_until(self, step: int) -> int:
        """How many looks are due up to a step: by its number alone, so that all processes agree after a restart, though
        the first one alone knows what was seen before it.
        """
        return step // self.every + (step > 0 and self.every > 1)

    def step(self) -> bool:
        """Count a step of the optimiser, and look where it is time; call it after ``optimizer.step()``.

        Returns:
            Whether it looked.
        """
        self.steps += 1
        due = self._is_due(self.steps)
        if due:
            self.look()
        if self.gauge is not None:
            self._guarded(self._arm)
        return due

    def _arm(self) -> None:
        assert self.gauge is not None
        self.gauge.moved()
        self.gauge.arm(self._is_due(self.steps + 1))

    def look(self, step: int | None = None) -> Row | None:
        """Look now, whether or not it is time.

        Args:
            step: the number of the step; None: of the last one counted.

        Returns:
            What was seen; None where it failed, which a warning says once.
        """
        step = self.steps if step is None else arguments.whole(step, "step")
        row: Row | None = self._guarded(lambda: self._seen(step))
        if self._is_together():
            mine = (row, [alarm.memory for alarm in self.alarms])
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, mine)  # those that failed too: nobody waits in vain
            row = mean_over([seen for seen, _ in every])
            for alarm, memory in zip(self.alarms, every[0][1], strict=False):
                alarm.memory = memory  # of the first, which alone knows what was before a restart
        if row is None:
            return None
        self._guarded(lambda: self._keep(row))
        return row

    @float32_products("highest")
    @caches_of_their_own()
    def _seen(self, step: int) -> Row:
        nth, eyes, self._looks = self._looks, self.eyes, self._looks + 1
        due = {what: bool(looks_) and nth % looks_ == 0 for what, looks_ in self.cadences.items()}
        found: dict[str, Any] = {}
        if self.gauge is not None:
            seen = looks.in_full_precision(self.gauge.read)
            self.history.about["blocks"] = self.gauge.ran
            wanted = {*self.tokens, *(("gradient_norm", "gradient_hfc") if due["gradients"] else ())}
            found |= {name: values for name, values in seen.items() if name in wanted}
            if due["gradients"] and (why := self.gauge.why_ungraded()):
                self._warn(why)
            if not {*self.tokens} <= found.keys() and (why := self.gauge.why_unranked()):
                self._warn(why)
            if "gradient_norm" in found and self.gauge.is_scaled():
                del found["gradient_norm"]
                self._warn("a GradScaler may scale gradients, whose norm is left out; give scaler=scaler, or False")
        if self.probe is not None:
            tokens, ran = looks.tokens(eyes, self.probe, self.tokens, self.ranks)
            found |= tokens
            self.history.about["blocks"] = ran
            if due["parts"]:
                found |= self._part(lambda probe: looks.parts(eyes, probe))
            if due["dominance"]:
                found |= self._part(lambda probe: looks.dominance(eyes, probe))
            if due["gradients"]:
                found |= self._part(lambda probe: looks.gradients(eyes, probe))
            # Where looks are averaged over processes, all of them have it in the same one.
            found |= self._part(lambda _: self._joined.ready(wait=self._is_together()))
            if due["joined"]:
                self._guarded(lambda: self._joined.begin(eyes, self.probe, step))  # type: ignore[arg-type]
        if due["spectra"]:
            found |= self._part(lambda _: looks.in_full_precision(lambda: looks.spectra(eyes)))
        if self.cadences["steering"] and steered_as(eyes.model) is not None:
            found |= self._part(lambda _: looks.in_full_precision(lambda: looks.steering(eyes, due["steering"])))
        self._check_trained()
        return {"step": step, **{name: _plain(value) for name, value in found.items()}}

    def _part(self, see: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """One kind of what is seen: where it fails, the others stay."""
        return self._guarded(lambda: see(self.probe)) or {}

    def _keep(self, row: Row) -> None:
        first = rank() == 0
        try:
            self.history.add(row)
        except (OSError, InputError) as error:
            self._warn(f"{self.history.path} cannot be written ({reason(error)}): looks are kept in memory alone")
            self.history.path = None
        if first:
            self.sinks.send(row["step"], keys(row))
        for one in self.alarms:
            self._guarded(lambda one=one: one.check_row(row), "an alarm cannot go off")  # type: ignore[misc]
            seen = row.get(one.metric)
            if isinstance(seen, list) and seen and all(value is None for value in seen):
                self._warn(
                    f"{one.metric} is no number at any depth, to which an alarm is blind: NaN, or inputs too short"
                )
            if (crossing := one.look(row)) is not None:
                self.crossings.append(crossing)
                self._act(crossing)

    def _act(self, crossing: Crossing) -> None:
        if callable(crossing.then):
            self._guarded(lambda: crossing.then(crossing), "the function of an alarm failed")
            return
        self.should_stop |= crossing.then == "stop"
        end = "; training is asked to stop" if crossing.then == "stop" else ""
        say(f"alarm at {crossing.text}{end}")

    def _check_trained(self) -> None:
        """Say so where the weights do not change: then another copy of the model is trained."""
        trained = [p for p in self.eyes.model.parameters() if p.requires_grad]
        if not trained:
            return
        with torch.no_grad():
            now = (sum(p._version for p in trained), *(fingerprint(p) for p in trained[-2:]))
        before, times = self._unchanged or (None, 0)
        self._unchanged = (now, times + 1 if now == before else 0)
        if self._unchanged[1] == 2:
            self._warn(
                "the weights that are watched have not changed in three looks: give the monitor the model that is "
                "trained, not one that was copied or replaced since"
            )

    def _is_together(self) -> bool:
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return False
        return looks.is_sharded(self.eyes.model) if self.together is None else self.together

    def _guarded(self, see: Callable[[], Any], failed: str = "a look failed and is left out") -> Any:
        """The result; None where it fails, for whatever reason, which is said once."""
        try:
            return see()
        except Rewritten as error:
            self.probe = None
            self._warn(f"{error}; the probe is not used again")
        except Exception as error:
            self._warn(f"{failed}: {reason(error, 240)}")
        return None

    def _warn(self, text: str) -> None:
        if text not in self.failures:
            self.failures.append(text)
            say(text)

    def to_html(self, path: str | os.PathLike[str], *others: History) -> None:
        """Write the film: one page, which needs no network, of what was seen over training and depth.

        Args:
            path: of the page, .html.
            others: histories of other runs, laid over this one.
        """
        from oversmooth.report import film

        runs = [film.Run(history.name, history.rows, history.about) for history in (self.history, *others)]
        film.save(runs, arguments.path(path))

    def state_dict(self) -> dict[str, Any]:
        """Where it is, for a checkpoint."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint: looks that were made after it are dropped, as they are made again.

        Args:
            state: what `state_dict` gave.
        """
        self.steps = arguments.whole(state.get("steps"), "steps in the state of a monitor")
        self._looks = self._looks_until(self.steps)
        self.history.cut(self.steps)
        self._remind()
        if self.gauge is not None:
            self._arm()

    @property
    def is_open(self) -> bool:
        """Whether hooks are on the model, where it needs any."""
        return self.gauge is None or bool(self.gauge.handles)

    def close(self) -> None:
        """Take hooks off the model and close the sinks that were opened here; what a thread computes is waited for."""
        late = self._part(lambda _: self._joined.ready(wait=True))
        if late and self.history.rows:
            self._guarded(lambda: self.history.add({**self.history.rows[-1], **late}))
        if self.gauge is not None:
            self.gauge.close()
        self.sinks.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Monitor of {type(self.eyes.model).__name__}, every {self.every} steps, {len(self.history)} looks>"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [None if one is None else plain(one) for one in value]
    return plain(value)
