"""Real rows for the other two tasks of `text-classifier`: labels of pairs of texts, and several labels a text.

    python benchmarks/text_classifier_tasks.py clones --rows pairs.jsonl.gz --beside snippets.jsonl.gz --to clones.jsonl
    python benchmarks/text_classifier_tasks.py constructs --rows mbpp.jsonl.gz --to constructs.jsonl

`clones`: two programs of Rosetta Code in one language (`--kind`, rosetta_python), a clone where both solve the same
task; the file's own pairs and splits, in which no task is in two splits. Programs are given without comments
(`code_norm`), a line a blank.

`constructs`: from the sentence that states a task of MBPP (Austin et al. 2021, arXiv 2108.07732, CC BY 4.0), which
constructs its reference solution uses: read from the solution's syntax tree, not judged by anybody. A task may have
several or none. MBPP's own splits; its ten prompt rows join training.

Method version 1.
"""

import argparse
import ast
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONSTRUCTS: dict[str, tuple[type[ast.AST], ...]] = {
    "for": (ast.For,),
    "while": (ast.While,),
    "comprehension": (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    "lambda": (ast.Lambda,),
    "branch": (ast.If, ast.IfExp),
    "import": (ast.Import, ast.ImportFrom),
}


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of JSON lines, perhaps compressed."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def clones(rows: Path, snippets: Path, kind: str) -> list[dict[str, Any]]:
    """Pairs of programs with their label and split."""
    code = {row["id"]: " ".join(row["code_norm"].split()) for row in read(snippets)}
    return [
        {"text": code[row["a"]], "other": code[row["b"]], "label": "clone" if row["clone"] else "not",
         "split": row["split"]}
        for row in read(rows)
        if row["kind"] == kind
    ]  # fmt: skip


def constructs(rows: Path) -> list[dict[str, Any]]:
    """Sentences with the constructs of their solutions."""
    sentences = []
    for row in read(rows):
        nodes = list(ast.walk(ast.parse(row["code"])))
        labels = [name for name, kinds in CONSTRUCTS.items() if any(isinstance(node, kinds) for node in nodes)]
        split = "train" if row["split"] == "prompt" else row["split"]
        sentences.append({"text": row["text"], "label": [*labels, *_recursion(nodes)], "split": split})
    return sentences


def _recursion(nodes: list[ast.AST]) -> list[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            called = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            if node.name in called:
                return ["recursion"]
    return []


def main() -> None:
    """Write the rows and say what they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=("clones", "constructs"))
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--kind", default="rosetta_python")
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.task == "clones" and arguments.beside is None:
        parser.error("clones needs the programs: --beside snippets.jsonl.gz")
    rows = (
        constructs(arguments.rows)
        if arguments.task == "constructs"
        else clones(arguments.rows, arguments.beside, arguments.kind)
    )
    arguments.to.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} rows; splits {dict(Counter(row['split'] for row in rows))}")
    labels = Counter(
        label for row in rows for label in (row["label"] if isinstance(row["label"], list) else [row["label"]])
    )
    print(f"labels {dict(labels)}; without any {sum(not row['label'] for row in rows)}")


if __name__ == "__main__":
    main()
