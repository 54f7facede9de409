"""The preprocessing a model's folder states: Hugging Face's preprocessor_config.json, or timm's config.json.

Keys that a file leaves out have the default of the image processor it names, as in transformers. Not for doing any
of it: that is preprocessing.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oversmooth.errors import InputError
from oversmooth.inputs.preprocessing import HALF, Channels, Interpolation, Preprocessing

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
# Steps of other processors that are not done here; said, never silently left out.
_NOT_DONE = ("do_flip_channel_order", "do_pad", "do_thumbnail", "do_align_long_axis", "crop_pct")


def read(path: Path, image_size: tuple[int, int]) -> Preprocessing:
    """See ``Preprocessing.from_folder``."""
    file = path / "preprocessor_config.json"
    found = _json(file)
    if found is None:  # where models of several senses keep it
        file = path / "processor_config.json"
        found = (_json(file) or {}).get("image_processor")
    if found is not None:
        return _hugging_face(file, found, image_size)
    config = _json(path / "config.json") or {}
    timm = config.get("pretrained_cfg", config)
    if isinstance(timm, dict) and "input_size" in timm:
        return _timm(path / "config.json", timm)
    height, width = image_size
    note = (
        f"{path} has no preprocessor_config.json: pictures are resized to {height} by {width} "
        "and normalised with mean 0.5 and deviation 0.5"
    )
    return Preprocessing(size=image_size, note=note)


def _hugging_face(file: Path, given: dict[str, Any], image_size: tuple[int, int]) -> Preprocessing:
    named = given.get("image_processor_type") or given.get("feature_extractor_type") or "ViTImageProcessor"
    kind = str(named)
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
        notes.append(f"size {values['size']} is taken for {image_size[0]} by {image_size[1]}")
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
    if code not in range(len(_RESAMPLE)):
        raise InputError(f"{file}: resample is {code!r}; it must be one of PIL's codes, 0 to {len(_RESAMPLE) - 1}")
    mean, std = defaults["mean_std"]
    if values.get("do_normalize", True):
        mean = _triple(file, "image_mean", values.get("image_mean", mean))
        std = _triple(file, "image_std", values.get("image_std", std))
    else:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    rescale = _number(file, "rescale_factor", values.get("rescale_factor", 1 / 255))
    return Preprocessing(
        size=size,
        resize="shortest" if rule == "shortest" else "exact" if rule == "exact" else "none",
        resize_size=resized,
        interpolation=_RESAMPLE[code],
        rescale=rescale if values.get("do_rescale", True) else 1.0,
        mean=mean,
        std=std,
        note=f"{file}: " + "; ".join(notes) if notes else "",
    )


def _timm(file: Path, given: dict[str, Any]) -> Preprocessing:
    try:
        _, height, width = (int(side) for side in given["input_size"])
        percent = float(given.get("crop_pct") or 0.875)  # timm's own default
        scaled = int(height / percent), int(width / percent)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"{file}: input_size is {given['input_size']!r} and crop_pct {given.get('crop_pct')!r}; "
            "they must be three whole numbers and a share above 0"
        ) from error
    notes = []
    name = given.get("interpolation", "bilinear")
    if name not in _RESAMPLE:
        notes.append(f"interpolation {name!r} is taken for 'bicubic'")
        name = "bicubic"
    mode = given.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        notes.append(f"crop_mode {mode!r} is taken for 'center'")
    return Preprocessing(
        size=(height, width),
        resize="exact" if mode == "squash" else "shortest",
        resize_size=scaled,
        interpolation=name,
        mean=_triple(file, "mean", given.get("mean", _IMAGENET[0])),
        std=_triple(file, "std", given.get("std", _IMAGENET[1])),
        note=f"{file}: " + "; ".join(notes) if notes else "",
    )


def _size(file: Path, key: str, value: Any, shortest: bool) -> tuple[str, tuple[int, int]]:
    """The rule (exact, shortest or unknown) and height and width, from any of the ways it has been written."""
    match value:
        case bool():
            pass
        case int() if value > 0:
            return "shortest" if shortest else "exact", (value, value)
        case [int(height), int(width)] | {"height": int(height), "width": int(width)} if height > 0 and width > 0:
            return "exact", (height, width)
        case {"shortest_edge": int(side), **rest} if side > 0 and not any(rest.values()):
            return "shortest", (side, side)
        case {**rest} if rest and key == "size" and not {"height", "width"} <= rest.keys():
            return "unknown", (0, 0)
    raise InputError(f"{file}: {key} is {value!r}; it must be a whole number, a height and width, or a shortest_edge")


def _triple(file: Path, key: str, value: Any) -> Channels:
    numbers = value if isinstance(value, (list, tuple)) else [value] * 3
    if len(numbers) != 3 or (key.endswith("std") and 0 in numbers):
        raise InputError(
            f"{file}: {key} is {value!r}; pictures have three channels, so it must be three numbers, std not 0"
        )
    red, green, blue = (_number(file, key, number) for number in numbers)
    return red, green, blue


def _number(file: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{file}: {key} has {value!r}; it must be a number")
    return float(value)


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is not readable JSON ({error}); fetch the model anew") from error
    if not isinstance(value, dict):
        raise InputError(f"{file} holds {type(value).__name__}, not an object of settings; fetch the model anew")
    return value
