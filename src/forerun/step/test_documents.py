"""Packed documents are as good as alone: loss, gradients, and no leak between them."""

import pytest
import torch

from forerun.data.token_data import TokenData, TokenSample
from forerun.errors import NotSupported
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.decoder_types import DECODER_TYPES
from forerun.step.documents import ENCODER_FAMILIES, block_mask
from forerun.step.heads import generic_workload
from forerun.step.test_chunked_loss import TINY, step_of
from forerun.step.training_step import StepObserver

LENGTHS = (5, 9, 3, 7, 12, 4)
CASES = [(kind, "causal-lm") for kind in sorted(DECODER_TYPES & set(TINY))] + [
    (kind, workload)
    for kind in sorted(ENCODER_FAMILIES)
    for workload in ("masked-lm", "token-classification", "sequence-classification")
]


def samples(workload):
    generator = torch.Generator().manual_seed(2)
    token_samples = []
    for length in LENGTHS:
        ids = torch.randint(3, 60, (length,), generator=generator).tolist()
        labels = torch.randint(0, 2, (length,), generator=generator).tolist()
        target = {"causal-lm": None, "sequence-classification": labels[0]}.get(workload, labels)
        token_samples.append(TokenSample(ids, target))
    return token_samples


def gradients_of(kind, workload, padding, prepare=lambda step: None, cut=lambda batch: (batch,)):
    """Loss, count, rows and gradients of one epoch; `prepare` changes the step, `cut` makes parts of a batch."""
    sections = {"workload": workload, "batch": {"sequence_length": 16, "micro_batch_size": 8, "padding": padding}}
    step = step_of(kind, "full", **sections)
    step.workload = generic_workload(workload)
    prepare(step)
    data = TokenData(step.settings, samples(workload))
    batches = [data.collate(batch) for steps in data.epoch_steps(0) for batch in steps]
    rows = sum(len(batch["input_ids"]) for batch in batches)
    count = step.counted(batches)
    total = torch.zeros(())
    for part in [part for batch in batches for part in cut(batch)]:
        loss, _ = step.micro_step(part, count, 0, StepObserver())
        total += loss
    return total, count, rows, {n: p.grad for n, p in step.model.named_parameters() if p.grad is not None}


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "workload"), CASES)
def test_packed_is_padded(kind, workload, monkeypatch):
    """fp32 sums in another order: 1e-4 of the largest gradient."""
    import forerun.step.test_chunked_loss as helper

    monkeypatch.setitem(helper.HEADS, TINY[kind].parameters_of, workload)
    loss, count, rows, gradients = gradients_of(kind, workload, "longest")
    packed_loss, packed_count, packed_rows, packed = gradients_of(kind, workload, "packed")
    assert packed_count == count
    assert (rows, packed_rows) == (6, 3), "40 tokens in three rows of 16"
    assert packed_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert set(packed) == set(gradients)
    for name, gradient in gradients.items():
        assert (packed[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-8, name


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "workload"), [("llama", "causal-lm"), ("bert", "masked-lm")])
def test_attention_that_is_written_out_sees_one_document_too(kind, workload, monkeypatch):
    """It adds its mask to scores: booleans let every token see all others."""
    import forerun.step.test_chunked_loss as helper

    monkeypatch.setitem(helper.HEADS, TINY[kind].parameters_of, workload)
    loss, _, _, gradients = gradients_of(kind, workload, "longest")
    packed_loss, _, _, packed = gradients_of(
        kind, workload, "packed", lambda step: setattr(step.model.config, "_attn_implementation", "eager")
    )
    assert packed_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in gradients.items():
        assert (packed[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-8, name


@pytest.mark.parity
def test_adapters_take_packed_documents_too(monkeypatch):
    """The encoder under peft's wrappers is the one whose rows are pooled by document."""
    import forerun.step.test_chunked_loss as helper

    original = helper.step_of
    monkeypatch.setitem(helper.HEADS, TINY["bert"].parameters_of, "sequence-classification")
    monkeypatch.setattr(
        "forerun.step.test_documents.step_of",
        lambda kind, loss, **sections: original(kind, loss, adapter={"kind": "lora"}, **sections),
    )
    loss, _, _, gradients = gradients_of("bert", "sequence-classification", "longest")
    packed_loss, _, _, packed = gradients_of("bert", "sequence-classification", "packed")
    assert packed_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert any("lora_B" in name for name in gradients)
    assert any("classifier" in name for name in gradients)
    for name, gradient in gradients.items():
        assert (packed[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-8, name


def test_every_known_encoder_is_tried():
    """Decoders are in `test_decoder_types.py`."""
    assert set(TINY) >= ENCODER_FAMILIES


def test_a_token_sees_its_own_document_only():
    documents = torch.tensor([[1, 1, 2, 2, 2, 0]])
    mask = block_mask(documents, is_causal=False)[0, 0]
    assert mask[0].tolist() == [True, True, False, False, False, False]
    assert mask[5].tolist() == [False] * 5 + [True], "padding sees itself, so that no row is empty"
    causal = block_mask(documents, is_causal=True)[0, 0]
    assert causal[3].tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("model", "workload", "config"),
    [
        ("tiny-modernbert", "sequence-classification", {}),
        ("tiny-t5", "seq2seq-lm", {}),
        ("tiny-falcon", "causal-lm", {"alibi": True}),
    ],
)
def test_others_are_refused(model, workload, config):
    content = {"name": "a", "workload": workload, "model": {"name": model, "config": config},
               "batch": {"sequence_length": 16, "padding": "packed"}}  # fmt: skip
    with pytest.raises(NotSupported, match=r"batch\.padding"):
        prepare_model(settings_from(content), generic_workload(workload), pretrained=False)
