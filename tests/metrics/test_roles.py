"""Tokens by role, against loops over tokens and pairs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth.metrics import cosine, input_convergence
from oversmooth.metrics.roles import by_role


@given(st.integers(3, 9), st.integers(1, 5), st.integers(0, 99))
def test_every_role_alone_and_beside_the_others(n, d, seed):
    x = normal(2, n, d, seed=seed) + 2.0
    which = torch.randint(0, 4, (2, n), generator=torch.Generator().manual_seed(seed))  # 3: no role
    roles = torch.stack([which == role for role in range(3)], 1)
    hidden = torch.where((which == 3)[..., None], torch.nan, x)
    found = by_role(hidden, roles)
    for i in range(2):
        used = [j for j in range(n) if which[i, j] < 3]
        for role in range(3):
            own = [j for j in range(n) if which[i, j] == role]
            others = [j for j in used if j not in own]
            row = {name: float(values[i, role]) for name, values in found.items()}
            if not own:
                assert np.isnan(list(row.values())).all()
                continue
            norms = x[i].norm(dim=-1)
            assert row["norm"] == pytest.approx(float(norms[own].mean() / norms[used].mean()), rel=1e-9)
            pairs = [float(torch.cosine_similarity(x[i, a], x[i, b], dim=0)) for a in own for b in others]
            assert row["cos_others"] == pytest.approx(np.mean(pairs) if pairs else np.nan, rel=1e-9, nan_ok=True)
            if len(own) > 1:
                assert row["hfc_lfc"] == pytest.approx(float(input_convergence(x[i, own])), rel=1e-6)
                assert row["cos"] == pytest.approx(float(cosine(x[i, own])), rel=1e-9)
            else:
                assert np.isnan([row["hfc_lfc"], row["cos"]]).all()
