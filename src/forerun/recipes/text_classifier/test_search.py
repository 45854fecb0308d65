"""Every searched setting is alive: changing it alone changes the trained weights or the data that is trained on."""

import hashlib
import json

import pytest
import torch

from forerun.recipes.text_classifier.recipe import (
    load_experiment,
    search_overrides,
    search_space,
    search_start,
    step_class,
)
from forerun.recipes.text_classifier.search import EDITS, METHOD, NONE, STRENGTHS
from forerun.runs.search_space import NEVER_SEARCHED, Dimension
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.train.loop import Training, seed_everything

WORDS = [
    "good",
    "bad",
    "film",
    "plot",
    "actor",
    "scene",
    "story",
    "music",
    "fine",
    "dull",
    "great",
    "poor",
    "warm",
    "cold",
    "long",
    "short",
]
SMALL = {
    "vocabulary_size": 300,
    "orders": 2,
    "buckets": 64,
    "ngram_width": 4,
    "width": 16,
    "feed_forward": 16,
    "heads": 2,
}
TASKS = ("single", "several", "transformer")


def rows(several: bool):
    """Texts of 5 to 12 words; two labels of three to one, or lists of labels."""
    samples = []
    for number in range(56):
        words = [WORDS[(number * 7 + place * (number % 5 + 1)) % len(WORDS)] for place in range(5 + number % 8)]
        label = "yes" if number % 4 == 0 else "no"
        labels = [name for name, every in (("a", 2), ("b", 3), ("c", 7)) if number % every == 0]
        split = ("train", "train", "train", "train", "train", "val", "test")[number % 7]
        samples.append({"text": f"{' '.join(words)} {number}", "label": labels if several else label, "split": split})
    samples += [
        {"text": f"more good film {n}", "label": ["a", "b", "c"] if several else "no", "split": "val"} for n in range(6)
    ]
    return samples


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    settings_by_task = {}
    for task in TASKS:
        several = task == "several"
        path = folder / f"{task}.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows(several)))
        settings_by_task[task] = settings_from(
            {
                "name": task, "workload": "text-classifier",
                "model": {"name": "tiny-bert"} if task == "transformer" else {"name": "text-encoder", "config": SMALL},
                "optimizer": {"learning_rate": 1e-3},
                "batch": {"micro_batch_size": 8, "sequence_length": 64, "padding": "bucketed"},
                "schedule": {"epochs": 2, "warmup_steps": 1}, "data": {"source": str(path)},
                "recipe": {
                    "task": "multi-label" if several else "single-label", "vocabulary_size": 300,
                    "frozen_layers": 1 if task == "transformer" else 0,
                },
            }
        )  # fmt: skip
    return settings_by_task


def training_digest(settings, folder) -> str:
    """Digest of the weights after the whole run and of every batch on the way."""
    torch.set_num_threads(1)
    seed_everything(settings.seed)
    experiment = load_experiment(settings, lengths_only=True)
    step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=False)
    digest = hashlib.sha256()
    for _ in Training(step, experiment.data, folder).steps():
        pass
    for epoch in range(2):
        for micro_batches in experiment.data.epoch_steps(epoch):
            for indices in micro_batches:
                for name, tensor in sorted(experiment.data.collate(indices).items()):
                    digest.update(name.encode() + tensor.numpy().tobytes())
    for tensor in step.model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def point(base, dimension: Dimension, experiment, which: int):
    """The start with what the dimension depends on in place, and the dimension at its first or another value."""
    values = dict(search_start(experiment))
    for condition in (d for d in search_space(experiment) if dimension.only_if and d.name == dimension.only_if[0]):
        assert dimension.only_if is not None
        values[condition.name] = dimension.only_if[1][0]
    for other in search_space(experiment):  # what else has become due
        if other.is_asked(values) and other.name not in values:
            values[other.name] = other.values[0] if other.values else (other.low + other.high) / 2
    span = dimension.high - dimension.low
    values[dimension.name] = (
        dimension.values[which % len(dimension.values)]
        if dimension.values
        else dimension.low + span * (0.25 + 0.6 * which)
    )
    for other in search_space(experiment):
        if other.is_asked(values) and other.name not in values:
            values[other.name] = other.values[0] if other.values else (other.low + other.high) / 2
    names = [d.name for d in search_space(experiment) if d.is_asked(values)]
    return settings_from(base.model_dump(), search_overrides({name: values[name] for name in names}, experiment))


@pytest.fixture(scope="module")
def digest_cache():
    return {}


def all_dimensions():
    """Names in every space; that the list is complete is a test below."""
    names = [
        "optimizer.learning_rate", "optimizer.weight_decay", "schedule.warmup_share", "recipe.head_rate",
        "recipe.layer_decay", "recipe.dropout", "recipe.pooling", "recipe.loss", "recipe.gamma", "recipe.balance",
        "recipe.label_smoothing", "batch.micro_batch_size", "batch.sequence_length", "schedule.epochs", METHOD,
        *(f"augmentation.{name}_strength" for name in STRENGTHS), "augmentation.probability",
        "recipe.augmentation.oversample",
    ]  # fmt: skip
    return [("single", name) for name in names] + [("several", "recipe.gamma"), ("transformer", "recipe.frozen_layers")]


