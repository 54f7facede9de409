"""A diagnosis by two processes, which share the inputs, is that of one."""

import json

import pytest
import torch
from support import two_processes
from support.commands import run

from oversmooth import diagnose
from oversmooth.diagnosis.processes import together
from oversmooth.safety.errors import InputError
from oversmooth.trace.reducers.base import PassFacts

GIVEN = ("--inputs", "10", "--batch", "3", "--length", "24", "--joined", "5", "--ranks", "7")
TOO_FEW = ("--inputs", "4", "--batch", "4", "--length", "8")
SCRIPT = """
import contextlib
import transformers.models.gpt2.modeling_gpt2  # which need not be imported in every process
from oversmooth.cli import main

def work(ranks, name):
    if ranks.world == 1:
        return
    with open(folder / f"{{name}}.txt", "w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        for words in {commands!r}:
            sys.argv = ["oversmooth", "diagnose", *words]
            try:
                main()
            except (SystemExit, RuntimeError) as left:  # gloo's, where the other process has left
                print("left by", left)
"""


def numbers(value, path=""):
    """Every entry of a saved diagnosis by its place, but for times and what this process happens to have imported."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {place: one for key, inner in items for place, one in numbers(inner, f"{path}/{key}").items()}
    return {} if path.split("/")[-1] in ("seconds", "created", "timm", "transformers") else {path: value}


def test_two_processes_find_what_one_finds_and_one_without_inputs_says_so(tmp_path, monkeypatch, capsys, gpt):
    assert run(monkeypatch, "diagnose", gpt, *GIVEN, "--json", tmp_path / "one.json") == 0
    commands = [(str(gpt), *GIVEN, "--json", str(tmp_path / "two.json")), (str(gpt), *TOO_FEW)]
    two_processes.run(SCRIPT.format(commands=commands), lambda: tmp_path)
    first, second = ((tmp_path / f"two{rank}.txt").read_text() for rank in (0, 1))
    assert "process 2 of 2 has none of the 1 batches; start fewer, or give a smaller --batch" in second
    assert second.endswith("left by 2\n")
    one, two = (numbers(json.loads((tmp_path / f"{name}.json").read_text())) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for place, value in one.items():
        if isinstance(value, float):
            assert two[place] == pytest.approx(value, rel=1e-6, abs=1e-6), place
        else:
            assert two[place] == value, place
    shown = capsys.readouterr().out
    assert (first.count("depth"), second.count("depth")) == (shown.count("depth"), 0)  # only the first process prints


def test_what_processes_found_is_put_one_after_the_other():
    parts = [
        PassFacts(2, 0, torch.tensor([3, 4]), 8, {"mask_unread"}, set(), None),
        PassFacts(1, 1, torch.tensor([5]), 8, set(), {1}, True),
    ]
    found = together(parts)
    assert (found.inputs, found.packed, found.lengths.tolist()) == (3, 1, [3, 4, 5])
    assert (found.unread, found.input_dependent, found.causal) == ({"mask_unread"}, {1}, True)


def test_processes_are_joined_before():
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    with pytest.raises(InputError, match="start them with torchrun"):
        diagnose(model, torch.randn(2, 5, 8), processes=True)
    with pytest.raises(InputError, match="processes share inputs"):
        diagnose(model, torch.randn(2, 5, 8), processes=True, blocks="layers.*", spectra=False)
