"""Every row builds to its parameter count; names, overrides and errors."""

import json
import re

import pytest
import torch

from forerun.errors import InvalidSettings, UnknownModel
from forerun.models.build import build_model
from forerun.models.catalogue import architecture, architectures, model_config
from forerun.models.rows import DIFFUSERS

ROWS = [row for row in architectures() if row.model_type != DIFFUSERS]
"""Those of transformers; `test_denoiser.py` has the others."""
HUB = [row for row in ROWS if row.licence is not None]
"""Rows of `hub.toml`, whose script built each of them and compared it with the files' count."""
INDEX = [row for row in ROWS if row.source.startswith("sizes by litgpt")] + HUB
FIRSTS = {row.family: row.name for row in sorted(INDEX, key=lambda row: -row.parameters)}
"""The smallest row of each family of the index; building all takes longer than all other tests of this file."""
BUILT = [row for row in ROWS if row not in HUB or row.name in FIRSTS.values()]
BUILT = [
    row if row not in INDEX or row.name in FIRSTS.values() else pytest.param(row, marks=pytest.mark.medium)
    for row in BUILT
]
PUBLISHED = re.compile(r"(\d+(?:\.\d+)?)([MB])\b")
LOOSELY_PUBLISHED = {
    "bert-large-uncased": "the paper says 340M and counts the pooler and heads of pre-training",
    "xlm-roberta-base": "the paper says 270M for 278M",
    "electra-base-discriminator": "the paper says 110M, as BERT",
    "t5-large": "the paper says 770M for 738M",
    "codet5-large": "the paper says 770M for 738M",
    "deberta-v3-base": "the paper gives backbone and embedding apart",
    "phi-1.5": "the paper leaves the embeddings out",
    "gpt2-xl": "the card rounds 1.56B down",
    "phi-2": "the card rounds 2.78B down",
    "codegen-2b": "the paper says 2.7B for 2.78B",
}


@pytest.mark.literature
@pytest.mark.parametrize("row", BUILT, ids=lambda row: row.name)
def test_parameters_are_the_published_count(row):
    with torch.device("meta"):
        model = build_model(model_config(row.name, {}, "auto"), row.parameters_of)
    assert sum(p.numel() for p in model.parameters()) == row.parameters


@pytest.mark.literature
@pytest.mark.parametrize("row", [r for r in ROWS if PUBLISHED.search(r.source)], ids=lambda row: row.name)
def test_counts_round_to_the_published_figure(row):
    """Within half a unit of the last printed digit, or 2 % for sources that round more."""
    number, unit = PUBLISHED.search(row.source).groups()
    scale = {"M": 10**6, "B": 10**9}[unit]
    digits = len(number.partition(".")[2])
    slack = max(0.5 * 10**-digits * scale, 0.02 * row.parameters)
    slack = 0.06 * row.parameters if row.name in LOOSELY_PUBLISHED else slack
    if row.name in ("deberta-v3-base", "phi-1.5"):
        pytest.skip(LOOSELY_PUBLISHED[row.name])
    assert abs(float(number) * scale - row.parameters) <= slack


def test_known_exact_counts():
    counts = {
        "gemma-2-2b": 2_614_341_888,
        "codebert": 124_645_632,
        "llama-2-7b": 6_738_415_616,
        "pythia-6.9b": 6_857_302_016,
        "mixtral-8x7b": 46_702_792_704,
    }
    assert {name: architecture(name).parameters for name in counts} == counts


@pytest.mark.parametrize(
    "name",
    [
        "opt-350m", "distilroberta-base", "deberta-base", *(
            pytest.param(name, marks=pytest.mark.medium)
            for name in ("llama-33b", "llama-65b", "llama-3.2-90b-vision-instruct", "opt-2.7b", "opt-13b", "opt-30b",
                         "opt-66b", "mt5-xxl", "stablelm-2-12b", "xlm-roberta-xl", "wav2vec2-xls-r-1b",
                         "distilbert-base-multilingual-cased", "convnextv2-large-22k-224",
                         "swinv2-base-patch4-window8-256", "granite-3.1-8b-base", "granite-3.1-2b-base", "falcon-11b",
                         "recurrentgemma-2b", "recurrentgemma-9b", "lfm2-2.6b", "lfm2.5-2.6b", "jamba-1.5-large",
                         "jamba2-3b", "wavlm-large", "siglip-large-patch16-256", "siglip2-so400m-patch14-384",
                         "siglip2-large-patch16-256", "smolvlm2-2.2b-instruct", "glm-4.5v", "glm-4.6v",
                         "mistral-small-instruct-2409", "magistral-small-2506", "pixtral-12b", "jetmoe-8b",
                         "granite-4.0-tiny-preview", "paligemma2-3b-pt-224", "paligemma2-10b-pt-224",
                         "paligemma2-28b-pt-224", "stablelm-base-alpha-3b", "stablelm-base-alpha-7b")
        ),
    ],
)  # fmt: skip
def test_sizes_that_families_lacked_are_those_of_the_model_that_is_built(name: str):
    row = architecture(name)
    config = model_config(name, {}, "auto")
    with torch.device("meta"):
        model = build_model(config, row.parameters_of)
    assert sum(p.numel() for p in model.parameters()) == row.parameters


