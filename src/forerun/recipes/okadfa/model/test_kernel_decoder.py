import itertools

import pytest
import torch
import torch.nn.functional as F

from forerun.errors import InvalidSettings, UnknownModel
from forerun.recipes.okadfa.model.kernel_decoder import (
    POSITION_SCALE,
    SHAPES,
    DecoderConfig,
    KernelDecoder,
    decoder_config,
    sinusoids,
)

RULES = ["backpropagation", "dfa-macro", "dfa-micro", "shallow"]
ATTENTIONS = ["softmax", "elu", "favor"]
IDS = torch.randint(0, 40, (2, 20), generator=torch.Generator().manual_seed(0))


def tiny(**changes):
    torch.manual_seed(0)
    return KernelDecoder(
        DecoderConfig(
            **{"vocabulary_size": 40, "width": 16, "layers": 3, "heads": 2, "feed_forward": 32, "chunk": 8} | changes
        )
    )


def gradients(model, called=None):
    model.zero_grad()
    logits = (model if called is None else called)(IDS).logits
    F.cross_entropy(logits.flatten(0, 1), IDS.flatten()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_follow_the_formula(name):
    with torch.device("meta"):
        model = KernelDecoder(SHAPES[name].config)
    assert sum(p.numel() for p in model.parameters()) == SHAPES[name].config.parameters


@pytest.mark.literature
def test_shapes_are_what_they_are_not_what_they_were_called():
    """In millions, tied; the last three are GPT-2 Small, Medium and Large but for positions (1024 · d)."""
    millions = {name: round(shape.config.parameters / 1e6, 1) for name, shape in SHAPES.items()}
    assert millions["okadfa-fast"] == 123.7
    assert millions["okadfa-production"] == 177.4
    assert millions["okadfa-production-4x"] == 202.6
    assert millions["okadfa-max"] == 303.4
    assert millions["okadfa-mega"] == 583.9
    published = {"okadfa-fast": 124_439_808, "okadfa-max-4x": 354_823_168, "okadfa-mega-4x": 774_030_080}
    for name, count in published.items():
        config = SHAPES[name].config
        assert config.parameters + 1024 * config.width == count
    assert round(SHAPES["okadfa-fast"].config.non_embedding_parameters / 1e6, 1) == 85.1


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_without_feedback_gradients_are_those_of_plain_autograd_bit_for_bit(attention):
    """The blocks called one after the other, with none of the model's own forward."""
    model = tiny(attention=attention)
    own = gradients(model)
    model.zero_grad()
    hidden = model.embedding(IDS) + sinusoids(20, 16, IDS.device) * POSITION_SCALE
    for block in model.blocks:
        hidden = hidden + block.attention(block.attention_norm(hidden))[0]
        hidden = hidden + block.feed_forward(block.feed_forward_norm(hidden))
    F.cross_entropy(model.head(model.final_norm(hidden)).flatten(0, 1), IDS.flatten()).backward()
    assert own.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert torch.equal(own[name], parameter.grad), name


@pytest.mark.parametrize(("attention", "rule"), itertools.product(ATTENTIONS, RULES[1:]))
def test_the_top_gets_true_gradients_and_the_blocks_below_others(attention, rule):
    model = tiny(attention=attention, learning_rule=rule)
    own = gradients(model)
    with model.trained_by("backpropagation"):
        true = gradients(model)
    last = "blocks.2.feed_forward" if rule == "dfa-micro" else "blocks.2"
    for name in true:
        if name.startswith(("final_norm", last)):
            assert torch.equal(own[name], true[name]), name
    below = [name for name in own if name.startswith(("blocks.0", "blocks.1")) and true[name].norm() > 0]
    if rule == "shallow":
        assert not below
    else:
        assert len(below) > 20
        assert all((own[n] - true[n]).norm() > 1e-3 * true[n].norm() for n in below)


@pytest.mark.parametrize("rule", ["dfa-macro", "dfa-micro"])
def test_feedback_that_carries_the_true_gradient_is_backpropagation(rule):
    """Parts that add nothing are identities, through which the true gradient is the error itself: feedback by the
    identity must then give every part backpropagation's gradient."""
    model = tiny(learning_rule=rule, feedback="identity", attention="softmax")
    for block in model.blocks:
        for writer in (block.attention.output, block.feed_forward[2]):
            torch.nn.init.zeros_(writer.weight)
    own = gradients(model)
    with model.trained_by("backpropagation"):
        true = gradients(model)
    for name in true:
        assert torch.allclose(own[name], true[name], atol=1e-7), name
    assert any(true[name].norm() > 1e-4 for name in true if name.startswith("blocks.0"))


@pytest.mark.parametrize(("attention", "rule"), itertools.product(["softmax", "favor"], RULES))
def test_checkpointing_changes_no_gradient(attention, rule):
    model = tiny(attention=attention, learning_rule=rule)
    plain = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = gradients(model)
    assert again.keys() == plain.keys()
    for name in plain:
        assert torch.equal(again[name], plain[name]), name


@pytest.mark.parametrize(("attention", "rule"), [("softmax", "dfa-micro"), ("favor", "dfa-macro"), ("elu", "shallow")])
def test_compiling_changes_no_gradient(attention, rule):
    model = tiny(attention=attention, learning_rule=rule, layers=2, chunk=16)
    plain = gradients(model)
    torch._dynamo.reset()
    compiled = gradients(model, torch.compile(model, backend="aot_eager"))
    assert compiled.keys() == plain.keys()
    for name in plain:
        assert torch.allclose(compiled[name], plain[name], atol=1e-7), name


@pytest.mark.parametrize("rule", ["dfa-macro", "dfa-micro"])
def test_blocks_are_detached(rule):
    """No path of the graph leads from one block's input to the block below: what is behind the cut can be freed."""
    model = tiny(learning_rule=rule)
    requires_grad_flags = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, inputs: requires_grad_flags.append(inputs[0].requires_grad))
    model(IDS)
    assert requires_grad_flags == [True, False, False]  # the embedding learns through block 0


def test_orthogonality_can_reach_its_floor_and_sees_what_is_not():
    model = tiny()
    assert model.orthogonality().item() < 1e-6
    with torch.no_grad():
        model.blocks[0].attention.query.weight.mul_(2)
    assert model.orthogonality().item() == pytest.approx(9 / 3, rel=1e-4)  # (4 − 1)² in one of three blocks


def test_redraw_is_the_same_for_a_seed_and_new_for_another():
    model = tiny()
    first = [block.attention.projection.clone() for block in model.blocks]
    model.redraw(5)
    second = [block.attention.projection.clone() for block in model.blocks]
    model.redraw(5)
    assert all(torch.equal(a, b.attention.projection) for a, b in zip(second, model.blocks, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert "feedback" in model.state_dict()


@pytest.mark.parametrize(
    ("name", "overrides", "error", "word"),
    [
        ("okadfa-tini", {}, UnknownModel, "okadfa-tiny"),
        ("okadfa-tiny", {"witdh": 8}, InvalidSettings, "width"),
        ("okadfa-tiny", {"width": 30}, InvalidSettings, "heads"),
        ("okadfa-tiny", {"layers": 1, "learning_rule": "dfa-macro"}, InvalidSettings, "layers"),
    ],
)
def test_wrong_configurations_are_refused(name, overrides, error, word):
    with pytest.raises(error, match=word):
        decoder_config(name, overrides)
