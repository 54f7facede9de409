"""What a snapshot holds, by name: how it is called in logs, on pages and in alarms."""

from __future__ import annotations

import math
from typing import Any

TOKENS = ("hfc_lfc", "cos", "abs_cos", "effective_rank", "stable_rank", "sigma_ratio", "rank_one_distance")
"""Of the tokens at every depth: what enters the first block, then after each block."""
LABELS = {
    "hfc_lfc": "HFC/LFC",
    "cos": "mean cos",
    "abs_cos": "mean |cos|",
    "effective_rank": "effective rank",
    "stable_rank": "stable rank",
    "sigma_ratio": "σ₂/σ₁",
    "rank_one_distance": "distance to rank one",
    "change_attention": "change of log HFC/LFC through attention",
    "change_mlp": "change of log HFC/LFC through the MLP",
    "change_norm": "change of log HFC/LFC through norms",
    "change_other": "change of log HFC/LFC through other parts",
    "negative_share": "share of eigenvalues of H with negative real part",
    "rho_smooth": "ρ_smooth of H",
    "asymmetry": "asymmetry ‖H − Hᵀ‖/‖H‖",
    "smoothing_share": "share of heads whose smoothing eigenvalue dominates",
    "sink_rate": "share of heads whose sink is the first token",
    "sink_attention": "mean attention to the first token",
    "joined_rho_smooth": "ρ_smooth of all heads together",
    "joined_rho_rough": "ρ_rough of all heads together",
    "strength": "strength of steering",
    "room": "distance to the flip",
    "gradient_norm": "norm of the gradient",
    "gradient_hfc": "share of the gradient that is HFC",
    "verified": "whether every promise of steering holds",
}
"""By name, in the order in which they are shown."""
Row = dict[str, Any]
"""A snapshot: "step", and by name a list with one number per depth, or one number; None where it has no meaning."""


def depth_of(name: str, index: int) -> int:
    """The depth of an entry of a list: those of tokens begin with what enters the first block, the others after it."""
    return index if name in TOKENS else index + 1


def in_one_line(row: Row) -> str:
    """A snapshot as a console shows it: the main metrics before the first block and after the last.

    >>> in_one_line({"step": 3, "hfc_lfc": [2.4, 1.8, 1.1], "cos": [0.12, 0.2, 0.31]})
    'step 3: HFC/LFC 2.4 → 1.1, mean cos 0.12 → 0.31'
    """
    shown = [(name, [value for value in row.get(name) or () if value is not None]) for name in ("hfc_lfc", "cos")]
    ends = [f"{LABELS[name]} {values[0]:.3g} → {values[-1]:.3g}" for name, values in shown if values]
    return f"step {row['step']}: {', '.join(ends) or 'recorded'}"


def keys(row: Row) -> dict[str, float]:
    """A snapshot as loggers take it: few plain floats under names that they group by what stands before the last slash.

    ``oversmooth/cos/layer_07`` is after the seventh block, ``layer_00`` what enters the first; ``oversmooth/last/cos``
    is after the last one, ``oversmooth/mean/asymmetry`` the mean over blocks of what is no metric of tokens.

    Args:
        row: the snapshot.

    >>> keys({"step": 3, "cos": [0.5, 0.75], "verified": 1.0})
    {'oversmooth/cos/layer_00': 0.5, 'oversmooth/cos/layer_01': 0.75, 'oversmooth/last/cos': 0.75, \
'oversmooth/steering/verified': 1.0}
    """
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, list):
            known = [(index, float(one)) for index, one in enumerate(value) if one is not None]
            flat |= {f"oversmooth/{name}/layer_{depth_of(name, index):02d}": one for index, one in known}
            if known and name in TOKENS and value[-1] is not None:
                flat[f"oversmooth/last/{name}"] = known[-1][1]
            elif known and name not in TOKENS:
                flat[f"oversmooth/mean/{name}"] = math.fsum(one for _, one in known) / len(known)
        elif not name.endswith("step") and isinstance(value, (int, float)):
            flat[f"oversmooth/steering/{name}"] = float(value)
    return flat
