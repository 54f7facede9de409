"""Which layers to steer: as a command line names them (``first-half``, ``0,2,4-7``), and as `steer` takes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

Layers = str | Iterable[int] | Callable[[int, AttentionLayer], bool]


def layers_named(text: str) -> str | Iterator[int]:
    """Indices and ranges of indices, or a word that `steer` knows.

    A range is never made as a list: the first index that a model does not have ends it.

    >>> list(layers_named("0,2,4-6")), layers_named("first-half")
    ([0, 2, 4, 5, 6], 'first-half')
    """
    if not any(character.isdigit() for character in text):
        return text
    ranges: list[range] = []
    for entry in text.split(","):
        first, dash, last = entry.strip().partition("-") if not entry.strip().startswith("-") else (entry, "", "")
        try:
            ranges.append(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise InputError(f"layers {text!r} cannot be read at {entry!r}; give indices such as 0,2,4-7") from None
    return itertools.chain.from_iterable(ranges)


def chosen_layers(layers: Layers, anatomy: Anatomy) -> list[int]:
    """The indices of the layers to steer; `steer` says what layers may be."""
    depth = len(anatomy)
    if isinstance(layers, str):
        halves = {"all": range(depth), "first half": range(depth // 2), "last half": range(depth // 2, depth)}
        word = layers.replace("-", " ").replace("_", " ")
        if word not in halves:
            raise InputError(f"layers is {layers!r}; choose 'all', 'first half' or 'last half', or give indices")
        chosen = list(halves[word])
    elif callable(layers):
        chosen = [index for index, layer in enumerate(anatomy) if layers(index, layer)]
    else:
        chosen = _indices(layers, anatomy)
    if not chosen:
        raise InputError(f"no layer was chosen of the {depth} that {anatomy.stack} has; choose at least one")
    names = {anatomy.layers[index].name for index in chosen}
    left_out = [i for i, layer in enumerate(anatomy) if i not in chosen and layer.name in names]
    if left_out:
        raise InputError(
            f"layers {chosen[0]} and {left_out[0]} are one module ({anatomy.layers[left_out[0]].name}) that runs "
            "again; choose all of its runs or none"
        )
    return chosen


def _indices(layers: Iterable[int], anatomy: Anatomy) -> list[int]:
    depth = len(anatomy)
    if not isinstance(layers, Iterable):
        raise InputError(f"layers is {arguments.shown(layers)}; give indices, 'all', 'first half' or 'last half'")
    chosen = set()
    for index in layers:
        if isinstance(index, bool) or not isinstance(index, int) or not -depth <= index < depth:
            raise InputError(
                f"layer {arguments.shown(index)} does not exist; {anatomy.stack} has the layers 0 to {depth - 1}"
            )
        chosen.add(index % depth)
    return sorted(chosen)
