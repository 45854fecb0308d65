"""Scripts whose one process drives several cards: layers dealt over them, batches dealt over copies, each full alone."""

import pytest
import torch
from tests.exec_runs import DATA_PARALLEL, forecast

import forerun
from forerun.errors import InvalidSettings
from forerun.forecasting.program import deciding_card
from forerun.forecasting.program_account import account_of
from forerun.hardware.catalogue import device
from forerun.report.program_page import render_program_page
from forerun.virtual.cuda.launchers import parse_command

TWO_HALVES = """
import torch
from torch import nn

WIDTH = 2048

class Halves(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.first = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]).to("cuda:0")
        self.second = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)]).to(1)

    def forward(self, inputs):
        waiting, outputs = None, []
        for part in inputs.split(self.rows):
            if waiting is not None:
                outputs.append(self.second(waiting))
            waiting = self.first(part).to("cuda:1")
        outputs.append(self.second(waiting))
        return torch.cat(outputs)

model = Halves(ROWS)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(9):
    output = model(torch.randn(4096, WIDTH, device="cuda"))
    assert output.device == torch.device("cuda", 1) and output.get_device() == 1
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LAYER_BYTES = (2048 * 2048 + 2048) * 4


def test_memory_is_of_each_card(tmp_path):
    """Four layers on one card, two on the other: weights and gradients of each are where they were put."""
    check = f"""
assert torch.cuda.device_count() == 2 and torch.cuda.current_device() == 0
weights = [sum(p.numel() * 4 for p in half.parameters()) for half in (model.first, model.second)]
assert weights == [4 * {LAYER_BYTES}, 2 * {LAYER_BYTES}]
optimizer.zero_grad()
del output
before = torch.cuda.memory_allocated(0)
with torch.cuda.device(1):
    kept = torch.zeros(2**20, device="cuda")
