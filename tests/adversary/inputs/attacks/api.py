"""The same from Python: every argument of every public function, with what it cannot take."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Container, Iterator
from typing import Any

from adversary.inputs.attacks import diagnoses, mutations
from adversary.inputs.case import Case

SCALARS: dict[str, Any] = {
    "None": None, "text": "\x1b[31mred[/b]", "-1": -1, "0": 0, "10^9": 10**9, "10^30": 10**30, "NaN": float("nan"),
    "inf": float("inf"), "0.5": 0.5, "True": True, "a list": [], "an object": {"a": 1}, "5000 letters": "x" * 5000,
}  # fmt: skip
FEW = {label: SCALARS[label] for label in ("None", "text", "-1", "0", "10^9", "10^30", "NaN", "an object")}
EVERY: Any = type("Every", (), {"__contains__": lambda _self, _label: True})()


def cases() -> Iterator[Case]:
    yield from _functions()
    yield from _methods()
    yield from _models()
    yield from _inputs_of_models()
    yield from _settings()
    yield from _paths()
    yield from _inputs()
    yield from _diagnoses()


def _call(label: str, call: Callable[[], Any], expected: Any = "either") -> Case:
    return Case(f"api/{label}", lambda _place: call(), expected, api=True)


def _each(
    name: str, call: Callable[[Any], Any], values: dict[str, Any], refused: Container[str] = (), made: bool = False
) -> Iterator[Case]:
    """A call with each of these values. refused: which of them must be. made: by calling what stands for them."""
    for label, value in values.items():
        expected = "refused" if label in refused else "either"
        yield _call(f"{name}: {label})", lambda v=value: call(v() if made else v), expected)


def _tensors() -> dict[str, Callable[[], Any]]:
    """What is given where a tensor belongs."""
    import numpy as np
    import torch

    x = torch.randn(2, 3, 4)
    return {
        "None": lambda: None,
        "text": lambda: "\x1b[31mred[/b]",
        "a number": lambda: 3,
        "an empty list": list,
        "lists": lambda: [[1.0, 2.0], [3.0, 4.0]],
        "an array of numpy's": lambda: np.ones((3, 4)),
        "integers": x.long,
        "booleans": x.bool,
        "complex": lambda: x.to(torch.complex64),
        "NaN": lambda: x * float("nan"),
        "inf": lambda: x * float("inf"),
        "1e38": lambda: x * 1e38,
        "1e-44": lambda: x * 1e-44,
        "zeros": lambda: x * 0,
        "one number": lambda: torch.tensor(1.0),
        "a row": lambda: torch.ones(4),
        "no tokens": lambda: x[:, :0],
        "no features": lambda: x[..., :0],
        "no batch": lambda: x[:0],
        "nothing": lambda: torch.ones(0),
        "nine dimensions": lambda: torch.ones(1, 1, 1, 1, 1, 1, 1, 2, 3),
        "float16": x.half,
        "float8": lambda: x.to(torch.float8_e4m3fn),
        "meta": lambda: x.to("meta"),
        "sparse": lambda: x.to_sparse(),
        "another shape": lambda: torch.randn(5, 7, 11),
        "10^12 numbers that are one": lambda: torch.ones(1, 1).expand(10**6, 10**6),
    }


def _good() -> dict[Any, dict[str, Any]]:
    """Functions with arguments that will do."""
    import torch

    from oversmooth import metrics, theory
    from oversmooth.theory import kernels, shifted
    from oversmooth.theory.weights import repeat_shared_heads

    x, A, kernel = torch.randn(2, 3, 4), torch.randn(2, 5, 5).softmax(-1), torch.randn(3, 3).softmax(-1)
    weights = {"W_V": torch.randn(2, 6, 3), "W_O": torch.randn(2, 3, 6)}
    of_tokens = (
        "cosine", "effective_rank", "hfc", "input_convergence", "lfc", "rank_one_distance", "sigma_ratio",
        "singular_values", "stable_rank", "summary",
    )  # fmt: skip
    of_weights = ("head_spectrum", "joined_spectrum", "head_verdicts", "centre_features")
    of_attention = ("attention_spectrum", "flip_threshold", "is_causal", "is_row_stochastic", "DenseAttention")
    return {
        **{getattr(metrics, name): {"x": x} for name in of_tokens},
        **{getattr(theory, name): weights for name in of_weights},
        **{getattr(theory, name): {"A": A} for name in of_attention},
        metrics.ranks_of: {"s": torch.rand(2, 3)},
        metrics.nonlocal_energy: {"u": x, "kernel": kernel},
        metrics.fidelity_energy: {"u": x, "f": x, "kernel": kernel, "strength": 0.5},
        theory.dominance: {"A": A, **weights},
        shifted.shifted_dominance: {"A": A, **weights, "shifts": [0.0, 0.5, 1.0]},
        kernels.gradient_flow: {"scores": kernel, "V": x[0], "f": x[1], "strength": 0.6, "times": [1.0]},
        theory.simulate: {"X": torch.randn(5, 6), "A": A, **weights, "layers": 3},
        theory.stack_dominance: {"A": [A] * 2, **{name: [weight] * 2 for name, weight in weights.items()}},
        theory.fold_norm: {"W_V": weights["W_V"], "gamma": torch.ones(6)},
        repeat_shared_heads: {"W_V": weights["W_V"], "heads": 4},
        theory.SoftmaxAttention: {"q": torch.randn(2, 5, 3), "k": torch.randn(2, 5, 3)},
    }


TENSORS = ("x", "A", "W_V", "W_O", "X", "mask", "kernel", "u", "f", "s", "q", "k", "gamma", "beta", "bias", "strength")
LATER = ("None", "text", "an empty list", "integers", "NaN", "1e38", "one number", "nothing", "another shape", "zeros")
"""For the arguments after the first."""
NUMBERS_TOO = ("gamma", "beta", "bias", "strength", "neutreno")


def _functions() -> Iterator[Case]:
    tensors = _tensors()
    scalars = {label: (lambda v=value: v) for label, value in FEW.items()}
    for function, good in _good().items():
        name = f"{function.__module__.split('.')[1]}.{function.__name__}"
        yield _call(f"{name}, as it should be", lambda f=function, g=good: f(**g), "fine")
        for place, argument in enumerate(inspect.signature(function).parameters):
            if argument in ("progress", "change"):
                continue
            values = {label: make for label, make in tensors.items() if place == 0 or label in LATER}
            values = values if argument in TENSORS else {}
            values |= scalars if argument not in TENSORS or argument in NUMBERS_TOO else {}
            sure = ("text", "an object", *(["None"] if argument in good else []))
            spoilt = lambda v, f=function, g=good, a=argument: f(**{**g, a: v})  # noqa: E731
            yield from _each(f"{name}({argument}", spoilt, values, sure, made=True)


def _methods() -> Iterator[Case]:
    """Settings of every steering method."""
    from oversmooth import steering
    from oversmooth.steering.methods.registry import method_from

    for name, method in steering.METHODS.items():
        for argument in inspect.signature(method).parameters:
            given = lambda v, method=method, argument=argument: method(**{argument: v})  # noqa: E731
            yield from _each(f"steering.{name}({argument}", given, FEW, ("text", "an object"))
    settings: dict[str, Any] = {
        "nothing": {}, "None": None, "text": "x", "no method": {"strength": 1},
        "an unknown method": {"method": "\x1b[31mred"},
        "a method of another kind": {"method": 3}, "a method that is private": {"method": "__class__"},
        "an unknown setting": {"method": "NeuTRENO", "colour": 1}, "a list": [1], "a list as a name": {"method": ["x"]},
    }  # fmt: skip
    yield from _each("steering.method_from(", method_from, settings, EVERY)


def _model(width: int = 8, fill: float | None = None) -> Any:
    """A small transformer of torch's own. fill: what all its weights are."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, min(width, 2), 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in model.parameters() if fill is not None else ():
            parameter.fill_(fill)
    return model


