"""What is written for llama.cpp says what transformers says: other names, rotated pairs and tokens included."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from forerun.data.chat_tokens import small_tokenizer
from forerun.data.token_data import TokenSample
from forerun.errors import NotSupported
from forerun.own.facts import TaskFacts
from forerun.own.gguf_export import GGUF, side_by_side, write_gguf
from forerun.own.gguf_tokenizer import SPLITS, split_rule
from forerun.own.tokens import learned_tokenizer
from forerun.settings.load import settings_from

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SIZES = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
PLAIN_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def tokenizer_of(pre_tokenizer=BYTES, normalizer=None):
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.normalizer = pre_tokenizer, normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )  # fmt: skip
    inner.train_from_iterator(["one two three four", "seven 7 and 12"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=SPECIAL[1], eos_token=SPECIAL[2])


def written(folder, model, tokenizer, *, is_chat=False, name="causal-lm"):
    model.save_pretrained(folder)
    step = SimpleNamespace(model=model, settings=SimpleNamespace(name="tiny", quantization="none"))
    facts = TaskFacts(
        workload=name, format="messages" if is_chat else "text", fields={}, sequence_length=32, pad_id=0, end_ids=(2, 0),
        start_id=1, is_chat=is_chat,
    )  # fmt: skip
    samples = [TokenSample(tokenizer(text)["input_ids"]) for text in ("one two three four", "seven and 12")]
    return write_gguf(step, tokenizer, facts, samples, folder)


def pieces_tokenizer():
    """Byte pairs as SentencePiece has them: any two tokens that make a third are a merge."""
    inner = Tokenizer(models.BPE(byte_fallback=True))
    alphabet = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[*SPECIAL, *alphabet], show_progress=False)
    inner.train_from_iterator(["one▁two▁three▁four", "seven▁7▁and▁12▁"] * 9, trainer)
    vocabulary = inner.get_vocab()
    merges = [
        (whole[:cut], whole[cut:])
        for whole in sorted(vocabulary, key=vocabulary.__getitem__)
        for cut in range(1, len(whole))
        if whole not in SPECIAL and whole[:cut] in vocabulary and whole[cut:] in vocabulary
    ]
    whole = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    whole.normalizer = normalizers.Replace(" ", "▁")
    whole.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=whole, bos_token=SPECIAL[1], eos_token=SPECIAL[2])
    tokenizer.chat_template = "<|im_start|>{{ messages }}"
    return tokenizer


GEMMA = {**SIZES, "num_hidden_layers": 6, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 4}


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (Gemma2ForCausalLM, Gemma2Config(**GEMMA)), (Gemma3ForCausalLM, Gemma3TextConfig(**GEMMA)),
        (Phi3ForCausalLM, Phi3Config(**SIZES, pad_token_id=0, sliding_window=48)),
    ],
)  # fmt: skip
def test_gemma_and_phi_with_sentence_pieces(tmp_path, model, config):
    gguf = pytest.importorskip("gguf")
    torch.manual_seed(0)
    own = model(config)
    for name, tensor in own.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(tensor)
    tokenizer = pieces_tokenizer()
    assert written(tmp_path, own, tokenizer, is_chat=True) < 1e-5
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / GGUF).fields.items()}
    kind = fields["general.architecture"]
    told = {key.removeprefix(f"{kind}."): fields[key] for key in fields if key.startswith(f"{kind}.")}
    if kind == "phi3":  # llama.cpp sees all positions there: the window is the end
        assert (told["context_length"], told["attention.sliding_window"]) == (48, 0)
    else:
        caps = (told.get("attn_logit_softcapping"), told.get("final_logit_softcapping"))
        assert caps == ((50.0, 30.0) if kind == "gemma2" else (None, None))
        assert (told["attention.sliding_window"], told["attention.key_length"]) == (4, 32)
        assert told.get("rope.freq_base_swa") == (None if kind == "gemma2" else 1e4)
        assert told["rope.freq_base"] == (1e4 if kind == "gemma2" else 1e6)
    tokens = fields["tokenizer.ggml.tokens"]
    scores, kinds = fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.token_type"]
    assert (kinds[:4], kinds[259], kinds[-1]) == ([3, 3, 3, 6], 1, 5)
    assert (tokens[3], fields["tokenizer.ggml.model"], fields["tokenizer.ggml.add_space_prefix"]) == (
        "<0x00>", "llama", False,
    )  # fmt: skip
    best = dict(zip(tokens, scores, strict=True))
    for text in ("one two 12 7", "seven one three four", "two and two and 12"):
        assert joined(text, best) == tokenizer.tokenize(text) != list(text.replace(" ", "▁"))


def joined(text, scores):
    """llama.cpp's way to tokens: the neighbours whose token has the highest score, the first of them."""
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(pairwise(parts))
            if left + right in scores
        ]
        if not pairs:
            return parts
        place = min(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def test_what_llama_cpp_takes_for_given_of_gemma(tmp_path):
    pytest.importorskip("gguf")
    for other, words in (
        ({"query_pre_attn_scalar": 24}, "query_pre_attn_scalar 32; found 24"),
        ({"layer_types": ["full_attention"] * 6}, "one of 2 layers global"),
        ({"attn_logit_softcapping": None}, "soft caps"),
        ({"hidden_activation": "silu"}, "hidden_activation; found 'silu'"),
    ):
        model = Gemma2ForCausalLM(Gemma2Config(**{**GEMMA, **other}))
        with pytest.raises(NotSupported, match=words):
            written(tmp_path, model, pieces_tokenizer())


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    ("model", "config"),
    [
        (LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config), (Qwen3ForCausalLM, Qwen3Config),
        (GPT2LMHeadModel, GPT2Config),
    ],
)  # fmt: skip
def test_what_is_read_back_is_the_model(tmp_path, model, config, is_tied):
    gguf = pytest.importorskip("gguf")
    torch.manual_seed(0)
    sizes = {**SIZES, "rope_parameters": {"rope_theta": 5e4}}
    if model is Qwen3ForCausalLM:
        sizes["head_dim"] = 32  # not the width over the heads, as in Qwen3's own
    if model is GPT2LMHeadModel:
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, **{key: SIZES[key] for key in SIZES if key[:1] in "vi"}}
        sizes = {**sizes, "n_positions": 64, "n_inner": 96, "bos_token_id": 1, "eos_token_id": 2}
    own = model(config(**sizes, tie_word_embeddings=is_tied))
    for name, tensor in own.named_parameters():
        if name.endswith("bias") or "norm" in name or ".ln_" in name:
            torch.nn.init.normal_(tensor)
    tokenizer = tokenizer_of()
    tokenizer.chat_template = "{{ messages }}"
    assert written(tmp_path, own, tokenizer, is_chat=True) < 1e-5
    fields = gguf.GGUFReader(tmp_path / GGUF).fields
    told = {name: fields[f"tokenizer.{name}"].contents() for name in ("ggml.pre", "ggml.eos_token_id", "chat_template")}
    assert told == {"ggml.pre": "gpt-2", "ggml.eos_token_id": 2, "chat_template": "{{ messages }}"}
    assert fields["tokenizer.ggml.tokens"].contents()[:3] == SPECIAL
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert (kinds[:4], kinds[-1], len(kinds)) == ([3, 3, 3, 1], 5, SIZES["vocab_size"])
    assert fields["tokenizer.ggml.add_bos_token"].contents() is False
    assert fields["tokenizer.ggml.eot_token_id"].contents() == 0
    kind = own.config.model_type
    width = (
        fields[f"{kind}.feed_forward_length"].contents(),
        own.config.model_type == "gpt2"
        or (fields[f"{kind}.attention.key_length"].contents() == own.model.layers[0].self_attn.head_dim),
    )
    assert width == (96, True)
    assert fields[f"{kind}.context_length"].contents() == 64
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / GGUF).tensors}
    state = own.state_dict()
    down = "transformer.h.1.mlp.c_proj.weight" if model is GPT2LMHeadModel else "model.layers.1.mlp.down_proj.weight"
    expected = state[down].T if model is GPT2LMHeadModel else state[down]
    assert torch.equal(torch.from_numpy(tensors["blk.1.ffn_down.weight"].copy()), expected)
    assert sum(tensor.size for tensor in tensors.values()) == sum(weight.numel() for weight in own.parameters())


