"""Code that comes with data, models or settings is never run: not from a folder, a pickle, a template or a YAML tag."""

import ast
import json
from pathlib import Path

import pytest

from forerun.api import forecast
from forerun.errors import ForerunError, UnknownModel
from forerun.models.pretrained_tokenizer import load_tokenizer

SOURCE = Path(__file__).parents[1] / "src" / "forerun"
OF_A_PROGRAM = "virtual/cuda/"
"""What runs beside a script under `forerun exec`, which is the user's own and runs by choice."""
RUNS_TEXT = {
    "evaluate/jail/cell.py": "exec: a program that a model wrote, in a process that the kernel shuts in",
    "evaluate/jail/grader.py": "exec: tests of a task, shut in like the program",
    "recipes/code_lora/data/templates.py": "exec: a reference solution that the module composed itself",
    "notebook.py": "exec: the cell of the notebook that calls it",
    "forecasting/apart.py": "pickle: pipes between this process and one that it started itself",
    "data/own/packed_files.py": "zipfile: one entry's bytes are read as they come; nothing is unpacked to files",
    "memory/snapshot.py": "pickle: every class and function is refused (`_PlainUnpickler`)",
}
"""Modules that run text or read pickles, and whose."""
DANGEROUS = {
    "exec", "eval", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "marshal.loads", "shelve.open", "joblib.load", "os.system", "os.popen",
    "tarfile.open", "zipfile.ZipFile", "shutil.unpack_archive", "jinja2.Template", "runpy.run_path", "runpy.run_module",
}  # fmt: skip
CODE = "open({!r}, 'w').write('it was run')\nfrom transformers import PreTrainedConfig as Own\n"


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [(ast.unparse(node.func), node) for node in nodes]


def own_modules() -> list[Path]:
    files = [p for p in SOURCE.rglob("*.py") if not p.name.startswith("test_")]
    return [p for p in files if OF_A_PROGRAM not in p.as_posix()]


def test_nothing_is_loaded_with_code_of_its_own():
    loose = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in own_modules()
        for name, node in calls(path)
        if name.endswith(".from_pretrained")
        and not any(k.arg == "trust_remote_code" and ast.unparse(k.value) == "False" for k in node.keywords)
    ]
    assert loose == []


def test_text_is_run_and_pickles_are_read_in_known_places_only():
    places = {
        str(path.relative_to(SOURCE)) for path in own_modules() for name, _ in calls(path) if name in DANGEROUS
    }  # fmt: skip
    bases = {
        str(path.relative_to(SOURCE))
        for path in own_modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in DANGEROUS for base in node.bases)
    }
    assert places | bases == set(RUNS_TEXT)


@pytest.fixture
def folder(tmp_path):
    """A model's folder that wants code beside it to be run for its configuration, model and tokenizer."""
    ran = tmp_path / "RAN"
    (tmp_path / "own.py").write_text(CODE.format(str(ran)))
    auto = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "own", "auto_map": auto, "tokenizer_class": "Own"}))
    yield tmp_path
    assert not ran.exists()


def test_a_folder_with_code_of_its_own_is_refused_without_a_question(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the terminal was asked"))
    settings = {"name": "r", "workload": "causal-lm", "model": {"name": str(folder)}, "data": {"examples": 8}}
    with pytest.raises(UnknownModel, match="code of its own .auto_map, model_type='own'., which forerun never runs"):
        forecast(settings)
    with pytest.raises(ForerunError):
        load_tokenizer(folder, purpose="a test", instead="Nothing.")


def test_a_known_architecture_is_built_from_transformers_own_code(folder):
    from forerun.models.catalogue import model_config

    model_config("tiny-llama", {}, "sdpa").save_pretrained(folder)
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, "auto_map": {"AutoConfig": "own.Own"}}))
    assert type(model_config(str(folder), {}, "sdpa")).__module__.startswith("transformers.models.llama")


def test_a_chat_template_cannot_leave_its_sandbox():
    from jinja2.exceptions import SecurityError
    from transformers.utils.chat_template_utils import render_jinja_template

    with pytest.raises(SecurityError):
        render_jinja_template([[{"role": "user"}]], chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
