"""The pages in a real browser: what they say is what the command line says. Skips itself without one."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from itertools import product
from urllib.request import urlopen

import pytest

from forerun.ledger.store import open_ledger
from forerun.records import StepPhases, StepReport
from forerun.verify.test_compare import forecast
from forerun.web.test_script_job import SCRIPT

pytestmark = pytest.mark.scripts
ADDRESS = "model=tiny-bert&workload=sequence-classification&method=full&length=32&precision=fp16-mixed"
CONTENT = {
    "name": "my-run", "workload": "sequence-classification", "model": {"name": "tiny-bert"}, "precision": "fp16-mixed",
    "batch": {"micro_batch_size": 4, "sequence_length": 32}, "data": {"examples": 10_000},
}  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ui")
    return {
        **os.environ,
        "FORERUN_TRACES": str(folder / "traces"),
        "FORERUN_LEDGER": f"sqlite:///{folder / 'l.sqlite'}",
    }


@pytest.fixture(scope="module")
def base(environment):
    pytest.importorskip("nicegui")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outside = {name: value for name, value in environment.items() if not name.startswith("PYTEST")}
    server = subprocess.Popen(
        [sys.executable, "-m", "forerun", "ui", "--allow-scripts", "--port", str(port)], env=outside
    )
    address = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            urlopen(address).close()
            break
        except OSError:
            time.sleep(0.1)
    yield address
    server.terminate()
    server.wait()


@pytest.fixture(scope="module")
def page(base):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or pytest.skip("no chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 360, "height": 740})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def test_the_page_says_what_the_command_line_says(page, base, environment, tmp_path):
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{base}/?{ADDRESS}&gpu=t4")
    verdict = page.wait_for_selector(".big").inner_text()
    file = tmp_path / "run.json"
    file.write_text(json.dumps(CONTENT))
    command = [sys.executable, "-m", "forerun", "forecast", str(file), "--gpu", "t4"]
    text = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
    numbers = [word for word in verdict.split() if word[0].isdigit()]
    assert verdict.startswith("It fits")
    assert all(number in text for number in numbers[:2]), (verdict, text)
    assert all(url.startswith((base, "data:", base.replace("http", "ws"))) for url in requests), (
        "nothing from elsewhere"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_change_changes_answer_and_address(page, base):
    page.goto(f"{base}/?{ADDRESS}&gpu=t4")
    before = page.wait_for_selector(".big").inner_text()
    page.get_by_label("Micro-batch").fill("64")
    page.wait_for_url("**batch=64**")
    page.wait_for_function("before => document.querySelector('.big')?.innerText !== before", arg=before)
    page.goto(page.url)
    assert page.get_by_label("Micro-batch").input_value() == "64"


def test_a_wrong_address_says_what_is_wrong(page, base):
    page.goto(f"{base}/?batch=0")
    assert "batch" in page.wait_for_selector('[role="alert"]').inner_text()


def test_the_other_tabs_show_a_chart(page, base):
    page.goto(f"{base}/?tab=timeline&{ADDRESS}&gpu=t4")
    page.wait_for_selector(".nicegui-echart canvas")
    page.goto(f"{base}/?tab=runs")
    page.wait_for_selector("text=no runs yet")


def test_back_restores_the_state_before(page, base):
    page.goto(f"{base}/?{ADDRESS}&gpu=t4")
    before = page.wait_for_selector(".big").inner_text()
    page.get_by_label("Epochs").fill("3")
    page.wait_for_url("**epochs=3**")
    page.get_by_role("tab", name="Runs").click()
    page.wait_for_url("**tab=runs**")
    page.go_back()
    page.wait_for_function("() => document.querySelector('[role=tab][aria-selected=true]').innerText == 'Will it fit?'")
    assert page.get_by_label("Epochs").input_value() == "3"
    page.go_back()
    page.wait_for_function("() => document.querySelector('[aria-label=Epochs]').value == '1'")
    assert "epochs" not in page.url
    page.wait_for_function("before => document.querySelector('.big')?.innerText === before", arg=before)
    page.go_forward()
    page.wait_for_function("() => document.querySelector('[aria-label=Epochs]').value == '3'")


def test_runs_stand_beside_each_other_and_grow(page, base, environment):
    with open_ledger(environment["FORERUN_LEDGER"]) as ledger:
        ids = [enter_run(ledger, rate) for rate in (1e-3, 1e-4)]
        page.goto(f"{base}/?tab=runs&run={ids[0]}&beside={ids[1]}")
        page.wait_for_selector("text=step 2 of 100. mini started: step 2 of 100")
        measured = page.locator("tr", has_text="step time").first.inner_text()
        assert "20.0 ms" in measured, "both were measured at that"
        ledger.record_step(ids[0], report(3))
        ledger.flush()
        page.wait_for_selector("text=step 3 of 100. mini started: step 2 of 100")


def enter_run(ledger, rate):
    """A run of ten steps that has made two."""
    settings = {"name": "mini", "optimizer": {"learning_rate": rate}}
    run_id = ledger.start_run(
        name="mini",
        workload="tiny",
        settings=settings,
        settings_hash=str(rate),
        gpu="cpu",
        folder="nowhere",
        versions={},
    )
    ledger.record_forecast(run_id, forecast())
    for step in (1, 2):
        ledger.record_step(run_id, report(step))
    ledger.flush()
    return run_id


def report(step):
    return StepReport(
        step=step, epoch=0.1, loss=1 / step, learning_rate=1e-3, step_seconds=0.02, samples=4, tokens=40,
        phases=StepPhases(forward_seconds=0.01, backward_seconds=0.01), padded_tokens=40,
    )  # fmt: skip


def test_a_pasted_configuration_is_a_model_and_a_wrong_one_says_why(page, base):
    page.goto(
        f"{base}/?model=nobody/nothing&workload=image-classification&method=full&image_size=32&precision=fp16-mixed&gpu=t4"
    )
    assert "nobody/nothing" in page.wait_for_selector('[role="alert"]').inner_text()
    page.get_by_text("Paste a config.json").click()
    text = page.get_by_label("config.json of the model")
    text.fill('{"model_type": 1}')
    page.get_by_role("button", name="Use it").click()
    page.wait_for_selector('[role="alert"]:has-text("model_type")')
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    text.fill(json.dumps({"model_type": "vit", "image_size": 32, **sizes}))
    page.get_by_role("button", name="Use it").click()
    first = page.wait_for_selector(".big").inner_text()
    page.wait_for_url("**model=**pasted**")
    assert not page.get_by_label("Tokens per sample").is_visible(), "images have none"
    assert "image_size 32" in page.locator("pre", has_text="TrainingArguments").inner_text()
    page.get_by_label("Image side in pixels").fill("256")
    page.wait_for_url("**image_size=256**")
    page.wait_for_function("before => document.querySelector('.big')?.innerText !== before", arg=first)


SIZES = ((360, 740), (1280, 900))


STATES = {
    "fit": ("", ".big"), "gpus": ("tab=gpus", ".nicegui-echart canvas"),
    "timeline": ("tab=timeline", ".nicegui-echart canvas"),
    "runs": ("tab=runs", ":text('no runs yet'), .nicegui-echart canvas"),
    "script": ("tab=script", "button:has-text('Run it')"), "wrong": ("batch=0", '[role="alert"]'),
}  # fmt: skip
"""Pages by name: what their address has more, and what is there once they are drawn. "fit" with all of it unfolded."""


@pytest.mark.parametrize("name", STATES)
def test_axe_has_nothing_serious_to_say(page, base, name):
    """Light and dark, phone and desktop; axe-core's rules for WCAG 2.2 A and AA."""
    spec = importlib.util.find_spec("axe_playwright_python") or pytest.skip("no axe here")
    more, drawn = STATES[name]
    page.goto(f"{base}/?{ADDRESS}&gpu=t4&{more}")
    page.wait_for_selector(drawn)
    if name == "fit":
        page.get_by_text("Paste a config.json").click()
        page.get_by_text("remarks").click()
    page.add_script_tag(path=os.path.join(spec.submodule_search_locations[0], "axe.min.js"))
    findings = []
    for colours, (width, height) in product(("light", "dark"), SIZES):
        page.emulate_media(color_scheme=colours)
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(400)  # until colours have changed, which is animated
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        findings += [
            (colours, width, rule["id"], rule["nodes"][0]["html"][:200])
            for rule in result["violations"] if rule["impact"] in ("serious", "critical")
        ]  # fmt: skip
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 740})
    assert findings == []


