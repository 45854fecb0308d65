"""Chunked cross-entropy is the usual one: loss and every gradient, for every family that is said to be known."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from forerun.data.token_data import IGNORED
from forerun.errors import NotSupported
from forerun.models.catalogue import architectures
from forerun.settings.load import settings_from
from forerun.step import chunked_loss
from forerun.step.build import build_step, prepare_model
from forerun.step.decoder_types import DECODER_TYPES
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver

TINY = {row.model_type: row for row in architectures() if row.name.startswith("tiny-")}
HEADS = {"encoder": "masked-lm", "causal-lm": "causal-lm", "seq2seq-lm": "seq2seq-lm"}
NO_DROPOUT = {
    name: 0.0
    for name in (
        "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate", "dropout", "attention_dropout",
        "embd_pdrop", "attn_pdrop", "resid_pdrop", "classifier_dropout", "embedding_dropout", "mlp_dropout",
    )
}  # fmt: skip


def step_of(model_type, cross_entropy, **sections):
    row = TINY[model_type]
    workload = HEADS[row.parameters_of]
    content = {
        "name": "a", "workload": workload, "model": {"name": row.name}, "cross_entropy": cross_entropy,
        "optimizer": {"name": "sgd", "learning_rate": 0.1}, "batch": {"sequence_length": 12}, **sections,
    }  # fmt: skip
    torch.manual_seed(0)
    step = build_step(settings_from(content), generic_workload(workload), "cpu", pretrained=False)
    for module in step.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for name in NO_DROPOUT:
        if hasattr(step.model.config, name):
            setattr(step.model.config, name, 0.0)
    for module in step.model.modules():
        for name in ("dropout", "attention_dropout", "attn_dropout", "activation_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return step


def batch_of(step, size=3):
    torch.manual_seed(1)
    batch = step.workload.example_batch(step.settings, size, 12)
    for key in batch:
        if key.endswith("ids") or key == "labels":
            batch[key] = torch.randint(3, 60, batch[key].shape)
    batch["labels"][0, -4:] = IGNORED
    return batch


def loss_and_gradients(step, batch):
    loss, _ = step.micro_step(batch, 7.0, 0, StepObserver())
    return loss, {name: p.grad for name, p in step.model.named_parameters() if p.grad is not None}


@pytest.mark.parity
@pytest.mark.parametrize("model_type", sorted(chunked_loss.FAMILIES & set(TINY)))
def test_loss_and_gradients_are_those_of_the_full_logits(model_type, monkeypatch):
    """fp32 sums in another order: 1e-5 of the largest gradient."""
    full = step_of(model_type, "full")
    loss, gradients = loss_and_gradients(full, batch_of(full))
    vocabulary = full.model.get_output_embeddings().weight.shape[0]
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 4 * vocabulary * 5)  # chunks of five tokens
    chunked = step_of(model_type, "chunked")
    chunked_result, chunked_gradients = loss_and_gradients(chunked, batch_of(chunked))
    assert chunked_result.item() == pytest.approx(loss.item(), rel=1e-5)
    assert set(chunked_gradients) == set(gradients)
    for name, gradient in gradients.items():
        assert (chunked_gradients[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max() + 1e-9, name


def test_every_other_known_family_is_tried():
    """Decoders are in `test_decoder_types.py`."""
    assert set(TINY) >= chunked_loss.FAMILIES - DECODER_TYPES - chunked_loss.OTHER_DECODERS


def test_models_give_logits_again_afterwards():
    step = step_of("gemma2", "chunked")
    batch = batch_of(step)
    before = step.model.eval()(input_ids=batch["input_ids"]).logits
    step.model.train()
    step.micro_step(batch, 1.0, 0, StepObserver())
    after = step.model.eval()(input_ids=batch["input_ids"]).logits
    assert torch.equal(before, after)
    assert step.model.config.final_logit_softcapping is not None


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(2, 30), st.sampled_from([0.0, 3.0]), st.booleans())
def test_any_shape(tokens, vocabulary, cap, has_bias):
    generator = torch.Generator().manual_seed(tokens * 31 + vocabulary)
    hidden = torch.randn(tokens, 6, generator=generator, dtype=torch.float64).requires_grad_()
    head = nn.Linear(6, vocabulary, bias=has_bias).double()
    labels = torch.randint(-1, vocabulary, (tokens,), generator=generator)
    labels[labels < 0] = IGNORED
    logits = head(hidden)
    logits = cap * torch.tanh(logits / cap) if cap else logits
    usual = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    usual.backward()
    expected = [p.grad.clone() for p in (hidden, *head.parameters())]
    for p in (hidden, *head.parameters()):
        p.grad = None
    chunk = chunked_loss.CHUNK_BYTES
    chunked_loss.CHUNK_BYTES = 4 * vocabulary * 7
    try:
        loss = chunked_loss.chunked_cross_entropy(hidden, head, labels, cap=cap)
        (3 * loss).backward()
    finally:
        chunked_loss.CHUNK_BYTES = chunk
    assert loss.item() == pytest.approx(usual.item(), rel=1e-5, abs=1e-6)
    for p, gradient in zip((hidden, *head.parameters()), expected, strict=True):
        assert torch.allclose(p.grad, 3 * gradient, rtol=1e-4, atol=1e-5)


def test_low_precision_follows_autocast():
    """bf16 has 8 bits: gradients agree to a few thousandths of the largest."""
    full, chunked = (step_of("llama", kind, precision="bf16-mixed") for kind in ("full", "chunked"))
    loss, gradients = loss_and_gradients(full, batch_of(full))
    other, others = loss_and_gradients(chunked, batch_of(chunked))
    assert other.item() == pytest.approx(loss.item(), rel=2e-3)
    for name, gradient in gradients.items():
        assert (others[name] - gradient).abs().max() <= 0.02 * gradient.abs().max(), name


def test_without_gradients_there_is_only_the_loss():
    head = nn.Linear(4, 9)
    with torch.no_grad():
        loss = chunked_loss.chunked_cross_entropy(torch.randn(5, 4), head, torch.arange(5))
    assert loss.item() > 0
    assert not loss.requires_grad


@pytest.mark.parametrize(
    ("model", "adapter"), [("tiny-deberta-v2", {}), ("tiny-llama", {"kind": "lora", "targets": ["lm_head"]})]
)
def test_unknown_heads_are_refused(model, adapter):
    row = next(row for row in architectures() if row.name == model)
    workload = generic_workload(HEADS[row.parameters_of])
    content = {"name": "a", "workload": workload.name, "model": {"name": model}, "cross_entropy": "chunked",
               "batch": {"sequence_length": 8}, "adapter": adapter}  # fmt: skip
    settings = settings_from(content)

    def run():
        model = prepare_model(settings, workload, pretrained=False)
        workload.loss(model, workload.example_batch(settings, 1, 8))

    with pytest.raises(NotSupported, match="cross_entropy"):
        run()