def _models() -> Iterator[Case]:
    """Functions that take a model, with what is none or does not work."""
    import torch
    from torch import nn

    import oversmooth
    from oversmooth.steering import Spectral

    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _model()

        def forward(self, _x: Any) -> Any:
            raise RuntimeError("\x1b[31mred\n" * 100)

    class Nothing(Raises):
        def forward(self, x: Any) -> Any:
            return x

    no_module: dict[str, Callable[[], Any]] = {
        "None": lambda: None,
        "text": lambda: "\x1b[31mred",
        "a number": lambda: 3,
        "a class": lambda: nn.Linear,
        "a function": lambda: len,
        "parameters alone": lambda: dict(_model().state_dict()),
    }
    no_layers = {"a linear layer": lambda: nn.Linear(8, 8), "no layers": nn.ModuleList}
    broken = {
        "a path that lacks": lambda: "/nowhere/at/all",
        "one that raises": Raises,
        "one that runs nothing": Nothing,
        "on meta": lambda: _model().to("meta"),
        "NaN": lambda: _model(fill=float("nan")),
    }
    odd = {
        "huge": lambda: _model(fill=1e30),
        "zero": lambda: _model(fill=0.0),
        "float16": lambda: _model().half(),
        "float64": lambda: _model().double(),
        "in training": lambda: _model().train(),
        "of a width of 1": lambda: _model(width=1),
    }

    def diagnosed(model: Any) -> Any:
        weight = next(model.parameters(), torch.ones(8)) if isinstance(model, nn.Module) else torch.ones(8)
        width = 1 if weight.shape[-1] == 1 else 8
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return oversmooth.diagnose(model, torch.randn(2, 5, width, dtype=dtype), depth=2)

    models = {**no_module, **no_layers, **broken, **odd}
    yield from _each("diagnose(model", diagnosed, models, {**no_module, **no_layers, **broken}, made=True)
    yield from _each(
        "steer(model", lambda m: oversmooth.steer(m, Spectral("sharpen")), models, {**no_module, **no_layers}, made=True
    )
    yield from _each("anatomy.locate(model", oversmooth.anatomy.locate, models, {**no_module, **no_layers}, made=True)
    others = {
        "unsteer": oversmooth.unsteer,
        "fold": oversmooth.fold,
        "verify": oversmooth.steering.verify,
        "ramp": oversmooth.steering.ramp,
        "suggest": lambda m: oversmooth.steering.suggest(m, torch.randn(2, 5, 8), strengths=[0, 1]),
        "save_steered": lambda m: oversmooth.save_steered(m, "out-steered"),
    }
    for name, call in others.items():
        yield from _each(f"{name}(model", call, models, no_module, made=True)


