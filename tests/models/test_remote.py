"""Spectra of a hub id by range requests, from a local server that speaks as the hub does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest
import torch
from support.families import FAMILIES

from oversmooth import InputError
from oversmooth.anatomy import locate
from oversmooth.cli.spectrum import spectra_of
from oversmooth.models.remote import RemoteCheckpoint, in_parts

NAME = "someone/a-model"


class Hub(BaseHTTPRequestHandler):
    """Just enough of it: a repository's facts, its files, and their bytes."""

    folder, ranges, breaks_after = None, True, None
    served = 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.partition("?")[0]
        if "/tree/" in path:
            files = [dict(type="file", path=f.name, size=f.stat().st_size, oid=f"{f.stat().st_mtime_ns}")
                     for f in sorted(self.folder.iterdir())]  # fmt: skip
            return self.send(json.dumps(files).encode())
        if path.startswith("/api/"):
            return self.send(json.dumps(dict(id=NAME, sha="0" * 40, siblings=[])).encode())
        whole = (self.folder / path.rpartition("/")[2]).read_bytes()
        wanted = self.headers.get("Range")
        if wanted and self.ranges:
            start, stop = map(int, wanted.removeprefix("bytes=").split("-"))
            return self.send(whole[start : stop + 1], 206)
        return self.send(whole)

    def send(self, data, status=200):
        cls, cut = type(self), len(data)
        if self.breaks_after is not None and cls.served + len(data) > self.breaks_after:
            cut = len(data) // 2
        cls.served += cut
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut])


@pytest.fixture
def hub(tmp_path, monkeypatch):
    class Here(Hub):
        folder = tmp_path / "files"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Here)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    constants, here = huggingface_hub.constants, f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", here + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "ENDPOINT", here)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))
    yield Here
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["20KB", "5GB"], ids=["shards", "one file"])
def model(request, hub):
    model = FAMILIES["Llama"].make()
    model.save_pretrained(hub.folder, max_shard_size=request.param)
    return model


def test_only_what_spectra_need_is_fetched(hub, model, capsys):
    remote = RemoteCheckpoint(NAME)
    for name in ("layers.0.self_attn.v_proj.weight", "layers.1.self_attn.o_proj.weight"):
        assert torch.equal(remote.read(name), model.get_parameter(name))
    rows = remote.read("embed_tokens.weight", slice(3, 5))
    assert torch.equal(rows, model.get_parameter("embed_tokens.weight")[3:5])
    hub.served = 0
    found, expected = spectra_of(NAME), spectra_of(str(hub.folder))
    assert [layer.spectrum for layer in found.layers] == [layer.spectrum for layer in expected.layers]
    # Two heads share their values.
    needed = sum(layer.W_V.nbytes // 2 + layer.W_O.nbytes for layer in locate(hub.folder))
    assert needed < hub.served < needed + 30_000  # headers, configuration and listings
    assert "fetched" in capsys.readouterr().err


def test_a_server_that_breaks_off_is_one_sentence_and_spectra_resume(hub, model):
    del model
    RemoteCheckpoint(NAME)
    hub.breaks_after, hub.served = 1.2 * hub.served + 8000, 0
    with pytest.raises(InputError, match=f"{NAME}.*could not be fetched from the hub"):
        spectra_of(NAME)
    hub.breaks_after = None
    assert len(spectra_of(NAME).layers) == 3


def test_a_server_without_ranges_is_read_whole(hub, model, monkeypatch):
    del model
    hub.ranges = False
    monkeypatch.setattr("oversmooth.models.hub.fetch", lambda _: hub.folder)
    assert len(spectra_of(NAME).layers) == 3


def test_a_damaged_header_and_a_missing_shard_are_one_sentence(hub):
    FAMILIES["Llama"].make().save_pretrained(hub.folder, max_shard_size="20KB")
    last = sorted(hub.folder.glob("*.safetensors"))[-1]
    last.write_bytes(b"\xff" * 100)
    with pytest.raises(InputError, match=f"{last.name} of {NAME} has a damaged header"):
        spectra_of(NAME)
    last.unlink()
    with pytest.raises(InputError, match=f"names {last.name}, which {NAME} does not have"):
        spectra_of(NAME)


def test_a_name_that_no_repository_can_have_is_one_sentence():
    with pytest.raises(InputError, match=r"'\[/b\]' is not a path and could not be fetched from the hub"):
        in_parts("[/b]")
