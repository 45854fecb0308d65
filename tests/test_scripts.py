"""Scripts as people write them, with the libraries that they use, unmodified on a virtual GPU.

Each says itself how many parameters it has; nothing in them knows of the virtual GPU. A package that is not installed
skips its scripts: `make test-scripts` installs them all.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.fake_hub import FakeHub

HERE = Path(__file__).parent / "scripts"
PEERS = Path(os.environ.get("FORERUN_PEER_SCRIPTS", Path(__file__).parents[2] / "shared" / "peer_scripts"))
"""Training scripts of other people, unmodified; not part of the repository."""
BLOCK_BYTES = 512
"""The allocator's smallest block (c10/core/AllocatorConfig.h, kMinBlockSize): the most that rounding adds to a tensor."""
SCRIPTS = {
    "trainer_seq2seq.py": ["datasets"], "trainer_vit.py": [], "trl_trainers.py sft": ["trl"], "trl_trainers.py dpo": ["trl"],
    "trl_trainers.py reward": ["trl"], "trl_trainers.py grpo": ["trl"], "trl_trainers.py grpo-vllm": ["trl"], "peft_lora.py": [], "accelerate_loop.py": ["accelerate"],
    "lightning_vision.py": ["lightning", "timm"], "fabric_loop.py": ["lightning"],
    "sentence_pairs.py": ["sentence_transformers", "datasets"], "timm_loop.py": ["timm"],
    "torchvision_tasks.py detection": ["torchvision"], "torchvision_tasks.py segmentation": ["torchvision"],
    "diffusers_lora.py": ["diffusers"], "geometric_gcn.py": ["torch_geometric"], "whisper_finetune.py": [],
    "clip_finetune.py": [],
}  # fmt: skip


@dataclass(frozen=True)
class PeerScript:
    """How the people who have a script run it; `prepare` puts its data into a copy of its folder."""

    folder: str
    command: str
    packages: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = lambda _: None
    steps: int | None = None
    """Optimizer steps after which the script ends by itself; None where it is stopped."""
    ranks: int | None = None
    """What `--nproc-per-node` of exec is given."""


def prepare_nano_gpt(folder):
    """A made text of 40,000 characters instead of the download, tokenised by the script for it."""
    data = folder / "data" / "shakespeare_char"
    draw = random.Random(0)
    (data / "input.txt").write_text("".join(draw.choices("abcdefghijklmnopqrstuvwxyz,.\n ", k=40_000)))
    subprocess.run([sys.executable, str(data / "prepare.py")], check=True, capture_output=True)


def make_images(folder):
    """Noise in two classes, as a folder of images is laid out."""
    from PIL import Image

    draw = random.Random(0)
    for split in ("train", "validation"):
        for kind in ("cats", "dogs"):
            (folder / "data" / split / kind).mkdir(parents=True)
            for number in range(48):
                image = Image.frombytes("RGB", (64, 72), draw.randbytes(64 * 72 * 3))
                image.save(folder / "data" / split / kind / f"{number}.png")


