"""A page stays below 5 MB: what is taken out for that, and that it is said; mostly with limits made small."""

import base64
import json
import re
import zlib

import numpy
import pytest
from support import browser
from support.nightly import nightly
from support.report_example import example, one_input

from oversmooth import Diagnosis
from oversmooth.report import fitting, page
from oversmooth.report.packing import json_in_html


def several(count=4, grid=None):
    found = [example(f"model {i}", layers=3, heads=2, head_dim=16, inputs=6, seed=i) for i in range(count)]
    for place, one in enumerate(found):
        one.one_input = looked_at(place, grid)
    return found


def looked_at(seed, grid=None, groups=80):
    shown = one_input(numpy.random.default_rng(seed), 3, 2, grid)
    if grid is None:
        draw = numpy.random.default_rng(seed)
        shown.groups = shown.tokens = groups
        shown.labels = [f"w{i}" for i in range(groups)]
        shown.similarity = [coded(draw, groups * (groups - 1) // 2) for _ in range(4)]
        shown.received = [coded(draw, 2 * groups) for _ in range(3)]
    return shown


def coded(draw, count):
    return base64.b64encode(draw.integers(0, 256, count).astype("uint8").tobytes()).decode()


def decoded(code):
    return [float(byte) for byte in base64.b64decode(code)]


def held(text, part):
    found = re.search(rf'id="{part}"( data-packed)?>(.*?)</script>', text, re.DOTALL)
    return json.loads(zlib.decompress(base64.b64decode(found[2]), -15) if found[1] else found[2]), bool(found[1])


@pytest.mark.parametrize("grid", [None, (3, 4)])
def test_groups_of_groups_are_means_over_pairs(grid):
    """Against loops over pairs."""
    one = vars(looked_at(0, grid)).copy()
    one["similarity"], one["received"], one["received_most"] = map(
        list, (one["similarity"], one["received"], one["received_most"])
    )
    before, leading = one["groups"], one["leading"]
    first = decoded(one["similarity"][1])
    received, most = decoded(one["received"][2]), one["received_most"][2]
    if grid is None:
        members = [[i for i in (2 * g, 2 * g + 1) if i < before] for g in range(-(-before // 2))]
    else:
        rows, columns = grid
        cell = lambda r, c: leading + r * columns + c  # noqa: E731
        members = [[i] for i in range(leading)] + [
            [cell(r, c) for r in (2 * i, 2 * i + 1) for c in (2 * j, 2 * j + 1) if r < rows and c < columns]
            for i in range(-(-rows // 2))
            for j in range(-(-columns // 2))
        ]
    pairs = {}
    for i in range(before):
        for j in range(i + 1, before):
            pairs[i, j] = pairs[j, i] = first[len(pairs) // 2]
    fitting._halve(one)
    assert one["groups"] == len(members)
    expected = [
        sum(pairs[i, j] for i in members[a] for j in members[b]) / (len(members[a]) * len(members[b]))
        for a in range(len(members))
        for b in range(a + 1, len(members))
    ]
    numpy.testing.assert_allclose(decoded(one["similarity"][1]), expected, atol=0.5001)
    means = [sum(received[h * before + i] for i in group) / len(group) for h in range(2) for group in members]
    scale = one["received_most"][2] / most
    numpy.testing.assert_allclose(numpy.array(decoded(one["received"][2])) * scale, means, atol=0.51)
    assert max(decoded(one["received"][2])) == 255
    assert len(one["labels"]) == (len(members) if grid is None else 0)
    named = "80 tokens, shown in 40 groups" if grid is None else "12 patches, shown in 2 × 2 groups: means over pairs"
    assert one["aggregated"].startswith(named)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (10_000_000, []),
        (100_000, ["the tokens of 4 of 4 models in groups"]),
        (39_500, ["in groups", "leaves out ρ rough and verdicts of single inputs from the JSON it offers."]),
        (30_000, ["in groups", "; eigenvalues of single heads."]),
        (24_000, ["eigenvalues of single heads; all but 64 eigenvalues of each layer; all but 16 eigenvalues"]),
        (22_000, ["all but 16 eigenvalues of each layer; from that JSON also shares, means and radii of single heads"]),
        (
            19_500,
            ["of single heads", "of model 0, model 1 in groups", "the tokens of model 3, model 2; a page"],
        ),
    ],
)
def test_what_does_not_fit_is_taken_out_in_order_and_said(limit, said, monkeypatch):
    found = several()
    before = [one.to_dict() for one in found]
    data = [one.to_dict() for one in found]
    monkeypatch.setattr(fitting, "_RESERVE", 0)
    sentences = [sentence for part in fitting.fit(data, limit) for sentence in part]
    text = " ".join(sentences)
    assert all(words in text for words in said), text
    assert bool(sentences) == bool(said)
    assert len(fitting.deflated(json_in_html(data))) <= limit
    for entry in data:
        Diagnosis.from_dict(entry)  # what the page offers for download can be read
    assert [one.to_dict() for one in found] == before


def test_a_page_says_in_place_what_was_taken_out(monkeypatch):
    found = several(2)
    whole = page.render(found)
    assert held(whole, "diagnoses")[1] is False
    assert "To stay below 5 MB" not in whole
    monkeypatch.setattr(page, "MOST_PLAIN_BYTES", 0)
    packed = page.render(found)
    assert "To stay below 5 MB" not in packed  # packing loses nothing
    assert held(packed, "diagnoses") == (held(whole, "diagnoses")[0], True)
    assert held(packed, "drawn") == (held(whole, "drawn")[0], True)
    rest = len(packed.encode()) - len(fitting.deflated(json.dumps(held(packed, "diagnoses")[0])))
    monkeypatch.setattr(page, "MOST_BYTES", rest + 85_000)
    small = page.render(found)
    assert "this page shows the tokens of model 0, model 1 in groups" in small
    assert len(small.encode()) < page.MOST_BYTES
    shown = held(small, "diagnoses")[0][0]["one_input"]
    assert shown["groups"] < 80
    assert shown["aggregated"]
    monkeypatch.setattr(page, "MOST_BYTES", 1)
    assert "this page leaves out the tokens of model 1, model 0" in page.render(found)  # though their section is gone


@nightly
def test_twenty_four_large_models_fit():
    found = [example(f"model {i}", layers=32, heads=16, head_dim=32, inputs=16, seed=i) for i in range(24)]
    for place, one in enumerate(found):
        one.one_input = looked_at(place, groups=256)
        one.one_input.similarity = one.one_input.similarity[:1] * 33
    assert len(page.render(found).encode()) < fitting.MOST_BYTES


@pytest.mark.browser
@pytest.mark.skipif(browser.executable() is None, reason="no Chromium")
def test_a_packed_page_opens(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_PLAIN_BYTES", 0)
    page.save(several(2), tmp_path / "page.html")
    with browser.browser(tmp_path) as chromium:
        chromium.open(tmp_path / "page.html")
        ready = "document.querySelectorAll('.chart[id]').length > 5 && [...document.querySelectorAll('.chart[id]')]"
        chromium.wait(f"{ready}.every((chart) => chart.dataset.ready)")
        assert chromium.run("document.querySelectorAll('#chart-alike svg path').length") > 2
        assert chromium.complaints() == []
