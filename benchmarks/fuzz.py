"""How many questions break Forerun? Thousands of settings, files and options that were made to; every answer is judged.

    python -m benchmarks.fuzz --questions 1000 --seed 1 --processes 20

An answer is right when it comes with a documented exit code, without a traceback, within 60 s and 4 GiB, in a message
that can be read, with numbers that can be. Questions run in one process after the other's answer (what one leaves
behind is part of the test) that is replaced when it hangs, dies or grows; `--processes` of them again in processes of
their own. Prints a table by kind of question and failure, the worst of each, and one JSON line.

The 60 s are those of the clock. While the machine has more to run than cores, they are those of the processor, and ten
minutes of the clock at most: others' load is no failure of ours. Answers that only this lets pass are listed as late.
"""

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from benchmarks.fuzz_cases import Question, questions
from hypothesis import HealthCheck, Phase, given, seed, settings

METHOD = 2
DOCUMENTED, REFUSAL = (0, 2, 3), 2
FORECAST, REFUSED, FOREIGN = "forecast", "refused", "refused with a cause of PyTorch or transformers"
LONGEST_SECONDS, MOST_BYTES, LONGEST_MESSAGE = 60.0, 4 * 1024**3, 4_000
LONGEST_WAIT_SECONDS = 600.0
"""By the clock, however loaded the machine is: who waits for nothing uses no processor."""
TOO_LONG = "over 60 s"
RAN = "RAN"
"""File that code of a question leaves where it is run."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Answer:
    """What came back."""

    failure: str
    """Empty where the answer is right."""
    exit_code: int | None
    seconds: float
    message: str
    processor_seconds: float = 0.0


def is_too_long(seconds: float, processor_seconds: float, load: float, cores: int) -> bool:
    """Whether an answer took longer than it may, with so many processes that want to run (`load`)."""
    if load <= cores or seconds > LONGEST_WAIT_SECONDS:
        return seconds > LONGEST_SECONDS
    return processor_seconds > LONGEST_SECONDS


def outcome_of(answer: Answer) -> str:
    """Which column of the table an answer is in."""
    if answer.failure:
        return answer.failure
    if answer.exit_code != REFUSAL:
        return FORECAST
    return FOREIGN if re.search(r"\(\w+, [\w./-]+:\d+\)|cannot be traced", answer.message) else REFUSED


def judged(question: Question, exit_code: int, spent: tuple[float, float], output: str, message: str) -> Answer:
    """An answer and what is wrong with it; `spent` are seconds of the clock and of the processor."""
    failure = ""
    if exit_code not in DOCUMENTED:
        failure = f"exit code {exit_code}"
    elif "Traceback" in message:
        failure = "traceback"
    elif len(message) > LONGEST_MESSAGE:
        failure = "long message"
    elif exit_code == REFUSAL and not message.strip():
        failure = "no message"
    elif exit_code != REFUSAL and question.must_refuse:
        failure = "not refused"
    elif exit_code != REFUSAL and (wrong := impossible(json.loads(output))):
        failure, message = "impossible number", wrong
    if Path(RAN).exists():
        failure = "code was run"
    return Answer(failure, exit_code, spent[0], message[:600], spent[1])


def impossible(document: Any, path: str = "") -> str:
    """The first negative or infinite quantity of a document; empty where there is none."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        if wrong := impossible(value, f"{path}.{key}"):
            return wrong
    measured = re.search(r"_bytes|seconds|cost|flops|steps|expected", path)
    is_number = isinstance(document, float | int) and not isinstance(document, bool)
    if is_number and (not math.isfinite(document) or (measured and document < 0)):
        return f"{path} = {document}"
    return ""


def answer_here(question: Question) -> Answer:
    """The answer of this process."""
    from forerun.api import forecast
    from forerun.cli.main import main
    from forerun.errors import ForerunError

    output, message, exit_code = io.StringIO(), io.StringIO(), 0
    start, processor = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        put_files(question)
        os.environ["FORERUN_LEDGER"] = f"sqlite:///{folder}/ledger.sqlite"
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(message):
            try:
                if question.arguments:
                    sys.argv = ["forerun", *question.arguments]
                    main()
                else:
                    output.write(forecast(question.target).model_dump_json(by_alias=True, exclude={"detail"}))
            except SystemExit as stop:
                exit_code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            except ForerunError as error:
                exit_code = REFUSAL
                message.write(str(error))
            except BaseException:
                return Answer("traceback", None, time.monotonic() - start, last_lines(traceback.format_exc()))
        spent = time.monotonic() - start, time.process_time() - processor
        return judged(question, exit_code, spent, output.getvalue(), message.getvalue())


def put_files(question: Question) -> None:
    """The files of a question, into the current folder."""
    for name, content in question.files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)


def last_lines(text: str) -> str:
    """The end of a traceback: the line that failed, and the error."""
    lines = [line for line in text.splitlines() if line.strip(" ^~")]
    places = [n for n, line in enumerate(lines) if line.startswith("  File ")]
    return "\n".join([lines[places[-1]], *lines[-1:]])[-600:] if places else text[-600:]