def test_the_list_is_complete(bases):
    names = {d.name for base in bases.values() for d in search_space(load_experiment(base, lengths_only=True))}
    assert names == {name for _, name in all_dimensions()}


def test_a_lexicon_adds_its_methods(bases, tmp_path):
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"good": ["fine"], "film": ["movie"], "bad": ["poor"]}))
    experiment = load_experiment(
        settings_from(bases["single"].model_dump(), [f"recipe.augmentation.lexicon={path}"]), lengths_only=True
    )
    space = {d.name: d for d in search_space(experiment)}
    assert {"synonym", "insertion"} <= set(space[METHOD].values)
    values = {METHOD: "synonym", "augmentation.edit_strength": 0.2, "augmentation.probability": 0.9}
    assert all(space[name].is_asked(values) for name in values)
    changed = settings_from(experiment.settings.model_dump(), search_overrides(values, experiment))
    plain = [(row.text, row.pair) for row in experiment.data.rows["train"]]
    data = load_experiment(changed, lengths_only=True).data
    texts = [data.augmenter.text(text, 0, place) for place, (text, _) in enumerate(plain)]
    assert sum("movie" in text or "fine" in text for text in texts) > len(plain) / 4


def test_kept_states_are_not_searched_away(bases):
    settings = settings_from(bases["transformer"].model_dump(), ["recipe.keep_frozen=true"])
    space = {d.name: d for d in search_space(load_experiment(settings, lengths_only=True))}
    assert set(space[METHOD].values) == {NONE, *EDITS, "mixup", "r-drop"}
    assert "augmentation.fgm_strength" not in space
    assert "recipe.frozen_layers" in space


@pytest.mark.parametrize(("task", "name"), all_dimensions(), ids=lambda value: value)
def test_is_alive(task, name, bases, tmp_path, digest_cache):
    experiment = load_experiment(bases[task], lengths_only=True)
    dimension = next(d for d in search_space(experiment) if d.name == name)
    digests = []
    for which in (0, 1):
        settings = point(bases[task], dimension, experiment, which)
        if settings.hash not in digest_cache:
            digest_cache[settings.hash] = training_digest(settings, tmp_path / str(which))
        digests.append((settings.hash, digest_cache[settings.hash]))
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] != digests[1][1]


@pytest.mark.parametrize("method", [*EDITS, *(name for name in STRENGTHS if name != "edit"), "pgd"])
def test_every_method_does_something(method, bases, tmp_path, digest_cache):
    plain = bases["single"]
    policy = f"recipe.augmentation.policies=[{{method: {method}, strength: 0.3, probability: 1.0}}]"
    changed = settings_from(plain.model_dump(), [policy])
    if plain.hash not in digest_cache:
        digest_cache[plain.hash] = training_digest(plain, tmp_path / "plain")
    assert training_digest(changed, tmp_path / "changed") != digest_cache[plain.hash]


@pytest.mark.parametrize("loss", ["cross-entropy", "focal", "class-balanced", "asymmetric"])
def test_every_loss_and_pooling_is_another(loss, bases, tmp_path, digest_cache):
    base = bases["several"]
    digests = {training_digest(settings_from(base.model_dump(), [f"recipe.loss={loss}"]), tmp_path / loss)}
    for pooling in ("cls", "attention"):
        settings = settings_from(base.model_dump(), [f"recipe.loss={loss}", f"recipe.pooling={pooling}"])
        digests.add(training_digest(settings, tmp_path / pooling))
    assert len(digests) == 3
    assert not digests & digest_cache.setdefault("losses", set())
    digest_cache["losses"] |= digests


def test_the_same_settings_train_the_same(bases, tmp_path):
    """Otherwise the tests above could not fail."""
    settings = settings_from(
        bases["single"].model_dump(), ["recipe.augmentation.policies=[{method: mixup, strength: 0.4, probability: 1}]"]
    )
    assert training_digest(settings, tmp_path / "one") == training_digest(settings, tmp_path / "other")


@pytest.mark.parametrize("name", [*NEVER_SEARCHED, "precision"])
def test_seed_precision_and_metric_cannot_be_searched(name):
    with pytest.raises(ValueError, match="fixed in a study"):
        Dimension(name=name, values=(0, 1))


def test_trials_with_the_same_step_share_a_class(bases):
    base = bases["single"]
    alike = settings_from(base.model_dump(), ["recipe.loss=focal", "recipe.gamma=1.5", "optimizer.learning_rate=0.01"])
    other = settings_from(base.model_dump(), ["recipe.augmentation.policies=[{method: r-drop}]"])
    assert step_class(alike) == step_class(base)
    assert step_class(other) != step_class(base)


def test_the_first_trial_is_the_settings_themselves(bases):
    experiment = load_experiment(bases["single"], lengths_only=True)
    overrides = search_overrides(search_start(experiment), experiment)
    again = settings_from(bases["single"].model_dump(), overrides)
    for section in ("optimizer", "schedule"):
        assert getattr(again, section).model_dump() == pytest.approx(getattr(bases["single"], section).model_dump())
    assert NONE not in str(again.recipe["augmentation"])