def _inputs_of_models() -> Iterator[Case]:
    import torch

    import oversmooth

    x = torch.randn(2, 5, 8)
    fine: dict[str, Callable[[], Any]] = {
        "one token": lambda: x[:, :1],
        "numpy's": x.numpy,
        "a mask of nothing": lambda: {"src": x, "src_key_padding_mask": torch.ones(2, 5).bool()},
        "batches of other kinds": lambda: [x, {"src": x}],
        "float16": x.half,  # brought to the model's precision
    }
    bad: dict[str, Callable[[], Any]] = {
        "text": lambda: "\x1b[31mred",
        "a number": lambda: 3,
        "an empty list": list,
        "a list of None": lambda: [None],
        "an empty dict": dict,
        "a dict of text": lambda: {"src": "x"},
        "another argument": lambda: {"\x1b[31mred": x},
        "NaN": lambda: x * float("nan"),
        "inf": lambda: x * float("inf"),
        "huge": lambda: torch.full((2, 5, 8), 1e38),
        "integers": x.long,
        "another width": lambda: torch.randn(2, 5, 9),
        "no tokens": lambda: x[:, :0],
        "no inputs": lambda: x[:0],
        "one number": lambda: torch.tensor(1.0),
        "five dimensions": lambda: x[None, None],
        "on meta": lambda: x.to("meta"),
        "batches of other widths": lambda: [x, torch.randn(2, 5, 9)],
        "batches that stop": lambda: iter([]),
        "a set": lambda: {1, 2},
        "without end": lambda: iter(lambda: None, 1),
    }
    calls = {
        "diagnose": lambda inputs: oversmooth.diagnose(_model(), inputs, depth=2),
        "suggest": lambda inputs: oversmooth.steering.suggest(_model(), inputs, strengths=[0, 1]),
    }
    for name, call in calls.items():
        yield from _each(f"{name}(inputs", call, fine | bad, bad, made=True)


