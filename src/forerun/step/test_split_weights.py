"""What is gathered when, on real tensors in a group whose other ranks do not exist."""

import pytest
import torch
from torch import nn

from forerun.errors import NotSupported
from forerun.step.split_weights import SplitWeights, ZeroSizes
from forerun.virtual.process_group import one_of

RANKS, WIDTH, LAYERS = 4, 16, 6
MATRIX = WIDTH * WIDTH


def layers():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


class Watch(nn.Module):
    """A network that notes after each layer how many elements of matrices are here."""

    def __init__(self):
        super().__init__()
        self.layers = layers()
        self.here: list[int] = []

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
            self.here.append(elements_here(self))
        return inputs


def elements_here(model):
    return sum(
        p.untyped_storage().nbytes() // p.element_size() for p in model.parameters() if p.numel() == MATRIX
    )  # fmt: skip


def passes(sizes, count=2, **options):
    """A watched network after `count` passes there and back, and its weights."""
    torch.manual_seed(0)
    with one_of(RANKS):
        model = Watch()
        weights = SplitWeights(model, RANKS, sizes, **options)
        for _ in range(count):
            model.here.clear()
            model(torch.randn(2, WIDTH, requires_grad=True)).sum().backward()
        return model, weights


PLAIN = ZeroSizes(prefetch_bucket=0, persistence=WIDTH, reuse=0)


def test_each_rank_keeps_a_part_and_small_weights_whole():
    model, weights = passes(PLAIN, count=0)
    assert [each.part.numel() for each in weights.weights[:2]] == [MATRIX // RANKS, WIDTH // RANKS]
    assert elements_here(model) == 0
    assert all(layer.bias.untyped_storage().nbytes() > 0 for layer in model.layers), "within `persistence`"


def test_without_prefetching_one_layer_is_here_at_a_time():
    model, _ = passes(PLAIN)
    assert model.here == [0] * LAYERS, "released behind its forward pass"
    assert elements_here(model) == 0, "and behind its gradient"


def test_the_next_are_gathered_ahead_once_the_order_is_known():
    sizes = ZeroSizes(prefetch_bucket=MATRIX + 1, persistence=WIDTH, reuse=0)
    first, _ = passes(sizes, count=1)
    assert first.here == [0] * LAYERS, "nobody knows yet what comes"
    second, _ = passes(sizes, count=2)
    assert second.here[0] == 0, "under way: what is gathered together has its own memory when it has come"
    assert max(second.here) > 0
    assert elements_here(second) == 0


def test_what_is_used_again_soon_stays():
    """The last layer of the forward pass is the first of the backward pass."""
    model, _ = passes(ZeroSizes(prefetch_bucket=0, persistence=WIDTH, reuse=3 * MATRIX))
    assert model.here[-2:] == [MATRIX, 2 * MATRIX]
    assert model.here[0] == 0
    everything, _ = passes(ZeroSizes(prefetch_bucket=0, persistence=WIDTH))
    assert everything.here == [MATRIX * n for n in range(1, LAYERS + 1)], "a model within `reuse` stays whole"
    assert elements_here(everything) == 0, "until its gradients are there"


def test_no_more_are_gathered_ahead_than_may_be_here():
    model, _ = passes(ZeroSizes(prefetch_bucket=100 * MATRIX, persistence=WIDTH, reuse=0, live=2 * MATRIX))
    assert max(model.here) <= 2 * MATRIX


def test_parts_of_one_list_lie_in_one_buffer():
    with one_of(RANKS):
        model = layers()
        lists = [list(model.parameters())[:4], list(model.parameters())[4:]]
        weights = SplitWeights(model, RANKS, PLAIN, lists)
        assert [flat.numel() for flat in weights.flats] == [
            sum(-(-p.numel() // RANKS) for p in each) for each in lists
        ]  # fmt: skip
        assert weights.of(lists[0][0]).part.untyped_storage()._cdata == weights.flats[0].untyped_storage()._cdata


def test_frozen_layers_are_released_too():
    torch.manual_seed(0)
    with one_of(RANKS):
        model = Watch()
        for layer in list(model.layers)[1:]:
            layer.requires_grad_(False)
        SplitWeights(model, RANKS, PLAIN)
        for _ in range(2):
            model(torch.randn(2, WIDTH)).sum().backward()
        assert elements_here(model) == 0


class Borrows(nn.Module):
    """Reads the weight of a layer that it does not call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, inputs):
        return nn.functional.linear(inputs, self.layer.weight)


def test_a_weight_that_another_module_reads_is_refused():
    with one_of(RANKS):
        model = Borrows()
        weights = SplitWeights(model, RANKS, PLAIN)
        weights.weights[0].fill()  # as a fake tensor, which has no memory to miss
        with pytest.raises(NotSupported, match="another module reads"):
            model(torch.randn(2, WIDTH)).sum().backward()


def test_a_width_that_ranks_do_not_divide_is_padded():
    with one_of(3):
        weights = SplitWeights(nn.Linear(5, 7, bias=False), 3, ZeroSizes(persistence=0))
        (weight,) = weights.weights
        assert (weight.size, weight.whole.numel(), weight.elements) == (12, 36, 35)


@pytest.mark.parametrize(("hidden", "bucket", "ahead", "small"), [(4096, 16777216, 15099494, 40960)])
def test_the_trainers_sizes_follow_the_width(hidden, bucket, ahead, small):
    """transformers 5.23, `trainer_config_finalize`: hidden², its 0.9, ten times hidden; the rest is DeepSpeed's."""
    sizes = ZeroSizes.automatic(hidden)
    assert (sizes.reduce_bucket, sizes.prefetch_bucket, sizes.persistence) == (bucket, ahead, small)
    assert (sizes.live, sizes.reuse) == (ZeroSizes().live, ZeroSizes().reuse)
