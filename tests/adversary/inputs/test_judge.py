"""The judge sees what is wrong: each complaint with an outcome that earns it, and none where nothing is."""

import pytest
from adversary.inputs.case import MARKER, Case, Outcome, Place, contents, judge

REFUSED = b"oversmooth: x.json does not exist; name another\n"


def complaints(tmp_path, case=None, **outcome):
    made = Outcome(**{"code": 2, "out": b"", "err": REFUSED, **outcome})
    return judge(case or Case("a/b", lambda _place: [], "either"), made, Place(tmp_path, tmp_path))


def test_a_good_refusal_holds(tmp_path):
    assert complaints(tmp_path) == []
    assert complaints(tmp_path, code=0, err=b"", out="ρ 0.3\n".encode(), after={"out/x.json": "-"}) == []


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"code": 1}, "exit code 1"),
        ({"code": -11}, "crash: signal 11"),
        ({"code": 1, "err": b"Traceback (most recent call last):\n  File x\nKeyError: 'a'\n"}, "traceback: KeyError"),
        ({"err": b"Exception ignored in: <x>\n" + REFUSED}, "traceback"),
        ({"hung": True, "code": -9}, "hang"),
        ({"seconds": 11.0}, "time: 11 s"),
        ({"memory": 3 * 10**9}, "memory: 3.0 GB"),
        ({"survivors": True}, "a process was left"),
        ({"err": b"oversmooth: \x1b[31mred\n"}, "raw control characters"),
        ({"out": "\u202e".encode()}, "raw control characters"),
        ({"out": b"\xff"}, "not UTF-8"),
        ({"out": b"a zebra"}, "markup"),
        ({"err": b""}, "no sentence"),
        ({"err": b"oversmooth: " + b"x" * 301}, "301 letters"),
        ({"err": b"oversmooth: it does not decode (); try another\n"}, "a gap"),
        ({"err": b"oversmooth: 'NoneType' object has no attribute 'x'\n"}, "Python's words"),
        ({"err": REFUSED + b"and more\n"}, "more than one line"),
        ({"after": {MARKER: "-"}}, "CODE OF THE INPUT WAS RUN"),
        ({"after": {"out/x.json": "-"}}, "left behind"),
        ({"code": 0, "err": b"", "after": {"out/.x-temporary": "-"}}, "left behind"),
        ({"code": 0, "err": b"", "before": {"vit/x": "1"}, "after": {"vit/x": "2"}}, "changed: vit/x"),
        ({"before": {"vit/x": "1"}}, "removed: vit/x"),
    ],
)
def test_each_fault_is_seen(tmp_path, outcome, said):
    assert any(said in complaint for complaint in complaints(tmp_path, **outcome))


def test_expectations_are_held_to(tmp_path):
    fine = Case("a/b", lambda _place: [], "fine")
    assert complaints(tmp_path, fine) == ["exit code 2 in place of 0"]
    named = Case("a/b", lambda _place: [], "refused", ("y.json",))
    assert complaints(tmp_path, named) == ["does not name 'y.json'"]
    more = Case("a/b", lambda _place: [], "refused", holds=lambda _place, _outcome: "it is Monday")
    assert complaints(tmp_path, more) == ["it is Monday"]


def test_contents_change_with_what_lies_there(tmp_path):
    (tmp_path / "file").write_text("a")
    (tmp_path / "link").symlink_to("nowhere")
    before = contents(tmp_path)
    assert set(before) == {"file", "link"}
    (tmp_path / "file").write_text("b")
    after = contents(tmp_path)
    assert before["file"] != after["file"]
    assert before["link"] == after["link"]
