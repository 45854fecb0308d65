"""What does not go together with a pipeline is refused, and says why."""

import pytest
import torch

from forerun.errors import NotSupported
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload


def settings(pipeline=2, schedule="1f1b", virtual=1, **changes):
    return settings_from({
        "name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "fp32",
        "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "padding": "fixed", "sequence_length": 16},
        "parallel": {"pipeline": pipeline, "schedule": schedule, "virtual_stages": virtual}, **changes,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "padding": "longest"}}, "one shape"),
        ({"adapter": {"kind": "lora", "dora": True}}, "adapter.dora: .*parallel.pipeline=2.* Set it to false"),
        ({"adapter": {"kind": "prompt"}}, "adapter.kind: found 'prompt' with parallel.pipeline=2"),
        ({"workload": "masked-lm", "model": {"name": "bert-base-uncased"}}, "built for causal-lm"),
        ({"evaluation": {"examples": 8, "new_tokens": 4}}, "generating over stages"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused_with_its_reason(changes, words):
    asked = settings(**changes)
    with pytest.raises(NotSupported, match=words), torch.device("meta"):
        prepare_model(asked, generic_workload(asked.workload), pretrained=False)
