"""What is diagnosed, and how: the model with its inputs, and the settings of `diagnose`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.anatomy.roles import Roles
from oversmooth.diagnosis.provenance import mode, model_name
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import Batch
from oversmooth.results import verdict
from oversmooth.results.facts import ModelFacts, Provenance
from oversmooth.results.notes import Note
from oversmooth.results.parts import Layer
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.trace.feed import Runner
from oversmooth.trace.valid import LeftOut

if TYPE_CHECKING:
    from oversmooth.models.on_disk import OnDisk

MOST_BLOCKS = 1_000_000  # limit of repeats to predict
_MOST_POSITIONS = 12  # left-out tokens that a note names


@dataclass(kw_only=True)
class Options:
    """How a diagnosis is made: the settings of `diagnose` that are rarely changed, under the same names."""

    spectra: bool
    joined: int
    ranks: int
    variant: str
    rule: str
    depth: int
    example: bool
    exact: bool
    seed: int
    left_out: LeftOut | None
    processes: bool = False
    special_tokens: str = "both"
    roles: Roles | None = None

    def __post_init__(self) -> None:
        arguments.choice(self.variant, "variant", ("raw", "folded", "observed"))
        arguments.choice(self.rule, "rule", ("complex", "real"))
        arguments.choice(self.special_tokens, "special_tokens", ("both", "count", "leave"))
        self.joined, self.ranks = arguments.whole(self.joined, "joined"), arguments.whole(self.ranks, "ranks")
        self.depth = arguments.whole(self.depth, "depth", most=MOST_BLOCKS)
        for name in ("spectra", "example", "exact"):
            setattr(self, name, arguments.flag(getattr(self, name), name))
        self.seed = arguments.seed(self.seed)

    def batches(self, run: Runner, inputs: Any) -> Iterator[Batch | Tensor]:
        """As the model takes them; no token is special where all are counted."""
        for batch in run.batches(inputs):
            counted = self.special_tokens == "count" and isinstance(batch, Batch)
            yield replace(batch, special=None) if counted else batch  # type: ignore[type-var]

    def notes(self) -> list[Note]:
        """What a reader should know of them."""
        if self.left_out is None:
            return []
        positions = self.left_out.positions
        return [Note("left_out", len(positions), names=list(map(str, positions[:_MOST_POSITIONS])))]


@dataclass
class Source:
    """The model, what it is run on, and what is known of it."""

    model: nn.Module
    inputs: Any
    name: str
    tokenizer: Any
    about: dict[str, Any]
    notes: list[Note]
    on_disk: OnDisk | None = None
    mode: dict[str, bool] = field(default_factory=dict)

    def about_mode(self) -> None:
        """Record whether the model is in train mode."""
        self.mode, notes = mode(self.model)
        self.notes += notes

    def diagnosis(
        self, facts: ModelFacts, made: Provenance, layers: list[Layer], notes: list[Note], **more: Any
    ) -> Diagnosis:
        """What was found, with the verdict."""
        facts |= {**self.mode, "class": type(self.model).__name__, **self.about}  # type: ignore[typeddict-item]
        found = Diagnosis(facts, made, layers, notes=notes, remarks=list(map(str, notes)), **more)
        found.verdict = verdict.sentences(found)
        return found


def opened(
    model: Any,
    inputs: Any,
    name: str | None,
    tokenizer: Any = None,
    about: dict[str, Any] | None = None,
    stream: bool = False,
    max_memory: str | int | None = None,
    count: int | None = None,
) -> Source:
    """The module inside whatever was given, with what is known of it. count: of the default inputs."""
    if name is not None and not isinstance(name, str):
        raise InputError(f"name is {arguments.shown(name)}; give the model's name as text")
    if about is not None and not (isinstance(about, dict) and all(isinstance(key, str) for key in about)):
        raise InputError(f"about is {arguments.shown(about)}; give a dict of facts with names as keys")
    known: dict[str, Any] = {}
    notes: list[Note] = []
    on_disk = None
    if stream and isinstance(model, nn.Module):
        raise InputError("stream=True needs a checkpoint's name or path: this model is in memory; leave it out")
    if not isinstance(model, nn.Module):
        from oversmooth import models  # a module needs nothing of it

        how = dict(stream=stream, max_memory=max_memory)
        loaded = models.load(str(model), **how) if isinstance(model, (str, Path)) else model  # type: ignore[arg-type]
        if isinstance(loaded, models.Loaded):
            tokenizer = tokenizer or loaded.tokenizer
            name = name or loaded.name
            if inputs is None:
                inputs = loaded.inputs() if count is None else loaded.inputs(count=count)
            notes += [Note("loading", text=remark) for remark in loaded.remarks]
            known |= loaded.about
            model, on_disk = loaded.model, loaded.on_disk
    inside = unwrapped(check_is_module(model))
    if inside is not model:
        notes.append(Note("wrapped", what=type(model).__name__))
    known |= about or {}
    return Source(inside, inputs, name or model_name(inside), tokenizer, known, notes, on_disk)
