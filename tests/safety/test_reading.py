"""What is read is looked at first: its kind, its size, how deep it is."""

import json
import os
import socket

import pytest

from oversmooth import InputError
from oversmooth.safety.errors import about, reason
from oversmooth.safety.files import check_plain, check_unpacked, parse_json, read_bytes, read_json


def kinds(folder):
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "zeros").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as opened:
        here = os.getcwd()
        os.chdir(folder)  # names of sockets are short
        opened.bind("socket")
        os.chdir(here)
    words = {"pipe": "a pipe", "folder": "a directory", "loop": "symbolic links", "zeros": "a device"}
    return words | {"socket": "a socket", "nowhere": "No such file", "a\0b": "null byte"}


def test_only_files_are_read(tmp_path):
    for name, words in kinds(tmp_path).items():
        with pytest.raises(InputError, match=rf"cannot be read.*{words}.*; give a file"):
            read_json(tmp_path / name, "give a file")


def test_a_file_is_read_up_to_a_size(tmp_path):
    file = tmp_path / "some"
    file.write_bytes(b"12345")
    assert check_plain(file, "") == 5
    assert read_bytes(file, "", 5) == b"12345"
    with pytest.raises(InputError, match="it has 5 bytes, over the limit of 4; fetch it again"):
        read_bytes(file, "fetch it again", 4)
    os.truncate(file, 2**40)  # without a block on the disk
    with pytest.raises(InputError, match="it has 1,099,511,627,776 bytes, over the limit of 67,108,864"):
        read_json(file, "fetch it again")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", r"not UTF-8 text \(byte 0\)"),
        ("{}".encode("utf-16"), "not UTF-8 text"),
        (b"[" * 100_000, r"\(too deep\)"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, r"\(too deep\)"),
        (b"[" * 65 + b"]" * 65, r"\(too deep\)"),
        (b"1" * 5000, "4300 digits"),
    ],
)
def test_what_is_no_json_we_can_handle(content, words, tmp_path):
    (tmp_path / "some.json").write_bytes(content)
    with pytest.raises(InputError, match=f"{words}.*; fix it") as said:
        read_json(tmp_path / "some.json", "fix it")
    assert len(str(said.value)) < 300 + len(str(tmp_path))


def test_json_as_deep_as_anyone_writes_it():
    text = "[" * 60 + json.dumps({"a": [1.5, None, "b"]}) + "]" * 60
    value = parse_json(text, "", "")
    for _ in range(60):
        (value,) = value
    assert value == {"a": [1.5, None, "b"]}


def test_bombs_are_told_by_how_far_they_unpack():
    check_unpacked("pictures", 10**8, 10**10)
    check_unpacked("a few zeros", 100, 100_000)
    with pytest.raises(InputError, match=r"zeros has 6,000,000 bytes and unpacks to 6,000,000,000, 1,000 times"):
        check_unpacked("zeros", 6 * 10**6, 6 * 10**9)


def test_what_others_say_is_made_short():
    assert reason(ValueError("")) == "ValueError"
    assert reason(OSError("see https://a.b/c\n  and so on.")) == "see the hub and so on"
    assert len(reason(ValueError("x" * 5000))) == 120
    assert reason(AttributeError("'NoneType' object has no attribute 'get'")) == "unexpected content"
    with pytest.raises(InputError, match=r"^layer 3: it is off$"), about("layer 3"):
        raise InputError("it is off")