def test_names_are_lower_case_and_unique():
    spellings = [spelling for row in ROWS for spelling in (row.name, *row.aliases)]
    assert len(spellings) == len(set(spellings))
    assert all(spelling == spelling.lower() for spelling in spellings)
    assert all(row.source for row in ROWS)


def test_every_family_has_a_tiny_twin():
    tiny = {row.family for row in ROWS if row.name.startswith("tiny-")}
    assert tiny == {row.family for row in ROWS if row not in INDEX}


@pytest.mark.literature
@pytest.mark.parametrize(
    ("name", "billions"),
    # What the authors state, from general knowledge of the model card or report of each family; two or three digits.
    [
        ("stablelm-3b-4e1t", 2.80), ("pythia-12b", 11.8), ("falcon-40b", 41.3), ("llama-3.1-405b", 406),
        ("llama-3.1-70b", 70.6), ("olmo-2-1124-13b", 13.7), ("gemma-7b", 8.54), ("gemma-2-27b", 27.2),
        ("gemma-3-1b", 1.0), ("codellama-34b", 33.7), ("phi-3-mini-4k", 3.82), ("phi-4", 14.7), ("phi-4-mini", 3.84),
        ("mixtral-8x22b-v0.1", 141), ("mistral-7b-v0.3", 7.25), ("tinyllama-1.1b", 1.10), ("qwen2.5-72b", 72.7),
        ("qwen3-8b", 8.19), ("qwen3-30b-a3b", 30.5), ("qwen3-235b-a22b", 235), ("smollm2-1.7b", 1.71),
        ("falcon3-7b", 7.46),
    ],
)  # fmt: skip
def test_the_index_has_the_published_counts(name, billions):
    assert architecture(name).parameters / 1e9 == pytest.approx(billions, rel=0.006)
    assert {row.family for row in INDEX} >= {"qwen3", "qwen3-moe", "gemma", "gemma3-text", "phi3", "olmo2", "stablelm"}


def test_the_index_knows_five_hundred_ids_of_all_families():
    ids = [identity for row in ROWS for identity in row.hub_ids]
    assert len(ids) == len(set(ids)) >= 500
    assert {row.model_type for row in HUB} >= {
        "llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss", "olmo", "olmo2", "olmo3", "olmoe", "granite",
        "granitemoe", "smollm3", "falcon_mamba", "stablelm", "glm4", "mamba", "phimoe", "gemma4", "llama4_text", "bert",
        "xlm-roberta", "t5", "bart", "albert", "deberta-v2", "mistral", "mixtral", "exaone4", "apertus", "nemotron_h",
    }  # fmt: skip
    assert all(row.source.count("read 2026") == 1 and row.licence for row in HUB)


