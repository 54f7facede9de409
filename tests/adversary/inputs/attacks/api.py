"""The same from Python: every argument of every public function, with what it cannot take."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.attacks import diagnoses, mutations
from adversary.inputs.case import Case


def _tensors() -> dict[str, Callable[[], Any]]:
    """What is given where a tensor belongs."""
    import numpy as np
    import torch

    return {
        "None": lambda: None,
        "text": lambda: "\x1b[31mred[/b]",
        "a number": lambda: 3,
        "an empty list": list,
        "lists": lambda: [[1.0, 2.0], [3.0, 4.0]],
        "an array of numpy's": lambda: np.ones((3, 4)),
        "integers": lambda: torch.ones(2, 3, 4, dtype=torch.long),
        "booleans": lambda: torch.ones(2, 3, 4, dtype=torch.bool),
        "complex": lambda: torch.ones(2, 3, 4, dtype=torch.complex64),
        "NaN": lambda: torch.full((2, 3, 4), float("nan")),
        "inf": lambda: torch.full((2, 3, 4), float("inf")),
        "1e38": lambda: torch.randn(2, 3, 4) * 1e38,
        "1e-44": lambda: torch.randn(2, 3, 4) * 1e-44,
        "zeros": lambda: torch.zeros(2, 3, 4),
        "one number": lambda: torch.tensor(1.0),
        "a row": lambda: torch.ones(4),
        "no tokens": lambda: torch.ones(2, 0, 4),
        "no features": lambda: torch.ones(2, 3, 0),
        "no batch": lambda: torch.ones(0, 3, 4),
        "nothing": lambda: torch.ones(0),
        "nine dimensions": lambda: torch.ones(1, 1, 1, 1, 1, 1, 1, 2, 3),
        "float16": lambda: torch.randn(2, 3, 4).half(),
        "float8": lambda: torch.randn(2, 3, 4).to(torch.float8_e4m3fn),
        "meta": lambda: torch.ones(2, 3, 4, device="meta"),
        "sparse": lambda: torch.ones(3, 4).to_sparse(),
        "another shape": lambda: torch.randn(5, 7, 11),
        "10^12 numbers that are one": lambda: torch.ones(1, 1).expand(10**6, 10**6),
    }


SCALARS: dict[str, Any] = {
    "None": None,
    "text": "\x1b[31mred[/b]",
    "-1": -1,
    "0": 0,
    "10^9": 10**9,
    "10^30": 10**30,
    "NaN": float("nan"),
    "inf": float("inf"),
    "0.5": 0.5,
    "True": True,
    "a list": [],
    "an object": {"a": 1},
    "5000 letters": "x" * 5000,
}


def _good() -> dict[str, tuple[Any, Callable[[], dict[str, Any]]]]:
    """Functions with arguments that will do."""
    import torch

    from oversmooth import metrics, theory
    from oversmooth.theory import kernels, shifted
    from oversmooth.theory.weights import repeat_shared_heads

    def x() -> Any:
        return torch.randn(2, 3, 4)

    def attention(heads: int = 2, tokens: int = 5) -> Any:
        return torch.softmax(torch.randn(heads, tokens, tokens), -1)

    def weights() -> dict[str, Any]:
        return {"W_V": torch.randn(2, 6, 3), "W_O": torch.randn(2, 3, 6)}

    found: dict[str, tuple[Any, Callable[[], dict[str, Any]]]] = {}
    for name in ("cosine", "effective_rank", "hfc", "input_convergence", "lfc", "rank_one_distance", "sigma_ratio"):
        found[f"metrics.{name}"] = (getattr(metrics, name), lambda: {"x": x()})
    for name in ("singular_values", "stable_rank", "summary"):
        found[f"metrics.{name}"] = (getattr(metrics, name), lambda: {"x": x()})
    kernel = lambda: torch.softmax(torch.randn(3, 3), -1)  # noqa: E731
    found["metrics.ranks_of"] = (metrics.ranks_of, lambda: {"s": torch.rand(2, 3)})
    found["metrics.nonlocal_energy"] = (metrics.nonlocal_energy, lambda: {"u": x(), "kernel": kernel()})
    found["metrics.fidelity_energy"] = (
        metrics.fidelity_energy, lambda: {"u": x(), "f": x(), "kernel": kernel(), "strength": 0.5},
    )  # fmt: skip
    found["theory.attention_spectrum"] = (theory.attention_spectrum, lambda: {"A": attention()})
    found["theory.dominance"] = (theory.dominance, lambda: {"A": attention(), **weights()})
    found["theory.shifted_dominance"] = (
        shifted.shifted_dominance, lambda: {"A": attention(), **weights(), "shifts": [0.0, 0.5, 1.0]},
    )  # fmt: skip
    found["theory.gradient_flow"] = (
        kernels.gradient_flow,
        lambda: {"scores": torch.randn(3, 3), "V": torch.randn(3, 4), "f": torch.randn(3, 4), "strength": 0.6,
                 "times": [1.0]},
    )  # fmt: skip
    found["theory.simulate"] = (
        theory.simulate, lambda: {"X": torch.randn(5, 6), "A": attention(), **weights(), "layers": 3},
    )  # fmt: skip
    found["theory.stack_dominance"] = (
        theory.stack_dominance,
        lambda: {"A": [attention()] * 2, "W_V": [weights()["W_V"]] * 2, "W_O": [weights()["W_O"]] * 2},
    )
    for name in ("head_spectrum", "joined_spectrum", "head_verdicts", "centre_features"):
        found[f"theory.{name}"] = (getattr(theory, name), weights)
    found["theory.fold_norm"] = (theory.fold_norm, lambda: {"W_V": weights()["W_V"], "gamma": torch.ones(6)})
    found["theory.repeat_shared_heads"] = (repeat_shared_heads, lambda: {"W_V": weights()["W_V"], "heads": 4})
    found["theory.flip_threshold"] = (theory.flip_threshold, lambda: {"A": attention()})
    found["theory.is_causal"] = (theory.is_causal, lambda: {"A": attention()})
    found["theory.is_row_stochastic"] = (theory.is_row_stochastic, lambda: {"A": attention()})
    found["theory.DenseAttention"] = (theory.DenseAttention, lambda: {"A": attention()})
    found["theory.SoftmaxAttention"] = (
        theory.SoftmaxAttention, lambda: {"q": torch.randn(2, 5, 3), "k": torch.randn(2, 5, 3)},
    )  # fmt: skip
    return found


TENSORS = ("x", "A", "W_V", "W_O", "X", "mask", "kernel", "u", "f", "s", "q", "k", "gamma", "beta", "bias", "strength")
OTHERS = ("None", "text", "an empty list", "integers", "NaN", "1e38", "one number", "nothing", "another shape", "zeros")
"""For the arguments after the first."""
FEW = ("None", "text", "-1", "0", "10^9", "10^30", "NaN", "an object")
SKIPPED = ("progress", "change")
TAKES_A_TENSOR_OR_A_NUMBER = ("gamma", "beta", "bias", "strength", "neutreno")


def cases() -> Iterator[Case]:
    tensors = _tensors()
    for name, (function, good) in _good().items():
        yield _call(f"{name}, as it should be", lambda f=function, g=good: f(**g()), "fine")
        for place, argument in enumerate(inspect.signature(function).parameters):
            if argument in SKIPPED:
                continue
            first = argument in good()
            wanted = tensors if place == 0 else {label: make for label, make in tensors.items() if label in OTHERS}
            values = dict(wanted) if argument in TENSORS else {}
            if argument not in TENSORS or argument in TAKES_A_TENSOR_OR_A_NUMBER:
                values |= {label: (lambda v=SCALARS[label]: v) for label in FEW}
            for label, make in values.items():

                def spoilt(f: Any = function, g: Any = good, argument: str = argument, make: Any = make) -> Any:
                    return f(**{**g(), argument: make()})

                sure = label in ("text", "an object", "5000 letters") or (label == "None" and first)
                yield _call(f"{name}({argument}: {label})", spoilt, "refused" if sure else "either")
    yield from _methods()
    yield from _of_models()
    yield from _of_files()
    yield from _of_inputs()
    yield from _of_diagnoses()


def _few() -> dict[str, Any]:
    return {label: SCALARS[label] for label in FEW}


def _call(label: str, call: Callable[[], Any], expected: Any = "either", files: Any = None) -> Case:
    return Case(f"api/{label}", lambda _place: call(), expected, api=True, files=files)


def _passes_on(call: Callable[[], Any]) -> None:
    """What a user's own function raises is the user's to see, as it is."""
    try:
        call()
    except ZeroDivisionError:
        return
    raise AssertionError("what the user's own function raised was swallowed")


def _methods() -> Iterator[Case]:
    """Settings of every steering method."""
    from oversmooth import steering
    from oversmooth.steering.methods.registry import method_from

    for name, method in steering.METHODS.items():
        for argument in inspect.signature(method).parameters:
            for label in FEW:
                value = SCALARS[label]
                sure = label in ("text", "an object")
                yield _call(
                    f"steering.{name}({argument}: {label})",
                    lambda method=method, argument=argument, value=value: method(**{argument: value}),
                    "refused" if sure else "either",
                )
    settings: dict[str, Any] = {
        "nothing": {}, "None": None, "text": "x", "no method": {"strength": 1},
        "an unknown method": {"method": "\x1b[31mred"},
        "a method of another kind": {"method": 3}, "a method that is private": {"method": "__class__"},
        "an unknown setting": {"method": "NeuTRENO", "colour": 1}, "a list": [1], "a list as a name": {"method": ["x"]},
    }  # fmt: skip
    for label, value in settings.items():
        yield _call(f"steering.method_from({label})", lambda value=value: method_from(value), "refused")


def _model() -> Any:
    """A small transformer of torch's own."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def _of_models() -> Iterator[Case]:
    import torch
    from torch import nn

    import oversmooth
    from oversmooth.steering import NeuTRENO, Spectral

    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _model()

        def forward(self, _x: Any) -> Any:
            raise RuntimeError("\x1b[31mred\n" * 100)

    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _model()

        def forward(self, x: Any) -> Any:
            return x

    def broken(change: Callable[[Any], Any]) -> Callable[[], Any]:
        def make() -> Any:
            model = _model()
            change(model)
            return model

        return make

    def fill(value: float) -> Callable[[Any], None]:
        def change(model: Any) -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(value)

        return change

    models: dict[str, Callable[[], Any]] = {
        "None": lambda: None,
        "text": lambda: "\x1b[31mred",
        "a path that lacks": lambda: "/nowhere/at/all",
        "a number": lambda: 3,
        "a class": lambda: nn.Linear,
        "a linear layer": lambda: nn.Linear(8, 8),
        "no layers": lambda: nn.ModuleList(),
        "a function": lambda: len,
        "parameters alone": lambda: dict(_model().state_dict()),
        "one that raises": Raises,
        "one that runs nothing": Nothing,
        "on meta": lambda: _model().to("meta"),
        "NaN": broken(fill(float("nan"))),
        "huge": broken(fill(1e30)),
        "zero": broken(fill(0.0)),
        "float16": lambda: _model().half(),
        "float64": lambda: _model().double(),
        "in training": lambda: _model().train(),
        "of a width of 1": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(1, 1, 4, batch_first=True), 1),
    }
    runs = {"in training", "zero", "float64", "of a width of 1"}
    for label, make in models.items():
        given = torch.float64 if label == "float64" else torch.float32
        width = 1 if label == "of a width of 1" else 8

        def diagnosed(make: Any = make, given: Any = given, width: int = width) -> Any:
            return oversmooth.diagnose(make(), torch.randn(2, 5, width, dtype=given), depth=2)

        expected = "either" if label in runs or label in ("huge", "float16") else "refused"
        yield _call(f"diagnose(model: {label})", diagnosed, expected)
        sure = label in (
            "None",
            "text",
            "a number",
            "a class",
            "a linear layer",
            "no layers",
            "a function",
            "parameters alone",
        )
        expected = "refused" if sure else "either"
        yield _call(f"steer(model: {label})", lambda make=make: oversmooth.steer(make(), Spectral("sharpen")), expected)
        yield _call(f"anatomy.locate(model: {label})", lambda make=make: oversmooth.anatomy.locate(make()), expected)
        never = (
            "refused"
            if label in ("None", "text", "a number", "a class", "a function", "parameters alone")
            else "either"
        )
        for name in ("unsteer", "fold"):
            yield _call(
                f"{name}(model: {label})", lambda make=make, name=name: getattr(oversmooth, name)(make()), never
            )
        yield _call(f"verify(model: {label})", lambda make=make: oversmooth.steering.verify(make()), never)
        yield _call(f"ramp(model: {label})", lambda make=make: oversmooth.steering.ramp(make()), never)
        yield _call(
            f"suggest(model: {label})",
            lambda make=make: oversmooth.steering.suggest(make(), torch.randn(2, 5, 8), strengths=[0, 1]),
            never,
        )
        yield _call(
            f"save_steered(model: {label})", lambda make=make: oversmooth.save_steered(make(), "out-steered"), never
        )
    inputs: dict[str, Callable[[], Any]] = {
        "text": lambda: "\x1b[31mred",
        "a number": lambda: 3,
        "an empty list": list,
        "a list of None": lambda: [None],
        "an empty dict": dict,
        "a dict of text": lambda: {"src": "x"},
        "another argument": lambda: {"\x1b[31mred": torch.randn(2, 5, 8)},
        "NaN": lambda: torch.full((2, 5, 8), float("nan")),
        "inf": lambda: torch.full((2, 5, 8), float("inf")),
        "huge": lambda: torch.full((2, 5, 8), 1e38),
        "integers": lambda: torch.ones(2, 5, 8, dtype=torch.long),
        "another width": lambda: torch.randn(2, 5, 9),
        "one token": lambda: torch.randn(2, 1, 8),
        "no tokens": lambda: torch.randn(2, 0, 8),
        "no inputs": lambda: torch.randn(0, 5, 8),
        "one number": lambda: torch.tensor(1.0),
        "five dimensions": lambda: torch.randn(1, 1, 2, 5, 8),
        "on meta": lambda: torch.randn(2, 5, 8, device="meta"),
        "float16": lambda: torch.randn(2, 5, 8).half(),
        "batches of other widths": lambda: [torch.randn(2, 5, 8), torch.randn(2, 5, 9)],
        "batches of other kinds": lambda: [torch.randn(2, 5, 8), {"src": torch.randn(2, 5, 8)}],
        "batches that stop": lambda: iter([]),
        "a set": lambda: {1, 2},
        "numpy's": lambda: torch.randn(2, 5, 8).numpy(),
        "a mask of nothing": lambda: {"src": torch.randn(2, 5, 8), "src_key_padding_mask": torch.ones(2, 5).bool()},
        "without end": lambda: iter(lambda: None, 1),
    }
    # Inputs of another precision are brought to the model's.
    fine = {"one token", "numpy's", "a mask of nothing", "batches of other kinds", "float16"}
    for label, make in inputs.items():
        yield _call(
            f"diagnose(inputs: {label})",
            lambda make=make: oversmooth.diagnose(_model(), make(), depth=2),
            "either" if label in fine else "refused",
        )
        yield _call(
            f"suggest(inputs: {label})",
            lambda make=make: oversmooth.steering.suggest(_model(), make(), strengths=[0, 1]),
            "either" if label in fine else "refused",
        )
    for argument in ("to", "steps", "method"):
        for label, value in SCALARS.items():
            yield _call(
                f"ramp({argument}: {label})",
                lambda a=argument, v=value: oversmooth.steering.ramp(
                    oversmooth.steer(_model(), NeuTRENO(0.1)), **{a: v}
                ),
            )
    for argument in ("strengths", "stack", "heads", "seed"):
        for label, value in SCALARS.items():

            def proposed(argument: str = argument, value: Any = value) -> Any:
                given = {"strengths": [0, 1], argument: value}
                return oversmooth.steering.suggest(_model(), torch.randn(2, 5, 8), **given)

            yield _call(f"suggest({argument}: {label})", proposed)
    for argument in inspect.signature(oversmooth.diagnose).parameters:
        if argument in ("model", "inputs", "progress", "tokenizer"):
            continue
        for label, value in SCALARS.items():

            def given_(argument: str = argument, value: Any = value) -> Any:
                return oversmooth.diagnose(_model(), torch.randn(2, 5, 8), **{"depth": 2, argument: value})

            yield _call(f"diagnose({argument}: {label})", given_)
            if argument in ("stack", "heads", "norm"):
                yield _call(
                    f"anatomy.locate({argument}: {label})",
                    lambda argument=argument, value=value: oversmooth.anatomy.locate(_model(), **{argument: value}),
                )
    layers: dict[str, Any] = {
        **SCALARS, "beyond": [5], "below": [-9], "text within": ["x"], "twice": [0, 0], "NaN within": [float("nan")],
        "10^30 within": [10**30], "booleans": [True, False],
        "a range without end": range(10**12), "a range of 10^7": range(10**7), "a function of nothing": lambda: True,
    }  # fmt: skip
    for label, value in layers.items():
        yield _call(f"steer(layers: {label})", lambda v=value: oversmooth.steer(_model(), NeuTRENO(), v))
    yield _call(
        "steer(layers: a function that raises)",
        lambda: _passes_on(lambda: oversmooth.steer(_model(), NeuTRENO(), lambda _i, _layer: 1 / 0)),
        "fine",
    )
    yield _call(
        "diagnose(inputs: a generator that raises)",
        lambda: _passes_on(lambda: oversmooth.diagnose(_model(), (1 / 0 for _ in range(3)), depth=2)),
        "fine",
    )
    methods: dict[str, Any] = {
        **SCALARS,
        "a class": NeuTRENO,
        "two of one kind": [NeuTRENO(), NeuTRENO()],
        "a dict": {},
    }
    for label, value in methods.items():
        yield _call(f"steer(method: {label})", lambda v=value: oversmooth.steer(_model(), v), "refused")
    yield _call("steer twice", lambda: oversmooth.steer(oversmooth.steer(_model(), NeuTRENO()), NeuTRENO()), "refused")
    yield _call("fold, not steered", lambda: oversmooth.fold(_model()), "either")
    yield _call("unsteer, not steered", lambda: oversmooth.unsteer(_model()), "either")
    yield _call("verify, not steered", lambda: oversmooth.steering.verify(_model()), "refused")
    yield _call("fold NeuTRENO", lambda: oversmooth.fold(oversmooth.steer(_model(), NeuTRENO())), "refused")
    register: dict[str, dict[str, Any]] = {
        "nothing": {"value": "", "output": ""},
        "numbers": {"value": 3, "output": 4},
        "an unknown packing": {"value": "a.weight", "output": "b.weight", "packing": "\x1b[31mred"},
        "one weight": {"value": "a.weight", "output": "a.weight"},
        "None": {"value": None, "output": None},
        "patterns": {"value": "(((", "output": "***"},
    }
    for label, given in register.items():
        yield _call(f"anatomy.register({label})", lambda g=given: oversmooth.anatomy.register("x", **g), "either")
    monitor = getattr(oversmooth, "Monitor", None)
    if monitor is not None:
        for argument in inspect.signature(monitor).parameters:
            for label, value in SCALARS.items():

                def watched(argument: str = argument, value: Any = value) -> Any:
                    return monitor(**{"model": _model(), argument: value})

                yield _call(f"Monitor({argument}: {label})", watched)


