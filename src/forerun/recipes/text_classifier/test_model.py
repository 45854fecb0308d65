import pytest
import torch

from forerun.errors import InvalidSettings
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.models.code_encoder import CodeEncoderConfig
from forerun.recipes.text_classifier.model import SmallBackbone, TextClassifier, TransformerBackbone

SMALL = CodeEncoderConfig(vocabulary_size=100, buckets=64, ngram_width=4, width=16, feed_forward=16, layers=2)
FAMILIES = (
    "tiny-bert",
    "tiny-roberta",
    "tiny-xlm-roberta",
    "tiny-electra",
    "tiny-deberta-v2",
    "tiny-modernbert",
    "tiny-longformer",
)


def classifier(name="small", pooling="mean", labels=3):
    torch.manual_seed(0)
    backbone = (
        SmallBackbone(SMALL)
        if name == "small"
        else TransformerBackbone(build_model(model_config(name, {}, "auto"), "encoder"))
    )
    return TextClassifier(backbone, labels, pooling, 0.1).eval()


def batch(length=8, size=3):
    ids = torch.randint(3, 90, (size, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return ids.masked_fill(mask == 0, 0), mask


@pytest.mark.parametrize("pooling", ["cls", "mean", "attention"])
@pytest.mark.parametrize("name", ["small", "tiny-bert"])
def test_padding_changes_nothing(name, pooling):
    model = classifier(name, pooling)
    ids, mask = batch()
    wide = torch.nn.functional.pad(ids, (0, 8)), torch.nn.functional.pad(mask, (0, 8))
    torch.testing.assert_close(model(ids, mask), model(*wide), atol=1e-5, rtol=1e-4)


def test_poolings_differ():
    ids, mask = batch()
    logits = [classifier("tiny-bert", pooling)(ids, mask) for pooling in ("cls", "mean", "attention")]
    assert all(not torch.allclose(one, other) for one in logits for other in logits if one is not other)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_embeds_apart_from_its_encoder(name):
    """A shift of zero and nothing cut off are the plain pass; anything else is not."""
    try:
        model = classifier(name)
    except LookupError:
        pytest.skip(f"no {name} in the catalogue")
    ids, mask = batch()
    ids = ids.masked_fill(mask == 0, model.backbone.model.config.pad_token_id or 0)
    plain, shift = model(ids, mask), model.embedding_shift(ids)
    inside = mask.bool().any(dim=1)
    torch.testing.assert_close(model(ids, mask, shift=shift)[inside], plain[inside], atol=1e-4, rtol=1e-3)
    assert not torch.allclose(model(ids, mask, shift=shift + 0.5 * torch.randn_like(shift)), plain)
    assert not torch.allclose(model(ids, mask, keep_mask=torch.zeros_like(mask).float()), plain)


@pytest.mark.parametrize("name", ["small", "tiny-bert"])
def test_vectors_are_mixed_before_the_head(name):
    model = classifier(name)
    ids, mask = batch()
    plain = model(ids, mask)
    partner, share = torch.tensor([1, 2, 0]), torch.tensor([1.0, 0.25, 0.0])
    mixed = model(ids, mask, partner=partner, share=share)
    torch.testing.assert_close(mixed, share[:, None] * plain + (1 - share)[:, None] * plain[partner])


def test_frozen_layers_count_from_the_input():
    model = classifier("tiny-bert")
    model.freeze_layers(0)
    assert all(p.requires_grad for p in model.parameters())
    model.freeze_layers(1)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any("embeddings" in name or "layer.0." in name for name in trained)
    assert any("layer.1." in name for name in trained)
    whole = classifier("tiny-bert")
    whole.freeze_layers(2)
    assert all(name.startswith("classifier") for name, p in whole.named_parameters() if p.requires_grad)
    with pytest.raises(InvalidSettings, match="at most the 2 layers"):
        classifier("tiny-bert").freeze_layers(3)


def test_a_second_text_is_told_apart_by_its_types():
    model = classifier("tiny-bert")
    ids, mask = batch()
    types = torch.zeros_like(ids)
    types[:, 4:] = 1
    assert not torch.allclose(model(ids, mask, types), model(ids, mask, torch.zeros_like(ids)))
