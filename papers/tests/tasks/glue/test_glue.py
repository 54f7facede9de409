"""Fine-tuning: files as they were published, arrays, the model with its mask, a run; metrics."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.language_example import counting, masked_recipe
from support.runs import train_task

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import data_folder
from oversmooth.steering import fold, steering_of
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tasks.glue.data import joined, load_examples, load_glue
from oversmooth_papers.tasks.glue.recipe import TASKS, Recipe
from oversmooth_papers.tasks.glue.task import GlueModel, GlueTask, metric, scored
from oversmooth_papers.tasks.language.task import model_of
from oversmooth_papers.tasks.registry import load_trained

LINES = ("train.jsonl", "val.jsonl")
PAIR = (("p", "h"),)
RESULT = "It fell. What happened as a result?"
PRONOUN = {"span2_index": 2, "span2_text": "him", "span1_text": "Mark"}
PUBLISHED = {
    "CoLA": ("x\t1\t\tOne sentence.", (("One sentence.",),), 1.0),
    "SST-2": ('sentence\tlabel\n"quoted words \t0', (('"quoted words ',),), 0.0),
    "MRPC": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t3\t4\tp\th", PAIR, 1.0),
    "STS-B": ("index\tsentence1\tsentence2\tscore\n0\tp\th\t3.800", PAIR, 3.8),
    "CB": ({"premise": "p", "hypothesis": "h", "label": "neutral"}, PAIR, 2.0),
    "RTE": ({"premise": "p", "hypothesis": "h", "label": "not_entailment"}, PAIR, 0.0),
    "WiC": ({"word": "run", "sentence1": "I run", "sentence2": "h", "label": True}, (("run: I run", "h"),), 1.0),
    "COPA": (
        {"premise": "It fell.", "choice1": "x", "choice2": "y", "question": "effect", "label": 1},
        ((RESULT, "x"), (RESULT, "y")),
        1.0,
    ),
    "WSC": (
        {"text": "Mark saw him there", "target": PRONOUN, "label": False},
        (("Mark saw * him * there", "Mark"),),
        0.0,
    ),
}


@pytest.mark.parametrize("task", PUBLISHED)
def test_published_files_are_read(task, tmp_path):
    """Tables, and a JSON object per line."""
    row, texts, label = PUBLISHED[task]
    text, names = (row, ("train.tsv", "dev.tsv")) if isinstance(row, str) else (json.dumps(row), LINES)
    for name in names:
        (tmp_path / name).write_text(text + "\n")
    assert [(example.texts, example.label) for example in load_examples(task, tmp_path)[0]] == [(texts, label)]
    for broken in (b"{nonsense\n", b"\xff\xfe\n"):
        (tmp_path / names[1]).write_bytes(text.encode() + b"\n" + broken)
        with pytest.raises(InputError, match=rf"line {text.count(chr(10)) + 2}: no example of {task}"):
            load_examples(task, tmp_path)
    (tmp_path / names[1]).unlink()
    with pytest.raises(InputError, match=f"has no {names[0]} or no {names[1]}"):
        load_examples(task, tmp_path)


def test_answers_of_a_passage_are_grouped_by_question(tmp_path):
    answers = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    questions = [{"question": "Q?", "answers": answers}, {"question": "R?", "answers": answers[:1]}]
    row = json.dumps({"passage": {"text": "P", "questions": questions}})
    for name in LINES:
        (tmp_path / name).write_text(f"{row}\n{row}\n")
    train, _ = load_examples("MultiRC", tmp_path)
    assert [example.texts[0] for example in train[:3]] == [("Q? a", "P"), ("Q? b", "P"), ("R? a", "P")]
    groups = [example.group for example in train]
    assert len(set(groups)) == 4
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("task", "counts"),
    [("CB", (250, 56)), ("RTE", (2490, 277)), ("WiC", (5428, 638)), ("CoLA", (8551, 1043)), ("SST-2", (67349, 872)),
     ("MRPC", (3668, 408)), ("STS-B", (5749, 1500)), ("COPA", (400, 100)), ("WSC", (554, 104)),
     ("MultiRC", (27243, 4848))],
)  # fmt: skip
def test_the_published_files_have_the_published_numbers(task, counts):
    if data_folder(TASKS[task].benchmark) is None:
        pytest.skip("OVERSMOOTH_DATA has no such folder")
    assert tuple(map(len, load_examples(task))) == counts


def test_the_longest_part_is_cut():
    assert joined([[1, 2, 3]], 9, 8) == [9, 1, 2, 3, 9]
    assert joined([[1, 2, 3, 4, 5, 6], [7, 8]], 0, 8) == [0, 1, 2, 3, 0, 7, 8, 0]
    assert joined([[1] * 50, [2] * 50], 0, 11) == [0, 1, 1, 1, 1, 0, 2, 2, 2, 2, 0]


# A run


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Masked models, plain and sharpening, with their tokenizer, folded as results keep them."""
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    for variant in ("plain", "sharpen"):
        recipe = masked_recipe(variant=variant)
        recipe = replace(recipe, shape=replace(recipe.shape, length=48))
        model = model_of(recipe)
        if variant != "plain":
            fold(model)
        paths[variant] = folder / f"{recipe.key}.safetensors"
        text = counting(masked=True).tokenizer.to_text()
        save_model(model, recipe, paths[variant], dtype=torch.float32, more={"tokenizer": text})
    return paths


