"""Alarms: a bound on what is seen, and what happens where it is crossed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from oversmooth.monitor.names import LABELS, TOKENS, Row, depth_of
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


@dataclass(frozen=True)
class Crossing:
    """An alarm that went off."""

    metric: str
    step: int
    depth: int
    value: float
    text: str
    """All of it in a sentence."""
    then: Any
    """What is to happen: "warn", "stop", or a function of this."""


class Alarm:
    """Goes off where a metric crosses a bound, once, and again only after it has come back.

    Args:
        metric: its name, such as "cos", "effective_rank" or "hfc_lfc".
        above: goes off above this.
        below: goes off below this.
        falls_by: goes off where it is this many times smaller than in the first look.
        rises_by: goes off where it is this many times larger than in the first look.
        depth: where to look: the number of blocks before it, negative numbers from the end; None: anywhere.
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
        bounds = {"above": above, "below": below, "falls_by": falls_by, "rises_by": rises_by}
        given = {name: value for name, value in bounds.items() if value is not None}
        if len(given) != 1:
            raise InputError(
                f"an alarm for {metric} has {len(given)} bounds; give one of above, below, falls_by and rises_by"
            )
        ((self.kind, bound),) = given.items()
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
        self._first: list[float | None] | None = None
        self._on = False

    def fresh(self) -> Alarm:
        """The same alarm, which has seen nothing yet."""
        one = copy.copy(self)
        one._first, one._on = None, False
        return one

    @property
    def memory(self) -> tuple[list[float | None] | None, bool]:
        """What it compares with, and whether it is on."""
        return self._first, self._on

    @memory.setter
    def memory(self, known: tuple[list[float | None] | None, bool]) -> None:
        self._first, self._on = known

    def check_depth(self, blocks: int) -> None:
        """Refuse a depth that there is not, where it would never go off.

        Args:
            blocks: how many there are.
        """
        least = 0 if self.metric in TOKENS else 1
        deepest = blocks - least + 1
        if self.depth is not None and not (least <= self.depth <= blocks or -deepest <= self.depth < 0):
            raise InputError(
                f"depth of an alarm for {self.metric} is {self.depth} and there are {blocks} blocks; give {least} to "
                f"{blocks}, or negative numbers from the end"
            )

    def check_row(self, row: Row) -> None:
        """Refuse a depth that a look does not have.

        Args:
            row: the look.
        """
        if isinstance(row.get(self.metric), list):
            self.check_depth(depth_of(self.metric, len(row[self.metric])) - 1)

    def look(self, row: Row) -> Crossing | None:
        """The crossing, where this look is the first beyond the bound.

        Args:
            row: the look.
        """
        if self.metric not in row:
            return None
        value = row[self.metric]
        values = value if isinstance(value, list) else [value]
        if self._first is None:
            self._first = values
        worst: tuple[float, int, float] | None = None
        for index, one in enumerate(values):
            depth = depth_of(self.metric, index)
            if one is None or self.depth not in (None, depth, index - len(values)):
                continue
            first = self._first[index] if index < len(self._first) else None
            over = self._beyond(one, first)
            if over > 0 and (worst is None or over > worst[0]):
                worst = (over, depth, one)
        before, self._on = self._on, worst is not None
        if worst is None or before:
            return None
        _, depth, one = worst
        text = self._text(row["step"], depth if isinstance(value, list) else None, one)
        return Crossing(self.metric, row["step"], depth, one, text, self.then)

    def _beyond(self, value: float, first: float | None) -> float:
        """How far beyond the bound; positive where it is crossed."""
        if self.kind == "above":
            return value - self.bound
        if self.kind == "below":
            return self.bound - value
        if first is None or first <= 0:
            return 0.0
        ratio = first / max(value, 1e-300) if self.kind == "falls_by" else value / first
        return ratio - self.bound

    def _text(self, step: int, depth: int | None, value: float) -> str:
        where = "" if depth is None else " before the first block" if depth == 0 else f" after block {depth}"
        bound = {
            "above": f"above {self.bound:g}",
            "below": f"below {self.bound:g}",
            "falls_by": f"{self.bound:g} times smaller than at first, or more",
            "rises_by": f"{self.bound:g} times larger than at first, or more",
        }[self.kind]
        return f"step {step:,}: {LABELS[self.metric]} is {value:.4g}{where}, {bound}"

    def __repr__(self) -> str:
        return f"Alarm({self.metric!r}, {self.kind}={self.bound:g})"


def checked(alarms: Any) -> list[Alarm]:
    """The alarms as a list; anything else is refused."""
    if alarms is None or isinstance(alarms, str) or not isinstance(alarms, (Alarm, Iterable)):
        raise InputError(f"alarms is {arguments.shown(alarms)}; give oversmooth.Alarm('cos', above=0.95), or a list")
    given = [alarms] if isinstance(alarms, Alarm) else list(alarms)
    for alarm in given:
        if not isinstance(alarm, Alarm):
            raise InputError(f"an alarm is {arguments.shown(alarm)}; give oversmooth.Alarm('cos', above=0.95)")
    return given
