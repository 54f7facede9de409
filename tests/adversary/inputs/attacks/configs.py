"""config.json and the other JSON files of a checkpoint: spoiled as bytes, and field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adversary.inputs.attacks.mutations import HARMLESS, RAW, VALUES
from adversary.inputs.case import Case, Place, prepared

FILES = {
    "vit": ("config.json", "preprocessor_config.json"),
    "gpt": ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    "steered": ("config.json",),
    "sharded": ("model.safetensors.index.json",),
}
EXTRA = ("special_tokens_map.json", "added_tokens.json", "processor_config.json", "chat_template.json")
"""Files that are not there and are looked for."""
EXTRA += ("model_index.json", "adapter_config.json", "open_clip_config.json", "vocab.json")
RUN = {name: ("diagnose", name, "--inputs", "1", "--no-spectra") for name in FILES}
FIELDS = {
    "vit": {
        "config.json": (
            "architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads",
            "intermediate_size", "image_size", "patch_size", "num_channels", "hidden_act", "layer_norm_eps", "qkv_bias",
            "hidden_dropout_prob", "initializer_range", "id2label", "label2id", "dtype", "torch_dtype",
            "transformers_version", "encoder_stride", "num_key_value_heads", "head_dim", "auto_map", "_name_or_path",
            "quantization_config", "architecture", "pretrained_cfg", "oversmooth", "is_encoder_decoder",
            "attn_implementation", "_attn_implementation", "text_config", "vision_config", "num_labels",
        ),
        "preprocessor_config.json": (
            "image_processor_type", "size", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean",
            "image_std", "do_resize", "crop_size", "do_center_crop", "feature_extractor_type", "do_convert_rgb",
        ),
    },
    "gpt": {
        "config.json": (
            "n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "architectures", "activation_function",
            "layer_norm_epsilon", "n_inner", "scale_attn_weights", "model_type", "bos_token_id", "max_seq_len",
        ),
        "tokenizer_config.json": (
            "tokenizer_class", "model_max_length", "pad_token", "unk_token", "added_tokens_decoder", "chat_template",
            "padding_side", "auto_map", "vocab_file", "backend",
        ),
        "tokenizer.json": (
            "model", "pre_tokenizer", "added_tokens", "normalizer", "version", "post_processor", "padding",
        ),
    },
}  # fmt: skip
VALUES_HERE = {**VALUES, "many numbers": [10**9, -1], "a size": {"height": 0, "width": -5}}
EVERYWHERE = ("null", "text", "10^9", "a list")
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size",
    "num_channels", "layer_norm_eps", "num_key_value_heads", "size", "resample", "rescale_factor", "image_mean",
    "image_std", "crop_size", "n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "model_max_length",
)  # fmt: skip
"""Fields that get every value; the others get one of each kind."""
SPECTRUM_TOO = ("num_hidden_layers", "num_attention_heads", "hidden_size", "architectures", "model_type", "n_head",
                "n_layer", "layer_norm_eps", "num_key_value_heads", "head_dim")  # fmt: skip


def cases() -> Iterator[Case]:
    for model, files in FILES.items():
        for file in files:
            for label in RAW:
                fine = label in HARMLESS or (file != "config.json" and (label == "an empty object" or model == "gpt"))
                yield _raw(model, file, label, RUN[model], fine)
    for label in RAW:
        for command in (("spectrum", "vit"), ("steer", "vit", "-m", "neutreno", "-o", "out")):
            yield _raw("vit", "config.json", label, command, True)
    for file in EXTRA:
        for label in ("empty", "a list", "deep lists", "UTF-16", "a number", "random bytes"):
            yield _raw("gpt", file, label, RUN["gpt"], True)
    for model, files_ in FIELDS.items():
        for file, fields in files_.items():
            for field in fields:
                for label, value in VALUES_HERE.items():
                    if label not in EVERYWHERE and field not in SIZES:
                        continue
                    yield _field(model, file, field, label, value, RUN[model])
                    if field in SPECTRUM_TOO and label in ("null", "text", "0", "10^9", "10^30", "a list", "NaN"):
                        yield _field(model, file, field, label, value, ("spectrum", model))
    yield from _odd()


def _raw(model: str, file: str, label: str, command: tuple[str, ...], fine: bool) -> Case:
    def spoil(place: Place) -> None:
        target = place / f"{model}/{file}"
        target.write_bytes(RAW[label](target.read_bytes() if target.exists() else b"{}"))

    expected: Any = "either" if fine else "refused"
    return Case(f"configs/{command[0]} {model}, {file}: {label}", prepared((model,), command, spoil), expected)


def _field(model: str, file: str, field: str, label: str, value: Any, command: tuple[str, ...]) -> Case:
    build = prepared((model,), command, lambda place: place.edit_json(f"{model}/{file}", lambda f: {**f, field: value}))
    return Case(f"configs/{command[0]} {model}, {file}, {field}: {label}", build, "either")


def _odd() -> Iterator[Case]:
    """Sizes that no machine holds, and files that contradict each other."""
    together: dict[str, tuple[str, dict[str, Any]]] = {
        "a model of 10^15 numbers": ("vit", {"hidden_size": 2**24, "intermediate_size": 2**26, "num_hidden_layers": 1}),
        "10^9 layers": ("vit", {"num_hidden_layers": 10**9}),
        "10^9 classes": ("vit", {"num_labels": 10**9}),
        "10^6 classes": ("vit", {"id2label": {str(i): "x" for i in range(10**6)}}),
        "patches of one pixel of 10^5": ("vit", {"image_size": 10**5, "patch_size": 1}),
        "patches larger than the image": ("vit", {"image_size": 4, "patch_size": 16}),
        "heads that do not divide": ("vit", {"num_attention_heads": 3}),
        "more heads than features": ("vit", {"num_attention_heads": 32}),
        "a vocabulary of 10^12": ("gpt", {"vocab_size": 10**12}),
        "a vocabulary of 2": ("gpt", {"vocab_size": 2}),
        "10^10 positions": ("gpt", {"n_positions": 10**10}),
        "one position": ("gpt", {"n_positions": 1}),
        "another family": ("vit", {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}),
        "an unknown family": ("vit", {"model_type": "no-such-model"}),
        "an unknown class": ("vit", {"architectures": ["os.system"]}),
        "a class in colour": ("vit", {"architectures": ["\x1b[31mred"]}),
        "a class that is a path": ("vit", {"architectures": ["../../x"]}),
        "a private name as class": ("vit", {"architectures": ["__builtins__"]}),
        "a function as class": ("vit", {"architectures": ["pipeline"]}),
        "a class of 5000 letters": ("vit", {"architectures": ["X" * 5000]}),
        "a family of 5000 letters": ("vit", {"model_type": "x" * 5000}),
        "a family in colour": ("vit", {"model_type": "\x1b[31mred"}),
        "a family with markup": ("vit", {"model_type": "[bold]zebra[/bold]"}),
        "weights kept in 8 bits": (
            "vit", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
        ),
        "an unknown quantization": ("vit", {"quantization_config": {"quant_method": "\x1b[31mred"}}),
        "another dtype": ("vit", {"dtype": "int8"}),
        "no dtype": ("vit", {"dtype": "os.system"}),
        "of timm": ("vit", {"architecture": "no_such_timm_model"}),
        "of timm in colour": ("vit", {"architecture": "\x1b[31mred"}),
        "an adapter": ("vit", {"peft_type": "LORA", "base_model_name_or_path": "/etc/passwd"}),
        "a base model elsewhere": ("vit", {"_name_or_path": "/etc/passwd"}),
    }  # fmt: skip
    for label, (model, fields) in together.items():
        for command in (RUN[model], ("spectrum", model)):
            spoil = lambda place, m=model, fields=fields: place.edit_json(f"{m}/config.json", lambda f: f | fields)  # noqa: E731
            yield Case(f"configs/{command[0]} {label}", prepared((model,), command, spoil), "either")
