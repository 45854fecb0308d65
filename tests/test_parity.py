"""Our step against bare PyTorch: the same weights bit for bit, and any split into micro-steps the same gradient."""

import pytest
import torch
import torch.nn.functional as F

from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.train.loop import seed_everything
from kill_driver import TinyData, TinyModel, tiny_training, weights_hash


@pytest.mark.parity
def test_our_loop_is_bare_pytorch_bit_for_bit(tmp_path):
    sections = {
        "schedule": {"epochs": 2, "warmup_steps": 3},
        "batch": {"micro_batch_size": 4, "gradient_accumulation_steps": 2},
    }
    training = tiny_training(tmp_path, **sections)
    for _ in training.steps():
        pass
    seed_everything(3)
    model, data = TinyModel().train(), TinyData()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
    for number in range(14):
        factor = (number + 1) / 3 if number < 3 else (14 - number) / 11
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * factor
        batches = [data.collate(i) for i in data.epoch_steps(number // 7)[number % 7]]
        count = float(sum(len(b["labels"]) for b in batches))
        for batch in batches:
            (F.cross_entropy(model(batch["ids"]), batch["labels"], reduction="sum") / count).backward()
        torch.nn.utils.clip_grad_norm_([*matrices, *vectors], 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
    assert weights_hash(training.step.model) == weights_hash(model)


HEADS = [
    ("causal-lm", "tiny-llama", {}),
    ("masked-lm", "tiny-bert", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    ("sequence-classification", "tiny-bert", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    ("token-classification", "tiny-bert", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    ("seq2seq-lm", "tiny-t5", {"dropout_rate": 0.0}),
]


@pytest.mark.parity
@pytest.mark.parametrize(("head", "model", "config"), HEADS)
def test_four_micro_steps_are_one_big_batch(head, model, config):
    """Uneven padding; fp32 sums in another order, so 1e-5 of the largest weight change is allowed."""
    workload = generic_workload(head)
    content = {
        "name": "a",
        "workload": head,
        "model": {"name": model, "config": config},
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "weight_decay": 0},
        "batch": {"sequence_length": 24},
    }
    results = []
    for pieces in (1, 4):
        torch.manual_seed(0)
        step = build_step(settings_from(content), workload, "cpu", pretrained=False)
        start = [p.detach().clone() for p in step.model.parameters()]
        batch = uneven_batch(workload, settings_from(content))
        size = 8 // pieces
        parts = [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, 8, size)]
        for part in parts:
            part["count"] = (part["labels"] != -100).sum()
        result = step.run(parts, StepObserver())
        results.append((result.loss, [p.detach() - s for p, s in zip(step.model.parameters(), start, strict=True)]))
    (one_loss, one), (four_loss, four) = results
    assert four_loss.item() == pytest.approx(one_loss.item(), rel=1e-5)
    largest = max(change.abs().max() for change in one)
    assert largest > 0
    assert max((a - b).abs().max() for a, b in zip(one, four, strict=True)) <= 1e-5 * max(1.0, largest)


def uneven_batch(workload, settings):
    torch.manual_seed(1)
    batch = workload.example_batch(settings, 8, 24)
    lengths = torch.tensor([24, 3, 17, 9, 24, 5, 12, 20])
    real = torch.arange(24)[None] < lengths[:, None]
    for key, value in batch.items():
        if key == "labels" and value.ndim == 1:
            batch[key] = torch.randint(0, 2, value.shape)
        elif key == "attention_mask":
            batch[key] = real.long()
        else:
            fill = -100 if key == "labels" else 0
            classes = (0, 2) if key == "labels" and workload.name == "token-classification" else (3, 400)
            batch[key] = torch.where(real, torch.randint(*classes, value.shape), torch.tensor(fill))
    return batch


@pytest.mark.parity
def test_right_padding_needs_no_mask_in_a_causal_model():
    workload = generic_workload("causal-lm")
    content = settings_from({"name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}})
    torch.manual_seed(0)
    model = build_step(content, workload, "cpu", pretrained=False).model.eval()
    batch = uneven_batch(workload, content)
    with torch.no_grad():
        loss = workload.loss(model, batch).sum
        masked = model(input_ids=batch["input_ids"], attention_mask=(batch["labels"] != -100).long()).logits
        logits, labels = masked, workload.targets(batch["labels"])
        expected = F.cross_entropy(logits.reshape(-1, 500), labels.reshape(-1), ignore_index=-100, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_lora_trains_only_adapters_and_names_wrong_targets():
    workload = generic_workload("causal-lm")
    content = {
        "name": "a",
        "workload": "causal-lm",
        "model": {"name": "tiny-llama"},
        "adapter": {"kind": "lora", "targets": ["q_proj"]},
    }
    step = build_step(settings_from(content), workload, "cpu", pretrained=False)
    step.freeze_encoder(False)
    assert all("lora_" in n for n, p in step.model.named_parameters() if p.requires_grad)
    content["adapter"]["targets"] = ["query"]
    with pytest.raises(InvalidSettings, match="q_proj"):
        build_step(settings_from(content), workload, "cpu", pretrained=False)


def test_recomputing_blocks_changes_no_gradient():
    workload = generic_workload("causal-lm")
    gradients = []
    for blocks in ("none", "blocks", "selective"):
        content = settings_from(
            {"name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "activation_checkpointing": blocks}
        )
        torch.manual_seed(0)
        model = build_step(content, workload, "cpu", pretrained=False).model
        workload.loss(model, uneven_batch(workload, content)).sum.backward()
        gradients.append([p.grad for p in model.parameters()])
    for other in gradients[1:]:
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients[0], other, strict=True))
