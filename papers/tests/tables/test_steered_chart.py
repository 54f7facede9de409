"""The chart of figure 3: a row for each state of training, its models in the colours of their modes."""

import altair
from support.report_example import example

from oversmooth.report import figures
from oversmooth_papers.figures.fig3 import FIGURE


def test_it_has_a_row_for_each_state_and_is_sound_vega_lite():
    found = [example(f"model {i}", layers=3, heads=2, head_dim=4, seed=i) for i in range(4)]
    for place, one in enumerate(found):
        one.model |= {"state": ["untrained", "trained"][place // 2], "mode": ["smooth", "sharpen"][place % 2]}
    spec = figures.drawn(found, FIGURE).to_dict()
    altair.ConcatChart.validate(spec)
    assert [len(row["hconcat"]) for row in spec["concat"]] == [4, 4]
    assert spec["concat"][0]["hconcat"][-1]["title"] == "predicted from spectra"
    del found[0].model["state"], found[1].model["state"], found[2].model["state"], found[3].model["state"]
    assert figures.drawn(found, FIGURE) is None
