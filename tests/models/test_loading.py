"""Checkpoints that were made to do harm, or by accident: nothing of theirs runs, nothing else is read, none is built
that no memory holds.
"""

import io
import json
import os
import shutil
import sys

import pytest
import torch
from support import timm_models

from oversmooth import InputError, cli, models
from oversmooth.models import building, hub, remote_code
from oversmooth.steering import NeuTRENO, steer

CODE = """
from pathlib import Path
Path({marker!r}).write_text("it ran")
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small checkpoint; not to be changed."""
    from transformers import ViTConfig, ViTModel

    folder = tmp_path_factory.mktemp("made") / "vit"
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    torch.manual_seed(0)
    ViTModel(ViTConfig(**sizes, image_size=8, patch_size=4)).save_pretrained(folder)
    return folder


@pytest.fixture
def vit(made, tmp_path):
    return shutil.copytree(made, tmp_path / "vit")


def change(folder, **settings):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({k: v for k, v in config.items() if v != "gone"}))


def refused(folder, **settings):
    with pytest.raises(InputError) as said:
        models.load(str(folder), **settings)
    assert len(str(said.value).replace(str(folder), "")) < 300
    return str(said.value)


@pytest.fixture
def own(tmp_path):
    """A checkpoint that brings its code along, and the file that this code would write."""
    from transformers import BertConfig, BertModel

    folder, marker = tmp_path / "own", tmp_path / "marker"
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=8)
    BertModel(BertConfig(**sizes)).save_pretrained(folder)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel", "AutoModelForMaskedLM": "own.X"}
    change(folder, model_type="own", architectures=["OwnModel"], auto_map=auto_map)
    return folder, marker


@pytest.mark.parametrize("command", ["diagnose", "steer"])
def test_code_of_a_checkpoint_is_not_run_whoever_answers(own, command, monkeypatch, capsys, tmp_path):
    folder, marker = own
    more = ["-m", "neutreno", "-o", str(tmp_path / "out")] if command == "steer" else []
    monkeypatch.setattr(sys, "argv", ["oversmooth", command, str(folder), *more])
    monkeypatch.setattr(sys, "stdin", answers := io.StringIO("y\ny\ny\ny\n"))
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert answers.tell() == 0  # nobody asked
    assert not marker.exists()
    said = " ".join(capsys.readouterr().err.split())
    assert "comes with its own code, which oversmooth does not run; if you trust it, give --trust-remote-code" in said
    assert "load it yourself and call oversmooth.diagnose(model, inputs)" in said


def test_code_of_a_checkpoint_is_run_where_that_is_asked(own, monkeypatch, tmp_path):
    folder, marker = own
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    import transformers

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "modules"), *sys.path])
    loaded = models.load(str(folder), trust_remote_code=True)
    assert type(loaded.model).__name__ == "OwnModel"
    assert marker.read_text() == "it ran"
    assert loaded.remarks[0] == f"ran code that comes with {folder} (--trust-remote-code): own.py"


def test_a_model_that_is_known_needs_none_of_its_code(own):
    folder, marker = own
    change(folder, model_type="bert", architectures=["BertModel"])
    assert type(models.load(str(folder)).model).__name__ == "BertModel"
    assert not marker.exists()


@pytest.mark.parametrize(
    "settings",
    [
        dict(attn_implementation="someone/kernel"),
        dict(_attn_implementation_internal="someone/kernel"),
        dict(vision_config={"_attn_implementation": {"": "someone/kernel"}}),
        dict(keypoint_detector_config={"model_type": "x", "trust_remote_code": True}),
    ],
)
def test_a_configuration_does_not_have_code_fetched(vit, settings, monkeypatch):
    """In no version of transformers: it does not come to see it."""
    import transformers

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("it was read"))
    change(vit, **settings)
    assert "in its configuration would run code from a repository; remove it from config.json" in refused(vit)


def test_the_usual_names_of_attention_are_read(vit):
    change(vit, attn_implementation="eager", trust_remote_code=False)
    assert type(models.load(str(vit)).model).__name__ == "ViTModel"


def test_libraries_load_arrays_only(tmp_path, monkeypatch):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"a": Harm()}, tmp_path / "a.pt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with remote_code.arrays_only(), pytest.raises(Exception, match="Weights only load failed"):
        torch.load(tmp_path / "a.pt", weights_only=False)
    assert not (tmp_path / "harm").exists()
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_files_beside_the_weights_that_no_one_wrote(vit):
    (vit / "tokenizer.json").touch()
    os.truncate(vit / "tokenizer.json", 2**40)
    assert "tokenizer.json has 1,099,511,627,776 bytes, over the limit of 268,435,456; fetch it again" in refused(vit)


