"""What every recipe has, whatever its task: a name that is its settings, and what the engine asks of it.

A recipe is a frozen dataclass that decides a run: its model, its data, its steps. It is saved beside what it made, and
its key names the cell of a table. How a run is watched or stopped changes no weight and is not in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import parse_json
from oversmooth.safety.machine import check_fits
from oversmooth.safety.typed import typed
from oversmooth_papers.engine.options import check_settings, option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from oversmooth.steering import Method

Scores = Mapping[str, float]  # what a model came to, by name: accuracy, perplexity, mean intersection over union
_FIRST_TASK = "images"  # whose recipes do not name it: they were there before there were others
_LAYER_WORDS = ("all", "first half", "last half")
_BLOCK = 50_000  # bytes of a block's modules, whatever its width
_RECIPES: dict[str, type[BaseRecipe]] = {}


@dataclasses.dataclass(frozen=True)
class BaseShape(ABC):
    """Sizes of a model; subclasses are frozen dataclasses."""

    if TYPE_CHECKING:  # fields that every subclass has
        width: int = 0
        depth: int = 0
        heads: int = 0
        dropout: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.width % self.heads:
            raise InputError(f"{self.heads} heads do not share {self.width} features evenly; give a divisor")

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Weights of the plain model, counted before it is made."""

    @property
    @abstractmethod
    def words(self) -> str:
        """For people: ``a ViT of depth 12 and width 192``."""

    def check_fits(self, copies: int = 1, more: int = 0) -> None:
        """Raise `InputError` if memory is short. copies: of weights, gradients and moments too; more: other bytes."""
        needed = copies * 4 * self.parameters + _BLOCK * self.depth + more
        check_fits(needed, f"{self.words} has {self.parameters:,} weights and", "give a smaller one")


