"""Beam searches go on to their greatest length, as other generation does."""

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from forerun.forecasting.virtual_cuda import virtual_cuda


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"num_beams": 2, "early_stopping": True}])
def test_a_generation_takes_as_many_tokens_as_it_may(options):
    with virtual_cuda("t4") as gpu:
        import torch

        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=8, n_layer=1, n_head=1, n_positions=32)).cuda().eval()
        calls = []
        model.transformer.register_forward_hook(lambda *_: calls.append(0))
        with torch.no_grad():
            model.generate(
                torch.ones(2, 4, dtype=torch.int64, device="cuda"), max_new_tokens=9, pad_token_id=0, **options
            )
        assert len(calls) == 9
        assert any("beam search" in each for each in gpu.assumed) is bool(options)
