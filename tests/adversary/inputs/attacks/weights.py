"""Damaged and hostile safetensors: headers, and numbers that are well-formed and still no weights."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.case import Case, Place, prepared

Header = dict[str, Any]


def _of_header(change: Callable[[Header], Any]) -> Callable[[Path], None]:
    """Damage that is done to the header as JSON."""

    def done(file: Path) -> None:
        content = file.read_bytes()
        size = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:size])
        changed = change(header)
        changed = header if changed is None else changed
        text = json.dumps(changed) if isinstance(changed, dict) else changed
        held = text.encode() if isinstance(text, str) else text
        file.write_bytes(struct.pack("<Q", len(held)) + held + content[size:])

    return done


def _of_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def _first(header: Header) -> Header:
    """The entry of a value weight, if there is one."""
    entries = [(not _is_value(name), name) for name in header if name != "__metadata__"]
    return header[min(entries)[1]]


def _is_value(name: str) -> bool:
    return name.endswith(("value.weight", "v_proj.weight", "c_attn.weight"))


def _is_output(name: str) -> bool:
    return name.endswith(("attention.output.dense.weight", "o_proj.weight", "attn.c_proj.weight"))


def _set(**changes: Any) -> Callable[[Path], None]:
    return _of_header(lambda header: _first(header).update(changes))


def _overlap(header: Header) -> None:
    entries = [entry for entry in header.values() if "data_offsets" in entry]
    same = [entry for entry in entries if entry["data_offsets"][1] - entry["data_offsets"][0] == 1024]
    same[0]["data_offsets"] = same[1]["data_offsets"]


def _renamed(new: Callable[[str], str]) -> Callable[[Path], None]:
    def change(header: Header) -> Header:
        return {(new(name) if _is_value(name) or _is_output(name) else name): e for name, e in header.items()}

    return _of_header(change)


HEADERS: dict[str, Callable[[Path], None]] = {
    "empty": _of_bytes(lambda _: b""),
    "seven bytes": _of_bytes(lambda held: held[:7]),
    "eight zeros": _of_bytes(lambda _: bytes(8)),
    "no header": _of_bytes(lambda held: bytes(8) + held[8:]),
    "header of 2^63": _of_bytes(lambda held: struct.pack("<Q", 2**63) + held[8:]),
    "header of 2^64-1": _of_bytes(lambda held: struct.pack("<Q", 2**64 - 1) + held[8:]),
    "header of 100 MB": _of_bytes(lambda held: struct.pack("<Q", 100_000_001) + held[8:]),
    "header longer than the file": _of_bytes(lambda held: struct.pack("<Q", len(held)) + held[8:]),
    "header one too short": _of_bytes(lambda held: struct.pack("<Q", struct.unpack("<Q", held[:8])[0] - 1) + held[8:]),
    "half": _of_bytes(lambda held: held[: len(held) // 2]),
    "one byte short": _of_bytes(lambda held: held[:-1]),
    "one byte long": _of_bytes(lambda held: held + b"x"),
    "zeros": _of_bytes(lambda held: bytes(len(held))),
    "a web page": _of_bytes(lambda _: b"<!doctype html><title>404</title>" + b" " * 2000),
    "a git-lfs pointer": _of_bytes(lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
    "a zip": _of_bytes(lambda held: b"PK\x03\x04" + held),
    "header is a list": _of_header(lambda _: "[]"),
    "header is a string": _of_header(lambda _: '"x"'),
    "header is null": _of_header(lambda _: "null"),
    "header is empty": _of_header(lambda _: "{}"),
    "header is no JSON": _of_header(lambda _: "{'a': 1}"),
    "header is not UTF-8": _of_header(lambda _: b'{"\xff\xfe": 1}'),
    "header nested deeply": _of_header(lambda _: '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "header has a name twice": _of_header(lambda h: json.dumps(h)[:-1] + ", " + json.dumps(h)[1:]),
    "metadata is a list": _of_header(lambda h: h.update(__metadata__=[])),
    "metadata is a number": _of_header(lambda h: h.update(__metadata__={"format": 7})),
    "metadata is nested": _of_header(lambda h: h.update(__metadata__={"format": {"a": []}})),
    "no dtype": _of_header(lambda h: _first(h).pop("dtype") and None),
    "no shape": _of_header(lambda h: _first(h).pop("shape") and None),
    "no offsets": _of_header(lambda h: _first(h).pop("data_offsets") and None),
    "an entry is null": _of_header(lambda h: h.update(x=None)),
    "dtype unknown": _set(dtype="F999"),
    "dtype in small letters": _set(dtype="f32"),
    "dtype a number": _set(dtype=32),
    "dtype in colour": _set(dtype="\x1b[31mred"),
    "dtype of another size": _set(dtype="F64"),
    "shape negative": _set(shape=[-16, -16]),
    "shape of strings": _set(shape=["16", "16"]),
    "shape of fractions": _set(shape=[16.5, 16]),
    "shape huge": _set(shape=[2**40, 2**40]),
    "shape overflows to its size": _set(shape=[2**63, 2, 256]),
    "shape of 0": _set(shape=[0, 16]),
    "shape of none": _set(shape=[]),
    "shape too small": _set(shape=[4, 4]),
    "shape null": _set(shape=None),
    "shape of 70000 ones": _set(shape=[1] * 70_000),
    "offsets reversed": _of_header(lambda h: _first(h)["data_offsets"].reverse()),
    "offsets negative": _set(data_offsets=[-1024, 0]),
    "offsets beyond": _set(data_offsets=[10**12, 10**12 + 1024]),
    "offsets overlap": _of_header(_overlap),
    "offsets are one number": _set(data_offsets=[0]),
    "offsets are strings": _set(data_offsets=["0", "1024"]),
    "10^5 entries": _of_header(
        lambda h: h.update({f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)})
    ),
}
FINE_HEADERS = {"10^5 entries", "header has a name twice"}


def _change(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Damage that is done to the arrays, written by the library itself."""

    def done(file: Path) -> None:
        from safetensors.torch import load_file, save_file

        arrays = load_file(file)
        changed = change(arrays)
        arrays = arrays if changed is None else changed
        save_file({name: array.contiguous() for name, array in arrays.items()}, file, {"format": "pt"})

    return done


