"""Questions that should not break Forerun: strategies of hypothesis over settings, files and options.

A `Question` is a command line with the files that it names, or a target of the Python interface. The strategies over
settings are made from the schema itself, so that a new field is asked about without a line here.
"""

import datetime
import json
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import annotated_types
import yaml
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from forerun.models.catalogue import architectures
from forerun.settings.schema import Settings
from forerun.settings.section import Section

TARGET, MODEL = "settings.yaml", "own-model"
GPUS = ("t4", "a100-40gb", "h100-80gb")
TINY = tuple(row.name for row in architectures() if row.name.startswith("tiny-"))
LARGE = ("bert-base-uncased", "gpt2", "llama-2-7b", "qwen2-7b", "mixtral-8x7b")
HEADS = ("causal-lm", "masked-lm", "sequence-classification", "token-classification", "seq2seq-lm", "preference",
         "embedding")  # fmt: skip
ENCODERS = ("tiny-bert", "tiny-distilbert", "tiny-roberta", "tiny-electra", "tiny-deberta-v2", "tiny-longformer",
            "tiny-modernbert")  # fmt: skip
DIGITS = 5_000
"""Digits of a number that Python refuses to print (`sys.int_info.default_max_str_digits` is 4,300)."""
BASE: dict[str, Any] = {
    "name": "asked", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "batch": {"sequence_length": 32},
    "data": {"examples": 64},
}  # fmt: skip

INTEGERS = st.sampled_from([-1, 0, 1, 2, 3, 7, 64, 10**4, 10**6, 2**31, 2**40, 2**63, 2**64, 10**30]) | st.integers()
FLOATS = st.sampled_from([-5.0, 0.0, 1e-300, 0.5, 1.0, 3e3, 1e9, 1e308]) | st.floats()
TEXTS = st.sampled_from([
    "", " ", "\0", "a" * 300, "/" * 5_000, "..", "none", "auto", "nan", "1e400", "\U0001f600", "{{7*7}}", "[red]", "%s",
    "\x1b[31m", "𝟙", "no/such", "https://localhost:1/x",
]) | st.text(max_size=40)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS | st.binary(max_size=9) | st.sampled_from([".inf", ".nan"])
    | st.sampled_from([datetime.date(2026, 11, 23), datetime.datetime(2026, 11, 23, 1), {1, 2}, 10**DIGITS])
)  # fmt: skip
ANYTHING = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXTS, SCALARS, max_size=2)


@dataclass(frozen=True)
class Question:
    """What is asked, and whether only a refusal would be right."""

    kind: str
    arguments: tuple[str, ...] = ()
    """After `forerun`; run in a folder that holds `files`."""
    files: dict[str, bytes] = field(default_factory=dict)
    target: Any = None
    """For `forerun.forecast`, where there are no arguments."""
    must_refuse: str = ""
    """Why a forecast would be wrong; empty where it may be right."""


def plain_fields(section: type[Section] = Settings, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], FieldInfo]:
    """Every setting that holds no other ones, by its path."""
    fields: dict[tuple[str, ...], FieldInfo] = {}
    for name, info in section.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            fields |= plain_fields(inner, (*path, name))
        else:
            fields[*path, name] = info
    return fields


FIELDS = plain_fields()


