"""Effects of spans against loops, and what is measured on which model."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support.blocks import Stack, moved, own_block
from torch import nn

import oversmooth
from oversmooth import InputError, models
from oversmooth.diagnosis.effects import IGNORED, EffectOn, masked, next_tokens
from oversmooth.diagnosis.spans import angular_distance, block_influence
from oversmooth.inputs.batches import Batch

SIZES = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, vocab_size=11)
IDS = torch.tensor([[5, 3, 9, 1, 7, 0], [2, 8, 4, 6, 1, 3], [1, 1, 2, 3, 5, 8]])
MASK = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6, [0, 0, 1, 1, 1, 1]])


class MaskToken:
    """All that spans ask of a tokenizer."""

    mask_token_id = 10


def llama(**more):
    return moved(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **more)))


def classifier():
    torch.manual_seed(0)
    return moved(transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=4)))


def cross_entropy(logits, target):
    logits = logits.double().numpy()
    return math.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target]


@given(seed=st.integers(0, 100), padded=st.booleans())
def test_next_tokens_against_a_loop(seed, padded):
    draw = torch.Generator().manual_seed(seed)
    before, after = torch.randn(2, 3, 6, 11, generator=draw)
    mask = MASK if padded else None
    targets = next_tokens(IDS, mask)
    found = EffectOn("next token", before, targets, mask)(after)
    for row in range(3):
        places = [t for t in range(5) if mask is None or mask[row, t + 1]]
        wanted = [
            cross_entropy(after[row, t], IDS[row, t + 1]) - cross_entropy(before[row, t], IDS[row, t + 1])
            for t in places
        ]
        assert float(found[row]) == pytest.approx(np.mean(wanted), abs=1e-5)


@given(seed=st.integers(0, 100))
def test_other_effects_against_numpy(seed):
    draw = torch.Generator().manual_seed(seed)
    before, after = torch.randn(2, 3, 6, 5, generator=draw).double().numpy()
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (before, after))
    kl = (p * np.log(p / q)).sum(-1)
    torch_before, torch_after = torch.tensor(before), torch.tensor(after)
    assert EffectOn("KL", torch_before[:, 0], None, None)(torch_after[:, 0]).numpy() == pytest.approx(kl[:, 0])
    weights = MASK.numpy() / MASK.numpy().sum(-1, keepdims=True)
    assert EffectOn("KL", torch_before, None, MASK)(torch_after).numpy() == pytest.approx((weights * kl).sum(-1))
    u, v = ((weights[..., None] * x).sum(1) for x in (before, after))
    cosine = (u * v).sum(-1) / np.linalg.norm(u, axis=-1) / np.linalg.norm(v, axis=-1)
    assert EffectOn("cosine", torch_before, None, MASK)(torch_after).numpy() == pytest.approx(1 - cosine)
    assert angular_distance(torch.tensor(u), torch.tensor(v)).numpy() == pytest.approx(np.arccos(cosine) / np.pi)
    by_token = (before * after).sum(-1) / np.linalg.norm(before, axis=-1) / np.linalg.norm(after, axis=-1)
    assert block_influence(torch_before, torch_after, MASK).numpy() == pytest.approx(1 - (weights * by_token).sum(-1))


def test_masked_tokens_are_ordinary_ones_and_their_share_is_that_of_bert():
    ids, special = torch.randint(1, 9, (40, 50)), torch.zeros(40, 50, dtype=torch.bool)
    special[:, 0] = True
    mask = torch.ones(40, 50, dtype=torch.long)
    mask[:, 40:] = 0
    mask[0, 2:] = 0  # a text of one ordinary token
    batch, targets = masked(Batch({"input_ids": ids}, special), mask, 10, torch.Generator().manual_seed(0))
    chosen = targets != IGNORED
    assert torch.equal(targets[chosen], ids[chosen])
    assert torch.equal(batch.inputs["input_ids"], torch.where(chosen, 10, ids))
    assert not bool((chosen & (special | (mask == 0))).any())
    assert chosen.any(-1).all()
    assert float(chosen.sum()) / (39 * 39) == pytest.approx(0.15, abs=0.02)


def test_a_decoder_has_its_next_token_loss_and_the_angle_of_its_last_token():
    model, text = llama(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    found = oversmooth.spans(model, text).spans
    assert (found.effect, found.vector, found.inputs, len(found.spans)) == ("next token", "last token", 3, 6)
    with torch.no_grad():
        states = model(**text, output_hidden_states=True, use_cache=False)
        losses = [model(input_ids=one[None], labels=one[None]).loss for one in IDS]
    assert found.unchanged == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
    before, after = states.hidden_states[0].double(), states.hidden_states[1].double()
    cosine = nn.functional.cosine_similarity(before, after, dim=-1)
    assert found.spans[0].influence == pytest.approx(1 - float(cosine.mean()), rel=1e-5)
    assert found.spans[0].angle == pytest.approx(float(cosine[:, -1].arccos().mean()) / math.pi, rel=1e-5)


def test_spans_sum_the_changes_of_their_blocks():
    diagnosis = oversmooth.spans(llama(), IDS)
    for span in diagnosis.spans.spans:
        inside = diagnosis.layers[span.first : span.last + 1]
        for part in span.changes:
            changes = [change for layer in inside for change in layer.changes if change.part == part.part]
            assert len(changes) == span.length
            assert part.log_hfc == pytest.approx(sum(change.log_hfc for change in changes), abs=1e-6)
            assert part.log_hfc - part.log_lfc == pytest.approx(part.log_hfc_lfc, abs=1e-5)
    assert oversmooth.Diagnosis.from_json(diagnosis.to_json()).spans == diagnosis.spans


def test_predictions_need_no_further_pass_and_are_what_the_page_says():
    model, ran = classifier(), []
    model.classifier.register_forward_hook(lambda *_: ran.append(1))
    diagnosis = oversmooth.spans(model, IDS, drop=False, repeat=False)
    found, before = diagnosis.spans, len(ran)
    assert before < 10
    single = {span.first: span.influence for span in found.spans if span.length == 1}
    heights = [0.0]
    for layer in diagnosis.layers[1:]:
        heights.append(heights[-1] + sum(change.log_hfc for change in layer.changes))
    for span in found.spans:
        inside = [single[block] for block in range(span.first, span.last + 1)]
        growth = math.sqrt(math.exp(heights[-1] - heights[span.last]))
        assert span.predicted_drop == pytest.approx(growth * sum(inside), rel=1e-5)
        assert span.predicted_repeat == pytest.approx(growth * max(inside), rel=1e-5)
        assert span.drop is None
    assert list(found.by_length("predicted_drop")) == [1, 2, 3]


def test_which_effect_is_measured():
    bert = moved(transformers.BertModel(transformers.BertConfig(**SIZES)))
    found = oversmooth.spans(bert, {"input_ids": IDS, "attention_mask": MASK}, longest=1).spans
    assert (found.effect, found.vector, found.unchanged) == ("cosine", "mean token", None)
    lm = moved(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)))
    assert oversmooth.spans(lm, IDS, tokenizer=MaskToken(), longest=1).spans.effect == "masked token"
    assert oversmooth.spans(classifier(), IDS, longest=1).spans.effect == "KL"
    found = oversmooth.spans(classifier(), IDS, [0, 3, 2], longest=1).spans
    assert found.effect == "labels"
    with torch.no_grad():
        logits = classifier()(IDS).logits
    wanted = np.mean([cross_entropy(row, label) for row, label in zip(logits, (0, 3, 2), strict=True)])
    assert found.unchanged == pytest.approx(wanted, rel=1e-5)


def test_a_head_that_the_checkpoint_lacks_is_not_measured(tmp_path):
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    assert oversmooth.spans(models.load(str(tmp_path)), IDS, tokenizer=MaskToken(), longest=1).spans.effect == "cosine"


def test_one_way_alone_and_short_spans():
    found = oversmooth.spans(classifier(), IDS, drop=False, longest=2).spans
    assert all(span.drop is None and span.repeat is not None for span in found.spans)
    assert [span.blocks for span in found.spans] == ["1", "2", "3", "1–2", "2–3"]
    assert list(found.by_length("repeat")) == [1, 2]
    assert found.by_length("drop") == {}


def test_an_interrupted_run_resumes(tmp_path):
    model, ran = classifier(), []
    model.classifier.register_forward_hook(lambda *_: ran.append(1))
    whole = oversmooth.spans(model, IDS, memory=tmp_path).spans
    passes = len(ran)
    assert list(tmp_path.iterdir()) == []

    def stop(done, *_):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        oversmooth.spans(model, IDS, memory=tmp_path, progress=stop)
    ran.clear()
    assert oversmooth.spans(model, IDS, memory=tmp_path).spans == whole
    assert len(ran) == passes - 7
    with torch.no_grad():
        model.classifier.weight.add_(0.1)  # another model has its own
    assert oversmooth.spans(model, IDS, memory=tmp_path).spans != whole


@pytest.mark.parametrize(
    ("model", "how", "sentence"),
    [
        (lambda: Stack(own_block(16)), {}, "single block.*; give a deeper model"),
        (lambda: Stack(own_block(16), own_block(16)), {"labels": [1, 2]}, "has no head; leave them out"),
        (lambda: Stack(own_block(16), own_block(16)), {"longest": 0}, "longest is 0; give a whole number"),
        (lambda: Stack(own_block(16), own_block(16)), {"labels": [1, 2, 3]}, "for 2 inputs; give one class number for"),
    ],
)
def test_bad_input_is_one_sentence(model, how, sentence):
    with pytest.raises(InputError, match=sentence):
        oversmooth.spans(moved(model()), torch.randn(2, 5, 16), **how)


def test_outputs_with_tokens_first_are_refused():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2, enable_nested_tensor=False).eval()
    with pytest.raises(InputError, match=r"\(n, b, d\), \(5, 3, 16\); wrap it"):
        oversmooth.spans(model, torch.randn(5, 3, 16))


def test_labels_that_the_model_does_not_know():
    with pytest.raises(InputError, match="range from 0 to 4, but the model has 4 outputs"):
        oversmooth.spans(classifier(), IDS, [0, 1, 4])