def _of_files() -> Iterator[Case]:
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
        for label, value in paths.items():
            yield _call(f"{name}(path: {label})", lambda call=call, value=value: call(value), "refused")


def _of_inputs() -> Iterator[Case]:
    from oversmooth.inputs.images import image_inputs
    from oversmooth.inputs.pictures import picture
    from oversmooth.inputs.preprocessing import Preprocessing
    from oversmooth.inputs.text import text_inputs

    for argument in ("count", "batch"):
        for label, value in SCALARS.items():

            def images(argument: str = argument, value: Any = value) -> Any:
                given = {"count": 2, "batch": 2, argument: value}
                return next(iter(image_inputs(Preprocessing(size=(8, 8)), None, **given)))

            yield _call(f"inputs.image_inputs({argument}: {label})", images)
    for argument in ("index", "size", "seed"):
        for label, value in {**SCALARS, "a pair": (8, -1), "three": (1, 2, 3)}.items():
            yield _call(
                f"inputs.picture({argument}: {label})",
                lambda argument=argument, value=value: picture(**{"index": 0, "size": 8, argument: value}),
            )
    for argument in inspect.signature(Preprocessing).parameters:
        for label, value in {
            **_few(),
            "a pair of zeros": (0, 0),
            "three of NaN": (float("nan"),) * 3,
            "huge": (10**6, 10**6),
        }.items():

            def prepared(argument: str = argument, value: Any = value) -> Any:
                given = {"size": (8, 8), argument: value}
                return next(iter(image_inputs(Preprocessing(**given), None, count=1, batch=1)))

            yield _call(f"inputs.Preprocessing({argument}: {label})", prepared)

    class Tokenizer:
        """Answers with whatever it was given."""

        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def __call__(self, *_texts: Any, **_settings: Any) -> Any:
            return self.answer

    for label, value in {
        **SCALARS,
        "no ids": {},
        "ids of text": {"input_ids": "x"},
        "ids of None": {"input_ids": None},
    }.items():
        yield _call(
            f"inputs.text_inputs(tokenizer: {label})",
            lambda value=value: next(iter(text_inputs(value, None, count=1, length=8, batch=1))),
            "refused",
        )
        yield _call(
            f"inputs.text_inputs(a tokenizer that gives {label})",
            lambda value=value: next(iter(text_inputs(Tokenizer(value), None, count=1, length=8, batch=1))),
        )


