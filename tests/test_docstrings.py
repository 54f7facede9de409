"""The reference is built from docstrings: every public callable says what it does and what each argument is."""

import dataclasses
import importlib
import inspect
import re

_NAMES = ("metrics", "theory", "anatomy", "steering", "models", "testing", "monitor", "integrations")
ROOMS = ["oversmooth", *(f"oversmooth.{room}" for room in _NAMES)]
_SECTION = re.compile(r"^Args:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): ", re.MULTILINE)


def public_callables():
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            subject = getattr(module, name)
            if callable(subject) and getattr(subject, "__module__", "").startswith("oversmooth"):
                yield f"{room}.{name}", subject


def missing_from_docstring(subject):
    """Arguments that its docstring does not describe under Args; fields of dataclasses carry their own words."""
    doc = inspect.getdoc(subject) or ""
    if not doc:
        return ["everything"]
    if inspect.isclass(subject) and (dataclasses.is_dataclass(subject) or issubclass(subject, BaseException)):
        return []
    arguments = [p.name for p in inspect.signature(subject).parameters.values() if p.kind is not p.VAR_KEYWORD]
    section = _SECTION.search(doc)
    described = {name for entry in _ENTRY.findall(section[1]) for name in entry.split(", ")} if section else set()
    alone = len(arguments) == 1 and section is None  # its summary says what the only argument is
    return [] if alone else sorted(set(arguments) - described)


def test_every_argument_of_the_public_interface_is_described():
    assert {name: gaps for name, subject in public_callables() if (gaps := missing_from_docstring(subject))} == {}


def test_gaps_are_found():
    def half(x, y):
        """Does something.

        Args:
            x: the one that is described
        """

    assert missing_from_docstring(half) == ["y"]
    assert missing_from_docstring(lambda x: x) == ["everything"]