def _settings() -> Iterator[Case]:
    """All other arguments of what takes a model."""
    import torch

    import oversmooth
    from oversmooth.steering import NeuTRENO, ramp, suggest, verify

    x = torch.randn(2, 5, 8)
    calls: dict[str, tuple[Callable[..., Any], Any]] = {
        "ramp": (lambda **given: ramp(oversmooth.steer(_model(), NeuTRENO(0.1)), **given), ("to", "steps", "method")),
        "suggest": (
            lambda **given: suggest(_model(), x, **{"strengths": [0, 1], **given}),
            ("strengths", "stack", "heads", "seed"),
        ),
        "diagnose": (
            lambda **given: oversmooth.diagnose(_model(), x, **{"depth": 2, **given}),
            [*inspect.signature(oversmooth.diagnose).parameters][2:],
        ),
        "anatomy.locate": (lambda **given: oversmooth.anatomy.locate(_model(), **given), ("stack", "heads", "norm")),
        "Monitor": (
            lambda **given: oversmooth.Monitor(**{"model": _model(), **given}),
            inspect.signature(oversmooth.Monitor).parameters,
        ),
    }
    for name, (call, names) in calls.items():
        for argument in names:
            if argument not in ("progress", "tokenizer"):
                given = lambda v, call=call, argument=argument: call(**{argument: v})  # noqa: E731
                yield from _each(f"{name}({argument}", given, SCALARS)
    layers = SCALARS | {
        "beyond": [5], "below": [-9], "text within": ["x"], "twice": [0, 0], "NaN within": [float("nan")],
        "10^30 within": [10**30], "booleans": [True, False],
        "a range without end": range(10**12), "a range of 10^7": range(10**7), "a function of nothing": lambda: True,
    }  # fmt: skip
    yield from _each("steer(layers", lambda v: oversmooth.steer(_model(), NeuTRENO(), v), layers)
    methods = SCALARS | {"a class": NeuTRENO, "two of one kind": [NeuTRENO(), NeuTRENO()], "a dict": {}}
    yield from _each("steer(method", lambda v: oversmooth.steer(_model(), v), methods, EVERY)
    register: dict[str, dict[str, Any]] = {
        "nothing": {"value": "", "output": ""},
        "numbers": {"value": 3, "output": 4},
        "an unknown packing": {"value": "a.weight", "output": "b.weight", "packing": "\x1b[31mred"},
        "one weight": {"value": "a.weight", "output": "a.weight"},
        "None": {"value": None, "output": None},
        "patterns": {"value": "(((", "output": "***"},
    }
    yield from _each("anatomy.register(", lambda v: oversmooth.anatomy.register("x", **v), register)
    steered = lambda: oversmooth.steer(_model(), NeuTRENO())  # noqa: E731
    yield _call("steer twice", lambda: oversmooth.steer(steered(), NeuTRENO()), "refused")
    yield _call("fold NeuTRENO", lambda: oversmooth.fold(steered()), "refused")
    yield _call("verify, not steered", lambda: verify(_model()), "refused")
    yield _call("fold, not steered", lambda: oversmooth.fold(_model()))
    yield _call("unsteer, not steered", lambda: oversmooth.unsteer(_model()))
    raising: dict[str, Callable[[], Any]] = {
        "steer(layers: a function that raises)": lambda: oversmooth.steer(_model(), NeuTRENO(), lambda *_: 1 / 0),
        "diagnose(inputs: a generator that raises)": lambda: oversmooth.diagnose(_model(), (1 / 0 for _ in range(3))),
    }
    for label, call in raising.items():
        yield _call(label, lambda call=call: _passes_on(call), "fine")


def _passes_on(call: Callable[[], Any]) -> None:
    """What a user's own function raises is the user's to see, as it is."""
    try:
        call()
    except ZeroDivisionError:
        return
    raise AssertionError("what the user's own function raised was swallowed")