def _of_diagnoses() -> Iterator[Case]:
    from oversmooth import Diagnosis

    found = diagnoses.example()
    for path in mutations.paths(found):
        kinds = mutations.other_kinds(mutations.at(found, path))
        kind = kinds[0]
        where = ".".join(map(str, path))

        def loaded(path: Any = path, kind: str = kind) -> None:
            changed = Diagnosis.from_json(json.dumps(mutations.changed(found, path, mutations.VALUES[kind])))
            changed.to_json(), changed.to_pandas(), changed.curve("hfc_lfc"), changed.smoothing_share

        yield _call(f"Diagnosis.from_json({where}: {kind})", loaded)
    for label, value in {**SCALARS, "bytes": b"{}"}.items():
        yield _call(f"Diagnosis.from_dict({label})", lambda v=value: Diagnosis.from_dict(v), "refused")
        yield _call(f"Diagnosis.from_json({label})", lambda v=value: Diagnosis.from_json(v), "refused")

    def whole() -> Diagnosis:
        return Diagnosis.from_dict(found)

    for label, value in SCALARS.items():
        yield _call(f"Diagnosis.curve({label})", lambda v=value: whole().curve(v), "refused")
    outputs: dict[str, Any] = {
        "None": None, "a number": 3, "nothing": "", "a folder": ".", "below nothing": "/proc/x/y",
        "another ending": "x.exe",
        "5000 letters": "x" * 5000, "a zero byte": "a\x00b", "/dev/full": "/dev/full",
    }  # fmt: skip
    for name in ("save", "to_html"):
        for label, value in outputs.items():
            yield _call(f"Diagnosis.{name}({label})", lambda n=name, v=value: getattr(whole(), n)(v), "refused")
