"""A loss that is compiled is the same loss, and rows that are compiled are one document each."""

import pytest
import torch

from forerun.settings.load import settings_from
from forerun.step.build import bind_step, prepare_model
from forerun.step.compiled_loss import is_compiled_whole, rows_of_one_document
from forerun.step.heads import generic_workload

SETTINGS = {
    "name": "c", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 800},
    "batch": {"micro_batch_size": 2, "sequence_length": 16},
}  # fmt: skip


@pytest.mark.parametrize("unit", ["model", "blocks-and-loss"])
def test_the_compiled_loss_is_the_loss(unit):
    """The same sum and the same gradients as in plain operators, rows with labels that do not count included."""
    workload = generic_workload("causal-lm")
    results = []
    for mode in ("none", "default"):
        settings = settings_from({**SETTINGS, "compile": mode, "compile_unit": unit})
        torch._dynamo.reset()
        torch.manual_seed(0)
        step = bind_step(settings, workload, prepare_model(settings, workload, pretrained=False), "cpu", "aot_eager")
        ids = torch.arange(32).reshape(2, 16)
        batch = {"input_ids": ids, "labels": ids.clone().masked_fill(ids % 5 == 0, -100)}
        loss = workload.loss(step.called, batch).sum
        loss.backward()
        gradients = [p.grad for p in step.model.parameters()]
        results.append((loss.detach(), *gradients))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "whole"), [({}, True), ({"compile_unit": "blocks"}, False), ({"compile_unit": "blocks-and-loss"}, True)]
)
def test_the_loss_is_compiled_where_it_is_said(change, whole):
    workload = generic_workload("causal-lm")
    settings = settings_from({**SETTINGS, "compile": "default", **change})
    model = prepare_model(settings, workload, pretrained=False)
    bind_step(settings, workload, model, "cpu", "aot_eager")
    assert is_compiled_whole(model) is whole


def test_transformers_looks_for_documents_again_afterwards():
    from transformers import masking_utils

    two = torch.tensor([[0, 1, 2, 0, 1]])
    with rows_of_one_document():
        assert masking_utils.find_packed_sequence_indices(two) is None
    assert masking_utils.find_packed_sequence_indices(two) is not None
