"""Smoothing recorded while a model trains: when, what of, and where it goes. The training is as it would be without."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.anatomy.steered import steered_as
from oversmooth.monitor import weights
from oversmooth.monitor.alarm import Alarms, Crossing
from oversmooth.monitor.config import ATTENTION, MonitorConfig, configured
from oversmooth.monitor.history import History
from oversmooth.monitor.model import MonitoredModel
from oversmooth.monitor.names import Row, keys
from oversmooth.monitor.probe import Probe
from oversmooth.monitor.processes import fingerprint, mean_over
from oversmooth.monitor.sinks import Logger, TensorBoard, WandB
from oversmooth.monitor.training_batch import TrainingBatchRecorder, check_not_compiled
from oversmooth.monitor.warning import warn
from oversmooth.results.facts import plain
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.model_state import Rewritten, caches_of_their_own
from oversmooth.safety.precision import float32_products
from oversmooth.safety.processes import are_joined, rank_and_world


class Monitor:
    """Records how tokens smooth while a model trains. The trained weights are bit for bit the same as without it.

    ::

        monitor = oversmooth.Monitor(model, probe=batch, every=100)
        for batch in loader:
            ...
            optimizer.step()
            monitor.step()
        monitor.history.to_pandas()
        monitor.to_html("training.html")

    A failed snapshot warns once, with the reason. Training continues. In several processes each has a monitor, or the
    first alone; with ``together=True``, and where weights are sharded, each must have one.

    Args:
        model: the model that is trained; it may be wrapped or compiled, before or after.
        probe: a fixed batch that the model takes: a tensor, a dict of its arguments, or a tuple of them. A snapshot is
            then a forward pass of its own, in eval mode and without gradients. None with ``use_training_batch=True``.
        every: steps between snapshots, 100 by default; there is also one after the first step.
        config: what to record: an `oversmooth.monitor.MonitorConfig`.
        history: a file of JSON lines, or the directory for one; None: memory alone.
        resume: continue the history in that file.
        start: steps done before the training was resumed; later snapshots are dropped. None: all snapshots in the
            file stay, and counting continues after the last one.
        **settings: fields of `oversmooth.monitor.MonitorConfig`, which are set in the config.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any = None,
        every: int | None = None,
        *,
        config: MonitorConfig | None = None,
        history: str | os.PathLike[str] | None = None,
        resume: bool = False,
        start: int | None = None,
        **settings: Any,
    ) -> None:
        settings |= {} if every is None else {"every": every}
        self.config = config = configured("Monitor", config, settings)
        self.steps = 0 if start is None else arguments.whole(start, "start")
        """Steps done so far."""
        if probe is None and not config.use_training_batch:
            raise InputError(
                "there is no probe; give probe=batch, a batch that the model takes, or use_training_batch=True"
            )
        if probe is not None and config.use_training_batch:
            raise InputError("there is a probe and the training batch is to be recorded; choose one of them")
        self.model = MonitoredModel.of(unwrapped(check_is_module(model)), config)
        self.failures: list[str] = []
        """Why snapshots failed, each reason once."""
        self.alarms = Alarms(config.alarms, self._guarded, self._warn)
        self._failed_loggers: set[int] = set()
        for what, words in ATTENTION.items():
            if getattr(config, what):
                self.model.require_anatomy(words)
        self.probe = None if probe is None else Probe(self.model, probe, config.loss)
        self.recorder: TrainingBatchRecorder | None = None
        if config.use_training_batch:
            check_not_compiled(model)
            self._check_alarms()
        self.history = History(history if rank_and_world()[0] == 0 else None, resume=resume)
        self.history.about |= {
            "model": type(self.model.module).__name__,
            "blocks": [block for block, _ in self.model.blocks],
            "every": config.every,
            "from": "passing batch" if config.use_training_batch else "probe",
        } | ({} if config.name is None else {"name": str(config.name)})
        if config.alarms:
            self.history.about["alarms"] = [alarm.settings() for alarm in config.alarms]
        if resume and start is None:
            if rank_and_world()[1] > 1:
                raise InputError(
                    "resume=True needs start= when several processes run, because the first process alone reads the "
                    "history; give start=<completed steps> in every process"
                )
            self.steps = self.history.rows[-1]["step"] if self.history.rows else 0
        self._unchanged: tuple[Any, int] = (None, 0)
        """What tells weights apart, and in how many snapshots in a row it stayed the same."""
        self.load_state_dict({"steps": self.steps})
        if config.use_training_batch:
            self.recorder = TrainingBatchRecorder(self.model.module, self.model.blocks, config)
            self._arm()

    def _check_alarms(self) -> None:
        stops = any(alarm.then == "stop" for alarm in self.config.alarms)
        if self.config.together is None and rank_and_world()[1] > 1 and stops:
            raise InputError(
                "an alarm stops the training, and each process records a batch of its own: some would stop and the "
                "others wait for them; give together=True, with a monitor in each process"
            )
        for alarm in self.config.alarms:
            alarm.check_depth(len(self.model.blocks))

    @property
    def should_stop(self) -> bool:
        """Whether an alarm asked for the training to stop."""
        return self.alarms.should_stop

    @property
    def crossings(self) -> list[Crossing]:
        """Alarms that went off."""
        return self.alarms.crossings

    def restart(self, history: str | os.PathLike[str] | None, step: int) -> None:
        """Begin to count and to write, for a trainer that says late where; what a file holds up to the step stays.

        Args:
            history: a file of JSON lines; None: memory alone.
            step: steps done already.
        """
        about = self.history.about
        self.history = History(history if rank_and_world()[0] == 0 else None, resume=step > 0)
        self.history.about = about
        self.load_state_dict({"steps": step})

    def _is_due(self, step: int) -> bool:
        return step == 1 or step % self.config.every == 0

    def step(self) -> bool:
        """Count a step of the optimiser, and record where it is time; call it after ``optimizer.step()``.

        Returns:
            Whether a snapshot was due.
        """
        self.steps += 1
        due = self._is_due(self.steps)
        if due:
            self.snapshot()
        self._arm()
        return due

    def _arm(self) -> None:
        if (recorder := self.recorder) is not None:
            self._guarded(lambda: recorder.arm(self._is_due(self.steps + 1)))

    def snapshot(self, step: int | None = None) -> Row | None:
        """Take a snapshot now, whether or not it is time.

        Args:
            step: the number of the step; None: of the last one counted.

        Returns:
            What was recorded; None where it failed, which a warning says once.
        """
        step = self.steps if step is None else arguments.whole(step, "step")
        row: Row | None = self._guarded(lambda: self._recorded(step))
        if self._is_together():
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, (row, self.alarms.memory))  # those that failed too: nobody waits in vain
            row = mean_over([recorded for recorded, _ in every])
            self.alarms.memory = every[0][1]  # the first process alone knows what was before a restart
        if row is not None:
            self._guarded(lambda: self._keep(row))
        return row

    @float32_products("highest")
    @caches_of_their_own()
    def _recorded(self, step: int) -> Row:
        found: dict[str, Any] = {}
        due, model, config = self.config.due(self._snapshots), self.model, self.config
        self._snapshots += 1
        if self.recorder is not None:
            found, ran, notes = self.recorder.read(gradients=due["gradients"])
            self.history.about["blocks"] = ran
            for note in notes:
                self._warn(note)
        elif (probe := self.probe) is not None:
            found, self.history.about["blocks"] = probe.tokens(config.tokens, config.ranked)
            wanted = {what: due[what] for what in ("parts", "dominance", "joined")}
            if any(wanted.values()):
                found |= self._part(lambda: probe.by_attention(**wanted))
            if due["gradients"]:
                found |= self._part(probe.gradients)
        if due["spectra"]:
            found |= self._part(lambda: weights.spectra(model))
        if config.steering and steered_as(model.module) is not None:
            found |= self._part(lambda: weights.steering(model, constraints=due["steering"]))
        self._check_trained()
        return {"step": step, **{name: _plain(value) for name, value in found.items()}}

    def _part(self, see: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """One kind of what is recorded: where it fails, the others stay."""
        return self._guarded(see) or {}

    def _keep(self, row: Row) -> None:
        try:
            self.history.add(row)
        except (OSError, InputError) as error:
            self._warn(f"{self.history.path} cannot be written ({reason(error)}): snapshots are kept in memory alone")
            self.history.path = None
        for logger in self.config.sinks if rank_and_world()[0] == 0 else ():
            self._log(logger, functools.partial(logger, row["step"], keys(row)))
        self.alarms.check(row)

    def _log(self, logger: Logger, do: Callable[[], object]) -> None:
        """None ends a training, whatever happens to its disk or its server; each warns once, whatever it says next."""
        try:
            do()
        except Exception as error:
            if id(logger) not in self._failed_loggers:
                self._failed_loggers.add(id(logger))
                self._warn(f"a logger failed: {reason(error, 240)}")

    def _check_trained(self) -> None:
        """Warn where the weights do not change: then another copy of the model is trained."""
        trained = [p for p in self.model.module.parameters() if p.requires_grad]
        with torch.no_grad():
            now = (sum(p._version for p in trained), *(fingerprint(p) for p in trained[-2:]))
        before, times = self._unchanged
        self._unchanged = (now, times + 1 if now == before else 0)
        if trained and self._unchanged[1] == 2:
            self._warn(
                "the recorded weights have not changed in three snapshots: give the monitor the model that is trained, "
                "not one that was copied or replaced since"
            )

    def _is_together(self) -> bool:
        if not (are_joined() and rank_and_world()[1] > 1):
            return False
        return self.model.is_sharded if self.config.together is None else self.config.together

    def _guarded(self, see: Callable[[], Any], failed: str = "a snapshot failed and is left out") -> Any:
        """The result; None where it fails, for whatever reason, of which there is one warning."""
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
            warn(text)

    def to_html(self, path: str | os.PathLike[str], *others: History) -> None:
        """Write the training report: one page, which needs no network, of what was recorded over training and depth.

        Args:
            path: of the page, .html.
            others: histories of other runs, laid over this one.
        """
        from oversmooth.report import training

        training.save([self.history, *others], arguments.path(path))

    def state_dict(self) -> dict[str, Any]:
        """Where it is, for a checkpoint."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint: snapshots made after it are dropped, as they are made again.

        Args:
            state: what `state_dict` returned.
        """
        self.steps = steps = arguments.whole(state.get("steps"), "steps in the state of a monitor")
        self._snapshots = steps // self.config.every + (steps > 0 and self.config.every > 1)
        """How many were due so far, or made by hand: by the step alone, so that all processes agree after a restart,
        though the first one alone knows of those before it.
        """
        self.history.cut(self.steps)
        self.alarms.remember(self.history.rows)
        self._arm()

    @property
    def is_open(self) -> bool:
        """Whether hooks are on the model, where it needs any."""
        return self.recorder is None or bool(self.recorder.handles)

    def close(self) -> None:
        """Take hooks off the model and close the loggers that were opened here."""
        if self.recorder is not None:
            self.recorder.close()
        for logger in self.config.sinks:
            if isinstance(logger, (TensorBoard, WandB)):
                self._log(logger, logger.close)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = type(self.model.module).__name__
        return f"<Monitor of {name}, every {self.config.every} steps, {len(self.history)} snapshots>"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if value is None else plain(value)