@pytest.mark.parametrize("variant", ["plain", "sharpen"])
def test_a_model_is_fine_tuned_as_it_was_pretrained(pretrained, variant, tmp_path):
    data = load_glue("following", pretrained[variant])
    recipe = replace(Recipe(lr=3e-3), seed=1).fitted(data)
    assert (recipe.variant, recipe.data, recipe.epochs) == (variant, "following", TASKS["following"].epochs)
    task = GlueTask(recipe, data)
    begun = task.model()
    before, _ = load_trained(pretrained[variant])
    ids = data.dev.ids[:2, 0].long()
    # Warm from the folded weights, the encoder is what was pretrained.
    torch.testing.assert_close(begun.encoder.eval()(ids), before(ids), atol=2e-3, rtol=1e-3)
    assert (steering_of(begun.encoder) is None) == (variant == "plain")
    result = train_task(task, folder=tmp_path)
    assert set(result.scores) == {"accuracy"}
    again, own = load_trained(tmp_path / "model.safetensors")
    assert own == recipe
    assert task.evaluation(again, torch.device("cpu")).scores(final=True).keys() == result.scores.keys()
    if variant == "sharpen":
        for block in result.model.encoder.blocks:
            width = block.attn.proj.in_features
            H = (block.attn.qkv.weight[2 * width :].T @ block.attn.proj.weight.T).detach().double().numpy()
            assert (np.linalg.eigvals(H).real < 1e-4).all()
    facts = task.facts()
    right = [int(label) for label in data.dev.labels]
    often = max((0, 1), key=[int(label) for label in data.train.labels].count)
    assert facts["majority"]["accuracy"] == pytest.approx(sum(label == often for label in right) / len(right))


def test_padding_changes_nothing():
    shape = replace(masked_recipe().shape, dropout=0.0)
    model = GlueModel(shape, 3).eval()
    ids = torch.randint(257, (2, 1, 12))
    lengths = torch.tensor([[5], [12]])
    other = ids.clone()
    other[0, 0, 5:] = 7
    torch.testing.assert_close(model(ids, lengths), model(other, lengths))
    alone = model(ids[:1, :, :5], lengths[:1])
    torch.testing.assert_close(model(ids, lengths)[:1], alone)
    x = model.encoder(ids[0, :, :5], features=True)[0].mean(0)  # the mean of its tokens, by hand
    torch.testing.assert_close(alone[0], x @ model.head.weight.T + model.head.bias)
    assert GlueModel(shape, 1)(torch.randint(257, (2, 2, 12)), torch.full((2, 2), 12)).shape == (2, 2)


