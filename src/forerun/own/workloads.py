"""The training step of a task, from its facts alone: the same for training, forecasting and using a model."""

from typing import Any

from forerun.own.facts import TaskFacts
from forerun.settings.preference import PreferenceSettings
from forerun.step.head_workload import HeadWorkload
from forerun.step.heads import (
    CausalLM,
    MaskedLM,
    Preference,
    Seq2SeqLM,
    SequenceClassification,
    TokenClassification,
)
from forerun.step.pairs import Embeddings
from forerun.step.unpaired import UnpairedPreference
from forerun.step.workload import Workload

PROBLEMS = {
    "one": "single_label_classification", "several": "multi_label_classification", "number": "regression",
}  # fmt: skip
"""transformers' names of the kinds of labels."""
PLAIN: dict[str, type[HeadWorkload]] = {
    kind.name: kind for kind in (CausalLM, MaskedLM, Seq2SeqLM, TokenClassification)
}  # fmt: skip
"""Workloads that need nothing but fields of the configuration."""


def workload_of_facts(
    facts: TaskFacts,
    tokenizer: Any,
    objective: PreferenceSettings = PreferenceSettings(),  # noqa: B008
) -> Workload:
    """The step of a task; its model's configuration gets the labels' names and the tokenizer's special ids.

    `objective` is the loss of preferred answers.
    """
    fields: dict[str, Any] = special_ids(tokenizer)
    if facts.label_names:
        names = dict(enumerate(facts.label_names))
        fields |= {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    if facts.workload == "sequence-classification":
        assert facts.label_kind != "none"
        fields["problem_type"] = PROBLEMS[facts.label_kind]
        return SequenceClassification(fields, facts.label_kind, is_paired=facts.is_paired)
    if facts.workload == "embedding":
        return Embeddings(fields, has_negatives=facts.format == "triplets")
    if facts.workload == "preference":
        return (Preference if facts.format == "preference" else UnpairedPreference)(fields, objective)
    return PLAIN[facts.workload](fields)


def special_ids(tokenizer: Any) -> dict[str, int]:
    """Ids that a model's configuration must share with its tokenizer, by the configuration's names."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return {name: value for name, value in ids.items() if value is not None}
