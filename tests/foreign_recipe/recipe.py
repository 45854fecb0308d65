"""Rows of random tokens; the class says in which half of the vocabulary the first one lies. Seconds with a tiny BERT."""

import time

import numpy as np
import torch
from torch import nn

from forerun.data.token_data import TokenData, TokenSample
from forerun.report.tables import ResultTable
from forerun.runs.recipe import Experiment, Judgement
from forerun.settings.schema import Settings
from forerun.step.heads import SequenceClassification
from forerun.step.training_step import TrainingStep
from forerun.verify.compare import Criterion

ROWS, HELD_OUT, VOCABULARY = 512, 128, 20
SETTINGS = Settings.model_validate(
    {
        "name": "first-token",
        "workload": "first-token",
        "model": {"name": "tiny-bert", "config": {"vocab_size": VOCABULARY, "hidden_dropout_prob": 0.0}},
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 3e-3},
        "batch": {"micro_batch_size": 32, "sequence_length": 8, "padding": "longest"},
        "schedule": {"epochs": 3},
        "evaluation": {"every_epochs": 1, "examples": HELD_OUT},
    }
)
CRITERIA = (Criterion(name="learns", quantity="accuracy", comparison="above", bound="majority", margin=0.1),)


class FirstToken(SequenceClassification):
    """The generic classification head under this recipe's name."""

    name = "first-token"
    head = "sequence-classification"

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """From random weights, always."""
        return super().build_model(settings, pretrained=False)


def load_experiment(settings: Settings, *, lengths_only: bool = False) -> Experiment:
    """Rows are made here, so a forecast makes them too."""
    start = time.perf_counter()
    samples = draw(ROWS, settings.seed)
    held_out = draw(HELD_OUT, settings.seed + 1)
    sized = settings.model_copy(update={"data": settings.data.model_copy(update={"examples": ROWS})})
    data = TokenData(sized.model_copy(update={"workload": "sequence-classification"}), samples)
    return Experiment(
        settings=sized,
        workload=FirstToken(),
        data=data,
        plan=data.plan(),
        load_seconds=time.perf_counter() - start,
        final_examples=HELD_OUT,
        evaluate=lambda step, number: {"accuracy": accuracy(step, held_out)},
        judge=lambda step: accuracy(step, held_out),
        baselines=lambda score: judgement(score, held_out),
        criteria=CRITERIA,
    )


def draw(rows: int, seed: int) -> list[TokenSample]:
    """Rows of five to eight tokens and their class."""
    random = np.random.default_rng(seed)
    drawn = [random.integers(2, VOCABULARY, random.integers(5, 9)).tolist() for _ in range(rows)]
    return [TokenSample(ids, int(ids[0] >= VOCABULARY // 2)) for ids in drawn]


def accuracy(step: TrainingStep, samples: list[TokenSample]) -> float:
    """Share of samples that the model classifies right."""
    step.model.eval()
    with torch.no_grad():
        right = [step.model(torch.tensor([s.ids])).logits.argmax().item() == s.target for s in samples]
    step.model.train()
    return sum(right) / len(right)


def judgement(score: float, samples: list[TokenSample]) -> Judgement:
    """The model beside the larger class."""
    share = float(np.mean([s.target for s in samples]))
    majority = max(share, 1 - share)
    table = ResultTable(
        title="Accuracy", note="", columns=["model", "accuracy"], rows=[["BERT", score], ["majority", majority]]
    )
    return Judgement({"accuracy": score, "majority": majority}, [table])
