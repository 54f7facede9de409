"""A diagnosis as a file: what is saved is what comes back, and what is damaged is refused."""

import json

import pytest
from support import family_checks as checks
from support.families import usable
from support.report_example import example

from oversmooth import Diagnosis, InputError
from oversmooth.metrics import METRICS
from oversmooth.results.parts import Course

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
SOME = [name for name in ("ViT", "Llama", "BERT", "T5 (encoder)", "attention alone (no norm)") if name in usable()]


@pytest.mark.parametrize("name", SOME)
def test_there_and_back(name, tmp_path):
    found = checks.diagnosis(name)
    assert Diagnosis.from_json(found.to_json()) == found
    assert Diagnosis.from_dict(found.to_dict()) == found
    found.save(tmp_path / "found.json")
    assert Diagnosis.load(tmp_path / "found.json") == found
    assert Diagnosis.load(str(tmp_path / "found.json")).to_json() == found.to_json()
    assert list(tmp_path.iterdir()) == [tmp_path / "found.json"]


def test_plain_json_as_described():
    data = json.loads(checks.diagnosis("ViT").to_json(), parse_constant=lambda word: pytest.fail(word))
    first, later = data["layers"][0], data["layers"][1]
    assert first["name"] == "embedding"
    assert (first["attention_out"], first["spectrum"], first["dominance"]) == (None, None, None)
    for metric in ("hfc_lfc", "cos", "abs_cos", "effective_rank", "stable_rank", "sigma_ratio"):
        assert isinstance(first["tokens"][metric], float)
        assert isinstance(later["attention_out"][metric], float)
    assert {"negative_share", "mean_real", "rho_smooth"} <= later["spectrum"].keys()
    assert {"rho_rough", "smoothing_share"} <= later["dominance"].keys()
    assert {"model", "provenance", "schema", "version"} <= data.keys()


def test_version_1_still_loads():
    """It knew nothing of undecided cases: they are None, not zero."""
    data = checks.diagnosis("ViT").to_dict() | {"version": 1}
    for layer in data["layers"]:
        for name in ("undecided_share", "certified_share", "undecided_because"):
            (layer["dominance"] or {}).pop(name, None)
        (layer["spectrum"] or {}).pop("verdicts", None)
    found = Diagnosis.from_dict(data)
    assert found.undecided_share is None
    assert found.smoothing_share == checks.diagnosis("ViT").smoothing_share
    assert Diagnosis.from_json(found.to_json()).layers == found.layers


def test_version_4_still_loads():
    """It simulated attention alone and gave a rate; real blocks are kept, and nothing is predicted from them."""
    data = checks.diagnosis("ViT").to_dict() | {"version": 4}
    for entry in data["extrapolation"]:
        for name in ("predicted", "way", "error", "conclusive", "checked", "growth"):
            del entry[name]
        course = {"depth": [0.0, 96.0], "log_hfc_lfc": [0.1, -3.0]}
        entry |= {"predicted_rate": 0.9, "simulated": course, "simulated_verdict": "smooth"}
    found = Diagnosis.from_dict(data)
    usual = checks.diagnosis("ViT").extrapolation
    assert [entry.real for entry in found.extrapolation] == [entry.real for entry in usual]
    assert [entry.predicted for entry in found.extrapolation] == [None, None]
    with pytest.raises(InputError, match="predicted_rate"):
        Diagnosis.from_dict(data | {"version": 5})


@pytest.mark.parametrize("name", SOME)
def test_a_table(name):
    found = checks.diagnosis(name)
    table = found.to_pandas()
    assert list(table["layer"]) == [layer.name for layer in found.layers]
    assert list(table["depth"]) == list(range(len(found.layers)))
    assert set(table["model"]) == {found.name}
    for row, layer in zip(table.to_dict("records"), found.layers, strict=True):
        assert row["hfc_lfc"] == layer.tokens["hfc_lfc"]
        if layer.dominance is None:
            continue
        assert row["rho_smooth"] == layer.rho_smooth == pytest.approx(layer.spectrum.rho_smooth, rel=1e-4)
        assert row["rho_rough"] == layer.dominance.rho_rough
        assert row["smoothing_share"] == layer.dominance.smoothing_share
        assert row["attention_out_hfc_lfc"] == layer.attention_out["hfc_lfc"]
        changes = sum(value for key, value in row.items() if key.startswith("change_") and value == value)
        assert changes == pytest.approx(sum(change.log_hfc_lfc for change in layer.changes), abs=1e-9)


def test_shares_over_all_layers():
    found = checks.diagnosis("ViT")
    reals = [x for layer in found.layers[1:] for x in layer.spectrum.joined["raw"].real]
    assert found.negative_share == pytest.approx(sum(x < 0 for x in reals) / len(reals), abs=1e-6)
    words = [word for layer in found.layers[1:] for row in layer.dominance.verdict_heads for word in row]
    assert found.smoothing_share == words.count("smooth") / len(words)
    assert len(words) == 2 * 2 * 4


def test_curves():
    found = checks.diagnosis("ViT")
    assert found.curve("cos") == [layer.tokens["cos"] for layer in found.layers]
    assert found.curve("cos", without_massive=True) == [
        (layer.without_massive or layer.tokens)["cos"] for layer in found.layers
    ]
    with pytest.raises(InputError, match="there is no metric 'nonsense'; choose one of hfc_lfc, "):
        found.curve("nonsense")
    assert all(set(layer.tokens) <= set(METRICS) for layer in found.layers)


def test_a_diagnosis_and_its_parts_have_a_short_repr():
    found = example("tiny", layers=12, heads=12)
    assert len(found.to_json()) > 100_000
    assert repr(found).startswith("<Diagnosis of tiny: 12 blocks, 8 inputs, HFC/LFC ")
    assert len(repr(found)) < 200
    first, last = found.layers[0], found.layers[-1]
    for part in (first, last, last.spectrum, last.dominance, *found.extrapolation):
        assert len(repr(part)) < 2000, type(part)
    assert repr(Course([0.0, 1.0, 4.0], [0.0, 0.5, -1.0])) == "Course(log HFC/LFC 0 → -1, 3 depths)"
    assert repr(Course([0.0], [None])) == "Course(log HFC/LFC unknown → unknown, 1 depths)"
