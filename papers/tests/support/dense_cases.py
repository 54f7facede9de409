"""Table 1's cases by numpy's dense eigenvalues: an oracle that shares no code with the package."""

import numpy as np
import torch


@torch.no_grad()
def margins(model, x, *, normed=True, real=False, folded=False):
    """Of every block, image and head of a plain ViT, max |1 + λ_H| minus max |1 + λ_H λ_A| over λ_A other than 1.

    normed: whether A is of tokens that passed the norm. real: real parts alone. folded: H with the norm.
    """
    tokens, found = model(x, intermediates=True), []
    for number, block in enumerate(model.blocks):
        entering = tokens["embedding"] if number == 0 else tokens[f"blocks.{number - 1}"]
        seen = (block.norm1(entering) if normed else entering).double().numpy()
        width, heads = seen.shape[-1], block.attn.num_heads
        k = width // heads
        W_Q, W_K, W_V = block.attn.qkv.weight.double().numpy().reshape(3, heads, k, width)
        W_O = block.attn.proj.weight.double().numpy().reshape(width, heads, k)
        norm = (np.eye(width) - 1 / width) * block.norm1.weight.double().numpy() if folded else np.eye(width)
        for X in seen:
            for head in range(heads):
                scores = (X @ W_Q[head].T) @ (X @ W_K[head].T).T / np.sqrt(k)
                A = np.exp(scores - scores.max(1, keepdims=True))
                of_A = np.linalg.eigvals(A / A.sum(1, keepdims=True))
                of_A = np.delete(of_A, np.argmin(abs(of_A - 1)))
                of_H = np.linalg.eigvals(W_O[:, head].T @ norm @ W_V[head].T)
                if real:
                    of_A, of_H = of_A.real, of_H.real
                found.append(abs(1 + of_H).max() - abs(1 + of_H[:, None] * of_A).max())
    return np.array(found)
