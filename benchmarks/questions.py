"""Ten questions as people ask them in forums, answered: `python -m benchmarks.questions` writes docs/questions.md anew.

Each answer is what its command prints today, on this version; nothing is edited. A file that a command reads is shown
above it. Some five minutes on two cores; no GPU, weights or network.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "questions.md"
HEADER = """# Ten questions, and today's answers

Questions as people ask them, the command that answers each, and what it prints. Written by
`python -m benchmarks.questions`, which runs the commands; no GPU is used for any.
"""
COLUMNS = "100"
IMAGES = """name: flowers
workload: image-classification
model: {name: google/vit-base-patch16-224}
precision: fp16-mixed
batch: {micro_batch_size: 64}
data: {examples: 8000}
schedule: {epochs: 5}
"""
CHAT = """name: chat
workload: causal-lm
model: {name: mistralai/Mistral-7B-v0.3}
precision: bf16-true
quantization: nf4-double
adapter: {kind: lora, rank: 16, alpha: 32}
activation_checkpointing: blocks
batch: {micro_batch_size: 4, gradient_accumulation_steps: 4, sequence_length: 1024}
data: {examples: 10000}
"""


@dataclass(frozen=True)
class Question:
    """What somebody asks, and the command that answers it; `file` is a name and what is in it."""

    text: str
    command: str
    file: tuple[str, str] | None = None


QUESTIONS = (
    Question("I only have an RTX 3090. Can I fine-tune Llama 3.1 8B on it?",
             "forerun models show meta-llama/Llama-3.1-8B --gpu rtx-3090"),
    Question("How long does QLoRA of Mistral 7B on 10,000 chats take on a 4090, and what does it cost?",
             "forerun forecast chat.yaml --gpu rtx-4090", ("chat.yaml", CHAT)),
    Question("Batch size 64 with ViT-base on a free Colab T4: does that run out of memory?",
             "forerun forecast flowers.yaml --gpu t4", ("flowers.yaml", IMAGES)),
    Question("And with images of 384 pixels instead of 224?",
             "forerun forecast flowers.yaml --gpu t4 --set media.image_size=384", ("flowers.yaml", IMAGES)),
    Question("Which GPU does Kaggle give me, and how much memory does it have?", "forerun gpus --search kaggle"),
    Question("Is there enough memory in a 12 GB RTX 4070 for Gemma 3 4B?",
             "forerun models show google/gemma-3-4b-it --gpu rtx-4070"),
    Question("Can Whisper small be fine-tuned on 8 GB?",
             "forerun models show openai/whisper-small --gpu rtx-3070 --set batch.sequence_length=128"),
    Question("What is the smallest card for Mixtral 8x7B?", "forerun models show mixtral-8x7b"),
    Question("I want to fine-tune CLIP on my own pictures with a 2080 Ti.",
             "forerun models show openai/clip-vit-base-patch32 --gpu rtx-2080-ti"),
    Question("What is the RTX 4070 Ti Super called here, and what can it do?", "forerun gpus --search '4070 ti super'"),
)  # fmt: skip


def answer(question: Question) -> str:
    """What the command prints, whatever its exit code; progress is left out."""
    with tempfile.TemporaryDirectory() as folder:
        if question.file is not None:
            (Path(folder) / question.file[0]).write_text(question.file[1], encoding="utf-8")
        command = question.command.replace("forerun", f"{sys.executable} -m forerun", 1)
        environment = {**os.environ, "COLUMNS": COLUMNS, "FORERUN_LEDGER": f"sqlite:///{folder}/ledger.sqlite"}
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    return "\n".join(line.rstrip() for line in (done.stdout or done.stderr).strip().splitlines())


def section(number: int, question: Question, answered: str) -> str:
    """One question of the page."""
    file = "" if question.file is None else f"`{question.file[0]}`:\n\n```yaml\n{question.file[1]}```\n\n"
    return f"\n## {number}. {question.text}\n\n{file}```bash\n{question.command}\n```\n\n```text\n{answered}\n```\n"


def main() -> None:
    """Write the page."""
    sections = []
    for number, question in enumerate(QUESTIONS, 1):
        print(question.command, file=sys.stderr, flush=True)
        sections.append(section(number, question, answer(question)))
    PAGE.write_text(HEADER + "".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