def _each(wanted: Callable[[str], bool], change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return _change(lambda arrays: {name: change(a) if wanted(name) else a for name, a in arrays.items()})


def _both(name: str) -> bool:
    return _is_value(name) or _is_output(name)


def _one_nan(array: Any) -> Any:
    array = array.clone()
    array.view(-1)[7] = float("nan")
    return array


def _numbers() -> dict[str, Callable[[Path], None]]:
    import torch

    return {
        "all NaN": _each(_both, lambda a: a * float("nan")),
        "one NaN": _each(_is_value, _one_nan),
        "inf": _each(_is_output, lambda a: a / 0),
        "NaN everywhere": _each(lambda _: True, lambda a: a * float("nan")),
        "product overflows": _each(_both, lambda a: a * 1e21),
        "product overflows by far": _each(_both, lambda a: a * 1e38),
        "everything overflows": _each(lambda _: True, lambda a: a * 1e30),
        "denormal": _each(_both, lambda a: a * 1e-43),
        "zero": _each(_both, lambda a: a * 0),
        "all zero": _each(lambda _: True, lambda a: a * 0),
        "all one": _each(lambda _: True, torch.ones_like),
        "empty": _each(_both, lambda a: a[:0]),
        "empty the other way": _each(_both, lambda a: a[:, :0]),
        "a number": _each(_both, lambda a: a[0, 0]),
        "a row": _each(_both, lambda a: a[0]),
        "three dimensions": _each(_both, lambda a: a[None]),
        "a row too few": _each(_is_value, lambda a: a[:-1]),
        "a column too few": _each(_is_value, lambda a: a[:, :-1]),
        "an output too narrow": _each(_is_output, lambda a: a[:, :-3]),
        "width 1": _each(_both, lambda a: a[:1, :1]),
        "boolean": _each(_both, lambda a: a > 0),
        "bytes": _each(_both, lambda a: a.to(torch.uint8)),
        "int64": _each(_both, lambda a: a.long()),
        "complex": _each(_both, lambda a: a.to(torch.complex64)),
        "float64": _each(lambda _: True, lambda a: a.double()),
        "float16": _each(lambda _: True, lambda a: a.half()),
        "bfloat16": _each(lambda _: True, lambda a: a.bfloat16()),
        "float8": _each(_both, lambda a: a.to(torch.float8_e4m3fn)),
        "float16 that overflows": _each(_both, lambda a: (a * 3e6).half()),
        "no value weights": _change(lambda arrays: {n: a for n, a in arrays.items() if not _is_value(n)}),
        "no output weights": _change(lambda arrays: {n: a for n, a in arrays.items() if not _is_output(n)}),
        "nothing": _change(lambda _: {}),
        "one array": _change(lambda _: {"x": torch.ones(3)}),
        "layer 0 lacks": _change(lambda arrays: {n: a for n, a in arrays.items() if ".0." not in n}),
        "one value weight lacks": _change(
            lambda arrays: {n: a for n, a in arrays.items() if not (_is_value(n) and ".1." in n)}
        ),
        "layer 10^9": _renamed(lambda n: n.replace(".1.", ".1000000000.")),
        "layer of 40 digits": _renamed(lambda n: n.replace(".1.", f".{'9' * 40}.")),
        "layer -1": _renamed(lambda n: n.replace(".1.", ".-1.")),
        "layer 01": _renamed(lambda n: n.replace(".1.", ".01.")),
        "layer ١": _renamed(lambda n: n.replace(".1.", ".١.")),
        "layer ²": _renamed(lambda n: n.replace(".1.", ".².")),
        "names in colour": _renamed(lambda n: f"\x1b[31mred\x1b[0m.{n}"),
        "names with markup": _renamed(lambda n: f"[bold]zebra[/bold].{n}"),
        "names with a closing tag": _renamed(lambda n: f"[/b].{n}"),
        "names right to left": _renamed(lambda n: f"\u202e.{n}"),
        "names of 5000 letters": _renamed(lambda n: f"{'x' * 5000}.{n}"),
        "names of 5000 parts": _renamed(lambda n: f"{'x.' * 5000}{n}"),
        "names with slashes": _renamed(lambda n: f"../../{n}"),
        "names with zero bytes": _renamed(lambda n: f"\x00{n}"),
        "names with newlines": _renamed(lambda n: f"red\ngreen.{n}"),
        "names all dots": _renamed(lambda n: "..." + n),
    }


FINE_NUMBERS = {
    "zero", "all zero", "all one", "denormal", "boolean", "bytes", "int64", "complex", "float64", "float16", "bfloat16",
    "float8", "layer 10^9", "layer of 40 digits", "layer -1", "layer 01", "layer ١", "layer ²", "width 1",
    "layer 0 lacks", "everything overflows", "one value weight lacks", "float16 that overflows", "a column too few",
    "three dimensions", "an output too narrow",
}  # fmt: skip
"""Where a result may make sense too, or a part that does not matter is damaged. Names: the first layer's are whole."""
COMMANDS = {
    "spectrum": ("spectrum", "vit"),
    "diagnose": ("diagnose", "vit", "--inputs", "2", "--depth", "2"),
    "steer": ("steer", "vit", "-m", "spectral:mode=smooth", "-o", "out"),
}


def cases() -> Iterator[Case]:
    numbers = _numbers()
    for command, line in COMMANDS.items():
        for label, damage in HEADERS.items():
            yield _case(f"{command} header: {label}", "vit/model.safetensors", line, damage, label in FINE_HEADERS)
        for label, damage in numbers.items():
            # transformers draws what lacks; spectrum looks at names alone.
            named = label.startswith(("names", "no value", "no output", "layer", "one value"))
            fine = label in FINE_NUMBERS or (named and command != "spectrum") or label.startswith("names")
            yield _case(f"{command} numbers: {label}", "vit/model.safetensors", line, damage, fine)
    for label in ("all NaN", "product overflows", "empty", "a row", "nothing", "width 1"):
        build = functools.partial(_alone, heads="2", damage=numbers[label])
        yield Case(f"weights/spectrum of a file alone: {label}", build, "either")
    for heads in ("3", "5", "16", "17", "1000000000", "9" * 19):
        build = functools.partial(_alone, heads=heads)
        yield Case(
            f"weights/spectrum with {heads[:10]} heads", build, "fine" if heads == "16" else "refused", ("head",)
        )
    yield from _steered()


def _case(label: str, file: str, line: Any, damage: Callable[[Path], None], fine: bool) -> Case:
    build = prepared((file.partition("/")[0],), line, lambda place: damage(place / file))
    return Case(f"weights/{label}", build, "either" if fine else "refused")


def _alone(place: Place, heads: str, damage: Callable[[Path], Any] = lambda _: None) -> list[str]:
    damage(place.copy_as("vit/model.safetensors", "alone.safetensors"))
    return ["spectrum", "alone.safetensors", "--heads", heads]


def _steered() -> Iterator[Case]:
    """The same to what steer and train write, which is read by other code."""
    files = {"steered": "steered/steered.safetensors", "neutreno": "neutreno/steered.safetensors"}
    files["run"] = "run/model.safetensors"
    chosen = ("empty", "half", "one byte short", "header is no JSON", "header nested deeply", "metadata is a number")
    damages = {f"header: {label}": HEADERS[label] for label in (*chosen, "shape huge", "a web page")}
    damages["numbers: NaN everywhere"] = _keeping_metadata(lambda a: a * float("nan"))
    damages["numbers: huge"] = _keeping_metadata(lambda a: a * 1e30)
    damages["numbers: rows lack"] = _keeping_metadata(lambda a: a[:-1] if a.ndim else a)
    damages["without its metadata"] = _each(lambda _: True, lambda a: a * float("nan"))
    for name, file in files.items():
        for label, damage in damages.items():
            for line in (["diagnose", name, "--inputs", "2"], ["fold", name, "-o", "out"], ["spectrum", name]):
                if line[0] != "fold" or name != "neutreno":
                    yield _case(f"{line[0]} {name}, {label}", file, line, damage, "huge" in label)


def _keeping_metadata(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    floats = lambda _, array: change(array) if array.is_floating_point() else array  # noqa: E731
    return lambda file: Place(file.parent, file.parent).edit_arrays(file.name, floats)
