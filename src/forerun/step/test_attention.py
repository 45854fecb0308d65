"""Offsets in place of block masks mean the same; kernels are those that the settings name.

CUDA's operator has no CPU kernel, so one is registered here: attention by hand, document by document. What is proven
is everything around it: offsets, rows laid end to end, causality, dropout's and scale's places, and gradients.
`tests/test_gpu.py` does the same with the true kernel.
"""

import contextlib
import json
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import forerun
from forerun.errors import InvalidSettings, NotSupported
from forerun.models.build import config_of
from forerun.settings.load import settings_from
from forerun.step import test_chunked_loss as helper
from forerun.step.attention import (
    FORCED,
    NAME,
    kernel_of_documents,
    kernels_of,
    runs_package,
    take_offsets,
    take_package,
    takes_offsets,
)
from forerun.step.decoder_types import MASKS_ONLY
from forerun.step.test_chunked_loss import TINY, batch_of, step_of
from forerun.step.test_documents import CASES, gradients_of
from forerun.step.training_step import StepObserver
from forerun.step.workload import halves

AMPERE = (8, 0)


def documents_of(edges, *tensors):
    """(H, T, D) of each document, key heads repeated for grouped queries."""
    heads = tensors[0].shape[1]
    wide = [tensor.repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in tensors]
    for first, end in pairwise(edges.tolist()):
        yield slice(first, end), [tensor[first:end].transpose(0, 1) for tensor in wide]


def shares(query, key, causal, scale, left=None):
    """Softmax of the scores, (H, T, T); `left` is how many tokens before it a token sees, None for all."""
    scores = scale * query @ key.transpose(1, 2)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
    if left is not None:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).tril(-left - 1).bool(), -torch.inf)
    return scores.softmax(-1)


def attended(query, key, value, edges, causal, scale, left=None):
    out = torch.empty_like(query)
    for place, (q, k, v) in documents_of(edges, query, key, value):
        out[place] = (shares(q, k, causal, scale, left) @ v).transpose(0, 1)
    return out


def slopes(slope, query, key, value, edges, causal, scale, left=None):
    """Gradients by query, key and value, by hand: a kernel below autograd cannot ask it."""
    groups = query.shape[1] // key.shape[1]
    of_query, of_key, of_value = (torch.empty_like(query) for _ in range(3))
    for place, (q, k, v, s) in documents_of(edges, query, key, value, slope):
        share = shares(q, k, causal, scale, left)
        by_share = s @ v.transpose(1, 2)
        by_score = share * (by_share - (by_share * share).sum(-1, keepdim=True)) * scale
        of_query[place] = (by_score @ k).transpose(0, 1)
        of_key[place] = (by_score.transpose(1, 2) @ q).transpose(0, 1)
        of_value[place] = (share.transpose(1, 2) @ s).transpose(0, 1)
    return of_query, *(whole.unflatten(1, (-1, groups)).sum(2) for whole in (of_key, of_value))


@contextlib.contextmanager
def cpu_kernel():
    """CUDA's operator on the CPU; yields how often it ran, forward and backward."""
    calls = {"forward": 0, "backward": 0}

    def forward(query, key, value, cum_q, cum_k, max_q, max_k, dropout, causal, debug, *, scale=None, **more):
        assert query.ndim == key.ndim == value.ndim == 3
        assert cum_q.dtype == torch.int32
        assert cum_q[0] == 0
        assert cum_q[-1] == len(query)
        assert int(cum_q.diff().min()) > 0
        assert int(cum_q.diff().max()) == max_q == max_k
        assert dropout == 0
        assert not debug
        calls["forward"] += 1
        nothing = torch.empty(0)
        left = more.get("window_size_left")
        out = attended(query, key, value, cum_q, causal, scale or query.shape[-1] ** -0.5, left)
        return out, torch.zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.int64), nothing, nothing

    def backward(
        slope, query, key, value, out, lse, cum_q, cum_k, max_q, max_k, dropout, causal, state, unused, *, scale=None,
        **more,
    ):  # fmt: skip
        calls["backward"] += 1
        left = more.get("window_size_left")
        return slopes(slope, query, key, value, cum_q, causal, scale or query.shape[-1] ** -0.5, left)

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        yield calls


