"""How a picture becomes what a vision model was trained on: resize, centre crop, rescale, normalise.

The steps are those of the Hugging Face image processors (PIL version) and of timm's evaluation transform. A model
states them in preprocessor_config.json or processor_config.json, or in timm's configuration, in config.json or on a
live model. Missing keys have the default of the named image processor, as in transformers, or timm's.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, about
from oversmooth.safety.files import read_json
from oversmooth.safety.libraries import import_library

if TYPE_CHECKING:
    from PIL.Image import Image

# Files with the preprocessing, in the order of transformers; multimodal models use the first.
FILES = ("processor_config.json", "preprocessor_config.json", "config.json")
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey, as in PIL
# Pixels of a picture's side: several times that of any model; such a picture takes a gigabyte in transit.
LARGEST_SIDE = 8192
_MOST = 1e30

Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
Channels = tuple[float, ...]
_RESAMPLE: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # PIL's codes
_HALF: Channels = (0.5, 0.5, 0.5)
_IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP: tuple[Channels, Channels] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_CLIP_LIKE = dict(size={"shortest_edge": 224}, crop_size=224, do_center_crop=True, resample=3, mean_std=_CLIP)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": dict(size=224, resample=2, mean_std=(_HALF, _HALF)),
    "DeiT": dict(size=256, crop_size=224, do_center_crop=True, resample=3, mean_std=(_HALF, _HALF)),
    "Beit": dict(size=224, crop_size=224, resample=3, mean_std=(_HALF, _HALF)),
    "CLIP": _CLIP_LIKE,
    "Bit": _CLIP_LIKE,
    "ChineseCLIP": _CLIP_LIKE,
    "Siglip": dict(size=224, resample=3, mean_std=(_HALF, _HALF)),
    "Pvt": dict(size=224, resample=3, mean_std=_IMAGENET),
}
# Steps of other processors that are not supported; a note names them.
_NOT_DONE = ("do_flip_channel_order", "do_pad", "do_thumbnail", "do_align_long_axis", "crop_pct")


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a picture, in order, and what of it had to be guessed.

    Resizing is to ``resize_size`` (h, w): ``"exact"`` whatever the proportions, ``"shortest"`` with the proportions
    kept until both sides are covered, ``"none"`` not at all. Then the central ``size`` (h, w) is cropped (with black
    if the picture is smaller), multiplied by ``rescale`` and normalised by ``mean`` and ``std`` of each channel: one
    channel if the model takes grey pictures. ``note`` is one sentence on what the model's files do not state, or empty.
    ``centring`` rounds an odd margin down, as Hugging Face's PIL version does, or as torchvision, and so timm, does.
    """

    size: tuple[int, int] = (224, 224)
    resize: Literal["exact", "shortest", "none"] = "exact"
    resize_size: tuple[int, int] | None = None  # None: as size
    interpolation: Interpolation = "bilinear"
    rescale: float = 1 / 255
    mean: Channels = _HALF
    std: Channels = _HALF
    note: str = ""
    centring: Literal["down", "torchvision"] = "down"

    def __post_init__(self) -> None:
        sides(self.size, "size")
        if self.resize_size is not None:
            sides(self.resize_size, "resize_size")
        arguments.choice(self.resize, "resize", ("exact", "shortest", "none"))
        arguments.choice(self.interpolation, "interpolation", _RESAMPLE)
        arguments.choice(self.centring, "centring", ("down", "torchvision"))
        arguments.number(self.rescale, "rescale", least=-_MOST, most=_MOST)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, tuple) or len(values) not in (1, 3):
                raise InputError(f"{name} is {arguments.shown(values)}; give one number per channel, one or three")
            for value in values:
                arguments.number(value, name, "give finite numbers, one per channel", least=-_MOST, most=_MOST)
        if len(self.mean) != len(self.std) or 0 in self.std:
            raise InputError(f"mean is {self.mean} and std is {self.std}; give equally many numbers, std not 0")

    @classmethod
    def from_folder(
        cls, path: Path, *, image_size: int | tuple[int, int] = 224, name: str | None = None
    ) -> Preprocessing:
        """As stated by the files of a model's folder, else with ``image_size`` and one half (see ``note``).

        name: of the model, if not that of the folder.
        """
        several, one, config = (_json(path / file) for file in FILES)
        size = sides(image_size, "image_size")
        if isinstance(nested := (several or {}).get("image_processor"), dict):
            return _hugging_face(path / FILES[0], nested, size)
        if one is not None:
            return _hugging_face(path / FILES[1], one, size)
        timm = (config or {}).get("pretrained_cfg", config)
        if isinstance(timm, dict) and "input_size" in timm:
            return _timm(timm, str(path / FILES[2]))
        return cls.unstated(name or str(path), image_size=size)

    @classmethod
    def from_timm(cls, settings: dict[str, Any], name: str) -> Preprocessing:
        """As stated by a live timm model's pretrained_cfg."""
        return _timm(settings, f"{name}'s pretrained_cfg")

    @classmethod
    def unstated(cls, name: str, *, image_size: int | tuple[int, int] = 224) -> Preprocessing:
        """For a model that states nothing."""
        height, width = size = sides(image_size, "image_size")
        note = f"{name} has no preprocessor_config.json: pictures are resized to {height} × {width}"
        return cls(size, note=f"{note} and normalised with mean 0.5 and standard deviation 0.5")

    def __call__(self, image: Image) -> Tensor:
        """A picture to (channels, h, w)."""
        image, (height, width) = self._resized(rgb(image)), self.size
        left, top = self._start(image.width - width), self._start(image.height - height)
        return self.tensor(np.asarray(image.crop((left, top, left + width, top + height))))

    def tensor(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Pixels (h, w, 3), 0 to 255 and of the final size, to (channels, h, w)."""
        if len(self.mean) == 1:
            pixels = np.rint(pixels @ np.asarray(LUMA))[..., None]
        scaled = (pixels.astype(np.float64) * self.rescale).astype(np.float32)
        normal = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))

    def _resized(self, image: Image) -> Image:
        if self.resize == "none":
            return image
        height, width = self.resize_size or self.size
        if self.resize == "shortest":
            if height == width:  # rounded down, as torchvision and Hugging Face do
                side, short = height, min(image.size)
                width, height = (int(side * long / short) for long in image.size)
            else:  # rounded, as timm does
                factor = max(width / image.width, height / image.height)
                width, height = round(image.width * factor), round(image.height * factor)
        filters: Any = import_library("PIL.Image", "resizing pictures").Resampling
        return image.resize((max(width, 1), max(height, 1)), filters[self.interpolation.upper()])

    def _start(self, rest: int) -> int:
        """Where the crop begins, for this many extra pixels; negative if pixels are missing."""
        if self.centring == "down":
            return rest // 2
        return round(rest / 2) if rest > 0 else -(-rest // 2)


def rgb(image: Image) -> Image:
    """A picture upright and in RGB, whether grey, 16 bits deep, with a palette or transparent."""
    operations: Any = import_library("PIL.ImageOps", "turning pictures upright")
    image = operations.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        # PIL would clip what is above 255 instead of scaling it.
        deep = np.asarray(image).astype(np.float64)
        white = 65535 if image.mode.startswith("I;16") or deep.max() > 255 else 255 if deep.max() > 1 else 1
        grey = np.clip(np.rint(deep * (255 / white)), 0, 255).astype(np.uint8)
        image = import_library("PIL.Image", "reading pictures").fromarray(grey)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB would warn
    return image if image.mode == "RGB" else image.convert("RGB")


def sides(size: Any, what: str) -> tuple[int, int]:
    """Height and width of a picture, from one number or both."""
    pair = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if len(pair) != 2:
        raise InputError(f"{what} is {arguments.shown(size)}; give a height and a width")
    height, width = (arguments.whole(side, what, least=1, most=LARGEST_SIDE) for side in pair)
    return height, width


def _hugging_face(file: Path, given: dict[str, Any], image_size: tuple[int, int]) -> Preprocessing:
    """The settings of an image processor, with the defaults of the named one."""
    named = given.get("image_processor_type") or given.get("feature_extractor_type") or "ViTImageProcessor"
    kind = named = str(named)[:80]
    for ending in ("Pil", "Fast", "ImageProcessor", "FeatureExtractor"):
        kind = kind.removesuffix(ending)
    notes = [] if kind in _DEFAULTS else [f"{named} is unknown and treated as ViTImageProcessor"]
    notes += [f"{key} is not applied" for key in _NOT_DONE if given.get(key)]
    defaults = _DEFAULTS.get(kind, _DEFAULTS["ViT"])
    values = {**defaults, **{key: value for key, value in given.items() if value is not None}}
    with about(str(file)):
        rule, resized = _size(values["size"], shortest=defaults is _CLIP_LIKE)
        if not values.get("do_resize", True):
            rule = "none"
        elif rule == "none":
            notes.append(f"size {reprlib.repr(values['size'])} is treated as {image_size[0]} × {image_size[1]}")
            rule, resized = "exact", image_size
        size = resized
        if values.get("do_center_crop", False):
            _, size = _size(values.get("crop_size", values["size"]))
        elif rule == "shortest":
            size = sides(resized, "size")
            notes.append(f"only the central {size[0]} × {size[1]} is used, so that pictures can be batched")
        elif rule == "none":
            notes.append(f"do_resize is off, but pictures are resized to {image_size[0]} × {image_size[1]}")
            rule, size, resized = "exact", image_size, image_size
        code = values["resample"]
        if not isinstance(code, int) or not 0 <= code < len(_RESAMPLE):
            raise InputError(f"resample is {reprlib.repr(code)}; give a PIL code, 0 to 5")
        mean, std = defaults["mean_std"]
        normalised = values.get("do_normalize", True)
        return Preprocessing(
            size=sides(size, "size"),
            resize=rule,
            resize_size=None if rule == "none" else sides(resized, "size"),
            interpolation=_RESAMPLE[code],
            rescale=values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0,
            mean=_channels(values.get("image_mean", mean)) if normalised else (0.0, 0.0, 0.0),
            std=_channels(values.get("image_std", std)) if normalised else (1.0, 1.0, 1.0),
            note=f"{file}: " + "; ".join(notes) if notes else "",
        )


def _size(value: Any, *, shortest: bool = False) -> tuple[Literal["exact", "shortest", "none"], Any]:
    """The rule and the sides, from any of its formats; no rule if it has none of them.

    shortest: the meaning of a single number.
    """
    match value:
        case {"height": height, "width": width}:
            return "exact", (height, width)
        case {"shortest_edge": side, **rest} if not any(rest.values()):
            return "shortest", side
        case {}:
            return "none", value
    return "shortest" if shortest and isinstance(value, int) else "exact", value


def _timm(given: dict[str, Any], where: str) -> Preprocessing:
    """timm's pretrained_cfg, as in its evaluation transform. where: its source, for messages."""
    input_size, percent = given.get("input_size") or (3, 224, 224), given.get("crop_pct") or 0.875
    with about(where):
        try:
            channels, height, width = input_size
            scaled = math.floor(height / percent), math.floor(width / percent)
        except (TypeError, ValueError, OverflowError) as error:
            found = f"input_size is {reprlib.repr(input_size)} and crop_pct is {reprlib.repr(percent)}"
            raise InputError(f"{found}; give three whole numbers and a fraction above 0") from error
        notes = []
        name: Any = given.get("interpolation") or "bicubic"
        if name not in _RESAMPLE:
            notes.append(f"interpolation {reprlib.repr(name)} is treated as 'bicubic'")
            name = "bicubic"
        mode = given.get("crop_mode") or "center"
        if mode not in ("center", "squash"):
            notes.append(f"crop_mode {reprlib.repr(mode)} is treated as 'center'")
        if mode != "squash" and scaled[0] != scaled[1]:
            name = "bilinear"  # timm ignores the interpolation when it resizes to such sizes
        mean, std = (_channels(given.get(key) or _IMAGENET[i]) for i, key in enumerate(("mean", "std")))
        if channels != len(mean):
            raise InputError(f"input_size has {channels} channels and mean {len(mean)}; give equally many")
        return Preprocessing(
            size=sides((height, width), "input_size"),
            resize="exact" if mode == "squash" else "shortest",
            resize_size=sides(scaled, "input_size / crop_pct"),
            interpolation=name,
            mean=mean,
            std=std,
            note=f"{where}: " + "; ".join(notes) if notes else "",
            centring="torchvision",
        )


def _channels(value: Any) -> Channels:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * 3


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    value = read_json(file, "fetch the model again")
    if not isinstance(value, dict):
        raise InputError(f"{file} contains {arguments.kind(value)}, not an object of settings; fetch the model again")
    return value
