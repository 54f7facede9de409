"""Preprocessing against the image processors it stands in for, and every way a model's folder can state it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from support import timm_models

from oversmooth.inputs.pictures import picture
from oversmooth.inputs.preprocessing import Preprocessing, rgb, sides
from oversmooth.models.loaded import described
from oversmooth.safety.errors import InputError

STATED = {
    "ViT": {"image_processor_type": "ViTImageProcessor", "size": {"height": 64, "width": 48}, "resample": 3},
    "ViT, nothing said": {"image_processor_type": "ViTImageProcessor"},
    "ViT, old": {"feature_extractor_type": "ViTFeatureExtractor", "size": 64, "image_mean": [0.4, 0.5, 0.6]},
    "ViT, fast": {"image_processor_type": "ViTImageProcessorFast", "do_rescale": False, "do_normalize": False},
    "DeiT": {"image_processor_type": "DeiTImageProcessor"},
    "DeiT, sizes": {"image_processor_type": "DeiTImageProcessor", "size": 80, "crop_size": 64, "resample": 0},
    "CLIP": {"image_processor_type": "CLIPImageProcessor", "size": 64, "crop_size": 56},
    "CLIP, edge": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 61}, "crop_size": 50},
    "CLIP, crop above": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 40}, "crop_size": 61},
    "CLIP, no resize": {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "crop_size": 33},
    "Bit": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 73},
        "crop_size": {"height": 64, "width": 64},
    },
    "Siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 64, "width": 64}},
    "Pvt": {"image_processor_type": "PvtImageProcessor", "rescale_factor": 0.01, "resample": 2},
    "Beit": {"image_processor_type": "BeitImageProcessor", "size": 80, "do_center_crop": True, "crop_size": 64},
}


def stated(folder, name="preprocessor_config.json", **settings):
    (folder / name).write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("case", STATED)
@pytest.mark.parametrize("shape", [(90, 131), (140, 75)])
def test_it_is_what_transformers_does(case, shape, tmp_path):
    import transformers

    settings = STATED[case]
    named = settings.get("image_processor_type", settings.get("feature_extractor_type"))
    kind = named.removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    # Version 5 names the PIL form apart; before that the plain name was it.
    theirs = getattr(transformers, f"{kind}ImageProcessorPil", None) or getattr(transformers, f"{kind}ImageProcessor")
    keys = {key: value for key, value in settings.items() if not key.endswith("_type")}
    image = Image.fromarray(picture(2, shape))

    mine = Preprocessing.from_folder(stated(tmp_path, **settings))
    expected = torch.as_tensor(np.asarray(theirs(**keys)(image)["pixel_values"][0]))

    assert mine.note == ""
    torch.testing.assert_close(mine(image), expected.float(), rtol=1e-6, atol=1e-6)


def test_a_processor_inside_a_larger_one_is_read_first_as_transformers_does(tmp_path):
    stated(tmp_path, "processor_config.json", image_processor={"image_processor_type": "CLIPImageProcessor"})
    stated(tmp_path, image_processor_type="ViTImageProcessor")
    assert Preprocessing.from_folder(tmp_path).mean[0] == pytest.approx(0.48145466)


TIMM = dict(input_size=[3, 224, 224], mean=[0.5, 0.4, 0.3], std=[0.1, 0.2, 0.3], interpolation="bicubic", crop_pct=0.9)


TIMM_SAYS = {
    "all": TIMM,
    "nothing but a size": dict(input_size=[3, 96, 96]),
    "None wherever it can be": dict(input_size=[3, 64, 64], mean=None, std=None, interpolation="", crop_pct=None),
    "an odd rest, down": dict(input_size=[3, 64, 64], crop_pct=64 / 69),
    "an odd rest, up": dict(input_size=[3, 64, 64], crop_pct=64 / 67),
    "whole": dict(input_size=[3, 64, 64], crop_pct=1.0, interpolation="bilinear"),
    "squashed": dict(input_size=[3, 64, 64], crop_pct=0.95, crop_mode="squash"),
    "not square": dict(input_size=[3, 48, 80], crop_pct=0.9),
    "crop above": dict(input_size=[3, 64, 64], crop_pct=1.1, mean=[0.1, 0.2, 0.3]),
}


@pytest.mark.skipif(not timm_models.available(), reason="no timm here")
@pytest.mark.parametrize("case", TIMM_SAYS)
@pytest.mark.parametrize("shape", [(90, 131), (140, 75), (64, 64)])
def test_it_is_what_timm_does(case, shape, tmp_path):
    timm_models.timm()
    from timm.data import create_transform, resolve_data_config

    settings = TIMM_SAYS[case]
    image = Image.fromarray(picture(2, shape))
    expected = create_transform(**resolve_data_config(pretrained_cfg=settings))(image)

    from_file = Preprocessing.from_folder(stated(tmp_path, "config.json", architecture="vit", pretrained_cfg=settings))
    live = Preprocessing.from_timm(settings, "vit")

    assert from_file == live
    assert live.note == ""
    torch.testing.assert_close(live(image), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not timm_models.available(), reason="no timm here")
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_base_patch16_clip_224"])
def test_a_live_timm_model_gets_its_own_transform(name):
    timm = timm_models.timm()
    from timm.data import create_transform, resolve_model_data_config

    model = timm.create_model(name, depth=1)
    image = Image.fromarray(picture(1, (301, 250)))
    expected = create_transform(**resolve_model_data_config(model))(image)
    torch.testing.assert_close(described(model, name, None, None).preprocessing(image), expected, rtol=1e-6, atol=1e-6)


def test_timm_settings_may_lie_open(tmp_path):
    """Also where timm is not there to compare with."""
    found = Preprocessing.from_folder(stated(tmp_path, "config.json", **TIMM))
    steps = dict(resize="shortest", resize_size=(248, 248), interpolation="bicubic", centring="torchvision")
    assert found == Preprocessing((224, 224), **steps, mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    wide = Preprocessing.from_timm(TIMM | dict(input_size=[3, 90, 180]), "vit")
    assert (wide.resize, wide.resize_size) == ("shortest", (100, 200))
    squashed = Preprocessing.from_timm(TIMM | dict(crop_mode="squash", crop_pct=1.0), "vit")
    assert (squashed.resize, squashed.resize_size, squashed.note) == ("exact", (224, 224), "")


@pytest.mark.parametrize(("key", "value"), [("crop_mode", "border"), ("interpolation", "random")])
def test_timm_says_what_it_took_for_something_else(key, value, tmp_path):
    found = Preprocessing.from_folder(stated(tmp_path, "config.json", **TIMM | {key: value}))
    assert f"{key} '{value}' is treated as" in found.note


def test_a_folder_that_says_nothing_gets_the_size_given_and_one_half(tmp_path):
    stated(tmp_path, "config.json", model_type="vit")
    found = Preprocessing.from_folder(tmp_path, image_size=96)
    assert (found.size, found.mean, found.std) == ((96, 96), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert str(tmp_path) in found.note
    assert "96 × 96" in found.note


@pytest.mark.parametrize(
    ("settings", "size", "words"),
    [
        (
            dict(image_processor_type="CLIPImageProcessor", do_center_crop=False),
            (224, 224),
            "only the central 224 × 224",
        ),
        (dict(do_resize=False), (96, 96), "do_resize is off"),
        (dict(size={"shortest_edge": 800, "longest_edge": 1333}), (96, 96), "is treated as 96 × 96"),
        (dict(image_processor_type="LlavaImageProcessor"), (224, 224), "LlavaImageProcessor is unknown"),
        (dict(do_flip_channel_order=True), (224, 224), "do_flip_channel_order is not applied"),
    ],
)
def test_what_is_not_done_as_stated_is_noted(settings, size, words, tmp_path):
    found = Preprocessing.from_folder(stated(tmp_path, **settings), image_size=96)
    assert found.size == size
    assert words in found.note
    assert found(Image.fromarray(picture(0, (100, 120)))).shape == (3, *size)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(size="big"), "size is 'big'; give a whole number, 1 to 8,192"),
        (dict(resample=9), "resample is 9; give a PIL code"),
        (dict(image_mean=[0.5]), "mean is (0.5,) and std is (0.5, 0.5, 0.5)"),
        (dict(image_std=[0.5, 0, 0.5]), "std is (0.5, 0, 0.5); give equally many numbers, std not 0"),
        (dict(rescale_factor=float("inf")), "rescale is inf"),
        (dict(input_size=[3, 8, 8], crop_pct="x"), "crop_pct is 'x'"),
        (dict(input_size=[10**9, 8, 8]), "input_size has 1000000000 channels"),
        (dict(input_size=[3, 8, 8], crop_pct=1e-300), "input_size / crop_pct is a number of"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, words, tmp_path):
    name = "config.json" if "input_size" in settings else "preprocessor_config.json"
    with pytest.raises(InputError) as caught:
        Preprocessing.from_folder(stated(tmp_path, name, **settings))
    assert words in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    "size", [0, -1, True, 1.5, "x", [], [8], [8, "x"], [8, 0], {"a": 8}, None, 10_000, [8, 10_000]]
)
def test_image_sizes_that_cannot_be_are_named(size):
    with pytest.raises(InputError, match=r"^image_size is "):
        sides(size, "image_size")
    assert sides(8, "image_size") == sides([8, 8], "image_size") == (8, 8)


def test_grey_pictures_where_the_files_say_so(tmp_path):
    found = Preprocessing.from_folder(stated(tmp_path, image_mean=[0.5], image_std=[0.5], size=8))
    assert found(Image.fromarray(picture(0, 8))).shape == (1, 8, 8)


def test_made_pixels_and_a_picture_of_the_right_size_are_treated_alike():
    pixels = picture(1, (32, 40))
    steps = Preprocessing((32, 40), mean=(0.1, 0.2, 0.3))
    assert torch.equal(steps.tensor(pixels), steps(Image.fromarray(pixels)))


def test_pictures_of_every_mode_become_rgb():
    grey = picture(0, 16)[..., 0]
    expected = np.repeat(grey[..., None], 3, axis=-1)
    plain = Image.fromarray(grey)
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    whole = Image.fromarray(grey.astype(np.int32))
    floating = Image.fromarray(grey.astype(np.float32) / 255)
    seen_through = plain.convert("P")
    seen_through.info["transparency"] = bytes(range(256))
    for image in (plain, deep, whole, floating, seen_through, plain.convert("RGBA"), plain.convert("LA")):
        assert rgb(image).mode == "RGB", image.mode
        assert np.array_equal(np.asarray(rgb(image)), expected), image.mode
    assert np.asarray(rgb(plain.point(lambda value: 255 * (value > 99)).convert("1"))).max() == 255


def test_a_picture_taken_sideways_is_turned_upright(tmp_path):
    image = Image.fromarray(picture(0, (20, 30)))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "side.png", exif=exif)
    with Image.open(tmp_path / "side.png") as opened:
        assert rgb(opened).size == (20, 30)
