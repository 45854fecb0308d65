import numpy as np
import pytest
import torch

from forerun.recipes.code_detector.data.test_training_data import corpus, settings
from forerun.recipes.code_detector.data.training_data import open_data
from forerun.recipes.code_detector.onnx_export import ONNX, write_onnx
from forerun.recipes.code_detector.workload import CodeDetectorWorkload


@pytest.mark.slow
def test_onnx_scores_as_the_model(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = CodeDetectorWorkload(settings()).build_model(settings(), pretrained=False)
    assert write_onnx(model, open_data(settings(), corpus()), tmp_path) < 1e-5
    session = runtime.InferenceSession(tmp_path / ONNX)
    for size, length in ((1, 8), (5, 64)):  # sizes that it was not exported with
        ids = np.full((size, length), 7, dtype=np.int64)
        logits, vectors = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        assert logits.shape == (size, 2)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
