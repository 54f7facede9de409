"""Indices of shards that lead astray, and shards that are none."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.attacks.mutations import VALUES
from adversary.inputs.case import Case, Outcome, Place, prepared
from adversary.inputs.kit import PAYLOADS

SECRET = "THE-SECRET-OF-ANOTHER-FOLDER"
INDEX = "sharded/model.safetensors.index.json"
COMMANDS = {
    "spectrum": ("spectrum", "sharded"),
    "spectrum of the index": ("spectrum", INDEX),
    "diagnose": ("diagnose", "sharded", "--inputs", "2", "--no-spectra"),
    "steer": ("steer", "sharded", "-m", "neutreno", "-o", "out"),
}


def _pointing(name: str) -> Callable[[Place, dict[str, Any]], None]:
    """An index whose first arrays lie elsewhere."""

    def done(_place: Place, index: dict[str, Any]) -> None:
        for key in list(index["weight_map"])[:5]:
            index["weight_map"][key] = name

    return done


def _replaced(make: Callable[[Place, Path], Any]) -> Callable[[Place, dict[str, Any]], None]:
    """The first shard is something else."""

    def done(place: Place, _index: dict[str, Any]) -> None:
        shard = min((place / "sharded").glob("*.safetensors"))
        shard.rename(place / "elsewhere.safetensors")
        make(place, shard)

    return done


def _map(value: Any) -> Callable[[Place, dict[str, Any]], None]:
    return lambda _place, index: index.update(weight_map=value)


INDICES: dict[str, Callable[[Place, dict[str, Any]], None]] = {
    "/etc/passwd": _pointing("/etc/passwd"),
    "the folder above": _pointing("../secret.safetensors"),
    "two folders above": _pointing("../../x"),
    "a good file outside": _pointing("../outside/model.safetensors"),
    "the folder itself": _pointing("."),
    "the folder above itself": _pointing(".."),
    "nothing": _pointing(""),
    "a shard that lacks": _pointing("model-00099-of-00099.safetensors"),
    "a zero byte": _pointing("a\x00b.safetensors"),
    "5000 letters": _pointing("x" * 5000 + ".safetensors"),
    "the index": _pointing("model.safetensors.index.json"),
    "/dev/zero": _pointing("/dev/zero"),
    "/dev/stdin": _pointing("/dev/stdin"),
    "/proc/self/mem": _pointing("/proc/self/mem"),
    "a url": _pointing("http://127.0.0.1:9/x.safetensors"),
    "a network share": _pointing("\\\\host\\share\\x.safetensors"),
    "a pickle": _pointing("pytorch_model.bin"),
    "a number for a name": lambda _place, index: index["weight_map"].update(dict.fromkeys(index["weight_map"], 3)),
    "null for a name": lambda _place, index: index["weight_map"].update(dict.fromkeys(index["weight_map"])),
    "a list for a name": lambda _place, index: index["weight_map"].update({key: [] for key in index["weight_map"]}),
    "no map": lambda _place, index: index.pop("weight_map") and None,
    "an empty map": _map({}),
    "10^5 more arrays": lambda _place, index: index["weight_map"].update(
        {f"x{i}": "model-00001-of-00002.safetensors" for i in range(10**5)}
    ),
    "10^4 shards that lack": lambda _place, index: index["weight_map"].update(
        {f"x{i}": f"model-{i}.safetensors" for i in range(10**4)}
    ),
    "arrays in the wrong shard": lambda _place, index: index["weight_map"].update(
        zip(index["weight_map"], reversed(list(index["weight_map"].values())), strict=True)
    ),
    "layer 10^9": lambda _place, index: index["weight_map"].update(
        {f"transformer.h.{10**9}.attn.c_attn.weight": next(iter(index["weight_map"].values()))}
    ),
    "metadata of another kind": lambda _place, index: index.update(metadata=[1]),
    "a link out of the folder": _replaced(lambda _place, shard: shard.symlink_to("../elsewhere.safetensors")),
    "a link to a secret": _replaced(lambda _place, shard: shard.symlink_to("../secret.safetensors")),
    "a link to itself": _replaced(lambda _place, shard: shard.symlink_to(shard.name)),
    "a link to nothing": _replaced(lambda _place, shard: shard.symlink_to("nowhere")),
    "a link to /dev/zero": _replaced(lambda _place, shard: shard.symlink_to("/dev/zero")),
    "a pipe": _replaced(lambda _place, shard: os.mkfifo(shard)),
    "a folder": _replaced(lambda _place, shard: shard.mkdir()),
    "an empty file": _replaced(lambda _place, shard: shard.touch()),
    "a large empty file": _replaced(lambda _place, shard: (shard.touch(), os.truncate(shard, 2**40))),
    "another's shard": _replaced(lambda place, shard: place.copy_as("vit/model.safetensors", f"sharded/{shard.name}")),
}
FINE = {"10^5 more arrays", "metadata of another kind", "a link out of the folder", "layer 10^9", "a good file outside"}
FINE |= {"10^4 shards that lack", "arrays in the wrong shard", "another's shard"}
"""Where the shards themselves say what they hold, or what is wrong is not needed."""


def no_secret(place: Place, outcome: Outcome) -> str | None:
    """Whether anything of a file outside reached the terminal or the output."""
    shown = outcome.out + outcome.err
    written = [p.read_bytes() for p in place.folder.glob("out*/**/*") if p.is_file()]
    return "a secret outside the folder got out" if any(SECRET.encode() in text for text in (shown, *written)) else None


def cases() -> Iterator[Case]:
    payloads = {f"name: {label}": _pointing(f"{text}.safetensors") for label, text in PAYLOADS.items()}
    values = {f"weight_map: {label}": _map(value) for label, value in VALUES.items()}
    for label, spoil in {**INDICES, **payloads, **values}.items():
        for command, line in COMMANDS.items():
            if (label in payloads or label in values) and command in ("steer", "spectrum of the index"):
                continue
            build = prepared(("sharded",), line, functools.partial(_spoil, spoil=spoil))
            yield Case(f"shards/{command}: {label}", build, "either" if label in FINE else "refused", holds=no_secret)


def _spoil(place: Place, spoil: Callable[[Place, dict[str, Any]], None]) -> None:
    place.copy_as("vit", "outside")
    place.write("secret.safetensors", SECRET * 100)
    place.write("x", SECRET)
    place.edit_json(INDEX, lambda index: spoil(place, index))