def test_losses_and_scores_by_kind(pretrained):
    data = load_glue("following", pretrained["plain"])
    number = replace(data, task="STS-B")
    task = GlueTask(replace(Recipe().fitted(data), data="STS-B"), number)
    answers, labels = torch.tensor([[0.2], [0.8]]), torch.tensor([1.0, 5.0])
    loss = task.loss(lambda *_: answers, (labels, labels, labels))
    assert float(loss) == pytest.approx(((0.2 - 0.2) ** 2 + (0.8 - 1.0) ** 2) / 2)
    dev = replace(data.dev, labels=torch.tensor([1.0, 5.0, 2.0]))
    assert scored("STS-B", [0.1, 0.9, 0.2], dev)["spearman"] == pytest.approx(1.0)
    dev = replace(data.dev, labels=torch.tensor([1.0, 0.0]), groups=torch.tensor([4, 4]))
    assert scored("MultiRC", [1, 1], dev) == {"f1": pytest.approx(2 / 3), "exact_match": 0.0}


def test_what_does_not_fit_is_refused(pretrained, tmp_path):
    data = load_glue("following", pretrained["plain"])
    with pytest.raises(InputError, match="the recipe is for CB"):
        GlueTask(Recipe(), data)
    with pytest.raises(InputError, match="there is no task 'MNLI'"):
        Recipe(data="MNLI")
    more = {"tokenizer": counting(masked=True).tokenizer.to_text(), "notes": '{"valid_perplexity": "x"}'}
    save_model(model_of(masked_recipe()), masked_recipe(), tmp_path / "notes.safetensors", more=more)
    with pytest.raises(InputError, match=r"the notes in its metadata are damaged .*train it again"):
        load_glue("following", tmp_path / "notes.safetensors")  # before anything is trained
    recipe = replace(masked_recipe(), shape=replace(masked_recipe().shape, causal=True))
    save_model(model_of(recipe), recipe, tmp_path / "causal.safetensors")
    with pytest.raises(InputError, match="is no masked language model"):
        load_glue("CB", tmp_path / "causal.safetensors")


def test_the_rate_rises_and_falls_in_a_line():
    rates = Recipe(epochs=2, lr=1.0, warmup=0.1).learning_rates(10)
    np.testing.assert_allclose(rates[:4], [0, 0.5, 1, 1 - 1 / 18])
    assert float(rates[-1]) == pytest.approx(1 / 18)


# Metrics: scikit-learn's and scipy's, so that what is asked of them is tested by counts and correlations of ranks


def measured(name, found, right, groups=()):
    return metric(name, np.array(found), np.array(right, dtype=float), np.array(groups))


def test_each_metric_is_the_published_one():
    found, right = [2, 0, 1, 1, 0, 2], [2, 0, 0, 1, 1, 2]
    assert measured("accuracy", found, right) == pytest.approx(4 / 6)
    assert measured("macro_f1", found, right) == pytest.approx((0.5 + 0.5 + 1) / 3)
    found, right = np.array([0.3, 2.0, -1.0, 2.0, 5.0]), np.array([1.0, 3.0, 0.0, 9.0, 4.0])
    ranks = [[2, 3.5, 1, 3.5, 5], [2, 3, 1, 5, 4]]
    assert measured("pearson", found, right) == pytest.approx(np.corrcoef(found, right)[0, 1])
    assert measured("spearman", found, right) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    binary = [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]
    assert measured("matthews", *binary) == pytest.approx(np.corrcoef(*binary)[0, 1])
    for name in ("matthews", "pearson", "spearman"):
        assert measured(name, [1, 1, 1], [0, 1, 1]) == 0


def test_exact_match_wants_all_answers_of_a_question():
    assert measured("exact_match", [1, 0, 1, 1], [1, 0, 1, 0], [7, 7, 8, 8]) == 0.5
    assert measured("f1", [0, 0], [0, 0]) == 0.0
    assert measured("f1", [1, 1, 0], [1, 0, 1]) == pytest.approx(0.5)


def test_without_sklearn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.metrics", None)
    with pytest.raises(InputError, match=r"testing on GLUE needs sklearn, .*install oversmooth-papers\[glue\]"):
        measured("f1", [0, 1], [0, 1])
