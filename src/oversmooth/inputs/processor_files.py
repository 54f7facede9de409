"""The preprocessing that a model states: Hugging Face's preprocessor_config.json or processor_config.json, or timm's
configuration, in config.json or on a live model.

Keys that are left out have the default of the image processor that is named, as in transformers, or timm's. Not for
doing any of it: that is preprocessing.py.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import json_kind, read_json
from oversmooth.safety.machine import in_digits

Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
Resize = Literal["exact", "shortest", "none"]
Centring = Literal["down", "torchvision"]
Channels = tuple[float, ...]
HALF: Channels = (0.5, 0.5, 0.5)
_IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP: tuple[Channels, Channels] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_RESAMPLE: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # PIL's codes

_CLIP_LIKE = dict(size={"shortest_edge": 224}, crop_size=224, do_center_crop=True, resample=3, mean_std=_CLIP)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": dict(size=224, resample=2, mean_std=(HALF, HALF)),
    "DeiT": dict(size=256, crop_size=224, do_center_crop=True, resample=3, mean_std=(HALF, HALF)),
    "Beit": dict(size=224, crop_size=224, resample=3, mean_std=(HALF, HALF)),
    "CLIP": _CLIP_LIKE,
    "Bit": _CLIP_LIKE,
    "ChineseCLIP": _CLIP_LIKE,
    "Siglip": dict(size=224, resample=3, mean_std=(HALF, HALF)),
    "Pvt": dict(size=224, resample=3, mean_std=_IMAGENET),
}
_WHOLE_NUMBER_IS_SHORTEST_EDGE = ("CLIP", "Bit", "ChineseCLIP")
LARGEST_SIDE = 8192
"""Of a picture, in pixels: several times what any model takes; one of that size has a gigabyte on its way."""
_MOST = 1e30
_COUNTS = {1: "one channel", 3: "three channels"}
# Steps of other processors that are not done here; said, never silently left out.
_NOT_DONE = ("do_flip_channel_order", "do_pad", "do_thumbnail", "do_align_long_axis", "crop_pct")


@dataclass(frozen=True)
class Stated:
    """What a model states; `preprocessing.Preprocessing` says what the fields mean."""

    size: tuple[int, int] = (224, 224)
    resize: Resize = "exact"
    resize_size: tuple[int, int] | None = None  # None: as size
    interpolation: Interpolation = "bilinear"
    rescale: float = 1 / 255
    mean: Channels = HALF
    std: Channels = HALF
    note: str = ""
    centring: Centring = "down"

    def __post_init__(self) -> None:
        sides(self.size, "size")
        if self.resize_size is not None:
            sides(self.resize_size, "resize_size")
        arguments.choice(self.resize, "resize", ("exact", "shortest", "none"))
        arguments.choice(self.interpolation, "interpolation", _RESAMPLE)
        arguments.choice(self.centring, "centring", ("down", "torchvision"))
        arguments.number(self.rescale, "rescale", least=-_MOST, most=_MOST)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, (list, tuple)) or len(values) not in _COUNTS:
                raise InputError(f"{name} is {arguments.shown(values)}; give a number for each channel, one or three")
            for value in values:
                arguments.number(value, name, "give finite numbers, one per channel", least=-_MOST, most=_MOST)
        if len(self.mean) != len(self.std) or 0 in self.std:
            raise InputError(f"mean is {self.mean} and std {self.std}; give as many numbers of each, std not 0")
        if not isinstance(self.note, str):
            raise InputError(f"note is {arguments.shown(self.note)}; give a sentence, or nothing")


FILES = ("processor_config.json", "preprocessor_config.json", "config.json")
"""Where it may be stated, in the order in which transformers looks; models of several senses keep it in the first."""


def read(path: Path, image_size: tuple[int, int], name: str) -> Stated:
    """What the files of a folder say. name: of the model, for the note where they say nothing."""
    several, one, config = (path / file for file in FILES)
    if isinstance(nested := (_json(several) or {}).get("image_processor"), dict):
        return _hugging_face(several, nested, image_size)
    if (settings := _json(one)) is not None:
        return _hugging_face(one, settings, image_size)
    settings = _json(config) or {}
    timm = settings.get("pretrained_cfg", settings)
    if isinstance(timm, dict) and "input_size" in timm:
        return read_timm(timm, str(config))
    return unstated(image_size, name)


def unstated(image_size: tuple[int, int], name: str) -> Stated:
    """Where nothing says how pictures are to be made ready."""
    height, width = image_size
    note = (
        f"{name} has no preprocessor_config.json: pictures are resized to {height} by {width} "
        "and normalised with mean 0.5 and deviation 0.5"
    )
    return Stated(image_size, note=note)


def _hugging_face(file: Path, given: dict[str, Any], image_size: tuple[int, int]) -> Stated:
    named = given.get("image_processor_type") or given.get("feature_extractor_type") or "ViTImageProcessor"
    kind = named = str(named)[:80]
    for ending in ("Pil", "Fast", "ImageProcessor", "FeatureExtractor"):
        kind = kind.removesuffix(ending)
    notes = [] if kind in _DEFAULTS else [f"{named} is not a processor known here and is taken for ViT's"]
    notes += [f"{key} is not done" for key in _NOT_DONE if given.get(key)]
    defaults = _DEFAULTS.get(kind, _DEFAULTS["ViT"])
    values = {**defaults, **{key: value for key, value in given.items() if value is not None}}

    shortest = kind in _WHOLE_NUMBER_IS_SHORTEST_EDGE
    rule, resized = _size(file, "size", values["size"], shortest)
    if not values.get("do_resize", True):
        rule = "none"
    elif rule == "unknown":
        notes.append(f"size {reprlib.repr(values['size'])} is taken for {image_size[0]} by {image_size[1]}")
        rule, resized = "exact", image_size
    size = resized
    if values.get("do_center_crop", False):
        _, size = _size(file, "crop_size", values.get("crop_size", values["size"]), False)
    elif rule == "shortest":
        notes.append(f"only the middle {size[0]} by {size[1]} is taken, so that pictures can be batched")
    elif rule == "none":
        notes.append(f"do_resize is off: pictures are resized to {image_size[0]} by {image_size[1]} all the same")
        rule, size, resized = "exact", image_size, image_size

    code = values["resample"]
    if not isinstance(code, int) or not 0 <= code < len(_RESAMPLE):
        raise InputError(
            f"{file}: resample is {reprlib.repr(code)}; it must be one of PIL's codes, 0 to {len(_RESAMPLE) - 1}"
        )
    mean, std = defaults["mean_std"]
    if values.get("do_normalize", True):
        mean = _channels(file, "image_mean", values.get("image_mean", mean))
        std = _channels(file, "image_std", values.get("image_std", std))
    else:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    rescale = _number(file, "rescale_factor", values.get("rescale_factor", 1 / 255))
    return Stated(
        size=size,
        resize="shortest" if rule == "shortest" else "exact" if rule == "exact" else "none",
        resize_size=resized,
        interpolation=_RESAMPLE[code],
        rescale=rescale if values.get("do_rescale", True) else 1.0,
        mean=mean,
        std=std,
        note=f"{file}: " + "; ".join(notes) if notes else "",
    )


def read_timm(given: dict[str, Any], where: str) -> Stated:
    """timm's pretrained_cfg, as its own evaluation transform takes it. where: what holds it, for sentences."""
    input_size, percent = given.get("input_size") or (3, 224, 224), given.get("crop_pct") or 0.875
    try:
        channels, height, width = (int(side) for side in input_size)
        scaled = math.floor(height / float(percent)), math.floor(width / float(percent))
        if channels not in _COUNTS or min(height, width, *scaled) < 1:
            raise ValueError
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise InputError(
            f"{where}: input_size is {reprlib.repr(input_size)} and crop_pct {reprlib.repr(percent)}; "
            "they must be three whole numbers, of which the first is 1 or 3, and a share above 0"
        ) from error
    for size in ((height, width), scaled):
        _check_sides(where, "input_size", size)
    notes = []
    name: Any = given.get("interpolation") or "bicubic"
    if name not in _RESAMPLE:
        notes.append(f"interpolation {reprlib.repr(name)} is taken for 'bicubic'")
        name = "bicubic"
    mode = given.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        notes.append(f"crop_mode {reprlib.repr(mode)} is taken for 'center'")
    if mode != "squash" and scaled[0] != scaled[1]:
        name = "bilinear"  # timm does not pass the interpolation on to the resizing of such sizes
    return Stated(
        size=(height, width),
        resize="exact" if mode == "squash" else "shortest",
        resize_size=scaled,
        interpolation=name,
        mean=_channels(where, "mean", given.get("mean") or _IMAGENET[0], channels),
        std=_channels(where, "std", given.get("std") or _IMAGENET[1], channels),
        note=f"{where}: " + "; ".join(notes) if notes else "",
        centring="torchvision",
    )


