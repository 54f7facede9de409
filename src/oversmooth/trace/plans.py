"""The plan of a pass: which arrays are the residual stream, after which part of which block, and how attention enters.

A plan is plain data. It is fitted once, by `oversmooth.trace.study`, and every later batch is only held against it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from oversmooth.anatomy.layer import Anatomy, AttentionLayer, NormPosition
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.reasons import Reason


@dataclass(frozen=True)
class Stage:
    """A point where the stream can be read, and the part of the block that precedes it."""

    part: str
    where: str
    """"input" or "output" of the module; "sum": ``keep`` times what entered plus ``factor`` times its output; or the
    block's "end".
    """
    module: str = ""
    nth: int = 0  # which of the module's calls in this block
    keep: Tensor | None = field(default=None, compare=False)
    factor: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Branch:
    """What attention adds to the stream, and the factors that one input showed."""

    terms: tuple[tuple[str, int], ...]
    """The modules, and which of their calls, whose outputs are added to what entered: what runs in parallel, if
    anything does, and attention's branch."""
    factors: tuple[Tensor, ...]  # of what entered, and of the terms


@dataclass(frozen=True)
class Site:
    """A named point of the residual stream: what enters a block (part "enter"), or what a part of it leaves."""

    call: int
    """How many blocks ran before this one."""
    stage: int
    """Index among the block's stages; -1 for what enters."""
    part: str
    """The part that precedes it: "enter", "attention", "mlp", "norm"; or "block", where parts are not known."""
    block: str
    """Name of the block's module."""
    main: bool
    """Whether it is what enters, what attention leaves, or the block's end."""
    depth: int | None = None
    """0 for what enters the first block, n for the end of the n-th; None elsewhere."""
    repeat: int = 1
    """2 where the block has the part for the second time, such as the second norm of Post-LN."""

    def __str__(self) -> str:
        return f"{self.call}.{self.part}{self.repeat if self.repeat > 1 else ''}"


@dataclass(frozen=True)
class BlockPlan:
    """What is known of one call of one block."""

    block: str  # name of its module
    stages: list[Stage]
    layer: AttentionLayer = None  # type: ignore[assignment]
    """Its attention, with the factors that were observed. None where it has none, and in a plan of names."""
    norm_position: NormPosition = "none"
    norm_eps: float = 0.0  # what the norm before attention adds to σ²
    norm_agrees: bool = False  # whether the norm before attention is what anatomy says it is
    continues: bool = True  # whether it starts from the output of the block before it
    branch: Branch | None = None  # what the factors are compared with for other inputs; None: nothing is compared
    why_undecided: Reason | None = None  # why the theorems do not apply to it: there is then neither ρ nor verdict

    @property
    def attention_stage(self) -> int | None:
        """The stage after attention, its norm included where that stands on the stream; None: it cannot be read."""
        parts = [stage.part for stage in self.stages]
        if "attention" not in parts:
            return None
        at = parts.index("attention")
        return at + (self.norm_position == "post" and parts[at + 1 : at + 2] == ["norm"])

    def sites(self, call: int) -> list[Site]:
        """What enters, then one site per stage."""
        last, middle, parts = len(self.stages) - 1, self.attention_stage, [stage.part for stage in self.stages]
        sites = [Site(call, -1, "enter", self.block, True, None if call else 0)]
        for index, part in enumerate(parts):
            depth, repeat = call + 1 if index == last else None, parts[: index + 1].count(part)
            sites.append(Site(call, index, part, self.block, index in (middle, last), depth, repeat))
        return sites


@dataclass(frozen=True)
class Plan:
    """The blocks of a model in the order in which they run."""

    anatomy: Anatomy | None
    """The model's attention layers, as names and weights show them; None: not known."""
    blocks: list[BlockPlan]
    """Empty where only names are known: the first pass then adds every block as it runs."""
    windows: bool = False
    """Whether some layers keep tokens apart that others connect: windows, and not packed texts."""
    layouts: dict[str, bool] = field(default_factory=dict)
    """By name of a block, or of a module inside one: whether it takes (batch, n, d); all others do."""
    attention: bool = True
    """Whether attention was checked against the weights."""
    named: Mapping[str, AttentionLayer | None] = field(default_factory=dict)
    """Blocks that are read at their ends alone, whatever is inside, by name; with their attention, which is asked for
    its mask where no argument tells what is padding.
    """

    @classmethod
    def of_names(cls, blocks: Mapping[str, AttentionLayer | None], layouts: dict[str, bool] | None = None) -> Plan:
        """A plan of blocks by their names alone, with their attention where it is known, for modules that map (batch,
        n, d) to (batch, n, d). layouts: as an earlier pass showed them; added to here.
        """
        return cls(None, [], layouts={} if layouts is None else layouts, attention=False, named=blocks)

    @property
    def watched(self) -> Mapping[str, AttentionLayer | None]:
        """The blocks to watch, by name, each once."""
        return self.named or {block.block: block.layer for block in self.blocks}

    def parts(self, block: str) -> list[str]:
        """The modules of a block that are read."""
        here = [plan for plan in self.blocks if plan.block == block]
        modules = {stage.module for plan in here for stage in plan.stages if stage.module}
        return sorted(modules | {name for plan in here if plan.branch for name, _ in plan.branch.terms})

    @property
    def sites(self) -> list[Site]:
        """Every point where the stream can be read, in order."""
        return [site for call, block in enumerate(self.blocks) for site in block.sites(call)]

    def with_undecided(self, calls: Iterable[int], why: Reason) -> Plan:
        """The same plan with these calls of blocks marked undecided, for this reason."""
        blocks = list(self.blocks)
        for call in calls:
            blocks[call] = dataclasses.replace(blocks[call], why_undecided=why)
        return dataclasses.replace(self, blocks=blocks)

    def __str__(self) -> str:
        rows = []
        for call, block in enumerate(self.blocks):
            steps = ", ".join(
                f"{stage.part} ({stage.where}{' of ' + stage.module if stage.module else ''})" for stage in block.stages
            )
            why = f"; undecided: {block.why_undecided}" if block.why_undecided else ""
            norm = "" if self.named else f", norm {block.norm_position}"
            rows.append(f"{call}: {block.block}{norm}: {steps}{why}")
        return "\n".join(rows)


@dataclass
class SampleBlock:
    """One call of one block on the sample that a plan was fitted to, with its arrays."""

    plan: BlockPlan
    A: AttentionOperator | None
    x: Tensor  # what entered
    y: Tensor  # what left
    args: Any = field(repr=False)
    kwargs: Any = field(repr=False)
    running: Any = field(default=None, repr=False)  # the steered pass it was part of, where the model is steered
