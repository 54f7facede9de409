"""diagnose, spectrum, reproduce and demo as a user meets them, on small checkpoints of our own."""

import functools
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.commands import refusal, run
from support.nightly import nightly, some
from support.report_example import example

from oversmooth import Diagnosis
from oversmooth.results.notes import Note


def test_diagnose_prints_saves_and_draws(monkeypatch, capsys, tmp_path, vit):
    made = [tmp_path / "d.json", tmp_path / "d.html", tmp_path / "figures"]
    code = run(
        monkeypatch, "diagnose", vit, "--inputs", 3, "--depth", 4,
        "--json", made[0], "--html", made[1], "--figures", made[2], "--format", "svg", "--format", "pdf",
    )  # fmt: skip
    text = capsys.readouterr().out
    assert code == 0
    assert "tiny-vit" in text
    assert "Measured, first block to last:" in text
    assert "Counting rule of the smoothing share: one maximum" in text
    found = Diagnosis.load(made[0])
    assert found.provenance["inputs"] == 3
    assert found.provenance["data"] == "3 pictures painted by oversmooth"
    assert found.layers[0].name == "embedding"
    assert len(found.layers) == 3
    assert {p.suffix for p in made[2].iterdir()} == {".svg", ".pdf"}
    assert "tiny-vit" in made[1].read_text()


def test_saved_diagnoses_can_be_shown_again_beside_others(monkeypatch, capsys, tmp_path, vit):
    assert run(monkeypatch, "diagnose", vit, "--inputs", 2, "--no-spectra", "--json", tmp_path / "d.json") == 0
    assert run(monkeypatch, "diagnose", tmp_path / "d.json", vit, "--inputs", 2, "--no-spectra") == 0
    assert "Side by side" in capsys.readouterr().out


def test_a_randomly_initialised_copy_is_diagnosed_too(monkeypatch, capsys, tmp_path, gpt):
    arguments = [gpt, "--random-init", "--inputs", 2, "--length", 20, "--no-spectra", "--html", tmp_path / "x.html"]
    assert run(monkeypatch, "diagnose", *arguments) == 0
    text = capsys.readouterr().out
    assert "tiny-gpt (random)" in text
    assert "Side by side" in text


