"""The browser in which pages are opened, one for a module."""

import pytest
from support import browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as started:
        yield started
