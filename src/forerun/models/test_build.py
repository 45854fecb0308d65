"""Tiny twins really run, forward and backward, with every head that they have."""

import pytest
import torch
import transformers

from forerun.errors import InvalidSettings, NotSupported
from forerun.models.build import (
    build_model,
    config_of,
    maximum_length,
    model_class,
    require_transformers,
    sees,
    workloads_of,
)
from forerun.models.catalogue import architectures, model_config
from forerun.settings.load import settings_from

TWINS = [row.name for row in architectures() if row.name.startswith("tiny-")]
CASES = [(name, workload) for name in TWINS for workload in workloads_of(model_config(name, {}, "auto"))]


@pytest.mark.parametrize(("name", "workload"), CASES)
def test_twins_run(name, workload):
    torch.manual_seed(0)
    model = build_model(model_config(name, {}, "auto"), workload)
    ids = torch.randint(3, 400, (2, 32))
    extra = {"decoder_input_ids": ids} if workload == "seq2seq-lm" else {}
    out = model(input_ids=ids, **extra)
    (out.last_hidden_state if workload == "encoder" else out.logits).float().square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)
    assert any(g.abs().sum() > 0 for g in gradients)


def test_weights_are_initialised():
    model = build_model(model_config("tiny-bert", {}, "auto"), "encoder")
    weight = model.get_submodule("encoder.layer.0.attention.self.query").weight
    assert 0.01 < weight.std() < 0.04


def test_weights_come_back_from_a_directory(tmp_path):
    config = model_config("tiny-bert", {}, "auto")
    original = build_model(config, "sequence-classification")
    original.save_pretrained(tmp_path)
    loaded = build_model(config, "sequence-classification", pretrained_from=tmp_path)
    for one, other in zip(original.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "workload"), [("tiny-bert", "causal-lm"), ("tiny-gpt2", "masked-lm"), ("tiny-t5", "causal-lm")]
)
def test_missing_heads_are_explained(name, workload):
    with pytest.raises(InvalidSettings, match="has no head for"):
        build_model(model_config(name, {}, "auto"), workload)


@pytest.mark.parametrize(
    ("name", "length"), [("bert-base-uncased", 512), ("roberta-base", 512), ("gpt2", 1024), ("t5-base", None)]
)
def test_maximum_length(name, length):
    assert maximum_length(model_config(name, {}, "auto")) == length


def test_relative_positions_have_no_end():
    from transformers import XLNetConfig

    assert maximum_length(XLNetConfig()) is None


def test_only_tables_of_positions_end():
    """Angles are worked out for any length, in transformers too; Gemma's sizes of another library said 4,096."""
    assert maximum_length(model_config("gemma-7b", {}, "auto")) == 8192
    content = {"name": "r", "workload": "causal-lm", "data": {"examples": 8}, "batch": {"sequence_length": 9000}}
    assert config_of(settings_from({**content, "model": {"name": "gemma-7b"}})).model_type == "gemma"
    with pytest.raises(InvalidSettings, match="gpt2 has positions for 1024 tokens; found 9000"):
        config_of(settings_from({**content, "model": {"name": "gpt2"}}))


@pytest.mark.parametrize(
    ("version", "is_old"), [("4.57.3", True), ("5.6.0", True), ("5.17.0", False), ("6.0.0.dev0", False)]
)
def test_steps_by_settings_need_a_transformers_that_was_tried(monkeypatch, version, is_old):
    import transformers

    monkeypatch.setattr(transformers, "__version__", version)
    if is_old:
        with pytest.raises(NotSupported, match=rf"need 5.17 or newer, found {version}.*`forerun exec` runs"):
            require_transformers()
    else:
        require_transformers()


def test_t5_of_version_1_1_has_a_head_of_its_own():
    """keras-hub 0.32.0 states 76,961,152 of Flan-T5 small: transformers 5 takes its head for tied before it reads it."""
    with torch.device("meta"):
        model = build_model(model_config("google/flan-t5-small", {}, "auto"), "seq2seq-lm")
        first = build_model(model_config("t5-small", {}, "auto"), "seq2seq-lm")
    model.tie_weights()
    assert model.lm_head.weight is not model.shared.weight
    assert model.encoder.embed_tokens.weight is model.shared.weight
    assert first.lm_head.weight is first.shared.weight


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl", "internvl", "idefics3"])
def test_a_language_model_that_sees_is_trained_as_a_whole(kind: str):
    config = transformers.AutoConfig.for_model(kind)
    assert sees(config)
    assert workloads_of(config)[0] == "causal-lm"
    with torch.device("meta"):
        names = {name.partition(".")[0] for name, _ in build_model(config, "causal-lm").model.named_parameters()}
    assert names & {"language_model", "text_model"}
    assert len(names) > 1


def test_what_transformers_builds_alone_or_decodes_apart_does_not_see():
    assert not sees(transformers.AutoConfig.for_model("gemma3"))
    assert not sees(transformers.AutoConfig.for_model("florence2"))
    assert not sees(transformers.AutoConfig.for_model("llama"))


@pytest.mark.parametrize("kind", ["voxtral", "qwen2_audio", "granite_speech"])
def test_a_decoder_that_hears_has_no_head_for_pairs_of_texts(kind):
    """transformers lists it there; its labels stand beside what it reads, as long as that."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind)
    assert "seq2seq-lm" not in workloads_of(config)
    with pytest.raises(InvalidSettings, match="has no head for seq2seq-lm"):
        model_class(config, "seq2seq-lm")


def test_a_decoder_without_a_class_of_its_own_takes_the_attention_it_has(tmp_path):
    """TrOCR has none but its causal language model, which takes no `scaled_dot_product_attention`."""
    from transformers import AutoConfig

    AutoConfig.for_model("trocr").save_pretrained(tmp_path)
    config = model_config(str(tmp_path), {}, "auto")
    with torch.device("meta"):
        build_model(config, "causal-lm")
    assert config._attn_implementation == "eager"


def test_a_class_that_transformers_lists_and_lacks_is_no_traceback(tmp_path):
    """5.24 names a `VoxtralRealtimeTextModel` that it does not have."""
    from transformers import AutoConfig

    AutoConfig.for_model("voxtral_realtime").save_pretrained(tmp_path)
    assert "causal-lm" not in workloads_of(model_config(str(tmp_path), {}, "auto"))
