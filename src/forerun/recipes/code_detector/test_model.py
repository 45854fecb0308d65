import pytest
import torch
from torch import nn

from forerun.errors import NotSupported
from forerun.models.code_encoder import CodeEncoder, CodeEncoderConfig
from forerun.recipes.code_detector.model import Detector, PooledTransformer

CONFIG = CodeEncoderConfig(vocabulary_size=50, buckets=64, ngram_width=4, width=8, heads=2, feed_forward=16)


def test_heads_have_the_specified_shapes():
    model = Detector(CodeEncoder(CONFIG), CONFIG.output_width)
    ids = torch.randint(1, 50, (6, 12))
    output = model(ids, torch.ones_like(ids))
    assert output.logits.shape == (6, 2)
    assert output.vectors.shape == (6, 128)
    torch.testing.assert_close(output.vectors.norm(dim=1), torch.ones(6))
    linear = [(m.in_features, m.out_features) for m in model.classifier if isinstance(m, nn.Linear)]
    assert linear == [(28, 14), (14, 2)]


def test_checkpointing_is_passed_to_the_encoder_or_refused():
    from transformers import BertConfig, BertModel

    with pytest.raises(NotSupported, match="CodeEncoder has no blocks"):
        Detector(CodeEncoder(CONFIG), CONFIG.output_width).gradient_checkpointing_enable()
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    bert = BertModel(config)
    Detector(PooledTransformer(bert), 8).gradient_checkpointing_enable()
    assert bert.is_gradient_checkpointing


def test_pooling_ignores_padding():
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    pooled = PooledTransformer(BertModel(config)).eval()
    assert not any("pooler" in name for name, _ in pooled.named_parameters())
    ids = torch.tensor([[3, 4, 5, 0, 0]])
    long = pooled(ids, (ids > 0).long())
    short = pooled(ids[:, :3], torch.ones(1, 3, dtype=torch.long))
    torch.testing.assert_close(long, short, rtol=1e-4, atol=1e-5)
