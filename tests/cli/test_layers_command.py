"""`oversmooth layers` as a user meets it, on a small checkpoint and sentences with labels."""

import json

import pytest
from support.commands import refusal, run

SENTENCES = [f"the {which} fox {verb} {n}" for n in "abcdef" for which in ("slow", "red") for verb in ("ran", "sat")]


def write(path, header, rows):
    path.write_text("\n".join(["\t".join(header), *("\t".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_sentences_with_classes(monkeypatch, capsys, tmp_path, gpt):
    data = write(tmp_path / "a.tsv", ("sentence", "label"), [(s, int("red" in s)) for s in SENTENCES])
    made = [tmp_path / "layers.json", tmp_path / "layers.svg"]
    assert run(monkeypatch, "layers", gpt, "--data", data, "--pool", "last", "--json", made[0], "-o", made[1]) == 0
    shown = capsys.readouterr().out
    assert "24 sentences of" in " ".join(shown.split())
    assert "probe" in shown
    found = json.loads(made[0].read_text())
    assert found["schema"] == "oversmooth/layers"
    assert found["pool"] == "last"
    assert found["depths"][0] == "embedding"
    assert len(found["measures"]["probe"]["values"]) == len(found["depths"]) == 3
    assert "CKA between depths" in made[1].read_text()


def test_pairs_with_similarities_and_text_without_labels(monkeypatch, capsys, tmp_path, gpt):
    pairs = [(a, b, i / 4) for i, (a, b) in enumerate(zip(SENTENCES, reversed(SENTENCES), strict=True))]
    data = write(tmp_path / "b.tsv", ("index", "sentence1", "sentence2", "score"), [(0, *row) for row in pairs])
    assert run(monkeypatch, "layers", gpt, "--data", data) == 0
    assert "STS" in capsys.readouterr().out
    assert run(monkeypatch, "layers", gpt, "--inputs", 8, "--length", 16) == 0
    assert "nothing shows which measure to trust" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        (("words", "label"), ("a", 1), "has the columns words, label"),
        (("sentence1", "sentence2", "score"), ("a", "b", "high"), "line 2 of c.tsv has the score 'high'"),
        (("sentence", "label"), ("", 1), "has 10 sentences without a token"),
        (("sentence", "label"), ("a fox", 1), "all labels are equal"),
    ],
)
def test_files_that_mean_nothing_are_refused(monkeypatch, capsys, tmp_path, gpt, header, row, said):
    data = write(tmp_path / "c.tsv", header, [row] * 10)
    assert said in refusal(monkeypatch, capsys, "layers", gpt, "--data", data)