def test_bfloat16_stays_bfloat16(tmp_path):
    gguf = pytest.importorskip("gguf")
    torch.manual_seed(0)
    own = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_theta": 1e4}, dtype="bfloat16")).bfloat16()
    assert written(tmp_path, own, tokenizer_of()) < 1e-4
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / GGUF).tensors}
    assert (kinds["blk.0.attn_q.weight"], kinds["blk.0.attn_norm.weight"]) == ("BF16", "F32")


def test_pairs_half_a_head_apart_come_side_by_side():
    rows = torch.arange(12.0)[:, None]
    assert side_by_side(rows, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        ([BYTES], "gpt-2"),
        ([pre_tokenizers.Digits(individual_digits=True), BYTES], "smollm"),
        *(([pre_tokenizers.Split(Regex(each), "isolated"), PLAIN_BYTES], rule) for each, rule in SPLITS.items()),
    ],
)
def test_rules_that_llama_cpp_knows_by_name(steps, rule):
    assert split_rule(tokenizer_of(pre_tokenizers.Sequence(steps))).name == rule


def test_a_tokenizer_that_was_learned_from_the_data(tmp_path):
    gguf = pytest.importorskip("gguf")
    torch.manual_seed(0)
    own = settings_from({"workload": "causal-lm", "name": "t", "model": {"name": "tiny-llama"}})
    tokenizer = learned_tokenizer(own, ["one two three four, Größe: слово", "seven 7 and 12!"] * 9)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "vocab_size": 400}, rope_parameters={"rope_theta": 1e4}))
    assert written(tmp_path, model, tokenizer, is_chat=True) < 1e-5
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / GGUF).fields.items()}
    assert fields["tokenizer.ggml.pre"] == "qwen35"
    tokens = fields["tokenizer.ggml.tokens"]
    assert [tokens.index(token) for token in ("<pad>", "<s>", "</s>")] == [
        tokenizer.convert_tokens_to_ids(token) for token in ("<pad>", "<s>", "</s>")
    ]
    assert tokens[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert (len(tokens), tokens[-1], fields["tokenizer.ggml.token_type"][-1]) == (400, "[PAD399]", 5)
    assert fields["tokenizer.chat_template"] == tokenizer.chat_template


def test_other_tokenizers_and_models_are_refused(tmp_path):
    pytest.importorskip("gguf")
    own = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_theta": 1e4}))
    for tokenizer in (small_tokenizer(["one two"] * 9, 300), tokenizer_of(normalizer=normalizers.Lowercase())):
        with pytest.raises(NotSupported, match="knows by name"):
            written(tmp_path, own, tokenizer)
    stretched = LlamaConfig(**SIZES, rope_parameters={"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0})
    with pytest.raises(NotSupported, match="rope_type 'linear'"):
        written(tmp_path, LlamaForCausalLM(stretched), tokenizer_of())
    other = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=320, activation_function="relu"))
    with pytest.raises(NotSupported, match="GPT-2 with its own activation_function; found 'relu'"):
        written(tmp_path, other, tokenizer_of())
    with pytest.raises(NotSupported, match="llama of embedding"):
        written(tmp_path, own, tokenizer_of(), name="embedding")