def _size(file: Path, key: str, value: Any, shortest: bool) -> tuple[str, tuple[int, int]]:
    """The rule (exact, shortest or unknown) and height and width, from any of the ways it has been written."""
    match value:
        case bool():
            pass
        case int() if value > 0:
            return "shortest" if shortest else "exact", _check_sides(file, key, (value, value))
        case [int(height), int(width)] | {"height": int(height), "width": int(width)} if height > 0 and width > 0:
            return "exact", _check_sides(file, key, (height, width))
        case {"shortest_edge": int(side), **rest} if side > 0 and not any(rest.values()):
            return "shortest", _check_sides(file, key, (side, side))
        case {**rest} if rest and key == "size" and not {"height", "width"} <= rest.keys():
            return "unknown", (0, 0)
    raise InputError(
        f"{file}: {key} is {reprlib.repr(value)}; it must be a whole number, a height and width, or a shortest_edge"
    )


def image_size(where: str, given: Any) -> tuple[int, int]:
    """Height and width, as a model's configuration has them."""
    sides = tuple(given) if isinstance(given, (list, tuple)) else (given, given)
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise InputError(f"{where}: image_size is {reprlib.repr(given)}; it must be one or two whole numbers above 0")
    return _check_sides(where, "image_size", (sides[0], sides[1]))


