"""A streamed diagnosis is the resident one, bit for bit, and what cannot be streamed says why."""

import json
import re

import pytest
import torch
from adversary.numbers.family_cases import CASES
from safetensors.torch import load_file, save_file
from support.disk import small_disk
from support.families import FAMILIES, GQA, hf, randomise, text
from torch import nn

from oversmooth import InputError, diagnose
from oversmooth.cli.estimate import announcement
from oversmooth.diagnosis.stream_state import States
from oversmooth.diagnosis.streamed import placement
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.models import load
from oversmooth.trace.feed import Runner
from oversmooth.trace.streaming import Steps

STREAMED = (
    "Llama", "Mistral", "Qwen3", "Gemma 2", "GPT-2", "GPT-NeoX (parallel)", "OPT (Post-LN)", "BERT", "ViT",
    "ALBERT (2 groups)", "DeepSeek-V3", "GPT-OSS", "Qwen3-Next (linear, then full)", "Jamba (Mamba, attention, MoE)",
    "Granite 4 (Mamba 2, attention, MoE)", "LFM2 (convolution, attention)", "Kimi Linear (linear, then latent)",
)  # fmt: skip
HOW = dict(ranks=2, joined=2)


def saved(model, folder, **how):
    model.save_pretrained(folder, **how)
    return str(folder)


def numbers(diagnosis):
    """All that is found, but for what streaming leaves out and says of itself."""
    found = json.loads(diagnosis.to_json())
    found["extrapolation"] = found["extrapolation"][:1]
    found["notes"] = [note for note in found["notes"] if note["kind"] not in ("streamed", "stack_skipped")]
    for name in ("created", "seconds"):
        found["provenance"].pop(name)
    return {name: value for name, value in found.items() if name not in ("remarks", "verdict")}


def check_same(path, inputs, **how):
    resident, streamed = diagnose(load(path), inputs, **HOW), diagnose(path, inputs, stream=True, **HOW, **how)
    assert numbers(streamed) == numbers(resident)
    assert {note.kind for note in streamed.notes} >= {"streamed", "stack_skipped"}
    return streamed


@pytest.mark.parametrize("name", STREAMED)
def test_streamed_equals_resident_to_the_last_bit(name, tmp_path):
    family = CASES[name]
    given = [family.inputs(), family.inputs(how="plain"), family.inputs()]  # several batches, with and without padding
    check_same(saved(family.make(), tmp_path), given)


def test_experts_that_files_hold_one_by_one_are_streamed(tmp_path):
    mixture = hf("Mixtral", "ForCausalLM", **GQA, num_local_experts=3, tie_word_embeddings=True)
    torch.manual_seed(0)
    path = saved(randomise(mixture()), tmp_path)
    assert any(".experts.2." in name for name in load_file(tmp_path / "model.safetensors"))
    check_same(path, text())