NANO_GPT = "train.py config/train_shakespeare_char.py --eval_iters=2"
PEER_SCRIPTS = {
    "nanoGPT": PeerScript("nanoGPT", f"python {NANO_GPT} --compile=False", prepare=prepare_nano_gpt),
    "nanoGPT compiled": PeerScript("nanoGPT", f"python {NANO_GPT}", prepare=prepare_nano_gpt),
    "imagenet": PeerScript(
        "pytorch_examples/imagenet", "python main.py --dummy -a resnet18 --epochs 1 -b 8 --gpu 0", ("torchvision",)
    ),
    "nanoGPT DDP": PeerScript(
        "nanoGPT", f"torchrun --standalone --nproc_per_node=4 {NANO_GPT} --gradient_accumulation_steps=4",
        prepare=prepare_nano_gpt,
    ),
    # one batch by its --dry-run
    "dcgan": PeerScript(
        "pytorch_examples/dcgan", "python main.py --dataset fake --accel --dry-run", ("torchvision",), steps=1
    ),
    **{
        f"{name} by torchrun": PeerScript(
            "pytorch_examples/distributed/tensor_parallelism",
            f"torchrun --nnodes=1 --nproc_per_node=4 --rdzv_id=101 --rdzv_endpoint=localhost:5972 {name}.py",
        )
        for name in ("tensor_parallel_example", "sequence_parallel_example", "fsdp_tp_example")
    },
    "fsdp_tp_example by exec": PeerScript(
        "pytorch_examples/distributed/tensor_parallelism", "python fsdp_tp_example.py", ranks=4
    ),
    "ddp series": PeerScript(
        "pytorch_examples/distributed/ddp-tutorial-series", "python multigpu_torchrun.py 50 10", ranks=4
    ),
    "minGPT-ddp": PeerScript(
        "pytorch_examples/distributed/minGPT-ddp/mingpt",
        "torchrun --standalone --nproc_per_node=4 main.py data_config.path=data/input.txt",
        ("boto3", "hydra", "fsspec"),
    ),
    "timm": PeerScript(
        "timm", "python train.py data --model resnet18 --amp -b 8 --num-classes 2", ("timm", "torchvision"), make_images
    ),
    "timm DDP": PeerScript(
        "timm", "torchrun --nproc_per_node=2 train.py data --model resnet18 --amp -b 8 --num-classes 2",
        ("timm", "torchvision"), make_images,
    ),
    "diffusers": PeerScript(
        "diffusers/examples/unconditional_image_generation",
        "python train_unconditional.py --train_data_dir data/train --resolution 64 --train_batch_size 4 --num_epochs 1",
        ("diffusers", "datasets", "torchvision"), make_images,
    ),
    "accelerate nlp": PeerScript(
        "accelerate/examples", "python nlp_example.py --mixed_precision bf16", ("accelerate", "datasets", "evaluate")
    ),
    "accelerate nlp on 4": PeerScript(
        "accelerate/examples", "accelerate launch --num_processes 4 --multi_gpu nlp_example.py",
        ("accelerate", "datasets", "evaluate"),
    ),
    "accelerate accumulation": PeerScript(
        "accelerate/examples", "python by_feature/gradient_accumulation.py --gradient_accumulation_steps 4",
        ("accelerate", "datasets", "evaluate"),
    ),
    "accelerate sharded": PeerScript(
        "accelerate/examples/torch_native_parallelism",
        "accelerate launch --num-processes 8 nd_parallel.py --dp-shard-size 8", ("accelerate", "datasets", "wandb"),
    ),
    "accelerate context": PeerScript(
        "accelerate/examples/torch_native_parallelism",
        "accelerate launch --num-processes 8 nd_parallel.py --cp-size 8", ("accelerate", "datasets", "wandb"),
    ),
    "accelerate configured": PeerScript(
        "accelerate/examples/torch_native_parallelism",
        "accelerate launch --config-file configs/cp.yaml --fsdp_activation_checkpointing false nd_parallel_trainer.py "
        "--sequence-length=2048",
        ("accelerate", "datasets"),
    ),
}  # fmt: skip


def need(packages):
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def execute(words, folder, gpu="a10", options=(), **variables):
    """The forecast of a command as a document, and what it printed."""
    command = [sys.executable, "-m", "forerun", "exec", "--gpu", gpu, "--json", *options, "--", *words]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"} | variables
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), done.stderr


def check_plausible(document, steps=None):
    """Fits, `steps` or at least three were seen, time and memory are there, and the parts of memory are the whole."""
    memory = document["memory"]
    assert document["fits"]
    assert document["script"]["exit_code"] == 0
    assert document["script"]["steps_seen"] == steps if steps else document["script"]["steps_seen"] >= 3
    assert document["step"]["seconds"]["expected"] > 0
    assert sum(memory["breakdown"].values()) == memory["peak_allocated_bytes"] > memory["breakdown"]["parameter_bytes"]