assert kept.device.index == 1 and torch.cuda.memory_allocated(0) == before
assert torch.cuda.memory_allocated("cuda:1") >= weights[1] + 2**22
assert torch.cuda.memory_stats(1)["allocated_bytes.all.current"] == torch.cuda.memory_allocated(1)
"""
    document, run = forecast(tmp_path, check, head=TWO_HALVES.replace("ROWS", "4096"), cards=2)
    first, second = document.cards
    assert (first.number, second.number, first.fits, second.fits) == (0, 1, True, True)
    assert document.memory.peak_allocated_bytes == max(first.peak_allocated_bytes, second.peak_allocated_bytes)
    said = [run.session.card.at(number).peak_allocated_bytes for number in (0, 1)]  # torch.cuda.max_memory_allocated
    assert [first.peak_allocated_bytes, second.peak_allocated_bytes] == said
    alone, _ = forecast(
        tmp_path,
        "",
        head=TWO_HALVES.replace("ROWS", "4096")
        .replace("(1)", "(0)")
        .replace(":1", ":0")
        .replace('device("cuda", 1)', 'device("cuda", 0)')
        .replace("get_device() == 1", "get_device() == 0"),
    )
    assert 8 * LAYER_BYTES < first.peak_allocated_bytes < alone.memory.peak_allocated_bytes - 4 * LAYER_BYTES
    assert 4 * LAYER_BYTES < second.peak_allocated_bytes < alone.memory.peak_allocated_bytes - 8 * LAYER_BYTES
    assert document.run.total_steps == 9


def test_files_are_of_the_card_that_needs_most(tmp_path):
    """Its own memory alone, and the times of both cards."""
    document, run = forecast(tmp_path, "", head=TWO_HALVES.replace("ROWS", "4096"), cards=2)
    number = deciding_card(document)
    assert document.cards[number].device_bytes == max(card.device_bytes for card in document.cards)
    account = account_of(run, device("rtx-3090"), "train.py", number)
    assert account.memory.peak_allocated_bytes == document.memory.peak_allocated_bytes
    page = render_program_page([document], account)
    assert f"on cuda:{number}, which needs most" in page
    assert all(f"GPU cuda:{each} of the process" in page for each in (0, 1))
    spans = [span for _, spans in account.steps_with_spans for span in spans]
    assert all(span.issue_end <= span.begin + 1e-12 for span in spans if span.end > span.begin)


def test_halves_of_a_batch_overlap_on_two_cards(tmp_path):
    """One half waits for the other where the batch is whole; in eight parts both cards work at once."""
    wide = TWO_HALVES.replace("WIDTH = 2048", "WIDTH = 12288")  # little to copy for its arithmetic
    whole, _ = forecast(tmp_path, "", head=wide.replace("ROWS", "4096"), cards=2)
    parts, _ = forecast(tmp_path, "", head=wide.replace("ROWS", "512"), cards=2)
    # four of six layers are on the first card: no schedule is faster than these
    assert 4 / 6 < parts.step.seconds.expected / whole.step.seconds.expected < 0.85
    assert parts.step.mfu > whole.step.mfu


def test_one_card_is_full_while_the_other_has_room():
    with forerun.virtual_cuda("t4", gpus=2) as gpu:
        torch.empty(2**31, device="cuda:0")
        kept = [torch.empty(2**30, device=f"cuda:{number}") for number in (0, 1, 1, 1)]  # of 4 GiB each
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4\.00 GiB"):
            torch.empty(2**30, device="cuda:1")
        assert torch.empty(2**30, device="cuda:0").device.index == 0
        kept += [torch.empty(2**30, device="cuda:0") for _ in range(2)]
    assert [card.memory.peak_allocated_bytes >> 30 for card in gpu.cards] == [12, 12]


def test_devices_are_named_as_the_program_calls_them():
    with forerun.virtual_cuda("t4", gpus=2):
        one, two = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
        with pytest.raises(RuntimeError, match=r"two devices, cuda:0 and cuda:1"):
            one + two
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(3, device="cuda:2")
        made = [
            torch.tensor([1.0], device=two.device), two.new_zeros(3), two.new_tensor([1.0]), torch.zeros_like(two),
            two.cpu().to(two.device), two.half(), two.type("torch.cuda.HalfTensor"), nn_on(1), one.to(1), one.cuda(1),
            torch.as_tensor([1], device="cuda:1"), (one.to("cuda:1") + two),
        ]  # fmt: skip
        assert [each.device.index for each in made] == [1] * len(made)
        assert two.type("torch.cuda.HalfTensor").dtype == torch.float16
    with pytest.raises(InvalidSettings, match="found 0"):
        forerun.virtual_cuda("t4", gpus=0)


def nn_on(number):
    return torch.nn.Linear(3, 3).to(f"cuda:{number}").weight


def test_data_parallel_deals_the_batch(tmp_path):
    """Copies of the weights on the second card, the first half of the batch on the first, gradients summed there."""
    one, _ = forecast(tmp_path, DATA_PARALLEL)
    two, _ = forecast(
        tmp_path,
        DATA_PARALLEL.replace(
            "is not None", "is not None and parameter.grad.device.index == 0 == outputs.get_device()"
        ),
        cards=2,
    )
    assert not any("DataParallel" in each.what for each in two.assumed)
    hidden_bytes = 4096 * 4096 * 4
    saved = one.memory.peak_allocated_bytes - two.cards[0].peak_allocated_bytes
    assert hidden_bytes * 0.9 <= saved <= 2 * hidden_bytes  # of two to three matrices of hidden units each has a half
    weights = sum(
        p.numel() for p in torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.Linear(4096, 8)).parameters()
    )
    assert two.cards[1].peak_allocated_bytes > hidden_bytes + weights * 4
    assert two.run.cost == pytest.approx(2 * one.run.cost / one.run.seconds.expected * two.run.seconds.expected)


def test_cards_come_from_the_command(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert parse_command(["CUDA_VISIBLE_DEVICES=0,3", "python", str(script)]).cards == 2
    assert parse_command(["CUDA_VISIBLE_DEVICES=3", "python", str(script)]).cards == 1
    assert parse_command(["python", str(script)], cards=4).cards == 4
    assert parse_command(["CUDA_VISIBLE_DEVICES=0,1", "torchrun", "--nproc-per-node", "2", str(script)]).cards == 1
    with pytest.raises(InvalidSettings, match=r"--gpus 2 is of one process.*--nproc-per-node"):
        parse_command(["torchrun", "--nproc-per-node", "2", str(script)], cards=2)