@pytest.mark.parametrize(
    ("identity", "count"),
    # Elements of the published files, as the hub's API counts them (llmfit 1.1.17, read 2026-11-23).
    [
        ("HuggingFaceTB/SmolLM3-3B", 3_075_098_624), ("ibm-granite/granite-3.1-8b-instruct", 8_170_848_256),
        ("openai/gpt-oss-20b", 20_914_757_184), ("allenai/OLMo-7B-hf", 6_888_095_744),
        ("allenai/Olmo-3-7B-Think", 7_298_011_136), ("microsoft/Phi-3.5-MoE-instruct", 41_873_153_344),
        ("Qwen/Qwen1.5-7B", 7_721_324_544), ("state-spaces/mamba-2.8b-hf", 2_768_345_600),
        ("stabilityai/stablelm-2-1_6b", 1_644_515_328), ("zai-org/glm-4-9b-chat-hf", 9_399_951_360),
        ("ibm-granite/granite-3.0-1b-a400m-instruct", 1_334_628_352), ("google/gemma-2-2b-it", 2_614_341_888),
        ("meta-llama/Llama-3.1-405B", 405_853_388_800), ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        # llmfit 1.1.17 too, but for keras-hub's count of T5Gemma, timm's of BEiT, and EuroBERT's card: 210 million.
        ("tiiuae/Falcon-H1-7B-Base", 7_585_648_736), ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8_888_227_328),
        ("mistralai/Ministral-3-14B-Instruct-2512", 13_945_031_680), ("Zyphra/Zamba2-1.2B-instruct", 1_215_064_704),
        ("mistralai/Codestral-22B-v0.1", 22_247_282_688), ("mistralai/Devstral-Small-2507", 23_572_403_200),
        ("google/t5gemma-9b-2b-ul2-it", 12_292_375_296), ("microsoft/beit-base-patch16-224", 86_530_984),
        ("nvidia/Nemotron-H-4B-Instruct-128K", 4_489_223_040), ("EuroBERT/EuroBERT-210m", 211_766_016),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_published_files(identity, count):
    assert architecture(identity).parameters == count


@pytest.mark.parametrize(
    ("identity", "window"),
    # sliding_window by litgpt 0.5.13, config.py: none from Mistral-7B-v0.2 on
    [
        ("mistralai/Mistral-7B-Instruct-v0.1", 4096), ("mistralai/Mistral-7B-v0.3", None),
        ("mistralai/Mistral-7B-Instruct-v0.2", None),
    ],
)  # fmt: skip
def test_a_null_of_a_published_configuration_is_not_the_classs_default(identity, window):
    assert model_config(identity, {}, "auto").sliding_window == window
    assert model_config(identity, {"num_hidden_layers": 2}, "auto").sliding_window == window, "also where it is changed"


@pytest.mark.parametrize(
    ("identity", "count", "workload"),
    # What keras-hub 0.32.0 and torchvision 0.29.2 state of the published weights, read 2026-11-24.
    [
        ("google/vit-base-patch16-224", 86_567_656, "image-classification"),
        ("microsoft/swin-base-patch4-window7-224", 87_768_224, "image-classification"),
        ("facebook/convnext-large-224", 197_767_336, "image-classification"),
        ("openai/whisper-small", 241_734_912, "speech-seq2seq"),
        ("openai/clip-vit-base-patch32", 151_277_363 - 50, "image-text-contrastive"),  # keras-hub counts its 50 places
        ("google/siglip-base-patch16-224", 203_156_230 - 260, "image-text-contrastive"),
        ("google/gemma-3-4b-it", 4_299_915_632 + 64 * 2560, "causal-lm"),  # and 64 rows of the embedding fewer
    ],
)  # fmt: skip
def test_models_of_images_and_sound_have_the_published_counts(identity, count, workload):
    row = architecture(identity)
    assert (row.parameters, row.parameters_of) == (count, workload)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("identity", "count", "workload"),
    # Published counts: see the rows' sources.
    [
        ("facebook/nllb-200-distilled-600M", 615_073_792, "seq2seq-lm"),
        ("facebook/dinov3-vitb16-pretrain-lvd1689m", 85_660_416, "encoder"),
        ("RWKV/rwkv-4-169m-pile", 169_342_464, "causal-lm"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 49_122_675_072, "causal-lm"),
        ("google/t5gemma-2-270m-270m", 786_029_296, "seq2seq-lm"),
        ("Salesforce/codegen-6B-mono", 7_064_213_504, "causal-lm"),
    ],
)
def test_families_without_a_package_have_the_published_counts(identity, count, workload):
    row = architecture(identity)
    assert (row.parameters, row.parameters_of) == (count, workload)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("identity", "count"),
    # Elements of the published files, as the hub's API counts them (llmfit 1.1.17), and what keras-hub 0.32.0 states of
    # published weights, read 2026-11-28; families that nothing else in the index has.
    [
        ("google/flan-t5-base", 247_577_856), ("google/flan-t5-xl", 2_849_757_184), ("facebook/bart-base", 139_420_416),
        ("microsoft/deberta-v3-large", 434_012_160), ("microsoft/deberta-v3-small", 141_304_320),
        ("bigscience/bloom-7b1", 7_069_016_064), ("deepseek-ai/DeepSeek-V2-Lite", 15_706_484_224),
        ("ibm-granite/granite-4.0-h-tiny", 6_939_037_248), ("ibm-granite/granite-4.0-micro", 3_402_836_480),
        ("Qwen/Qwen2-57B-A14B", 57_408_658_944), ("Qwen/Qwen3-Coder-Next", 79_674_391_296),
        ("LiquidAI/LFM2-1.2B", 1_170_340_608), ("Qwen/Qwen2-VL-2B-Instruct", 2_208_985_600),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8_292_166_656), ("Qwen/Qwen3-VL-8B-Instruct", 8_767_123_696),
        ("llava-hf/llava-1.5-7b-hf", 7_063_427_072), ("HuggingFaceTB/SmolVLM-Instruct", 2_246_272_880),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 24_011_361_280), ("google/paligemma-3b-pt-224", 2_923_466_480),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", 10_670_220_835), ("OpenGVLab/InternVL3-8B-hf", 7_944_373_760),
    ],
)  # fmt: skip
def test_families_of_the_catalogue_have_the_published_counts(identity, count):
    assert architecture(identity).parameters == count


