"""Answers of Forerun to questions, made in processes of their own and kept in `CACHE/KEY.json`.

A question takes 10 s to some minutes on one core. What was answered once is read from the folder, so a table can be
made again in seconds; a failure is kept too, with its message: remove its file to ask again.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.clusters.questions import Question

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 900
"""A question that takes longer is a failure."""
TITAN_FILE = """[job]
dump_folder = "./outputs"
[model]
name = "llama3"
hf_assets_path = "./tokenizer"
[optimizer]
name = "AdamW"
lr = 3e-4
[lr_scheduler]
warmup_steps = 200
[training]
max_norm = 1.0
steps = 1000
dataset = "c4_test"
"""
"""What torchtitan's own train_configs say of Llama 3 and no option below replaces."""
WORDS = 250
Answer = dict[str, Any]
TITAN_ALLOCATOR = "PYTORCH_ALLOC_CONF=expandable_segments:True"
"""As torchtitan's run_train.sh starts it."""


def answer_all(
    questions: Iterable[Question], cache: Path, packages: Path | None, seconds: float = math.inf
) -> dict[str, Answer]:
    """Answers by key, asked one after the other where the folder has none, until `seconds` are over."""
    start = time.perf_counter()
    cache.mkdir(parents=True, exist_ok=True)
    answers: dict[str, Answer] = {}
    waiting = list({question.key: question for question in questions}.values())
    for number, question in enumerate(waiting, 1):
        path = cache / f"{question.key}.json"
        if path.exists():
            answers[question.key] = json.loads(path.read_text(encoding="utf-8"))
            continue
        if time.perf_counter() - start > seconds:
            continue
        begin = time.perf_counter()
        answer = ask(question, cache, packages)
        answer["wall_seconds"] = round(time.perf_counter() - begin, 1)
        answer["question"] = {"adapter": question.adapter, "gpu": question.gpu, "content": question.content}
        path.write_text(json.dumps(answer, indent=1), encoding="utf-8")
        answers[question.key] = answer
        state = answer.get("error", "answered")[:120]
        print(
            f"{number} of {len(waiting)}: {question.key} {answer['wall_seconds']} s {state}",
            file=sys.stderr,
            flush=True,
        )
    return answers


def kept_answers(questions: Iterable[Question], cache: Path) -> dict[str, Answer]:
    """Answers that the folder has."""
    paths = {question.key: cache / f"{question.key}.json" for question in questions}
    return {key: json.loads(path.read_text(encoding="utf-8")) for key, path in paths.items() if path.exists()}


def ask(question: Question, cache: Path, packages: Path | None) -> Answer:
    """One answer, or `error` with the last line of what went wrong."""
    forerun = [sys.executable, "-m", "forerun"]
    if question.adapter == "settings":
        file = cache / f"{question.key}.yaml"
        file.write_text(json.dumps(question.content), encoding="utf-8")  # JSON is YAML
        return _document([*forerun, "forecast", str(file), "--gpu", question.gpu, "--json"], cache, None)
    content = question.content
    words = [*forerun, "exec", "--gpu", question.gpu, "--nproc-per-node", str(content["ranks_per_node"])]
    words += ["--nnodes", str(content["nodes"]), *(["--network", content["network"]] if "network" in content else [])]
    if packages is None:
        return {"error": f"{question.adapter}: --packages names no folder that has the program"}
    if question.adapter == "titan":
        folder = titan_folder(cache / "titan")
        options = [word for name, value in content["options"].items() for word in _option(name, value)]
        command = [TITAN_ALLOCATOR, "torchrun", "-m", "torchtitan.train", "--job.config_file", "run.toml", *options]
        return _document([*words, "--json", "--", *command], folder, packages)
    driver = Path(__file__).with_name("megatron_driver.py")
    command = ["torchrun", str(driver), json.dumps(content["arguments"])]
    return _document([*words, "--rank", "last", "--json", "--", *command], cache, packages)


def _option(name: str, value: Any) -> list[str]:
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]


def _document(command: list[str], folder: Path, packages: Path | None) -> Answer:
    """The numbers of a forecast's document that are compared."""
    paths = [str(ROOT / "src"), str(ROOT), *([str(packages)] if packages else [])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    try:
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {LIMIT_SECONDS} s"}
    try:
        document = json.loads(run.stdout)
    except json.JSONDecodeError:
        lines = [line for line in run.stderr.splitlines() if line.strip() and not line.startswith("…")]
        return {"error": " ".join(lines[-3:])[-600:] or f"exit code {run.returncode}"}
    answer = _numbers(document)
    steps = [json.loads(line.split(" ", 1)[1]) for line in run.stderr.splitlines() if line.startswith("MEMORY ")]
    return answer | {f"program_{name}": value for name, value in (steps[-1] if steps else {}).items()}


def _numbers(document: Mapping[str, Any]) -> Answer:
    memory, step, kinds = document["memory"], document["step"], document.get("kinds") or []
    reserved = [kind["peak_reserved_bytes"] for kind in kinds] or [memory["peak_reserved_bytes"]]
    script = document.get("script") or {}
    answer: Answer = {
        "fits": document["fits"], "world_size": document["world_size"], "allocated": memory["peak_allocated_bytes"],
        "reserved": max(reserved), "step_seconds": step["seconds"]["expected"],
        "tokens_per_second_per_gpu": step["tokens_per_second"] / document["world_size"], "phases": step["phases"],
        "kinds": [
            {name: kind[name] for name in ("ranks", "peak_allocated_bytes", "peak_reserved_bytes", "compute_seconds")}
            for kind in kinds
        ],
        "breakdown": memory["breakdown"], "warnings": document["warnings"],
    }  # fmt: skip
    if script.get("exit_code") and document.get("out_of_memory") is None:
        answer["error"] = f"the program ended with {script['exit_code']}"
    if document.get("out_of_memory") is not None:
        answer["error"] = "forecast: does not fit"
    return answer


def titan_folder(folder: Path) -> Path:
    """A folder with settings, text and a tokenizer of words for torchtitan."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["<eos>", "<unk>", *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assets, texts = folder / "tokenizer", folder / "tests" / "assets" / "c4_test"
    for each in (assets, texts):
        each.mkdir(parents=True, exist_ok=True)
    (assets / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (assets / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "bos_token": "<eos>"}))
    rows = (" ".join(f"w{(number * 7 + word) % WORDS}" for word in range(4000)) for number in range(64))
    (texts / "data.json").write_text("\n".join(json.dumps({"text": row}) for row in rows), encoding="utf-8")
    (folder / "run.toml").write_text(TITAN_FILE, encoding="utf-8")
    return folder
