from dataclasses import dataclass

import numpy as np
import pytest
import torch

from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.recipes.text_classifier.frozen_states import (
    FrozenStates,
    padded_states,
    seconds_per_token_and_layer,
    weights_folder,
)
from forerun.recipes.text_classifier.model import SPLIT, TextClassifier, TransformerBackbone


@dataclass(frozen=True)
class Text:
    ids: tuple[int, ...]
    types: tuple[int, ...]


TEXTS = [Text((2, 7, 8, 3), (0, 0, 0, 0)), Text((2, 9, 3, 11, 12, 3), (0, 0, 0, 1, 1, 1)), Text((2, 5, 3), (0, 0, 0))]


def backbone(name="tiny-bert"):
    torch.manual_seed(0)
    return TransformerBackbone(build_model(model_config(name, {}, "auto"), "encoder"))


WIDTH = backbone().width


def never():
    raise AssertionError("an encoder was built")


def states(folder=None, build=backbone, **changes):
    return FrozenStates(name="tiny-bert", build=build, layers=1, width=WIDTH, with_types=True, folder=folder, **changes)


@pytest.mark.parametrize("family", SPLIT)
def test_training_on_states_is_training_on_texts(family):
    """The same loss and the same gradients, in a padded batch, although each text was computed by itself."""
    models = []
    for _ in range(2):
        inner = backbone(f"tiny-{family}")
        torch.manual_seed(1)
        models.append(TextClassifier(inner, 2, "attention", 0.0))
        models[-1].freeze_layers(1)
    frozen = FrozenStates(f"tiny-{family}", lambda: backbone(f"tiny-{family}"), 1, models[0].backbone.width, False)
    ids, mask = torch.full((3, 8), 1), torch.zeros(3, 8, dtype=torch.long)
    for row, text in enumerate(TEXTS):
        ids[row, : len(text.ids)], mask[row, : len(text.ids)] = torch.tensor(text.ids), 1
    padded = padded_states([frozen.of(text) for text in TEXTS], 8, frozen.width)
    for model, batch_states in zip(models, (None, padded), strict=True):
        model.train()
        for module in model.modules():  # what is trained has dropout; here it would hide everything else
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        torch.nn.functional.cross_entropy(model(ids, mask, states=batch_states), torch.tensor([0, 1, 0])).backward()
    nonzero_count = 0
    for (name, one), (_, other) in zip(models[0].named_parameters(), models[1].named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-3)
            nonzero_count += one.grad.abs().sum() > 0
    assert nonzero_count > 10


def test_frozen_layers_have_no_dropout_and_trained_ones_do():
    model = TextClassifier(backbone(), 2, "mean", 0.0)
    model.freeze_layers(1)
    model.train()
    ids = torch.tensor([TEXTS[0].ids])
    mask = torch.ones_like(ids)
    below = [model.backbone.below(ids, mask, None, 1) for _ in range(2)]
    assert torch.equal(*below)
    assert not torch.equal(*(model.backbone.above(below[0], mask, 1) for _ in range(2)))
    model.eval()
    assert torch.equal(*(model.backbone.above(below[0], mask, 1) for _ in range(2)))


def test_a_second_process_reads_what_the_first_computed(tmp_path):
    first, second = states(tmp_path), states(tmp_path, build=never)
    assert first.unknown_tokens(TEXTS) == 13
    assert first.fill(TEXTS[:2]) == 2
    assert second.unknown_tokens(TEXTS) == 3
    assert second.fill(TEXTS[:2]) == 0
    for text in TEXTS[:2]:
        assert np.array_equal(first.of(text), second.of(text))
    assert first.fill(TEXTS) == 1, "only what is new"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_file_is_computed_again(tmp_path):
    whole = states(tmp_path)
    whole.fill(TEXTS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:40])
    again = states(tmp_path)
    assert again.fill(TEXTS) == 3
    assert np.array_equal(again.of(TEXTS[1]), whole.of(TEXTS[1]))


def test_types_and_order_of_a_pair_count():
    frozen = states()
    plain = Text(TEXTS[1].ids, (0,) * 6)
    assert not np.allclose(frozen.of(TEXTS[1]), frozen.of(plain))


def test_a_forecast_needs_no_weights(tmp_path):
    empty = states(tmp_path, build=never, sizes_only=True)
    assert empty.fill(TEXTS) == 0
    assert empty.of(TEXTS[1]).shape == (6, empty.width)
    assert empty.seconds_of(1000) == pytest.approx(1000 * seconds_per_token_and_layer("tiny-bert"))
    assert empty.seconds_of(0) == 0


def test_computing_leaves_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    seconds_per_token_and_layer.cache_clear()
    states(build=lambda: TransformerBackbone(build_model(model_config("tiny-bert", {}, "auto"), "encoder"))).of(
        TEXTS[0]
    )
    seconds_per_token_and_layer("tiny-bert")
    assert torch.equal(torch.rand(2), expected)


def test_other_weights_and_other_layers_are_kept_elsewhere(tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"12")
    folders = {weights_folder(tmp_path, weights, 1), weights_folder(tmp_path, weights, 2)}
    (weights / "model.safetensors").write_bytes(b"123")
    folders.add(weights_folder(tmp_path, weights, 1))
    assert len(folders) == 3