def test_text_of_the_user(monkeypatch, tmp_path, gpt):
    (tmp_path / "mine.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    arguments = ["--data", tmp_path / "mine.txt", "--inputs", 4, "--length", 32, "--json", tmp_path / "d.json"]
    assert run(monkeypatch, "diagnose", gpt, *arguments) == 0
    found = Diagnosis.load(tmp_path / "d.json")
    assert found.provenance["tokens"] == [32, 32]
    assert found.model["causal"]


def test_spans_of_a_language_model_and_of_labelled_images(monkeypatch, capsys, tmp_path, gpt, vit):
    made = [tmp_path / "d.json", tmp_path / "d.html", tmp_path / "d.svg"]
    outputs = ["--json", made[0], "--html", made[1], "-o", made[2]]
    assert run(monkeypatch, "spans", gpt, "--inputs", 2, "--length", 20, *outputs) == 0
    text = capsys.readouterr().out
    assert "least to" in text
    assert "next-token loss, in nats" in text
    assert len(Diagnosis.load(made[0]).spans.spans) == 3
    assert all(path.is_file() for path in made)
    images = np.random.default_rng(0).integers(0, 255, (6, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.zeros(6, dtype=np.int64))
    assert run(monkeypatch, "spans", vit, "--data", tmp_path / "x.npz", "--drop", "--json", made[0]) == 0
    spans = Diagnosis.load(made[0]).spans
    assert (spans.effect, spans.vector, spans.spans[0].repeat) == ("labels", "first token", None)
    assert "repeat" not in capsys.readouterr().out
    assert run(monkeypatch, "spans", vit, "--inputs", 2, "--predict") == 0
    assert "Effect" not in capsys.readouterr().out
    assert "leave it or them out" in refusal(monkeypatch, capsys, "spans", vit, "--predict", "--drop")
    assert "--longest" in refusal(monkeypatch, capsys, "spans", vit, "--longest", 0)


def test_labelled_images_give_top_1(monkeypatch, tmp_path, vit):
    images = np.random.default_rng(0).integers(0, 255, (6, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.zeros(6, dtype=np.int64))
    arguments = ["--data", tmp_path / "x.npz", "--no-spectra", "--json", tmp_path / "d.json"]
    assert run(monkeypatch, "diagnose", vit, *arguments) == 0
    assert 0 <= Diagnosis.load(tmp_path / "d.json").provenance["top1"] <= 1


def test_spectrum_of_a_directory_a_file_and_a_shard_index_agree(monkeypatch, capsys, tmp_path, gpt):
    import transformers

    sharded = tmp_path / "sharded"
    transformers.GPT2LMHeadModel.from_pretrained(gpt).save_pretrained(sharded, max_shard_size="10KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    names = {"whole": gpt, "file": gpt / "model.safetensors", "sharded": sharded}
    for key, path in names.items():
        assert run(monkeypatch, "spectrum", path, "--json", tmp_path / f"{key}.json", "-o", tmp_path / "h.svg") == 0
    found = [Diagnosis.load(tmp_path / f"{key}.json").layers for key in names]
    assert found[0] == found[1] == found[2]
    text = capsys.readouterr().out
    assert "norm" in text
    assert "█" in text


def test_table_1_has_the_published_figures_beside_ours(monkeypatch, capsys, tmp_path, vit):
    for rule in ("heads", "joined", "real"):
        assert run(monkeypatch, "reproduce", "table1", vit, "--inputs", 2, "--rule", rule, "-o", tmp_path / "t.md") == 0
    text = capsys.readouterr().out
    assert "57.82" in text
    assert "published" in text
    assert "ours, this run" in text
    assert "| tiny-vit |" in (tmp_path / "t.md").read_text()


def test_figures_2_and_5(monkeypatch, tmp_path, vit, gpt):
    assert run(monkeypatch, "reproduce", "fig2", vit, "--inputs", 2, "-o", tmp_path / "2.png") == 0
    assert run(monkeypatch, "reproduce", "fig5", vit, gpt, "-o", tmp_path / "5.png") == 0
    assert (tmp_path / "2.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "5.png").read_bytes().startswith(b"\x89PNG")


@nightly
def test_the_demo_runs_on_packages_alone(monkeypatch, capsys, tmp_path):
    from oversmooth.demo import language as demo
    from oversmooth.demo import vits

    # What is diagnosed, and how deep, proves nothing here: that all of it is drawn does.
    monkeypatch.setattr(demo, "_TEXTS", 1)
    monkeypatch.setattr(demo, "_TOKENS", 12)
    every = vits.images()
    few = replace(every, images=every.images[:15], labels=every.labels[:15], corrupted=every.corrupted[:, :15])
    monkeypatch.setattr(vits, "images", lambda: few)
    monkeypatch.setattr(vits, "_INPUTS", 1)
    chosen = dict(some(list(demo.MODELS.items())[::-1], 2))  # ALBERT, and at night all
    monkeypatch.setattr(demo, "MODELS", chosen)
    for place in (demo, vits):
        monkeypatch.setattr(place, "diagnose", functools.partial(place.diagnose, depth=0, joined=0))
    from oversmooth.cli import demo as command

    monkeypatch.setattr(command, "_side_by_side", lambda jobs: [function(*given) for function, given in jobs])
    assert run(monkeypatch, "demo", "-o", tmp_path / "demo.html") == 0
    text = capsys.readouterr().out
    assert "chemistry ALBERT (random)" in text
    assert "ViT⁻ (sharpening)" in text
    for name, other in (("demo.html", "demo-language.html"), ("demo-language.html", "demo.html")):
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert f'<a href="{other}">' in page
        assert len(page) < 3_000_000


def test_without_a_package_the_demo_shows_what_it_can(monkeypatch, capsys, tmp_path):
    from oversmooth.cli import demo as command
    from oversmooth.demo import language

    diagnosed = []
    monkeypatch.setattr(language, "MINILM", ("some-package", "no_such_module", "model"))
    monkeypatch.setattr(command, "_side_by_side", lambda jobs: diagnosed.extend(jobs) or [example("ViT")] * len(jobs))
    assert run(monkeypatch, "demo", "-o", tmp_path / "demo.html") == 0
    assert "language models are left out: the package some-package is not installed" in capsys.readouterr().err
    assert len(diagnosed) == 3
    assert os.listdir(tmp_path) == ["demo.html"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["diagnose", "no/such/place"], "no/such/place does not exist"),
        (["diagnose", "EMPTY"], "has no weights"),
        (["diagnose", "TEXT"], "no config.json"),
        (["diagnose", "GPT", "--length", "65"], "length is 65, over the limit of 64 tokens"),
        (["diagnose", "GPT", "--data", "no-data.txt"], "no-data.txt"),
        (["diagnose", "VIT", "--data", "EMPTY"], "EMPTY"),
        (["diagnose", "VIT", "--html", "damaged.json/x.html"], "damaged.json is a file, not a directory"),
        (["diagnose", "VIT", "--json", "x.html"], "'.html'"),
        (["diagnose", "VIT", "GPT", "--json", "x.json"], "one by one"),
        (["diagnose", "VIT", "--stack", "nowhere"], "no stack 'nowhere'"),
        (["diagnose", "VIT", "--device", "moon"], "moon"),
        (["diagnose", "VIT", "--figures", "damaged.json/x"], "damaged.json is a file, not a directory"),
        (["spectrum", "CUT"], "cut off"),
        (["spectrum", "GPT", "--heads", "5"], "heads, not 5; leave heads= (--heads) out"),
        (["diagnose", "VIT", "--format", "png"], "--format png has no effect without --figures"),
        (["diagnose", "damaged.json", "--inputs", "3"], "--inputs has no effect: damaged.json is a saved diagnosis"),
        (["diagnose", "VIT", "--no-spectra", "--variant", "raw"], "--variant has no effect: --no-spectra"),
        (["diagnose", "VIT", "--length", "32"], "--length has no effect"),
        (["diagnose", "VIT", "--leave-out", "0,x"], "--leave-out is '0,x'"),
        (["gallery", "vit-plian"], "the gallery has no model 'vit-plian'; did you mean vit-plain?"),
        (["train", "--quick", "--recipe", "x.json", "-o", "r"], "--quick has a recipe of its own, and --recipe is"),
        (["spectrum", "CODE"], "refused"),
        (["spectrum", "NAN"], "h.1.attn: the value weight has NaN or infinity in 1 of"),
        (["reproduce", "fig5", "VIT", "-o", "x.gif"], "'.gif'"),
        (["diagnose", "damaged.json"], "damaged.json"),
    ],
)
def test_bad_input_gets_one_sentence(monkeypatch, capsys, tmp_path, vit, gpt, arguments, named):
    from safetensors.torch import load_file, save_file

    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "TEXT").mkdir()
    (tmp_path / "TEXT" / "model.safetensors").write_bytes((gpt / "model.safetensors").read_bytes())
    (tmp_path / "CUT").mkdir()
    (tmp_path / "CUT" / "model.safetensors").write_bytes((gpt / "model.safetensors").read_bytes()[:2000])
    (tmp_path / "CODE").mkdir()
    torch.save({"x": _Reckless()}, tmp_path / "CODE" / "pytorch_model.bin")
    (tmp_path / "NAN").mkdir()
    state = load_file(gpt / "model.safetensors")
    key = next(name for name in state if name.endswith("h.1.attn.c_attn.weight"))
    state[key][3, -2] = torch.nan
    save_file(state, tmp_path / "NAN" / "model.safetensors")
    (tmp_path / "NAN" / "config.json").write_bytes((gpt / "config.json").read_bytes())
    (tmp_path / "damaged.json").write_text('{"schema": "oversmooth/diagnosis", "version": 1}')
    before = sorted(os.listdir(tmp_path))
    names = {"VIT": vit, "GPT": gpt}
    assert named in refusal(monkeypatch, capsys, *(names.get(a, a) for a in arguments))
    assert sorted(os.listdir(tmp_path)) == before


class _Reckless:
    """Its pickle runs code when loaded carelessly."""

    def __reduce__(self):
        return os.system, ("true",)


def test_a_name_that_cannot_be_fetched_says_what_to_do(monkeypatch, capsys):
    import socket

    def no_network(*_):
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    said = refusal(monkeypatch, capsys, "diagnose", "someone/some-model-that-is-not-there")
    assert "'someone/some-model-that-is-not-there'" in said
    assert "without a network, give the directory" in said


def test_ctrl_c_leaves_nothing_half_written(monkeypatch, tmp_path, gpt):
    from oversmooth.diagnosis import diagnose as diagnosing

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnosing, "_observe", stop)
    assert run(monkeypatch, "diagnose", gpt, "--json", tmp_path / "d.json", "--html", tmp_path / "d.html") == 130
    assert os.listdir(tmp_path) == []


def test_another_weights_file_than_the_one_that_would_run_is_refused(monkeypatch, capsys, tmp_path, gpt):
    folder = tmp_path / "two"
    shutil.copytree(gpt, folder)
    shutil.copy(folder / "model.safetensors", folder / "ema.safetensors")
    assert "loads model.safetensors" in refusal(monkeypatch, capsys, "diagnose", folder / "ema.safetensors")
    assert run(monkeypatch, "diagnose", folder / "model.safetensors", "--inputs", 1, "--no-spectra") == 0


def test_weights_that_a_block_lacks_are_not_drawn_at_random(monkeypatch, capsys, tmp_path, gpt):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "lacking"
    shutil.copytree(gpt, folder)
    state = load_file(folder / "model.safetensors")
    state = {name: value for name, value in state.items() if not name.endswith("h.1.mlp.c_fc.weight")}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert "lacks 1 weights of its blocks" in refusal(monkeypatch, capsys, "diagnose", folder)


def test_what_cannot_be_shown_is_refused_before_the_work(monkeypatch, capsys, tmp_path, vit):
    copies = ["--random-init", "--html", tmp_path / "x.html"]
    assert "at most 24 models, not 26" in refusal(monkeypatch, capsys, "diagnose", *[vit] * 13, *copies)
    copies = ["--random-init", "--json", tmp_path / "x.json"]
    assert "one diagnosis, not 2" in refusal(monkeypatch, capsys, "diagnose", vit, *copies)


def test_spectra_of_heads_alone_are_drawn_too(monkeypatch, capsys, tmp_path, gpt):
    code = run(monkeypatch, "spectrum", gpt, "--heads-only", "-o", tmp_path / "h.svg", "--json", tmp_path / "h.json")
    assert code == 0
    assert (tmp_path / "h.svg").exists()
    assert "has no cases to count" in refusal(monkeypatch, capsys, "reproduce", "table1", tmp_path / "h.json")


def test_short_texts_are_left_out_of_means_and_said_to_be(monkeypatch, tmp_path, gpt):
    ids = np.tile(np.arange(1, 9), (2, 1))
    mask = np.array([[1] * 8, [1] + [0] * 7])
    np.savez(tmp_path / "x.npz", input_ids=ids, attention_mask=mask)
    assert run(monkeypatch, "diagnose", gpt, "--data", tmp_path / "x.npz", "--json", tmp_path / "d.json") == 0
    found = Diagnosis.load(tmp_path / "d.json")
    assert Note("short_inputs", 1, 2) in found.notes
    assert all(change.log_hfc_lfc is not None for layer in found.layers[1:] for change in layer.changes)


def test_markup_in_names_is_text(monkeypatch, capsys, tmp_path, vit):
    assert run(monkeypatch, "diagnose", vit, "--inputs", 1, "--no-spectra", "--json", tmp_path / "a[bold]b.json") == 0
    assert "a[bold]b.json" in capsys.readouterr().out.replace("\n", "")


def test_spectrum_of_a_hub_id_that_cannot_be_read_in_parts_streams_the_files_it_fetched(
    monkeypatch, capsys, tmp_path, gpt
):
    import huggingface_hub

    asked = []
    monkeypatch.setattr("oversmooth.models.remote.in_parts", lambda _name: None)
    monkeypatch.setattr("oversmooth.models.hub.check_reachable", lambda _name: None)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **_: asked.append(name) or str(gpt), raising=False
    )
    assert run(monkeypatch, "spectrum", "someone/tiny-gpt", "--json", tmp_path / "x.json") == 0
    assert asked == ["someone/tiny-gpt"]
    assert Diagnosis.load(tmp_path / "x.json").name == "someone/tiny-gpt"
    assert "does not exist" in refusal(monkeypatch, capsys, "spectrum", "no/such/file.safetensors")


