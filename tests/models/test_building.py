"""Models that no memory holds are refused before they take any."""

import threading

import pytest
import torch
from torch import nn

from oversmooth import InputError
from oversmooth.models import building


@pytest.mark.parametrize(
    "config",
    [
        dict(num_hidden_layers=10**9),
        dict(n_layer=10**9),
        dict(depths=[2, 10**9]),
        dict(text_config=dict(num_layers=5000)),
        dict(hidden_size=10**9),
        dict(vision_config=[dict(n_positions=10**12)]),
        dict(vocab_size=10**4000),
    ],
)
def test_numbers_that_cannot_be_are_named(config):
    with pytest.raises(InputError, match=r"this: \w+ in its configuration .*; fix it") as said:
        building.check_numbers(config, "this")
    assert len(str(said.value)) < 200


def test_numbers_of_real_models_pass():
    building.check_numbers(
        dict(num_hidden_layers=126, hidden_size=16384, vocab_size=256_000, max_position_embeddings=10_485_760)
        | dict(rope_theta=10**9, num_experts=512, layer_types=["full"], id2label={"0": "a"}, bos_token_id=128_000),
        "this",
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_building_stops_where_memory_would_end(device, monkeypatch):
    monkeypatch.setattr(building, "free_memory", lambda: 10**6)
    with building.watched("small"), torch.device(device):
        nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100))
    made = []
    words = r"large needs over 1\.\d+ MB of memory for its weights, but 1 MB are free"
    with pytest.raises(InputError, match=words), building.watched("large"), torch.device(device):
        made.extend(nn.Linear(100, 100) for _ in range(100))
    assert len(made) == 24
    nn.Linear(1000, 1000)  # nothing is watched any more


def test_what_fills_the_weights_and_what_other_threads_build_does_not_count(monkeypatch):
    monkeypatch.setattr(building, "free_memory", lambda: 50_000)
    with building.watched("this"):
        model = nn.Linear(100, 100, device="meta")
        model.weight = nn.Parameter(torch.zeros(100, 100))
        other = threading.Thread(target=lambda: nn.Linear(1000, 1000))
        other.start()
        other.join()
