import numpy
import pytest
import torch
from torch import nn

import forerun


@pytest.fixture
def gpu():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        yield gpu


def names(gpu):
    return [gpu.trace.calls[op.call].name.split(".")[1] for op in gpu.trace.ops]


def test_a_known_mask_gives_the_right_size_of_an_unknown_tensor(gpu):
    features = torch.randn(3, 5, 8, device="cuda")
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], device="cuda").bool()
    assert features[mask].shape == (8, 8)
    assert features[:, mask[0]].shape == (3, 2, 8)
    assert features.masked_select(mask.unsqueeze(-1)).shape == (64,)
    assert features[torch.tensor([0, 2], device="cuda"), mask.sum(1)[:2] % 5].shape == (2, 8)
    assert gpu.assumed == []


@pytest.mark.parametrize("size", [64, 800])
def test_masks_of_pixels_are_known_where_a_detector_makes_them_smaller(gpu, size):
    """As DETR does for the features of its backbone: a padded batch has a mask that attention must take."""
    pixels = torch.zeros(4, size, size, dtype=torch.long)
    pixels[:, : size // 2] = 1
    mask = nn.functional.interpolate(pixels.to("cuda")[None].float(), size=(size // 16, size // 16)).to(torch.bool)[0]
    assert not mask.all()
    assert int(mask.sum()) == 4 * (size // 16) * -(-size // 32)
    assert gpu.assumed == []


def test_all_close_is_known_of_known_values_and_assumed_of_others(gpu):
    """As metrics that keep one state for several of them compare it (torchmetrics)."""
    counts = torch.tensor([1.0, 2.0], device="cuda")
    assert torch.allclose(counts, counts + 1e-9)
    assert not torch.allclose(counts, counts + 1)
    assert torch.allclose(torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda"))
    (line,) = gpu.assumed
    assert "a bool read from the device" in line


@pytest.mark.parametrize("write", ["index", "scatter", "masked_fill"])
def test_floating_ones_at_the_places_of_labels_are_a_known_mask(gpu, write):
    """As losses with margins find the logits of their classes (ArcFace, CosFace)."""
    cosines, labels = torch.randn(64, 1000, device="cuda"), torch.randint(0, 1000, (64,)).cuda()
    ones = torch.zeros(64, 1000, device="cuda")
    if write == "index":
        ones[torch.arange(64), labels] = 1
    elif write == "scatter":
        ones.scatter_(1, labels[:, None], 1.0)
    else:
        ones.masked_fill_(labels[:, None] == torch.arange(1000, device="cuda"), 1.0)
    assert cosines[ones == 1].shape == (64,)
    assert cosines[ones < 0.5].shape == (64 * 999,)
    ones[0] = torch.randn(1000, device="cuda")  # not known any more
    assert cosines[ones == 1].shape == (64 * 1000,)


def test_positions_may_be_single_numbers_of_the_device(gpu):
    grid, places = torch.ones(3, 4, device="cuda"), torch.tensor([[0, 1], [2, 3]], device="cuda")
    rows, columns = zip(*places, strict=True)
    grid[rows, columns] = 0.0
    assert grid[rows, columns].tolist() == [0.0, 0.0]
    assert grid.sum().item() == 10.0
    assert gpu.assumed == []


def test_results_of_unknown_size_are_the_largest(gpu):
    values = torch.randn(6, 4, device="cuda")
    rows, columns = torch.where(values > 0)
    assert rows.shape == columns.shape == (24,)
    assert values[rows, columns].shape == (24,)
    assert values[values > 0].shape == (24,)
    assert torch.unique(values).shape == (24,)
    assert names(gpu).count("nonzero") == 1
    assert len(gpu.assumed) == 3


def test_checks_of_unknown_values_pass(gpu):
    boxes = torch.rand(10, 4, device="cuda")
    assert (boxes[:, 2:] >= boxes[:, :2]).all()
    assert not (boxes < 0).any()
    assert not torch.isnan(boxes).any()


def test_a_router_of_experts_gives_each_as_many_tokens(gpu):
    tokens, experts, chosen = 32, 8, 2
    _, index = torch.randn(tokens, experts, device="cuda").topk(chosen)
    mask = nn.functional.one_hot(index, experts)
    assert [len(torch.where(mask[:, :, expert])[0]) for expert in range(experts)] == [
        tokens * chosen // experts
    ] * experts
    assert torch.bincount(index.flatten(), minlength=experts).tolist() == [8] * experts
    assert any("topk" not in line and "answered" in line for line in gpu.assumed)


def test_ctc_loss_needs_as_much_memory_as_its_lengths_say(gpu):
    scores = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
    targets = torch.randint(1, 20, (4, 10)).cuda()
    lengths = torch.tensor([10, 3, 7, 5]).cuda()
    loss = nn.functional.ctc_loss(scores.log_softmax(-1), targets, torch.full((4,), 50).cuda(), lengths)
    loss.backward()
    call = next(call for call in gpu.trace.calls if call.name.startswith("aten._ctc_loss."))
    assert [spec.shape for spec in call.outputs] == [(4,), (4, 50, 2 * 10 + 1)]
    assert scores.grad.shape == scores.shape
    assert "_ctc_loss_backward" in names(gpu)


def test_weights_that_are_tied_stay_tied(gpu):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head, self.middle = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False), Listing(8, 8)
            self.head.weight = self.embedding.weight
            self.head.weight.no_decay = True

    class Listing(nn.Linear):  # as recurrent layers do
        def _apply(self, fn, recurse=True):
            result = super()._apply(fn, recurse)
            self.flat = [self.weight, self.bias]
            return result

    net = Tied().cuda()
    assert net.head.weight is net.embedding.weight
    assert net.head.weight.no_decay
    assert len(list(net.parameters())) == 3
    assert net.middle.flat[0] is net.middle.weight
    net.head(net.middle(net.embedding(torch.zeros(2, 3, dtype=torch.long, device="cuda")))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_parts_that_share_weights_may_move_one_after_the_other(gpu):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    first.cuda()
    second.cuda()
    assert second.weight is first.weight


def test_optimizers_and_norms_take_the_foreach_path(gpu):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.zeros(2, 4, device="cuda")).sum().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    assert {"_foreach_norm", "_foreach_lerp_", "_foreach_addcdiv_"} <= set(names(gpu))
    assert "addcdiv_" not in names(gpu)


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.bfloat16, "flash"), (torch.float32, "efficient")])
def test_attention_is_the_cards_own_kernel(gpu, dtype, kernel):
    query = torch.randn(2, 4, 64, 64, device="cuda", dtype=dtype, requires_grad=True)
    nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    assert {f"_scaled_dot_product_{kernel}_attention", f"_scaled_dot_product_{kernel}_attention_backward"} <= set(
        names(gpu)
    )


def test_attention_has_a_gradient_for_its_bias(gpu):
    query = torch.randn(2, 4, 64, 64, device="cuda")
    bias = torch.zeros(1, 4, 64, 64, device="cuda", requires_grad=True)
    nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=bias).sum().backward()
    assert bias.grad.shape == bias.shape