@pytest.mark.scripts
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_as_it_is(script, tmp_path):
    need(SCRIPTS[script])
    name, *arguments = script.split()
    source = (HERE / name).read_text()
    assert "forerun" not in source
    document, printed = execute(["python", str(HERE / name), *arguments], tmp_path)
    check_plausible(document)
    words = next(line for line in printed.splitlines() if line.startswith("PARAMETERS")).split()
    parameters, size = int(words[1]), int(words[3])
    assert document["parameters"]["total"] == parameters
    assert size <= document["memory"]["breakdown"]["parameter_bytes"] <= size + BLOCK_BYTES * (1 + parameters // 8)
    assert list(tmp_path.iterdir()) == []


TITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "./tokenizer"
[optimizer]
name = "AdamW"
[training]
local_batch_size = 2
seq_len = 256
steps = 10
dataset = "c4_test"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[metrics]
log_freq = 1
"""
TITAN_PARALLEL = {
    "sharded": [], "replicated": ["--parallelism.data_parallel_replicate_degree", "2"],
    "tensor": ["--parallelism.tensor_parallel_degree", "4"], "context": ["--parallelism.context_parallel_degree", "2"],
    "tensor and replicated": [
        "--parallelism.tensor_parallel_degree", "2", "--parallelism.data_parallel_replicate_degree", "2",
    ],
    "experts": [
        "--model.name", "qwen3", "--model.flavor", "debugmodel_moe", "--parallelism.expert_parallel_degree", "4",
        "--activation_checkpoint.mode", "full",
    ],
}  # fmt: skip
TITAN_STAGES = {
    name: ["--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_schedule", name,
           "--training.local_batch_size", "4"]
    for name in ("1F1B", "Interleaved1F1B")
}  # fmt: skip


@pytest.mark.scripts
@pytest.mark.parametrize("parallelism", [*TITAN_PARALLEL, *TITAN_STAGES])
def test_torchtitan_runs_as_it_is(parallelism, tmp_path):
    need(["torchtitan", "tyro", "torchdata", "tomli", "triton"])
    sys.path.insert(0, str(HERE))
    try:
        from words_tokenizer import sentence, words_tokenizer
    finally:
        sys.path.remove(str(HERE))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(words_tokenizer().backend_tokenizer.to_str())
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<eos>", "bos_token": "<eos>"})
    )
    (tmp_path / "tests" / "assets" / "c4_test").mkdir(parents=True)
    rows = (json.dumps({"text": sentence(number)}) for number in range(400))
    (tmp_path / "tests" / "assets" / "c4_test" / "data.json").write_text("\n".join(rows))
    (tmp_path / "debug.toml").write_text(TITAN)
    launch = ["torchrun", "--nproc_per_node", "8", "-m", "torchtitan.train", "--job.config_file", "debug.toml"]
    options = (TITAN_PARALLEL | TITAN_STAGES)[parallelism]
    document, _ = execute([*launch, *options], tmp_path, gpu="h100-80gb")
    check_plausible(document)
    assert document["world_size"] == 8
    is_pipeline = parallelism in TITAN_STAGES
    assert [kind["ranks"] for kind in document["kinds"]] == (["0-3", "4-7"] if is_pipeline else ["0-7"])
    if is_pipeline:  # four data-parallel ranks; only the first stage is given the ids
        tokens = document["step"]["tokens_per_second"] * document["step"]["seconds"]["expected"]
        assert tokens == pytest.approx(4 * 4 * 256)


@pytest.mark.scripts
@pytest.mark.parametrize("name", PEER_SCRIPTS)
def test_a_script_of_somebody_else_runs_as_it_is(name, tmp_path):
    """Only where the folder with other people's scripts lies beside the repository, or FORERUN_PEER_SCRIPTS says where."""
    script = PEER_SCRIPTS[name]
    if not PEERS.is_dir():
        pytest.skip("no folder of other people's scripts")
    need(script.packages)
    folder = tmp_path / "copy"
    shutil.copytree(PEERS / script.folder, folder, copy_function=shutil.copyfile)
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755)
    script.prepare(folder)
    before = contents(folder)
    ranks = () if script.ranks is None else ("--nproc-per-node", str(script.ranks))
    fill_hub(tmp_path / "hub")
    with FakeHub(tmp_path / "hub") as hub:
        variables = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        home = str(tmp_path / "home")
        document, _ = execute(script.command.split(), folder, "h100-80gb", ranks, HF_HOME=home, **variables)
    check_plausible(document, script.steps)
    assert contents(folder) == before
    assert not (tmp_path / "home").exists()


GLUE_METRIC = """
import datasets
import evaluate

class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"equal": sum(a == b for a, b in zip(predictions, references))}
"""
GLUE_PAGE = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: mrpc/train-*}
  - {split: validation, path: mrpc/validation-*}
---
"""


def fill_hub(root):
    """Small models, data sets and a metric under the names that the scripts ask the hub for."""
    pandas = pytest.importorskip("pandas")
    sys.path.insert(0, str(HERE))
    try:
        from words_tokenizer import sentence, words_tokenizer
    finally:
        sys.path.remove(str(HERE))
    sizes = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 131072}
    for name, kind, model_class in (
        ("bert-base-cased", "bert", "BertForMaskedLM"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama", "LlamaForCausalLM"),
    ):
        folder = root / "models" / name
        words_tokenizer().save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": kind, "architectures": [model_class], **sizes}))
    glue, stories = root / "datasets/nyu-mll/glue", root / "datasets/roneneldan/TinyStories/data"
    metric = root / "spaces/evaluate-metric/glue"
    for folder in (glue / "mrpc", stories, metric):
        folder.mkdir(parents=True)
    (glue / "README.md").write_text(GLUE_PAGE)
    (metric / "glue.py").write_text(GLUE_METRIC)
    pairs = [
        {"sentence1": sentence(row), "sentence2": sentence(row + 1), "label": row % 2, "idx": row} for row in range(200)
    ]
    for split in ("train", "validation"):
        pandas.DataFrame(pairs).to_parquet(glue / "mrpc" / f"{split}-00000-of-00001.parquet")
    texts = [{"text": " ".join(sentence(story * 5 + part) for part in range(20))} for story in range(4000)]
    pandas.DataFrame(texts).to_parquet(stories / "train-00000-of-00001.parquet")


def contents(folder):
    """The bytes of every file below a folder, by path."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
