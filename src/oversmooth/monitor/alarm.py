"""Alarms: a bound on what is recorded, and what happens where it is crossed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from oversmooth.monitor import warning
from oversmooth.monitor.names import LABELS, TOKENS, Row, depth_of
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

Memory = tuple[list[float | None] | None, bool]
"""What an alarm compares with, the first snapshot, and whether the last one was beyond the bound."""


@dataclass(frozen=True)
class Crossing:
    """An alarm that went off."""

    metric: str
    step: int
    depth: int
    value: float
    text: str  # all of it in a sentence
    then: Any  # what is to happen: "warn", "stop", or a function of this


class Alarm:
    """Goes off when a metric crosses a bound; again only after the metric has come back.

    Args:
        metric: its name, such as "cos", "effective_rank" or "hfc_lfc".
        above: goes off above this.
        below: goes off below this.
        falls_by: goes off where it is this many times smaller than in the first snapshot.
        rises_by: goes off where it is this many times larger than in the first snapshot.
        depth: where: the number of blocks before it, negative numbers from the end; None: anywhere.
        then: "warn", "stop", or a function that is called with the `Crossing`.
    """

    def __init__(
        self,
        metric: str,
        *,
        above: float | None = None,
        below: float | None = None,
        falls_by: float | None = None,
        rises_by: float | None = None,
        depth: int | None = None,
        then: Literal["warn", "stop"] | Callable[[Crossing], object] = "warn",
    ) -> None:
        if not isinstance(metric, str) or metric not in LABELS:
            raise InputError(f"an alarm's metric is {arguments.shown(metric)}; choose one of {', '.join(LABELS)}")
        every = {"above": above, "below": below, "falls_by": falls_by, "rises_by": rises_by}
        bounds = {name: value for name, value in every.items() if value is not None}
        if len(bounds) != 1:
            raise InputError(
                f"an alarm for {metric} has {len(bounds)} bounds; give one of above, below, falls_by and rises_by"
            )
        ((self.kind, bound),) = bounds.items()
        ratio = self.kind in ("falls_by", "rises_by")
        remedy = "give a factor over 1, such as 10" if ratio else "give a finite number"
        self.bound = float(arguments.number(bound, f"{self.kind} of an alarm", remedy))
        if ratio and self.bound <= 1:
            raise InputError(f"{self.kind} of an alarm is {arguments.shown(bound)}; {remedy}")
        if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int)):
            raise InputError(
                f"depth of an alarm is {arguments.shown(depth)}; give a whole number, or None for anywhere"
            )
        if not callable(then) and then not in ("warn", "stop"):
            raise InputError(f"then of an alarm is {arguments.shown(then)}; give 'warn', 'stop' or a function")
        self.metric, self.depth, self.then = metric, depth, then

    def check_depth(self, blocks: int) -> None:
        """Refuse a depth that a model of so many blocks does not have, where it would never go off."""
        least = 0 if self.metric in TOKENS else 1
        deepest = blocks - least + 1
        if self.depth is not None and not (least <= self.depth <= blocks or -deepest <= self.depth < 0):
            raise InputError(
                f"depth of an alarm for {self.metric} is {self.depth} and there are {blocks} blocks; give {least} to "
                f"{blocks}, or negative numbers from the end"
            )

    def crossing(self, row: Row, memory: Memory = (None, False)) -> tuple[Crossing | None, Memory]:
        """The crossing, where this snapshot is the first beyond the bound; and what to remember."""
        if self.metric not in row:
            return None, memory
        value = row[self.metric]
        values = value if isinstance(value, list) else [value]
        first, on = values if memory[0] is None else memory[0], memory[1]
        beyond = []
        for index, one in enumerate(values):
            if one is not None and self._watches(index, len(values)):
                over = self._beyond(one, first[index] if index < len(first) else None)
                beyond += [(over, -index, one)] if over > 0 else []
        if not beyond or on:
            return None, (first, bool(beyond))
        _, index, one = max(beyond)
        depth = depth_of(self.metric, -index)
        text = self._text(row["step"], depth if isinstance(value, list) else None, one)
        return Crossing(self.metric, row["step"], depth, one, text, self.then), (first, True)

    def _watches(self, index: int, count: int) -> bool:
        return self.depth in (None, depth_of(self.metric, index), index - count)

    def _beyond(self, value: float, first: float | None) -> float:
        """How far beyond the bound; positive where it is crossed."""
        if self.kind in ("above", "below"):
            return value - self.bound if self.kind == "above" else self.bound - value
        if first is None or first <= 0:
            return 0.0
        return (first / max(value, 1e-300) if self.kind == "falls_by" else value / first) - self.bound

    def _text(self, step: int, depth: int | None, value: float) -> str:
        where = "" if depth is None else " before the first block" if depth == 0 else f" after block {depth}"
        bound = {
            "above": f"above {self.bound:g}",
            "below": f"below {self.bound:g}",
            "falls_by": f"{self.bound:g} times smaller than at first, or more",
            "rises_by": f"{self.bound:g} times larger than at first, or more",
        }[self.kind]
        return f"step {step:,}: {LABELS[self.metric]} is {value:.4g}{where}, {bound}"

    def settings(self) -> dict[str, Any]:
        """What makes it again, for a history; what is done when it goes off is left out."""
        return {"metric": self.metric, self.kind: self.bound, "depth": self.depth}

    def limits(self, first: list[float | None]) -> list[float | None]:
        """The value at every depth beyond which it goes off, given the first snapshot; None where it does not watch."""
        values: list[float | None] = [self.bound] * len(first)
        if self.kind.endswith("by"):
            by = self.bound if self.kind == "rises_by" else 1 / self.bound
            values = [one * by if one is not None and one > 0 else None for one in first]
        return [one if self._watches(index, len(first)) else None for index, one in enumerate(values)]

    def __repr__(self) -> str:
        return f"Alarm({self.metric!r}, {self.kind}={self.bound:g})"


class Alarms:
    """The alarms of one monitor, which calls functions for them, and warns once of what they say."""

    def __init__(
        self, alarms: list[Alarm], attempt: Callable[[Callable[[], Any], str], Any], warn: Callable[[str], None]
    ) -> None:
        self.alarms, self.attempt, self.warn = alarms, attempt, warn
        self.memory: list[Memory] = [(None, False)] * len(alarms)
        self.crossings: list[Crossing] = []
        self.should_stop = False

    def remember(self, rows: Iterable[Row]) -> None:
        """Begin anew, with what a run showed so far: alarms compare with its first snapshot."""
        self.memory = [(None, False)] * len(self.alarms)
        for row in rows:
            self.memory = [alarm.crossing(row, one)[1] for alarm, one in zip(self.alarms, self.memory, strict=True)]

    def check(self, row: Row) -> None:
        """Warn, ask the training to stop, or call a function where a snapshot crosses a bound."""
        for place, alarm in enumerate(self.alarms):
            values = row.get(alarm.metric)
            if isinstance(values, list):
                blocks = depth_of(alarm.metric, len(values)) - 1
                self.attempt(functools.partial(alarm.check_depth, blocks), "an alarm cannot go off")
                if values and all(value is None for value in values):
                    self.warn(f"{alarm.metric} is no number at any depth, so an alarm is blind: NaN, or short inputs")
            crossing, self.memory[place] = alarm.crossing(row, self.memory[place])
            if crossing is not None:
                self.crossings.append(crossing)
                if callable(alarm.then):
                    self.attempt(functools.partial(alarm.then, crossing), "the function of an alarm failed")
                    continue
                stops = alarm.then == "stop"
                self.should_stop |= stops
                warning.warn(f"alarm at {crossing.text}" + ("; training is asked to stop" if stops else ""))


def replayed(settings: list[dict[str, Any]], rows: list[Row]) -> list[dict[str, Any]]:
    """For a report: each alarm of a run with its metric, what it is in words, its limits by depth and its crossings."""
    found = []
    for one in settings:
        try:
            alarm = Alarm(**one)
        except TypeError as error:
            raise InputError(f"the history has the alarm {arguments.shown(one)}; remove it from the file") from error
        crossings = []
        memory: Memory = (None, False)
        for row in rows:
            crossing, memory = alarm.crossing(row, memory)
            if crossing is not None:
                crossings.append({name: getattr(crossing, name) for name in ("step", "depth", "value", "text")})
        first = memory[0] or []
        bound = f"{alarm.kind.replace('_', ' ')} {alarm.bound:g}{' times' if alarm.kind.endswith('by') else ''}"
        depth = "any depth" if alarm.depth is None else f"depth {alarm.depth}"
        where = "after the last block" if alarm.depth == -1 else f"at {depth}"
        text = f"{LABELS[alarm.metric]} {bound} {where}"
        found.append({"metric": alarm.metric, "text": text, "limits": alarm.limits(first), "crossings": crossings})
    return found


def checked(alarms: Any) -> list[Alarm]:
    """The alarms as a list; anything else is refused."""
    if alarms is None or isinstance(alarms, str) or not isinstance(alarms, (Alarm, Iterable)):
        raise InputError(f"alarms is {arguments.shown(alarms)}; give oversmooth.Alarm('cos', above=0.95), or a list")
    several = [alarms] if isinstance(alarms, Alarm) else list(alarms)
    for alarm in several:
        if not isinstance(alarm, Alarm):
            raise InputError(f"an alarm is {arguments.shown(alarm)}; give oversmooth.Alarm('cos', above=0.95)")
    return several