def test_a_typical_id_of_each_family_that_people_ask_for_is_known():
    asked = [
        "meta-llama/Llama-4-Scout-17B-16E", "Qwen/Qwen3.5-4B", "google/gemma-4-E4B-it", "google/gemma-3n-E2B-it",
        "microsoft/Phi-4-mini-instruct", "mistralai/Ministral-3-8B-Base-2512", "mistralai/Mistral-Nemo-Base-2407",
        "deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "openai/gpt-oss-20b",
        "allenai/Olmo-3-7B-Instruct", "ibm-granite/granite-4.0-h-small", "HuggingFaceTB/SmolLM3-3B", "tiiuae/falcon-40b",
        "mosaicml/mpt-7b", "stabilityai/stablelm-2-1_6b", "zai-org/GLM-4.5-Air", "zai-org/GLM-4.7-Flash",
        "moonshotai/Kimi-K2-Instruct", "moonshotai/Moonlight-16B-A3B", "AntonV/mamba2-130m-hf", "RWKV/rwkv-4-169m-pile",
        "answerdotai/ModernBERT-large", "microsoft/mdeberta-v3-base", "xlm-roberta-large", "BAAI/bge-m3",
        "google/flan-t5-large", "google/mt5-base", "facebook/bart-large-cnn", "google/pegasus-xsum",
        "facebook/nllb-200-3.3B", "Helsinki-NLP/opus-mt-en-de", "openai/whisper-large-v3-turbo",
        "facebook/wav2vec2-base-960h", "facebook/wav2vec2-large-xlsr-53", "microsoft/wavlm-base-plus",
        "microsoft/resnet-50", "facebook/convnextv2-tiny-1k-224", "facebook/dinov2-base",
        "facebook/dinov3-vits16-pretrain-lvd1689m", "google/siglip-so400m-patch14-384", "google/siglip2-base-patch16-224",
        "laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "llava-hf/llava-v1.6-mistral-7b-hf", "Qwen/Qwen2.5-VL-3B-Instruct",
    ]  # fmt: skip
    names = {name for row in ROWS for name in (row.name, *row.aliases)}
    assert [identity for identity in asked if identity.lower() not in names] == []


@pytest.mark.literature
@pytest.mark.parametrize(
    ("size", "millions"), [("s16", 21), ("s16plus", 29), ("l16", 300), ("h16plus", 840), ("7b16", 6716)]
)
def test_dinov3_has_the_sizes_of_its_model_card(size, millions):
    assert architecture(f"facebook/dinov3-vit{size}-pretrain-lvd1689m").parameters / 1e6 == pytest.approx(
        millions, rel=0.03
    )


def test_gemma_3_has_the_window_of_its_models_and_not_the_class_default():
    """By litgpt 0.5.13, config.py; no count shows it."""
    sizes = [model_config(f"google/gemma-3-{size}-it", {}, "auto").text_config for size in ("4b", "12b", "27b")]
    assert {text.sliding_window for text in sizes} == {1024}


def test_text_alone_takes_the_text_part_where_transformers_does():
    config = model_config("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"num_hidden_layers": 2}, "auto")
    assert config.model_type == "llama4_text"
    assert config._attn_implementation == "sdpa"
    assert model_config("state-spaces/mamba-130m-hf", {}, "auto")._attn_implementation == "eager"
    seeing = model_config("meta-llama/Llama-3.2-11B-Vision-Instruct", {}, "auto")
    assert seeing.model_type == "mllama", "transformers builds no language model of its text part"


def test_a_part_without_the_kernel_of_attention_does_without_it():
    config = model_config("google/gemma-4-E2B-it", {}, "auto")
    assert config._attn_implementation == config.text_config._attn_implementation == "sdpa"
    assert config.audio_config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["microsoft/codebert-base", "Microsoft/CodeBERT-base", "codebert"])
def test_aliases(name):
    assert architecture(name).name == "codebert"