@pytest.fixture
def shards(tmp_path):
    saved(FAMILIES["Llama"].make(), tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def test_hidden_states_on_disk_and_shards(shards):
    path, given = str(shards), [text(), text("plain")]
    loaded = load(path, stream=True)
    run = Runner(loaded.model, loaded.on_disk.anatomy())
    placed = placement(loaded.on_disk, run, list(run.batches(given)))
    assert placed.where == "device"
    assert placed.states == 4 * 8 * 32 * 4  # inputs, tokens, features, bytes
    streamed = check_same(path, given, max_memory=placed.needed)
    assert any("hidden states (4.1 kB) on disk" in remark for remark in streamed.remarks)


def test_torch_files_in_shards(tmp_path):
    saved(FAMILIES["Llama"].make(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    homes = {name: f"pytorch_model-{index % 3}.bin" for index, name in enumerate(weights)}
    for home in set(homes.values()):
        torch.save({name: weights[name] for name in weights if homes[name] == home}, tmp_path / home)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    check_same(str(tmp_path), text())


def test_one_block_at_a_time_is_in_memory(shards):
    loaded = load(str(shards), stream=True)
    held, blocks = [], loaded.model.layers
    for block in blocks:
        block.register_forward_pre_hook(
            lambda *_: held.append([not any(p.is_meta for p in one.parameters()) for one in blocks])
        )
    diagnose(loaded, text(), spectra=False)
    assert held[-1] == [False, True]  # the first is gone when the last runs
    assert all(block.mlp.up_proj.weight.is_meta for block in blocks)


def test_memory_and_time_are_announced_from_the_first_block(shards):
    loaded, batches = load(str(shards), stream=True), [Batch(text())]
    line = announcement(loaded, Inputs("two texts", "text", 2, [], lambda: iter(batches)), {})
    assert re.search(r"2 blocks of .* at once; .*; by its first block: about \S+ s of reading, \S+ s of comp", line)
    assert all(p.is_meta for p in loaded.model.layers.parameters() if p.ndim > 1)


def test_a_cut_or_missing_shard_is_one_sentence(shards):
    last = sorted(shards.glob("*.safetensors"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-100])
    with pytest.raises(InputError, match=rf"{last.name}.*cut off"):
        diagnose(str(shards), text(), stream=True)
    last.unlink()
    with pytest.raises(InputError, match=f"names {last.name}, which is not in"):
        diagnose(str(shards), text(), stream=True)


def test_a_weight_that_is_missing_or_not_finite_is_named(tmp_path):
    saved(FAMILIES["Llama"].make(), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    broken = "layers.1.mlp.up_proj.weight"
    weights[broken][0, 0] = torch.nan
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(InputError, match=f"{broken} has NaN or infinity in 1 of"):
        diagnose(str(tmp_path), text(), stream=True)
    del weights[broken]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(InputError, match=f"lacks 1 weights \\(first: {broken}\\)"):
        diagnose(str(tmp_path), text(), stream=True)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (dict(max_memory="1kB"), "needs 70.3 kB for weights, over --max-memory 1 kB"),
        (dict(max_memory="a lot"), "max_memory is 'a lot'; give a size, such as 12GB"),
        (dict(stream=False, max_memory="1GB"), "max_memory has no effect"),
        (dict(blocks="layers.*", spectra=False), "blocks= and stream=True cannot be combined"),
    ],
)
def test_options_that_do_not_fit_are_refused(how, says, shards):
    with pytest.raises(InputError, match=says):
        diagnose(str(shards), text(), **dict(stream=True) | how)


def test_what_cannot_be_streamed_says_why(tmp_path):
    with pytest.raises(InputError, match="stream=True needs a checkpoint's name or path"):
        diagnose(FAMILIES["Llama"].make(), text(), stream=True)
    for name, why in (("Whisper (encoder)", "an encoder and a decoder"), ("T5 (encoder)", "returns more than the")):
        family = FAMILIES[name]
        with pytest.raises(InputError, match=why):
            diagnose(saved(family.make(), tmp_path / name), family.inputs(), stream=True)


def test_a_full_disk_is_one_sentence(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oversmooth.diagnosis.stream_state.save_file", full)
    with pytest.raises(InputError, match=r"hidden states cannot be written to .*No space left.*; free space"):
        States("disk", torch.device("cpu"), tmp_path)[0] = torch.zeros(1)


def test_progress_that_no_disk_takes_is_not_kept(tmp_path, monkeypatch):
    path = saved(FAMILIES["Llama"].make(), tmp_path / "model")
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))
    with small_disk(100):
        check_same(path, text())
    assert not any(tmp_path.glob("cache/*"))


@pytest.mark.parametrize(
    ("name", "on_disk"), [("Llama", False), ("BERT", True), ("ViT", False), ("Gemma 2", True), (STREAMED[13], True)]
)
def test_a_stopped_diagnosis_resumes_after_its_last_block(name, on_disk, tmp_path, monkeypatch):
    family = CASES[name]
    path, given = saved(family.make(), tmp_path / "model"), [family.inputs(), family.inputs(how="plain")]
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))
    how = dict(stream=True)
    if on_disk:
        loaded = load(path, stream=True)
        run = Runner(loaded.model, loaded.on_disk.anatomy())
        how["max_memory"] = placement(loaded.on_disk, run, list(run.batches(given))).needed
    steps = []

    def stop(_done, _total, step):
        steps.append(step)
        if step.startswith("block 2 of") and ", input 3" in step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose(path, given, progress=stop, **how, **HOW)
    (left,) = (tmp_path / "cache").iterdir()
    assert {one.name for one in left.iterdir()} - {"2"} == ({"1", "progress.pt"} if on_disk else {"progress.pt"})
    steps.clear()
    resumed = diagnose(path, given, progress=lambda *step: steps.append(step[2]), **how, **HOW)
    assert steps[0].startswith("block 2 of")
    assert numbers(resumed) == numbers(diagnose(load(path), given, **HOW))
    assert not any((tmp_path / "cache").iterdir())


class Skips(nn.Module):
    """The last block also receives what the first one left."""

    def __init__(self, skip):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.skip = skip

    def forward(self, x):
        first = self.blocks[0](x)
        second = self.blocks[1](2 * first)
        return self.blocks[2](second + first if self.skip else second + 1)


def stepped(model, x):
    steps = Steps(dict(model.named_modules()), [f"blocks.{i}" for i in range(3)])
    y, out, name, call = None, None, steps.first(lambda: model(x)), 0
    while name is not None:
        with steps.at(call):
            y, out, name = steps.run(y, lambda: model(x))
        call += 1
    return out


def test_what_is_between_blocks_is_the_model_s_own_and_reads_the_last_block_alone():
    x = torch.randn(2, 3, 4)
    assert torch.equal(stepped(model := Skips(False), x), model(x))
    with pytest.raises(InputError, match=r"blocks\.2 receives more than the block before it left"):
        stepped(Skips(True), x)