def usual_values(annotation: Any, metadata: Sequence[Any] = ()) -> st.SearchStrategy[Any]:
    """Values that the schema takes for an annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return usual_values(arguments[0], arguments[1:])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([usual_values(option, metadata) for option in arguments])
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation in (int, float):
        least = _least(metadata)
        return (
            st.sampled_from([least, least + 1, least + 2, 8, 32]) if annotation is int else st.sampled_from([0.5, 0.9])
        )
    return {str: st.just("label"), list: st.just([])}.get(origin or annotation, st.just({}))


def _least(metadata: Sequence[Any]) -> int:
    for item in [part for info in metadata for part in getattr(info, "metadata", [info])]:
        if isinstance(item, annotated_types.Ge):
            return int(typing.cast(int, item.ge))
    return 0


@st.composite
def settings_of(draw: st.DrawFn, *, hostile: bool) -> dict[str, Any]:
    """The base with one to four settings changed; `hostile` puts what the schema cannot mean into one of them."""
    content = json.loads(json.dumps(BASE))
    content["model"]["name"] = draw(st.sampled_from(TINY))
    content["workload"] = draw(st.sampled_from(usual_heads(content["model"]["name"])))
    if draw(st.integers(0, 99)) == 0:
        content["model"]["name"] = draw(st.sampled_from(LARGE))
    paths = [p for p in FIELDS if p not in (("workload",), ("model", "name"), ("data", "source"))]
    for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=4, unique=True)):
        _put(content, path, draw(usual_values(FIELDS[path].annotation, FIELDS[path].metadata)))
    if hostile:
        _put(content, draw(st.sampled_from(list(FIELDS))), draw(ANYTHING))
    return content


def usual_heads(model: str) -> tuple[str, ...]:
    """Workloads of an architecture, and one that it may not have."""
    if model == "tiny-t5":
        return ("seq2seq-lm", "seq2seq-lm", "embedding", "causal-lm")
    return HEADS[1:4] + HEADS[6:] if model in ENCODERS else ("causal-lm", "causal-lm", "preference", HEADS[2])


def _put(content: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        content = content.setdefault(name, {})
    content[path[-1]] = value


def asked(content: Any, kind: str, gpu: str = "a100-40gb", more: Sequence[str] = ()) -> Question:
    """A forecast of settings written as YAML."""
    text = content if isinstance(content, bytes) else yaml.dump(content, allow_unicode=True).encode()
    return Question(kind, ("forecast", TARGET, "--gpu", gpu, "--json", *more), {TARGET: text})


@st.composite
def valid_settings(draw: st.DrawFn) -> Question:
    """Values that the schema takes, in combinations that nobody chose."""
    return asked(draw(settings_of(hostile=False)), "settings", draw(st.sampled_from(GPUS)))


@st.composite
def hostile_settings(draw: st.DrawFn) -> Question:
    """A value that a setting cannot mean, from a file or through the Python interface."""
    content = draw(settings_of(hostile=True))
    if draw(st.booleans()):
        return Question("python", target=content)
    try:
        return asked(content, "hostile value")
    except ValueError:  # a number too long for Python to print cannot be in a file that it writes
        return Question("python", target=content)


@st.composite
def configurations(draw: st.DrawFn) -> Question:
    """Overrides of the fields of a model's configuration."""
    name = draw(st.sampled_from(TINY))
    content = json.loads(json.dumps(BASE))
    content["workload"] = draw(st.sampled_from(usual_heads(name)))
    fields = draw(st.lists(st.sampled_from(_fields_of(name)), min_size=1, max_size=2, unique=True))
    content["model"] = {"name": name, "config": {key: draw(ANYTHING) for key in fields}}
    try:
        return asked(content, "model.config")
    except ValueError:
        return Question("model.config", target=content)


def _fields_of(name: str) -> list[str]:
    row = next(row for row in architectures() if row.name == name)
    own = ["num_labels", "num_hidden_layers", "layer_types", "rope_parameters", "dtype", "id2label", "vocab_size"]
    return [*row.config, *own, "hidden_act", "pad_token_id", "tie_word_embeddings", "_attn_implementation", "no_such"]


GOOD_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500,
    "intermediate_size": 128, "max_position_embeddings": 128,
}  # fmt: skip
BROKEN_CONFIGS = (
    b"", b"{", b"[]", b"null", b"7", b'"text"', b"{}", b"\xff\xfe\x00", b"[" * 20_000, b'{"model_type": null}',
    b'{"model_type": 7}', b'{"model_type": "no-such"}', b'{"model_type": ["llama"]}',
    b'{"model_type": "llama", "hidden_size": "x"}', b'{"model_type": "llama", "num_attention_heads": 0}',
    b'{"model_type": "llama", "hidden_size": -64}',
)  # fmt: skip
"""As transfers, editors and other programs leave them."""


@st.composite
def local_models(draw: st.DrawFn) -> Question:
    """A folder whose `config.json` is broken, or wants code of its own to be run."""
    if draw(st.booleans()):
        config = draw(st.sampled_from(BROKEN_CONFIGS))
    else:
        fields = draw(
            st.lists(st.sampled_from([*GOOD_CONFIG, "layer_types", "rope_parameters"]), min_size=1, max_size=2)
        )
        values = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text(max_size=9)
        values |= st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=4), values, max_size=2)
        config = json.dumps({**GOOD_CONFIG, **{key: draw(values) for key in fields}}).encode()
    content = {**BASE, "model": {"name": MODEL}}
    question = asked(content, "local config.json")
    return Question(question.kind, question.arguments, {**question.files, f"{MODEL}/config.json": config})


REMOTE_CONFIG = {"model_type": "own", "auto_map": {"AutoConfig": "evil.Own", "AutoModelForCausalLM": "evil.Model"}}
REMOTE_CODE = (
    b"open('RAN', 'w').write('code of the folder was run')\nfrom transformers import PreTrainedConfig as Own\n"
)


def remote_code() -> Question:
    """A folder that asks for its own code to be run."""
    question = asked({**BASE, "model": {"name": MODEL}}, "remote code")
    own = {f"{MODEL}/config.json": json.dumps(REMOTE_CONFIG).encode(), f"{MODEL}/evil.py": REMOTE_CODE}
    return Question(question.kind, question.arguments, {**question.files, **own}, must_refuse="the model brings code")


def raw_bytes() -> st.SearchStrategy[Question]:
    """Files that are no YAML, or nearly."""
    good = yaml.dump(BASE).encode()

    def damaged(damage: tuple[int, bytes]) -> bytes:
        where = damage[0] % len(good)
        return good[:where] + damage[1] + good[where + len(damage[1]) :]

    texts = st.text(alphabet="abn:-[]{}&*!|>'\"#%@`, \n\t0.~?", max_size=60).map(str.encode)
    damages = st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=6)).map(damaged)
    return (st.binary(max_size=80) | texts | damages).map(lambda content: asked(content, "raw bytes"))