def test_long_work_is_announced_with_its_time_and_memory(monkeypatch, capsys, gpt):
    from oversmooth.cli import estimate

    monkeypatch.setattr(estimate, "_WORTH_SAYING", 0.0)
    assert run(monkeypatch, "diagnose", gpt, "--inputs", 8, "--length", 32, "--ranks", 0, "--joined", 0) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "tokens" in line)
    assert re.match(r"tiny-gpt: 8 inputs of 32 tokens: about \d+ s, \d+ MB;.* --no-spectra takes \d+ s$", line)
    assert run(monkeypatch, "diagnose", gpt, "--inputs", 1, "--no-spectra") == 0
    assert "1 input of 64 tokens" in capsys.readouterr().err
    monkeypatch.setattr(estimate, "_WORTH_SAYING", 1e9)  # whatever else this machine computes
    assert run(monkeypatch, "diagnose", gpt, "--inputs", 2, "--length", 20, "--no-spectra") == 0
    assert "about" not in capsys.readouterr().err


def test_large_models_get_fewer_inputs_and_long_texts_smaller_batches(monkeypatch, gpt):
    from oversmooth import models
    from oversmooth.cli import estimate

    loaded = models.load(str(gpt))
    assert [estimate.default_count(loaded, data) for data in (False, True)] == [16, 64]
    assert [estimate.default_batch(loaded, length) for length in (None, 128, 2048, 9999)] == [16, 16, 2, 1]
    monkeypatch.setattr(estimate, "_LARGE", 1000)
    assert estimate.default_count(loaded, True) == 4


def test_left_out_tokens_reach_the_diagnosis(monkeypatch, tmp_path, gpt):
    arguments = ["--inputs", 2, "--length", 20, "--no-spectra", "--leave-out", "0,-1", "--json", tmp_path / "d.json"]
    assert run(monkeypatch, "diagnose", gpt, *arguments) == 0
    assert Diagnosis.load(tmp_path / "d.json").provenance["left_out"] == [0, -1]
