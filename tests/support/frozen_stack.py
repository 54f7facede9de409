"""A Hugging Face ViT whose attention and 1/σ are frozen, repeated in numpy: shares no code with the package."""

import numpy as np
import torch


@torch.no_grad()
def freeze(model, pixel_values):
    """(layers, tokens after the last of them) of one image: each layer with its weights, biases, A and mean 1/σ."""
    slow = model.double().eval()
    slow.set_attn_implementation("eager")
    blocks = next(m for m in slow.modules() if isinstance(m, torch.nn.ModuleList))
    entered, left = [], []
    hooks = [block.register_forward_pre_hook(lambda _, args: entered.append(args[0])) for block in blocks]
    hooks += [block.register_forward_hook(lambda *call: left.append(call[2])) for block in blocks]
    attentions = slow(pixel_values.double(), output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    layers = []
    for block, x, A in zip(blocks, entered, attentions, strict=True):
        named = {name: array.numpy() for name, array in block.state_dict().items()}

        def find(*endings, named=named):
            (found,) = [array for name, array in named.items() if name.endswith(endings)]
            return found

        layers.append(
            dict(
                A=A[0].numpy() / A[0].numpy().sum(-1, keepdims=True),  # transformers' softmax is float32
                W_V=find("value.weight", "v_proj.weight"),
                b_V=find("value.bias", "v_proj.bias"),
                W_O=find("attention.output.dense.weight", "o_proj.weight"),
                b_O=find("attention.output.dense.bias", "o_proj.bias"),
                gamma=find("layernorm_before.weight"),
                beta=find("layernorm_before.bias"),
                inverse_sigma=(1 / x[0].numpy().std(-1)).mean(),
            )
        )
    last = left[-1] if torch.is_tensor(left[-1]) else left[-1][0]
    return layers, last[0].numpy()


def course(layers, X, depth, constants=True):
    """log HFC/LFC of X and after each of `depth` layers, begun again when they end."""
    out = [log_ratio(X)]
    for step in range(depth):
        layer = layers[step % len(layers)]
        normed = (X - X.mean(-1, keepdims=True)) * layer["inverse_sigma"] * layer["gamma"]
        values = (normed + constants * layer["beta"]) @ layer["W_V"].T + constants * layer["b_V"]
        heads = np.split(values, len(layer["A"]), axis=1)
        mixed = np.concatenate([a @ v for a, v in zip(layer["A"], heads, strict=True)], axis=1)
        X = X + mixed @ layer["W_O"].T + constants * layer["b_O"]
        out.append(log_ratio(X))
    return out


def log_ratio(X):
    mean = np.tile(X.mean(0), (len(X), 1))
    return np.log(np.linalg.norm(X - mean) / np.linalg.norm(mean))
