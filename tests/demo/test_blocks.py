"""The blocks of `oversmooth simulate`: against loops in numpy, and what each is there to show."""

import json
import math

import numpy as np
import pytest
import torch

from oversmooth.demo import blocks

NAMES = ["power-law", "geometric", "rotation", "sink"]


def of(name):
    (block,) = blocks.PRESETS[name]
    return block


@pytest.fixture(scope="module")
def runs():
    return {name: of(name).run(200) for name in NAMES}


def by_loops(block, x):
    """One repeat, token by token."""

    def normed(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    W_Q, W_K, W_V, W_O, W_1, W_2, bias = (w.numpy() for w in block.weights)

    def attend(y):
        out = np.zeros_like(y)
        for h in range(len(W_Q)):
            q, k, v = y @ W_Q[h], y @ W_K[h], y @ W_V[h]
            for i in range(len(y)):
                seen = i + 1 if block.sink else len(y)
                e = np.exp(k[:seen] @ q[i] / np.sqrt(k.shape[1]))
                out[i] += e @ v[:seen] / (e.sum() + (math.exp(2.0) if block.sink else 0.0)) @ W_O[h]
        return out

    def mlp(y):
        z = y @ W_1 + bias
        return z * np.vectorize(lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2))))(z) @ W_2

    if block.norm == "post":
        x = normed(x + attend(x))
        return normed(x + mlp(x))
    x = x + attend(normed(x))
    return x + mlp(normed(x))


@pytest.mark.parametrize("name", ["power-law", "geometric", "sink"])
def test_a_block_is_what_loops_make_of_it(name):
    x = of(name).tokens()
    np.testing.assert_allclose(of(name)(x).numpy(), by_loops(of(name), x.numpy()), rtol=1e-10)


def test_the_rotation_turns_what_the_norm_leaves():
    x = of("rotation").tokens()
    z = x / x.square().mean(-1, keepdim=True).sqrt() * torch.tensor([1.0, 0.35])
    angle = torch.atan2(z[:, 1], z[:, 0]) + 1.2
    expected = x + z.norm(dim=-1, keepdim=True) * torch.stack([angle.cos(), angle.sin()], -1)
    torch.testing.assert_close(of("rotation")(x), expected)


def test_each_shows_what_it_is_for(runs):
    power, geometric, rotation, sink = (runs[name] for name in NAMES)
    assert (power.way, geometric.way) == ("log time", "geometric")
    for entry in (power, sink):
        assert entry.conclusive
        assert entry.predicted.log_hfc_lfc[-1] == pytest.approx(entry.real.log_hfc_lfc[-1], abs=0.1)
    late = [log for depth, log in zip(power.real.depth, power.real.log_hfc_lfc, strict=True) if depth >= 48]
    assert (late[-1] - late[0]) / math.log(200 / 48) == pytest.approx(power.equal_rate, abs=0.1)
    logs = dict(zip(geometric.real.depth, geometric.real.log_hfc_lfc, strict=True))
    assert (logs[32.0] - logs[24.0]) / 8 == pytest.approx(geometric.equal_rate, abs=0.02)
    assert max(rotation.real.log_hfc_lfc[16:]) > min(rotation.real.log_hfc_lfc[16:]) + 1
    assert not rotation.conclusive
    assert sink.equal_reason.kind == "equal_tokens_part"
    assert sink.real.log_hfc_lfc[-1] > -2


def test_table_chart_and_numbers(runs, tmp_path):
    entries = list(runs.values())
    assert blocks.table(entries).row_count == 4
    assert len(blocks.remarks(entries)) == 2
    blocks.save(entries, tmp_path / "x.json", "four")
    kept = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert [one["what"] for one in kept["blocks"]] == [f"{name} block" for name in NAMES]
    assert len(blocks.chart(entries, "four").to_dict()["hconcat"]) == 4