def answer_alone(question: Question) -> Answer:
    """The answer of a process of its own, started as a shell does."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        put_files(question)
        environment = {**os.environ, "FORERUN_LEDGER": f"sqlite:///{folder}/ledger.sqlite"}
        command = [sys.executable, "-m", "forerun", *question.arguments]
        with Path("output").open("wb") as output, Path("message").open("wb") as message:
            process = psutil.Popen(command, env=environment, stdout=output, stderr=message, stdin=subprocess.DEVNULL)
        used = 0.0
        while (exit_code := process.poll()) is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                used = sum(process.cpu_times()[:2])
            seconds = time.monotonic() - start
            if is_too_long(seconds, used, os.getloadavg()[0], os.cpu_count() or 1):
                process.kill()
                process.wait()
                return Answer(TOO_LONG, None, seconds, f"{used:.0f} s of processor time", used)
            time.sleep(POLL_SECONDS)
        texts = (Path(name).read_text(encoding="utf-8", errors="replace") for name in ("output", "message"))
        return judged(question, exit_code, (time.monotonic() - start, used), *texts)


class Answerer:
    """A process that answers, and is replaced where it does not."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("fork")
        self.most_bytes = 0
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self, question: Question) -> Answer:
        """What the process says, or how it failed to."""
        start, failure, process = time.monotonic(), "", psutil.Process(self._process.pid)
        used, used_before = 0.0, sum(process.cpu_times()[:2])
        self._pipe.send(question)
        while not failure and not self._pipe.poll(POLL_SECONDS):
            seconds = time.monotonic() - start
            held = process.memory_info().rss
            self.most_bytes = max(self.most_bytes, held)
            used = sum(process.cpu_times()[:2]) - used_before
            is_late = is_too_long(seconds, used, os.getloadavg()[0], os.cpu_count() or 1)
            failure = TOO_LONG if is_late else "over 4 GiB" if held > MOST_BYTES else ""
        if not failure:
            try:
                return self._pipe.recv()
            except EOFError:
                failure = "process died"
        self.stop()
        self._start()
        return Answer(failure, None, time.monotonic() - start, f"{used:.0f} s of processor time", used)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Any) -> None:
    from forerun.errors import UserNote

    warnings.simplefilter("default", UserNote)  # said to the user, and no failure, where a test makes warnings errors
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send(answer_here(pipe.recv()))


@contextlib.contextmanager
def answering() -> Iterator[Answerer]:
    """A process that answers, ended afterwards."""
    answerer = Answerer()
    try:
        yield answerer
    finally:
        answerer.stop()


def described(question: Question) -> str:
    """A question in a few hundred characters."""
    if not question.arguments:
        try:
            return repr(question.target)[:300]
        except ValueError:
            return "a number of more digits than Python prints"
    files = {name: content[:300] for name, content in question.files.items()}
    return f"{' '.join(question.arguments)[:200]} {files}"[:700]


def made_questions(number: int, at: int) -> list[Question]:
    """So many questions of a seed."""
    drawn: list[Question] = []

    @seed(at)
    @settings(max_examples=number, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(questions())
    def draw(question: Question) -> None:
        drawn.append(question)

    draw()
    return drawn


def main() -> None:
    """Ask, judge, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, usual in (("questions", 500), ("seed", 1), ("processes", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument(
        "--failures",
        type=Path,
        help="File for every question that failed or was refused for a foreign cause, one JSON document a line.",
    )
    options = parser.parse_args()
    import forerun.api  # noqa: F401  # loaded once, before processes are forked

    asked = made_questions(options.questions, options.seed)
    with answering() as answerer:
        answers = [(question, answerer.answer(question)) for question in asked]
        most = answerer.most_bytes
    lines = [q for q in asked if q.arguments and not any("\0" in part for part in q.arguments)]
    alone = lines[:: max(1, len(lines) // options.processes)][: options.processes] if options.processes else []
    answers += [(question, answer_alone(question)) for question in alone]
    report(answers, most, options)


def by_kind(outcomes: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """How many answers of each kind of question came out how; runs of other seeds are added to them."""
    kinds: dict[str, dict[str, int]] = {}
    for (kind, outcome), number in sorted(outcomes.items()):
        kinds.setdefault(kind, {})[outcome] = number
    return kinds


def report(answers: list[tuple[Question, Answer]], most_bytes: int, options: argparse.Namespace) -> None:
    """The table, an example of each failure, and one JSON line."""
    outcomes = Counter((question.kind, outcome_of(answer)) for question, answer in answers)
    names = [FORECAST, REFUSED, FOREIGN, *sorted({answer.failure for _, answer in answers if answer.failure})]
    print("| kind of question | asked | " + " | ".join(names) + " |")
    print("|---|" + "--:|" * (len(names) + 1))
    for kind in [*sorted({question.kind for question, _ in answers}), "all"]:
        counts = [
            sum(n for (of, name), n in outcomes.items() if name == each and kind in (of, "all")) for each in names
        ]
        print(f"| {kind} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    places = Counter((a.failure, a.message) for _, a in answers if a.failure)
    for (failure, message), number in places.most_common(25):
        print(f"\n{number} x {failure}: {message}")
    if options.failures:
        failed = [
            {"question": described(q), "kind": q.kind, "outcome": outcome_of(a), **asdict(a)}
            for q, a in answers
            if a.failure or outcome_of(a) == FOREIGN
        ]
        options.failures.write_text("".join(json.dumps(row) + "\n" for row in failed))
    total = Counter(outcome_of(answer) for _, answer in answers)
    longest = max(answer.seconds for _, answer in answers)
    late = [[round(a.seconds, 1), round(a.processor_seconds, 1)] for _, a in answers
            if a.seconds > LONGEST_SECONDS and not a.failure]  # fmt: skip
    print(
        json.dumps({"method": METHOD, "questions": len(answers), "seed": options.seed, **total,
                    "longest_seconds": round(longest, 1), "most_bytes": most_bytes, "kinds": by_kind(outcomes),
                    "late": late, "load": round(os.getloadavg()[0], 1),
                    "failures": [f"{failure}: {message}" for (failure, message) in places]})
    )  # fmt: skip


if __name__ == "__main__":
    main()
