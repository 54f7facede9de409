"""The checkers of arguments: good ones pass as they are, bad ones are named in one sentence."""

import numpy as np
import pytest
import torch

from oversmooth import InputError
from oversmooth.safety import arguments

TOKENS, CPU = "(..., n, d)", torch.device("cpu")


def of_tokens(value, **settings):
    return arguments.tensor(value, "tokens", TOKENS, **settings)


def test_a_tensor_passes_as_it_is():
    for x in (torch.randn(2, 3, 4), torch.randn(2, 3).half()):
        assert of_tokens(x) is x
    x = torch.ones(2, 3, dtype=torch.long)
    assert of_tokens(x, floating=False) is x


@pytest.mark.parametrize("given", [[[1.0, 2.0], [3.0, 4.0]], np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)])
def test_lists_and_arrays_become_tensors(given):
    assert torch.equal(of_tokens(given), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


itself: list = []
itself.append(itself)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, r"^tokens are None; give a tensor \(\.\.\., n, d\)$"),
        ("\x1b[31mred", "^tokens are text; give a tensor"),
        (b"x", "bytes"),
        ({"a": 1}, "a dict"),
        (object(), "an object"),
        (torch.nn.Linear, "the class Linear"),
        (3, "are a single number"),
        (torch.tensor(1.0), "are a single number"),
        (np.float32(1), "are a single number"),
        ([], r"shape \(0,\)"),
        (torch.ones(4), r"shape \(4,\)"),
        (["a"], "a list that is not an array of numbers"),
        ([[1.0], [1.0, 2.0]], "a list that is not an array of numbers"),
        ([[10**400]], "a list that is not an array of numbers"),
        (itself, "a list that is not an array of numbers"),
        (np.array(["a"]), "not an array of numbers"),
        (torch.ones(2, 3, dtype=torch.long), "convert them to a floating type"),
        (torch.ones(2, 3, dtype=torch.bool), "convert them to a floating type"),
        (torch.ones(2, 3, dtype=torch.complex64), "give real numbers"),
        (torch.ones(2, 3).to(torch.float8_e4m3fn), "convert them to float32"),
        (torch.ones(2, 3, device="meta"), "without numbers"),
        (torch.ones(2, 3).to_sparse(), "are sparse; give a dense tensor"),
        (torch.ones(1, 1).expand(10**6, 10**6), "needs 4 TB of memory"),
    ],
)
def test_what_is_no_array_of_tokens(given, said):
    with pytest.raises(InputError, match=said) as refused:
        of_tokens(given)
    assert 10 <= len(str(refused.value)) <= 300
    assert "NoneType" not in str(refused.value)


def test_numbers_lose_no_digit():
    for given in ([0.1, 0.2], 0.1):
        found = arguments.numbers(given, "gamma", "give numbers", dtype=torch.float64, device=CPU)
        assert found.tolist() == given


@pytest.mark.parametrize("given", [[True, False], np.array([True, False]), torch.tensor([True, False])])
def test_masks(given):
    assert torch.equal(arguments.mask(given, CPU), torch.tensor([True, False]))


def test_numbers_of_all_libraries():
    for given in (2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0)):
        assert arguments.number(given, "strength") == 2
    assert arguments.whole(np.int64(3), "count") == 3
    assert isinstance(arguments.whole(torch.tensor(3), "count"), int)
    assert arguments.seed(2**63) == 2**63


NAN = float("nan")
REFUSED = [
    (lambda x: arguments.number(x, "strength"), r"^strength is .*; give a ",
     [None, True, "1", NAN, float("inf"), [1], {}, 10**400, 1j, torch.ones(2)]),
    (lambda x: arguments.fraction(x, "tie"), r"^tie is .*; give a ", [None, "1", NAN, -0.5, 1, torch.ones(2)]),
    (lambda x: arguments.whole(x, "count", most=9), r"^count is .*; give a whole number, 0 to 9$",
     [None, True, "1", 0.5, -1, 10**4000, [], torch.tensor(1.0)]),
    (arguments.seed, r"^seed is ", [None, 0.5, "x", 10**30, True]),
    (lambda x: arguments.flag(x, "learned"), r"^learned is .*; give True or False$",
     [None, "yes", 2, -1, {}, NAN, torch.ones(2)]),
    (lambda x: arguments.choice(x, "norm", ("a", "b")), r"^norm is .*; choose 'a' or 'b'$",
     [None, "c", ["a"], {"a": 1}, np.array(["a", "b"]), torch.ones(2)]),
    (arguments.path, r"^the path .*; give a path as text$", [None, 3, b"x", [], "", "x" * 5000, "a\0b", "\ud800" * 3]),
    (lambda x: arguments.mask(x, CPU), r"^mask ",
     ["x", 3, [], torch.ones(2), {"a": 1}, torch.ones(2, device="meta").bool()]),
    (lambda x: arguments.numbers(x, "gamma", "give numbers", dtype=torch.float32, device=CPU), r"^gamma .*; give ",
     [None, "1", {"a": 1}, [None], torch.ones(2, dtype=torch.complex64)]),
]  # fmt: skip


@pytest.mark.parametrize(("check", "said", "given"), REFUSED, ids=[said for _, said, _ in REFUSED])
def test_what_will_not_do_is_named(check, said, given):
    for one in given:
        with pytest.raises(InputError, match=said):
            check(one)


def test_flags_and_paths(tmp_path):
    flags = [arguments.flag(x, "learned") for x in (True, 1, np.bool_(True), torch.tensor(True), 0)]
    assert flags == [True, True, True, True, False]
    assert arguments.path(str(tmp_path)) == arguments.path(tmp_path) == tmp_path


def test_shapes_that_do_not_go_together():
    arguments.check_broadcast(u=(2, 3), kernel=())
    with pytest.raises(InputError, match=r"\(2,\) of u and \(3,\) of kernel do not broadcast"):
        arguments.check_broadcast(u=(2,), kernel=(3,), mask=())


def test_whatever_it_is_it_can_be_shown():
    for given in (object(), 10**5000, list(range(10**6)), "x" * 10**6, torch.ones(3), np.ones(3), len):
        assert len(arguments.shown(given)) < 100


def test_a_compiled_function_may_check():
    check = torch.compile(lambda x: of_tokens(x) * 2, backend="eager", fullgraph=True)
    assert torch.equal(check(torch.ones(2, 3)), torch.full((2, 3), 2.0))