def test_links_out_of_a_checkpoint_code_and_what_is_large_are_not_copied(vit, tmp_path):
    (vit / "train.log").touch()
    os.truncate(vit / "train.log", 2**42)
    secret = tmp_path / "id_ed25519"
    secret.write_text("PRIVATE KEY")
    (vit / "README.md").symlink_to(secret)
    (vit / "absolute.txt").symlink_to("/etc/passwd")
    (vit / "up.txt").symlink_to("../id_ed25519")
    (vit / "loop.txt").symlink_to("loop.txt")
    (vit / "notes.txt").write_text("ours")
    (vit / "same.txt").symlink_to("notes.txt")
    (vit / "modeling.py").write_text("print('code')")
    (vit / "data.pkl").write_bytes(b"code, too")
    os.mkfifo(vit / "pipe.txt")
    loaded = models.load(str(vit))
    steer(loaded.model, NeuTRENO(0.5))
    models.save(loaded, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "config.json", "steered.safetensors", "notes.txt", "same.txt",
    }  # fmt: skip
    assert all("PRIVATE" not in file.read_text(errors="ignore") for file in (tmp_path / "out").iterdir())


def test_links_of_the_hubs_cache_are_followed(vit, tmp_path):
    """snapshots/REVISION/README.md → ../../blobs/HASH, in the same repository's folder."""
    home = tmp_path / "models--someone--vit"
    snapshot = home / "snapshots" / ("0" * 40)
    (home / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (vit / "README.md").write_text("read me")
    for number, file in enumerate(sorted(vit.iterdir())):
        shutil.copy(file, home / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    (tmp_path / "secret").write_text("PRIVATE KEY")
    (snapshot / "notes.txt").symlink_to("../../../secret")
    loaded = models.load(str(snapshot))
    models.save(loaded, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert (tmp_path / "out" / "README.md").read_text() == "read me"


def test_offline_is_said_without_asking_the_network(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("the network was asked"))
    for load in (models.load, hub.fetch):
        with pytest.raises(InputError, match=r"nor in the hub's cache, and HF_HUB_OFFLINE is set; unset it"):
            load("someone/nothing")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "timm/vit_tiny_patch16_224.augreg_in21k", "hf_hub:timm/none"])
def test_a_timm_name_without_a_network_is_not_tried_again_and_again(name, monkeypatch, tmp_path):
    if not timm_models.available():
        pytest.skip("timm is not installed")
    timm = timm_models.timm()

    def gone(*_):
        raise OSError("Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", gone)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("it was tried"))
    with pytest.raises(InputError, match=r"could not be fetched from the hub \(OSError: Name or service not known\)"):
        models.load(name)


def test_a_fast_tokenizer_that_panics_is_none(made, monkeypatch):
    import transformers

    class PanicException(BaseException):  # as Rust's bindings call it
        pass

    def panic(*_, **__):
        raise PanicException("index out of bounds")

    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=8, n_positions=8, bos_token_id=0)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", panic)
    folder = made.parent / "gpt"
    transformers.GPT2Model(config).save_pretrained(folder)
    loaded = models.load(str(folder))
    with pytest.raises(InputError, match=r"has no tokenizer beside its weights that can be read \(index out of bounds"):
        loaded.inputs()


@pytest.fixture
def timm_folder(tmp_path):
    if not timm_models.available():
        pytest.skip("timm is not installed")
    timm = timm_models.timm()
    sizes = dict(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **sizes)
    timm.models.save_for_hf(model, tmp_path / "timm", safe_serialization=True, model_args=sizes)
    return tmp_path / "timm"


def test_architectures_that_timm_does_not_have(timm_folder):
    for architecture in ("hf-hub:someone/model", "local-dir:/", "nothing", 5, None, ["vit"], {}):
        change(timm_folder, architecture=architecture)
        assert "timm does not have" in refused(timm_folder)
    assert "timm does not have" in refused(timm_folder, random=True)


def test_timm_reads_no_other_file_than_the_checkpoints(timm_folder, tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"a": Harm()}, timm_folder / "more.pt")
    loaded = models.load(str(timm_folder))
    steer(loaded.model, NeuTRENO(0.5))
    models.save(loaded, tmp_path / "steered")
    arguments = json.loads((timm_folder / "config.json").read_text())["model_args"]
    change(tmp_path / "steered", model_args=arguments | {"checkpoint_path": str(timm_folder / "more.pt")})
    models.load(str(tmp_path / "steered"))
    torch.save({"a": Harm()}, timm_folder / "pytorch_model.bin")
    (timm_folder / "model.safetensors").unlink()
    refused(timm_folder)
    assert not (tmp_path / "harm").exists()


def test_a_timm_model_that_no_memory_holds(timm_folder, monkeypatch):
    arguments = json.loads((timm_folder / "config.json").read_text())["model_args"]
    change(timm_folder, model_args=arguments | {"depth": 10**9})
    assert "depth in its configuration is 1,000,000,000, over the limit of 4,096" in refused(timm_folder)
    change(timm_folder, model_args=arguments)
    monkeypatch.setattr(building, "free_memory", lambda: 1000)
    assert "of memory for its weights, but 1 kB are free" in refused(timm_folder)