def test_a_generator_of_the_device_can_be_made_and_used(gpu):
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert generator.device == torch.device("cuda", 0)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.randn(4, device="cuda", generator=generator).shape == (4,)
    torch.empty(4, device="cuda").normal_(generator=generator)
    assert torch.randperm(5, generator=torch.Generator().manual_seed(0)).sum() == 10


@pytest.mark.parametrize("known", [True, False])
def test_truth_values_are_read_where_pytorch_leaves_the_operator_whole(gpu, known):
    """As DTensor asks whether the states of all ranks' random numbers are equal."""
    value = torch.ones((), device="cuda") if known else torch.randn(3, 5, device="cuda")[0, 0] > 7
    assert torch.ops.aten.is_nonzero.default(value) == known
    assert bool(gpu.assumed) != known


def test_checks_of_distributions_pass():
    with forerun.virtual_cuda("t4"):
        mean = torch.randn(8, 4, device="cuda")
        assert torch.distributions.Normal(mean, mean.exp(), validate_args=True).sample().shape == (8, 4)


def test_a_mask_that_is_counted_is_true_everywhere(gpu):
    """As it is where it picks: a program that raises where it finds nothing goes on (neuralforecast's windows)."""
    scores = torch.randn(40, 10, device="cuda")
    available = (scores.sum(1) >= 1) & (scores.sum(1) < 5)
    assert int(available.sum()) == int(torch.count_nonzero(available)) == len(scores[available]) == 40


def test_faults_and_right_guesses_are_not_counted(gpu):
    """Else a loop that ends at an accuracy of 99 % would, and one that ends at NaN."""
    scores, labels = torch.randn(40, 10, device="cuda"), torch.randint(0, 10, (40,), device="cuda")
    assert int((scores.argmax(1) == labels).sum()) < 40
    assert int((scores.isnan() | scores.isinf()).sum()) == 0


def test_chances_are_even_where_the_host_draws_from_them():
    """As networks give them that have learned nothing: `numpy.random.choice(p=…)` refuses what does not add up to 1."""
    with forerun.virtual_cuda("t4"):
        scores = torch.randn(3, 50, device="cuda", requires_grad=True)
        chances = torch.softmax(scores, -1)[0].detach().cpu()
        assert chances.sum().item() == pytest.approx(1.0)
        numpy.random.choice(50, p=chances.numpy())
        for unknown in (chances, (scores[0] / 0.8).exp().cpu(), torch.softmax(scores.half(), 0).float().cpu().T[0]):
            assert 0 <= torch.multinomial(unknown, 1).item() < len(unknown)