def sides(size: Any, what: str) -> tuple[int, int]:
    """Height and width of a picture, from one number or both."""
    pair = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if len(pair) != 2:
        raise InputError(f"{what} is {arguments.shown(size)}; give a height and a width")
    height, width = (arguments.whole(side, what, least=1, most=LARGEST_SIDE) for side in pair)
    return height, width


def _check_sides(where: str | Path, key: str, size: tuple[int, int]) -> tuple[int, int]:
    if max(size) > LARGEST_SIDE:
        raise InputError(
            f"{where}: {key} is {in_digits(size[0])} by {in_digits(size[1])} pixels; "
            f"pictures of {LARGEST_SIDE:,} a side at most are made"
        )
    return size


def _channels(where: str | Path, key: str, value: Any, count: int = 3) -> Channels:
    numbers = value if isinstance(value, (list, tuple)) else [value] * count
    if len(numbers) != count or (key.endswith("std") and 0 in numbers):
        raise InputError(
            f"{where}: {key} is {reprlib.repr(value)}; pictures have {_COUNTS.get(count, count)}, so it must be as "
            "many numbers, std not 0"
        )
    return tuple(_number(where, key, number) for number in numbers)


def _number(where: str | Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_MOST <= value <= _MOST:
        raise InputError(f"{where}: {key} has {reprlib.repr(value)}; it must be a number")
    return float(value)


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    value = read_json(file, "fetch the model again")
    if not isinstance(value, dict):
        raise InputError(f"{file} holds {json_kind(value)}, not an object of settings; fetch the model again")
    return value