def alias_bomb(depth: int) -> bytes:
    """Nine to the power of `depth` values in a few hundred bytes."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, depth)]
    return "\n".join([*lines, f"model: {{name: tiny-llama, config: {{layer_types: *a{depth - 1}}}}}"]).encode()


def crafted() -> st.SearchStrategy[Question]:
    """YAML made to be dear, deep, ambiguous or a program."""
    good = yaml.dump(BASE).encode()
    twice = good + b"seed: 1\nseed: 2\n"
    tags = [b"!!python/object/apply:os.system ['touch RAN']", b"!!python/name:os.system", b"!own 7", b"!!binary aGk=",
            b"!!set {a, b}", b"2026-11-23", b"!!omap [a: 1]", b"0x" + b"f" * 9_000, b"1" * DIGITS,
            b"1:" * 900 + b"1"]  # fmt: skip
    files = [
        *((alias_bomb(depth), "") for depth in (3, 6, 9, 12)), (b"[" * 10_000, "deep"), (b"- " * 9_000, "deep"),
        (b"{a: " * 5_000, "deep"), (b"x: y\n" * 400_000, "no settings"), (twice, "seed is there twice"),
        (b"model: {name: tiny-bert, name: tiny-llama}\n" + good, "model is there twice"), (b"a: &a [*a]", "a loop"),
        (good + b"<<: *a\n", "no such anchor"), (good + b"recipe: &r {a: *r}\n", "a loop"), (good + b"\0", "NUL"),
        (good + b"---\nseed: 1\n", "two documents"), ("﻿".encode() + good, ""), (good.decode().encode("utf-16"), ""),
        *((good + b"recipe: {x: " + tag + b"}\n", "") for tag in tags),
        *((good + b"seed: " + tag + b"\n", "") for tag in tags),
        (good.replace(b"examples: 64", b"examples: 64\n  examples: 65"), "examples is there twice"),
    ]  # fmt: skip
    return st.sampled_from(files).map(lambda pair: refused(asked(pair[0], "crafted YAML"), pair[1]))


def refused(question: Question, reason: str) -> Question:
    """The same question, to which only a refusal is right where there is a `reason`."""
    return Question(question.kind, question.arguments, question.files, question.target, reason)


NO_FORECAST = {
    "--price": ["-5", "nan", "inf", "-inf", "x", ""],
    "--gpu": ["", ",", " ", "no-such", "\0", "a" * 9_000, "t4,,no-such"],
    "--set": ["", "=", "a=b", "seed=-1", "seed=" + "9" * DIGITS, "schedule.epochs=.inf", "batch.micro_batch_size=1e999",
              "model.name=" + "x" * 300, "model.name=a/" + "x" * 300, "model.name=\0", "name.x=1", "model=null",
              "model.config.x.y=1", "data.source=" + "y" * 300, "data.source=\0", "seed=!!python/name:os.system",
              "parallel.world_size=99999999999", "seed=[", "model.config.num_hidden_layers=1000000", "seed=*a",
              "model.config.num_labels=1099511627776", "batch.sequence_length=1e9"],
}  # fmt: skip


def options() -> st.SearchStrategy[Question]:
    """Options that no forecast can be right for, and targets that are none."""
    good = yaml.dump(BASE).encode()
    pairs = [(option, value) for option, values in NO_FORECAST.items() for value in values]
    of_options = st.sampled_from(pairs).map(
        lambda pair: Question(
            "options", ("forecast", TARGET, "--json", *pair), {TARGET: good}, must_refuse=f"{pair[0]}"
        )
    )
    names = st.sampled_from(["", ".", "/", "\0", "x" * 300, "a/" * 2_000, "no-such.yaml", "/etc", "~", "None", "-"])
    of_targets = (names | TEXTS).filter(lambda name: not name.startswith("-")).map(
        lambda name: Question("targets", ("forecast", name, "--json"), {})
    )  # fmt: skip
    return of_options | of_targets


def python_targets() -> st.SearchStrategy[Question]:
    """Objects that are no settings."""
    return ANYTHING.map(lambda target: Question("python", target=target, must_refuse="no settings"))


SHARES = {
    "settings": 24, "hostile": 22, "configurations": 16, "folders": 10, "bytes": 8, "crafted": 8, "options": 8,
    "python": 3, "code": 1,
}  # fmt: skip
"""How often each kind is asked, in percent."""
TRACED = ("settings", "configurations", "folders")
"""Kinds that mostly come to a model being traced, which takes a quarter of a second and more."""


@st.composite
def questions(draw: st.DrawFn, without: Sequence[str] = ()) -> Question:
    """All kinds but some, by their shares."""
    kinds = {
        "settings": valid_settings, "hostile": hostile_settings, "configurations": configurations,
        "folders": local_models, "bytes": raw_bytes, "crafted": crafted, "options": options, "python": python_targets,
        "code": lambda: st.builds(remote_code),
    }  # fmt: skip
    kind = draw(st.sampled_from([name for name, share in SHARES.items() if name not in without for _ in range(share)]))
    return draw(kinds[kind]())