def with_offsets(step):
    """The model is fp32 here; only the choice is made as for an A100 in bf16."""
    settings = step.settings.model_copy(update={"precision": "bf16-mixed"})
    assert take_offsets(step.model, settings, AMPERE).kind == "offsets"


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "workload"), [case for case in CASES if case[0] not in {*MASKS_ONLY, "gemma2"}])
def test_offsets_are_block_masks(kind, workload, monkeypatch):
    """fp32 sums in another order: 1e-4 of the largest gradient, as packed against padded."""
    monkeypatch.setitem(helper.HEADS, TINY[kind].parameters_of, workload)
    loss, count, rows, gradients = gradients_of(kind, workload, "packed")
    with cpu_kernel() as calls:
        offset_loss, offset_count, offset_rows, others = gradients_of(kind, workload, "packed", with_offsets)
    assert calls["forward"] == calls["backward"] > 0
    assert (offset_count, offset_rows) == (count, rows)
    assert offset_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert set(others) == set(gradients)
    for name, gradient in gradients.items():
        assert (others[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-8, name


@pytest.mark.parametrize(("kind", "workload"), [("bert", "sequence-classification"), ("llama", "causal-lm")])
def test_a_batch_cut_in_two_keeps_its_documents(kind, workload, monkeypatch):
    """What running out of memory does to a batch."""
    monkeypatch.setitem(helper.HEADS, TINY[kind].parameters_of, workload)
    with cpu_kernel() as calls:
        loss, _, _, gradients = gradients_of(kind, workload, "packed", with_offsets)
        whole = calls["forward"]
        cut, _, _, others = gradients_of(
            kind, workload, "packed", with_offsets, lambda batch: [exact(part) for part in halves(batch)]
        )
    assert calls["forward"] > 2 * whole, "two parts for each"
    assert cut.item() == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in gradients.items():
        assert (others[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-8, name


def exact(part):
    """`longest` of a cut batch is a bound; the kernel of this file wants it exact."""
    return {**part, "longest": part["boundaries"].diff().max()}


@pytest.mark.parametrize("checkpointing", ["blocks", "selective"])
def test_recomputed_blocks_get_the_offsets_again(checkpointing, monkeypatch):
    monkeypatch.setitem(helper.HEADS, TINY["bert"].parameters_of, "masked-lm")
    _, _, _, gradients = gradients_of("bert", "masked-lm", "packed")
    original = helper.step_of
    monkeypatch.setattr(
        "forerun.step.test_documents.step_of",
        lambda kind, loss, **sections: original(kind, loss, activation_checkpointing=checkpointing, **sections),
    )
    with cpu_kernel() as calls:
        _, _, _, others = gradients_of("bert", "masked-lm", "packed", with_offsets)
    again = 2 if checkpointing == "blocks" else 1
    assert calls["forward"] == again * calls["backward"]
    for name, gradient in gradients.items():
        assert (others[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-8, name


def test_batches_that_are_not_packed_keep_their_padding_mask():
    step, other = step_of("bert", "full"), step_of("bert", "full")
    batch = batch_of(step)
    batch["attention_mask"][:, 7:] = 0
    settings = settings_from({**step.settings.model_dump(), "precision": "bf16-mixed", "batch": {"padding": "packed"}})
    take_offsets(step.model, settings, AMPERE)
    assert takes_offsets(step.model)
    assert not takes_offsets(other.model)
    loss, expected = (each.micro_step(batch, 1.0, 0, StepObserver())[0] for each in (step, other))
    assert loss.item() == expected.item()


def test_what_is_saved_does_not_name_this_attention(tmp_path):
    step = step_of("bert", "full")
    settings = settings_from({**step.settings.model_dump(), "precision": "bf16-mixed", "batch": {"padding": "packed"}})
    take_offsets(step.model, settings, AMPERE)
    step.model.save_pretrained(tmp_path)
    assert NAME not in json.dumps(json.loads((tmp_path / "config.json").read_text()))


@pytest.mark.parametrize(
    ("changes", "capability", "word"),
    [
        ({}, AMPERE, ""),
        ({"precision": "fp16-true"}, (9, 0), ""),
        ({"model": {"name": "bert-base-uncased", "attention": "sdpa:flash"}}, (8, 9), ""),
        ({"compile": "default"}, AMPERE, ""),
        ({}, None, "only GPUs"),
        ({}, (7, 5), "8.0"),
        ({"precision": "tf32"}, AMPERE, "16 bits"),
        ({"model": {"name": "bert-base-uncased", "attention": "sdpa:efficient"}}, AMPERE, "efficient"),
        ({"model": {"name": "bert-base-uncased", "config": {"hidden_size": 780}}}, AMPERE, "heads of 65"),
        ({"model": {"name": "bert-base-uncased", "config": {"num_attention_heads": 3}}}, AMPERE, ""),
        ({"model": {"name": "bert-base-uncased", "config": {"num_attention_heads": 3}}}, (8, 6), "heads of 256"),
        ({"compile": "reduce-overhead"}, AMPERE, "CUDA graphs"),
    ],
)
def test_which_devices_and_settings_have_the_kernel(changes, capability, word):
    content = {"name": "a", "workload": "masked-lm", "model": {"name": "bert-base-uncased"}, "precision": "bf16-mixed",
               "batch": {"padding": "packed"}}  # fmt: skip
    settings = settings_from({**content, **changes})
    kernel = kernel_of_documents(settings, config_of(settings), capability)
    assert kernel.kind == ("masks" if word else "offsets")
    assert word in kernel.why
    assert ("block masks" if word else "variable-length attention") in kernel.description


def test_nothing_is_chosen_where_nothing_is_packed():
    step = step_of("bert", "full")
    assert take_offsets(step.model, step.settings, AMPERE) is None
    assert step.documents is None


class Attentions(TorchDispatchMode):
    """Notes the fused attention kernels that run; the plain arithmetic of `math` is none."""

    def __init__(self):
        super().__init__()
        self.kernels = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        self.kernels |= {name} if "attention" in name else set()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kernel", "is_fused"), [("auto", True), ("sdpa:flash", True), ("sdpa:math", False)])
def test_the_kernel_that_the_settings_name_is_run(kernel, is_fused):
    """A forecast counts on it; until 2026-11-22 training took PyTorch's choice whatever they said."""
    step = step_of("llama", "full", model={"name": "tiny-llama", "attention": kernel})
    with Attentions() as noted:
        step.run([batch_of(step)], StepObserver())
    assert bool(noted.kernels) is is_fused
    assert all("flash" in name for name in noted.kernels)


def test_every_kernel_that_settings_can_force_is_known_to_pytorch():
    for kernel in FORCED:
        settings = settings_from(
            {"name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama", "attention": kernel}}
        )
        with kernels_of(settings):
            query = torch.ones(1, 1, 2, 4)
            assert F.scaled_dot_product_attention(query, query, query).shape == query.shape


PACKAGE = {"name": "a", "workload": "causal-lm", "precision": "bf16-true", "model": {"name": "tiny-llama"}}


@pytest.mark.parametrize(
    ("attention", "capability", "changes", "words"),
    [
        ("flash_attention_2", (7, 5), {}, "compute capability 8.0; found 7.5"),
        ("flash_attention_2", None, {}, "no CUDA GPU"),
        ("flash_attention_2", (8, 0), {"precision": "fp32"}, "16 bits; found precision='fp32'"),
        ("flash_attention_3", (8, 0), {}, "compute capability 9.0 .Hopper.; found 8.0"),
        ("flash_attention_3", (10, 0), {}, "found 10.0"),
        ("flash_attention_3", (9, 0), {"batch": {"padding": "packed"}}, "flash_attention_2 or auto"),
    ],
)
def test_a_package_is_refused_by_name_where_it_has_no_kernel(attention, capability, changes, words):
    settings = settings_from({**PACKAGE, **changes, "model": {"name": "tiny-llama", "attention": attention}})
    with pytest.raises(InvalidSettings, match=words):
        take_package(nn.Module(), settings, capability)


def test_training_needs_the_package_itself():
    step = step_of("llama", "full")
    settings = settings_from({**PACKAGE, "model": {"name": "tiny-llama", "attention": "flash_attention_2"}})
    with pytest.raises(NotSupported, match=r"flash_attention_2 cannot be used here: .*Set it to sdpa"):
        take_package(step.model, settings, AMPERE)


def test_a_forecast_does_not():
    settings = {**PACKAGE, "model": {"name": "tiny-llama", "attention": "flash_attention_2"}, "data": {"examples": 8}}
    seconds = forerun.forecast(settings, gpu="a100-40gb").step.seconds.expected
    other = forerun.forecast({**settings, "model": {"name": "tiny-llama"}}, gpu="a100-40gb").step.seconds.expected
    assert seconds == pytest.approx(other, rel=0.3)


def test_flex_attention_is_not_forecast():
    settings = {**PACKAGE, "model": {"name": "tiny-llama", "attention": "flex_attention"}, "data": {"examples": 8}}
    with pytest.raises(NotSupported, match="flex_attention"):
        forerun.forecast(settings, gpu="a100-40gb")


@pytest.mark.parametrize(
    ("attention", "capability", "runs"),
    [("flash_attention_2", (8, 0), True), ("flash_attention_2", (7, 5), False), ("sdpa", (8, 0), False)],
)
def test_which_cards_run_the_package_of_the_settings(attention, capability, runs):
    settings = settings_from({**PACKAGE, "model": {"name": "tiny-llama", "attention": attention}})
    assert runs_package(settings, capability) is runs