def test_unknown_names_list_the_nearest():
    with pytest.raises(UnknownModel, match="llama-2-7b"):
        architecture("llama2-8b")
    with pytest.raises(UnknownModel, match="gemma-2-2b"):
        model_config("gemma2-4b", {}, "auto")


def test_a_directory_is_a_model(tmp_path):
    model_config("tiny-bert", {}, "auto").save_pretrained(tmp_path)
    assert model_config(str(tmp_path), {}, "auto").hidden_size == 64


@pytest.mark.parametrize(("kind", "implementation"), [("bloom", "eager"), ("granite", "sdpa")])
def test_a_folder_of_a_family_without_a_row_is_built_as_transformers_can(tmp_path, kind, implementation):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    stated = {"model_type": kind, "vocab_size": 512, "n_layer": 2, "n_head": 4, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    config = model_config(str(tmp_path), {}, "auto")
    assert config._attn_implementation == implementation
    with torch.device("meta"):
        assert sum(p.numel() for p in build_model(config, "causal-lm").parameters()) > 50_000


def test_attention_of_a_model_that_has_a_head_alone_is_what_its_class_has(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "pp_lcnet", "scale": 1.0}')
    assert model_config(str(tmp_path), {}, "auto")._attn_implementation == "eager"


def test_overrides_are_checked():
    assert model_config("tiny-gpt2", {"n_layer": 5}, "auto").n_layer == 5
    with pytest.raises(InvalidSettings, match=r"model\.config\.n_layers.*n_layer"):
        model_config("tiny-gpt2", {"n_layers": 5}, "auto")


@pytest.mark.parametrize(
    ("name", "attention", "implementation"),
    [("tiny-bert", "auto", "sdpa"), ("tiny-bert", "eager", "eager"), ("tiny-gemma2", "sdpa", "eager")],
)
def test_attention(name, attention, implementation):
    assert model_config(name, {}, attention)._attn_implementation == implementation


def test_what_follows_from_a_changed_field_follows_it(tmp_path):
    sizes = {"hidden_size": 2304, "num_attention_heads": 36, "num_key_value_heads": 36}
    assert model_config("llama-7b", {}, "auto").head_dim == 128
    assert model_config("llama-7b", sizes, "auto").head_dim == 64
    assert len(model_config("gemma-2-2b", {"num_hidden_layers": 4}, "auto").layer_types) == 4
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4096}))
    assert model_config(str(tmp_path), sizes, "auto").head_dim == 64
    assert model_config("llama-3.2-3b", {"hidden_size": 1536}, "auto").head_dim == 128, "stated, not derived"
    with pytest.raises(InvalidSettings, match=r"model\.config: .*2048.* heads \(24\)"):
        model_config("llama-3.2-3b", {"hidden_size": 2048}, "auto")


def test_a_field_goes_by_each_of_its_names():
    """Published `config.json` files of Qwen's mixtures say `num_experts`; transformers 5 has it as `num_local_experts`."""
    for name in ("num_experts", "num_local_experts"):
        assert model_config("qwen3-30b-a3b", {name: 16}, "auto").num_experts == 16
    with pytest.raises(InvalidSettings, match=r"model\.config\.num_expert: no field.*num_experts"):
        model_config("qwen3-30b-a3b", {"num_expert": 16}, "auto")


def test_an_architecture_that_the_installed_transformers_does_not_have_is_refused(monkeypatch):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    monkeypatch.delitem(CONFIG_MAPPING._mapping, "llama")
    with pytest.raises(UnknownModel, match=r"llama-7b is of the type llama, which transformers .* Install a newer one"):
        model_config("llama-7b", {}, "auto")


def test_a_part_keeps_its_other_fields_where_one_is_changed():
    whole = model_config("google/gemma-3-4b-it", {}, "auto").text_config
    config = model_config("google/gemma-3-4b-it", {"text_config": {"num_hidden_layers": 7}}, "auto").text_config
    assert config.hidden_size == whole.hidden_size != type(whole)().hidden_size
    assert config.layer_types == whole.layer_types[:7]


def test_a_field_of_a_part_is_named_with_it():
    with pytest.raises(InvalidSettings, match=r"text_config: \{num_hidden_layers: 4\}"):
        model_config("google/gemma-3-4b-it", {"num_hidden_layers": 4}, "auto")
    with pytest.raises(InvalidSettings, match=r"model\.config\.text_config\.num_layer: .*num_hidden_layers"):
        model_config("google/gemma-3-4b-it", {"text_config": {"num_layer": 4}}, "auto")
