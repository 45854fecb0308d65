"""ONNX Runtime answers as the trained model does, also at sizes that the export never saw."""

import numpy as np
import pytest
import torch

from forerun.errors import NotSupported
from forerun.hardware.detect import detect
from forerun.own.onnx_export import ONNX
from forerun.runs.export import FORM_TOLERANCE, export_run
from forerun.step.pairs import pooled
from own_driver import training_of

pytestmark = pytest.mark.filterwarnings("ignore::forerun.train.loop.NotLearningWarning")


def values_at(size, length):
    """Inputs of a size by name; the last text is half as long as the others."""
    chance = torch.Generator().manual_seed(length)
    ids, targets = (torch.randint(8, 200, (size, each), generator=chance) for each in (length, length // 5))
    mask = torch.ones_like(ids)
    mask[-1, length // 2 + 1 :] = 0
    types = torch.zeros_like(ids)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "decoder_input_ids": targets}


KINDS = ("pair", "masked", "translation", "pairs")
SLOW_KINDS = ("chat", "tags", "triplets", "preference")


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.medium) for kind in KINDS),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_KINDS),
    ],
)
def test_an_exported_model_answers_as_the_run_did(tmp_path, kind):
    runtime = pytest.importorskip("onnxruntime")
    sections = {"rows": 60, "schedule": {"max_steps": 3}}
    experiment, training = training_of(tmp_path, kind, **sections)
    list(training.steps())
    report = export_run("run", experiment, detect().device, tmp_path, tmp_path / "to", merge=False, forms=["onnx"])
    (gap,) = [change.exported for change in report.compared if "ONNX" in change.name]
    assert gap < FORM_TOLERANCE
    assert ONNX in report.files
    session = runtime.InferenceSession(tmp_path / "to" / ONNX)
    training.load_best()
    model = training.step.model.eval()
    for size, length in ((1, 5), (7, 48)):
        values = values_at(size, length)
        inputs = {each.name: values[each.name] for each in session.get_inputs()}
        with torch.no_grad():
            is_vector = kind in ("pairs", "triplets")
            expected = pooled(model, *inputs.values()) if is_vector else model(**inputs).logits
        output = "vectors" if is_vector else "logits"
        (answers,) = session.run([output], {name: tensor.numpy() for name, tensor in inputs.items()})
        np.testing.assert_allclose(answers, expected.numpy(), atol=FORM_TOLERANCE)


def test_packed_weights_are_refused(tmp_path):
    lora = {"adapter": {"kind": "lora", "rank": 2}, "quantization": "nf4", "rows": 30}
    experiment, training = training_of(tmp_path / "packed", "chat", **lora)
    with pytest.raises(NotSupported, match="no nf4 weights of bitsandbytes. Add --merge"):
        experiment.write_onnx(training.step, tmp_path)