@dataclasses.dataclass(frozen=True)
class BaseRecipe(ABC):
    """Subclasses are frozen dataclasses whose defaults are the published recipe."""

    task_name: ClassVar[str]
    unit: ClassVar[str]  # what speed is counted in: images, tokens
    optimiser: ClassVar[Literal["adamw", "sgd"]] = "adamw"
    momentum: ClassVar[float] = 0.9  # of sgd
    of_data: ClassVar[tuple[str, ...]] = ("data",)  # fields that the data decide, and those of the shape
    shape_of_data: ClassVar[tuple[str, ...]] = ()
    not_of_shape: ClassVar[frozenset[str]] = frozenset()  # names of the shape's that are settings of the recipe itself

    def __init_subclass__(cls, **more: Any) -> None:
        """Make a task's recipe known by the task's name, for files that hold one."""
        super().__init_subclass__(**more)
        _RECIPES[cls.task_name] = cls

    if TYPE_CHECKING:  # fields that every subclass has, in an order of its own
        seed: int = 0
        variant: str = ""
        ramp: float = 0.0
        data: str = ""
        shape: Any = None
        epochs: int = 0
        batch: int = 0
        lr: float = 0.0
        weight_decay: float = 0.0
        clip: float | None = None
        precision: str = ""

    def __post_init__(self) -> None:
        check_settings(self)
        self.check()
        check_layers(getattr(self, "layers", "all"), self.shape.depth)
        self.check_variant()

    def check(self) -> None:  # noqa: B027 (some tasks have nothing of their own)
        """Raise `InputError` for settings that do not go together."""

    @property
    def total_epochs(self) -> int:
        """The warm-up's too."""
        return self.epochs

    @abstractmethod
    def learning_rates(self, steps_per_epoch: int) -> Tensor:
        """``(total_epochs * steps_per_epoch,)``: of every step."""

    @property
    @abstractmethod
    def label(self) -> str:
        """For people, without the seed."""

    @abstractmethod
    def describe(self, scores: Scores) -> str:
        """A model's scores in words: ``accuracy 33.35 %``."""

    def methods(self) -> list[Method]:
        """What steers the model; none for plain."""
        settings = {name: getattr(self, name) for name in ("wiring", "start") if hasattr(self, name)}
        return methods_of(self.variant, **settings, seed=self.seed)

    @property
    def parameters(self) -> int:
        """Of the plain model, counted before it is made."""
        return int(self.shape.parameters)

    @property
    def draws_in_forward(self) -> bool:
        """Whether the model itself draws random numbers in training, as dropout does."""
        return getattr(self.shape, "dropout", 0.0) > 0

    def decays(self, name: str, parameter: Tensor) -> bool:  # noqa: ARG002
        return True

    @property
    def with_variant(self) -> str:
        """`` with neutreno:strength=0.6 (ramp 0.5) in layers 0-2``; nothing for plain."""
        ramp, layers = f" (ramp {self.ramp:g})" if self.ramp else "", getattr(self, "layers", "all")
        where = "" if layers == "all" else f" in layers {layers}"
        return "" if self.variant == "plain" else f" with {self.variant}{ramp}{where}"

    @property
    def title(self) -> str:
        """For people: ``ViT-Ti⁻, 10 % of cifar100, seed 2``."""
        return f"{self.label}, seed {self.seed}"

    @property
    def key(self) -> str:
        """Twelve digits that name the recipe, seed included: of what differs from its defaults.

        So a field that is added later, with the default that stands for what was done before, renames no cell.
        """
        usual = leaves(type(self)().to_dict())
        own = leaves(type(self).from_dict(self.to_dict()).to_dict())  # where 1 is 1.0
        differs = {name: value for name, value in own.items() if usual.get(name, ...) != value}
        if self.task_name != _FIRST_TASK:
            differs["task"] = self.task_name
        return hashlib.sha256(json.dumps(differs, sort_keys=True).encode()).hexdigest()[:12]

    def autocasts(self, device: str) -> bool:
        """Whether steps run in bfloat16 on a device of this type."""
        return self.precision == "bf16" and device == "cuda"

    def autocast(self, device: torch.device) -> Any:
        """A block in which the model computes as the recipe says."""
        import torch

        return torch.autocast(device.type, torch.bfloat16, enabled=self.autocasts(device.type))

    def to_dict(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        return fields if self.task_name == _FIRST_TASK else {"task": self.task_name, **fields}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    @classmethod
    def from_dict(cls, fields: dict[str, Any], where: str = "the recipe") -> Self:
        """What `to_dict` gave; fields that are missing have their defaults."""
        try:
            own = dict(typed(dict[str, Any], fields))
            if (task := own.pop("task", _FIRST_TASK)) != cls.task_name:
                raise ValueError(f"it is for the task {task!r}, not {cls.task_name}")
            recipe: Self = typed(cls, own)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{where} cannot be read ({reason(error)}); write it again with Recipe.to_json") from error
        return recipe

    @classmethod
    def from_json(cls, text: str, where: str = "the recipe") -> Self:
        return cls.from_dict(parse_json(text, f"{where} is no JSON", "write it again with Recipe.to_json"), where)

    def difference(self, other: BaseRecipe) -> str | None:
        """The first field that differs, with both values, in words; None if none does."""
        mine, theirs = leaves(self.to_dict()), leaves(other.to_dict())
        for name in dict.fromkeys([*mine, *theirs]):
            if mine.get(name) != theirs.get(name):
                return f"{name} is {mine.get(name)!r} there and {theirs.get(name)!r} here"
        return None

    def changed(self, settings: dict[str, Any]) -> Self:
        """With these settings, its own or the shape's; None leaves one as it is."""
        changes = {name: value for name, value in settings.items() if value is not None}
        of_shape = {field.name for field in dataclasses.fields(self.shape)} - self.not_of_shape
        sizes = {name: changes.pop(name) for name in list(changes) if name in of_shape}
        return self._with(changes, sizes)

    def _with(self, own: dict[str, Any], sizes: dict[str, Any]) -> Self:
        return dataclasses.replace(self, **own, shape=dataclasses.replace(self.shape, **sizes))

    def decided_by(self, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings that these data decide, its own and its shape's."""
        return {"data": data.name}, {"classes": len(data.classes)}

    def fitted(self, data: Any, **more: Any) -> Self:
        """The same for these data: name, sizes and classes are theirs. more: what else they decide."""
        own, sizes = self.decided_by(data)
        return self._with({**own, **more}, sizes)

    def check_fits(self, data: Any) -> None:
        """Raise `InputError` for data of another name or size."""
        for of, decided in zip((self, self.shape), self.decided_by(data), strict=True):
            for name, value in decided.items():
                if getattr(of, name) != value:
                    what = "" if name == "data" else f"{name} "
                    differs = f"the recipe is for {what}{getattr(of, name)} and the data are {what}{value}"
                    raise InputError(f"{differs}; fit it with recipe.fitted(data)")

    def fitted_like(self, other: Self) -> Self:
        """For the data that another recipe is fitted to."""
        sizes = {name: getattr(other.shape, name) for name in self.shape_of_data}
        return self._with({name: getattr(other, name) for name in self.of_data}, sizes)

    def check_variant(self) -> None:
        """Raise `InputError` for words that name no method, and for a ramp that has nothing to raise."""
        methods = self.methods()
        if not self.ramp:
            return
        from oversmooth.steering.methods.base import MethodWithStrength

        if not any(isinstance(one, MethodWithStrength) and one.strength and not one.learned for one in methods):
            what = f"ramp is {self.ramp:g} and the variant {self.variant!r} has no strength to raise"
            remedy = "give one that has, such as 'neutreno:strength=0.6', or leave the ramp out"
            raise InputError(f"{what} (not learned, and not 0); {remedy}")


def ramp_option() -> Any:
    """The field `ramp`, the same for every task."""
    words = "Share of all steps, 0 to 1, over which fixed strengths rise evenly from 0; 0: none rises."
    return option(0.0, words, least=0, most=1)


def read_recipe(fields: Any, where: str = "the recipe") -> BaseRecipe:
    """What `BaseRecipe.to_dict` gave, of whichever task it names."""
    task = fields.get("task", _FIRST_TASK) if isinstance(fields, dict) else _FIRST_TASK
    if not isinstance(task, str) or task not in _RECIPES:
        raise InputError(f"{where} is for the task {task!r}; those that are known are {', '.join(sorted(_RECIPES))}")
    return _RECIPES[task].from_dict(fields, where)


def methods_of(variant: str, **spectral: Any) -> list[Method]:
    """The steering that a variant names: plain, smooth, sharpen, or methods in words, joined by ``" + "``.

    spectral: further settings of smooth and sharpen, as `steering.Spectral` takes them; of those in words the seed,
    unless the words name one.
    """
    if variant == "plain":  # before torch is needed: recipes are made for help texts too
        return []
    from oversmooth.steering import Spectral
    from oversmooth.steering.methods.registry import METHODS, method_named

    if variant in ("smooth", "sharpen"):
        return [Spectral(mode=variant, **spectral)]  # type: ignore[arg-type]
    words = [part.strip() for part in variant.split(" + ")]
    known = sorted(name.lower() for name in METHODS)
    if not all(word.partition(":")[0].lower() in known for word in words):
        raise InputError(f"variant is {variant!r}; give plain, smooth, sharpen or one of {', '.join(known)}")
    seed = {} if "seed=" in variant else {"seed": spectral["seed"]}
    methods = [method_named(word) for word in words]
    return [dataclasses.replace(one, **seed) if isinstance(one, Spectral) else one for one in methods]


def check_layers(layers: str, depth: int) -> None:
    """Raise `InputError` for layers that a model of this depth does not have."""
    if layers.replace("-", " ") in _LAYER_WORDS:  # before torch is needed
        return
    from oversmooth.steering.layer_names import layers_named

    wanted = layers_named(layers)
    if isinstance(wanted, str):
        raise InputError(f"layers is {layers!r}; give {', '.join(_LAYER_WORDS)}, or places such as 0-2")
    if not all(-depth <= index < depth for index in wanted):
        raise InputError(f"layers is {layers!r} and the model has the layers 0 to {depth - 1}; give some of them")


def leaves(fields: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by dotted name, lists as JSON has them."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= leaves(value, f"{before}{name}.")
        else:
            flat[before + name] = list(value) if isinstance(value, tuple) else value
    return flat