def _paths() -> Iterator[Case]:
    import oversmooth
    from oversmooth import models

    paths: dict[str, Any] = {
        "None": None, "a number": 3, "nothing": "", "a folder": ".", "what lacks": "/nowhere/x.json",
        "text": "\x1b[31mred",
        "5000 letters": "x" * 5000, "a zero byte": "a\x00b", "bytes": b"x.json", "/dev/zero": "/dev/zero", "a list": [],
    }  # fmt: skip
    calls: dict[str, Callable[[Any], Any]] = {
        "Diagnosis.load": oversmooth.Diagnosis.load,
        "load_steered": oversmooth.load_steered,
        "anatomy.locate": oversmooth.anatomy.locate,
        "diagnose": oversmooth.diagnose,
        "models.load": models.load,
    }
    for name, call in calls.items():
        yield from _each(f"{name}(path", call, paths, EVERY)


def _inputs() -> Iterator[Case]:
    from oversmooth.inputs.images import image_inputs
    from oversmooth.inputs.pictures import picture
    from oversmooth.inputs.preprocessing import Preprocessing
    from oversmooth.inputs.text import text_inputs

    def images(steps: dict[str, Any] | None = None, **given: Any) -> Any:
        settings = {"size": (8, 8), **(steps or {})}
        return next(iter(image_inputs(Preprocessing(**settings), None, **{"count": 2, "batch": 2, **given})))

    def texts(tokenizer: Any) -> Any:
        return next(iter(text_inputs(tokenizer, None, count=1, length=8, batch=1)))

    for argument in ("count", "batch"):
        yield from _each(f"inputs.image_inputs({argument}", lambda v, a=argument: images(**{a: v}), SCALARS)
    sizes = SCALARS | {"a pair": (8, -1), "three": (1, 2, 3)}
    for argument in ("index", "size", "seed"):
        painted = lambda v, a=argument: picture(**{"index": 0, "size": 8, a: v})  # noqa: E731
        yield from _each(f"inputs.picture({argument}", painted, sizes)
    steps = FEW | {"a pair of zeros": (0, 0), "three of NaN": (float("nan"),) * 3, "huge": (10**6, 10**6)}
    for argument in inspect.signature(Preprocessing).parameters:
        yield from _each(f"inputs.Preprocessing({argument}", lambda v, a=argument: images({a: v}), steps)
    answers = SCALARS | {"no ids": {}, "ids of text": {"input_ids": "x"}, "ids of None": {"input_ids": None}}
    yield from _each("inputs.text_inputs(tokenizer", texts, answers, EVERY)
    yield from _each("inputs.text_inputs(a tokenizer that gives", lambda v: texts(lambda *_, **__: v), answers)


def _diagnoses() -> Iterator[Case]:
    from oversmooth import Diagnosis

    found = diagnoses.example()
    for path in mutations.paths(found):
        kind = mutations.other_kinds(mutations.at(found, path))[0]

        def loaded(path: Any = path, kind: str = kind) -> None:
            changed = Diagnosis.from_json(json.dumps(mutations.changed(found, path, mutations.VALUES[kind])))
            changed.to_json(), changed.to_pandas(), changed.curve("hfc_lfc"), changed.smoothing_share

        yield _call(f"Diagnosis.from_json({'.'.join(map(str, path))}: {kind})", loaded)
    texts = SCALARS | {"bytes": b"{}"}
    yield from _each("Diagnosis.from_dict(", Diagnosis.from_dict, texts, EVERY)
    yield from _each("Diagnosis.from_json(", Diagnosis.from_json, texts, EVERY)
    yield from _each("Diagnosis.curve(", lambda v: Diagnosis.from_dict(found).curve(v), SCALARS, EVERY)
    outputs: dict[str, Any] = {
        "None": None, "a number": 3, "nothing": "", "a folder": ".", "below nothing": "/proc/x/y",
        "another ending": "x.exe",
        "5000 letters": "x" * 5000, "a zero byte": "a\x00b", "/dev/full": "/dev/full",
    }  # fmt: skip
    for name in ("save", "to_html"):
        yield from _each(
            f"Diagnosis.{name}(", lambda v, n=name: getattr(Diagnosis.from_dict(found), n)(v), outputs, EVERY
        )