def test_the_keyboard_reaches_and_changes_every_control(page, base):
    page.goto(f"{base}/?model=nobody/nothing&gpu=t4")  # is refused at once, so that nothing is traced
    page.wait_for_selector('[role="alert"]')
    labels = page.evaluate(
        "[...document.querySelectorAll('.q-field input')].filter(i => i.offsetParent).map(i => i.ariaLabel)"
    )
    assert {"Model", "GPU", "Micro-batch", "Precision", "LoRA rank"} <= set(labels)
    reached = {}
    for _ in range(4 * len(labels)):
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.ariaLabel")
        if label not in labels or label in reached:
            continue
        before = page.evaluate(SHOWN)
        for key in ("ArrowDown", "ArrowDown", "Enter") if "combobox" in role(page) else ("ArrowUp",):
            page.keyboard.press(key)
            page.wait_for_timeout(120)
        reached[label] = page.evaluate(SHOWN) != before
    assert reached == dict.fromkeys(labels, True)


SHOWN = "(document.activeElement.value || '') + document.activeElement.closest('.q-field').innerText"
"""What the control in focus says."""


def role(page):
    """What kind of control has the focus."""
    return page.evaluate("(document.activeElement.role || '') + (document.activeElement.ariaHasPopup || '')")


def test_a_file_becomes_the_script(page, base, tmp_path):
    (tmp_path / "train.py").write_text("import torch  # of the file")
    page.goto(f"{base}/?tab=script&gpu=t4")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Take a file").click()
    chooser.value.set_files(tmp_path / "train.py")
    page.wait_for_function("() => document.querySelector('[aria-label^=Training]').value.endsWith('of the file')")


def test_a_script_runs_shut_in(page, base):
    page.goto(f"{base}/?tab=script&gpu=t4")
    page.get_by_label("Training script").fill(SCRIPT)
    page.get_by_role("button", name="Run it").click()
    words = page.wait_for_selector('.big, [role="alert"]').inner_text()
    assert words.startswith("It fits") or "no isolation" in words
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
