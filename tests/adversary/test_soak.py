"""A short soak, and diagnoses in threads."""

import sys

import pytest
from adversary import soak
from support.nightly import nightly


@nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")
def test_diagnoses_leave_nothing_behind():
    found = soak.soak(8, depth=0)
    first, last = found[2], found[-1]
    assert last.hooks == 0
    assert last.threads <= first.threads  # one that an earlier test left may end meanwhile
    assert last.files <= first.files
    # A model that stayed would weigh more than this; the slope over 200 is for the script.
    assert last.memory - first.memory < 16 * 2**20


def test_threads_get_the_numbers_that_they_would_get_alone():
    model, other = soak.small_vit(0), soak.small_vit(1)
    jobs = [(model, soak.batch(0)), (other, soak.batch(1)), (model, soak.batch(2))]
    alone = [soak.numbers(job, depth=0) for job in jobs]
    assert soak.in_threads(jobs, depth=0) == alone
    assert soak.state(model).hooks == 0
    assert soak.numbers(jobs[0], depth=0) == alone[0]
