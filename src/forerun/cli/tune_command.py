"""`forerun tune`: search a recipe's settings, price every trial before it runs, and end with a model to be trusted."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forerun.cli.options import (
    EXIT_CRITERION_FAILED,
    EXIT_DOES_NOT_FIT,
    EXIT_INTERRUPTED,
    JsonOption,
    SetOption,
    TargetArgument,
    ThreadsOption,
    ledger_url,
    print_json,
    use_threads,
)
from forerun.cli.output import is_bare, print_view, with_format
from forerun.errors import InvalidSettings, NothingFits, NotSupported

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from forerun.ledger.store import Ledger
    from forerun.report.tables import ResultTable
    from forerun.settings.schema import Settings
    from forerun.tune.pricing import Price
    from forerun.tune.search import Search, SearchBudget
    from forerun.tune.study_run import StudySettings

TRIALS = 20
STORAGE = "sqlite:///runs/tune.sqlite"
Storage = Annotated[str, typer.Option("--storage", metavar="URL", help="Database of the study; postgresql+psycopg://…")]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(tune)


@with_format
def tune(
    target: TargetArgument,
    overrides: SetOption = None,
    search: Annotated[
        list[str] | None,
        typer.Option("--search", metavar="PATH=A,B,…", help="Search this setting too, precision for example. Repeat."),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials of the whole study.")] = TRIALS,
    study: Annotated[str | None, typer.Option("--study", help="Its name; default: the target's.")] = None,
    storage: Storage = STORAGE,
    sampler: Annotated[Literal["tpe", "random"], typer.Option("--sampler", help="Who proposes.")] = "tpe",
    pruner: Annotated[
        Literal["median", "hyperband", "none"], typer.Option("--pruner", help="Who stops trials that lag.")
    ] = "median",
    finalists: Annotated[int, typer.Option("--finalists", min=0, help="Best trials trained anew.")] = 3,
    starts: Annotated[int, typer.Option("--starts", min=1, help="Starting points of each finalist.")] = 3,
    deadline: Annotated[str | None, typer.Option("--deadline", help="Be done in 90s, 30min, 2h or 1h30m.")] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="Dollars at most, over the whole study.")] = None,
    price: Annotated[float | None, typer.Option("--price", help="Dollars an hour of the device here.")] = None,
    dry: Annotated[bool, typer.Option("--forecast-only", help="Price the first trial and stop.")] = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search settings of a recipe or own data; run again, it goes on. Exit code 4: the winner misses a criterion."""
    use_threads(threads)
    from forerun.tune.study_run import StudySettings

    plan = StudySettings(
        target=target, overrides=tuple(overrides or ()), sampler=sampler, pruner=pruner, finalists=finalists,
        starts=starts, search=tuple(search or ()),
    )  # fmt: skip
    limits = _limits(trials, deadline, budget, price, finalists * starts)
    from forerun.ledger.store import open_ledger
    from forerun.tune.study import close_study

    with open_ledger(ledger_url()) as ledger:
        study_search = _open(plan, limits, ledger, study or target.replace("/", "-"), storage)
        try:
            if dry:
                _price_first(study_search, as_json)
            else:
                _search(study_search, plan, as_json)
        finally:
            close_study(study_search.study)


def _search(search: "Search", plan: "StudySettings", as_json: bool) -> None:
    from rich.console import Console

    from forerun.tune.study_run import describe, finish, write_study_page

    err = Console(stderr=True)
    try:
        search.run()
        err.print(f"Search ended by {search.stopped_by}.", highlight=False)
        outcome = finish(search, plan, lambda what: err.print(what, highlight=False))
    except KeyboardInterrupt:
        err.print("Stopped. The same command goes on from there.", highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except NothingFits as error:
        err.print(str(error), style="red", soft_wrap=True, highlight=False, markup=False)
        if as_json:
            print_json(describe(search, plan, [], None).document)
        raise typer.Exit(EXIT_DOES_NOT_FIT) from None
    page = write_study_page(outcome, search)
    if as_json:
        print_json(outcome.document)
    else:
        _show(outcome.tables)
        if outcome.document["reproduce"]:
            typer.echo(f"Reproduce the winner:\n{outcome.document['reproduce']}", err=is_bare())
    err.print(f"Page: {page}", soft_wrap=True, highlight=False)
    if outcome.failure:
        err.print(outcome.failure, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(EXIT_CRITERION_FAILED)


def _open(plan: "StudySettings", limits: "SearchBudget", ledger: "Ledger", name: str, storage: str) -> "Search":
    """The search that a worker runs: study, recipe, data, prices and limits."""
    from forerun.api import request_of, resolve
    from forerun.hardware.detect import detect
    from forerun.runs.registry import load_recipe, recipe_names, searchable
    from forerun.runs.run import RUNS_FOLDER
    from forerun.runs.search_space import asked_dimensions
    from forerun.settings.load import settings_from
    from forerun.tune.pricing import Pricer
    from forerun.tune.proposals import NumberedProposals, without_fixed
    from forerun.tune.search import Search
    from forerun.tune.study import open_study
    from forerun.tune.study_run import BASELINES, fixed_facts, fold_options
    from forerun.verify.recalibrate import with_experience

    base = resolve(plan.target, plan.overrides)
    module = searchable(base)
    if module is None:
        tunable = [each for each in recipe_names() if hasattr(load_recipe(each), "search_space")]
        raise NotSupported(
            f"TARGET: tune needs a recipe that says what can be searched, or a file with data.source; found "
            f"workload={base.workload!r}. Recipes: {', '.join(tunable)}."
        )
    device = detect().device
    extra = asked_dimensions(plan.search, base, device)
    experiment = module.load_experiment(settings_from(base.model_dump(), module.TRIAL))
    own = [d for d in module.search_space(experiment) if d.name not in {each.name for each in extra}]
    space = [*extra, *without_fixed(own, plan.overrides)]
    if not space:
        raise InvalidSettings("--set: every setting that could be searched is fixed. Leave one out.")
    first = module.search_start(experiment)
    start = {d.name: d.values[0] for d in extra} | {d.name: first[d.name] for d in space if d.name in first}
    split = experiment.data.corpus.split_hash if hasattr(experiment.data, "corpus") else ""
    proposals = NumberedProposals(space, start, plan.sampler, base.seed)
    study = open_study(storage, name, fixed_facts(base, plan, split, device.name), proposals, plan.pruner)
    if BASELINES not in study.user_attrs:
        study.set_user_attr(BASELINES, dict(module.baseline_scores(experiment)))

    def ask(settings: "Settings") -> Any:
        request = request_of(settings, device, None)  # all that is imported once is here; a trial starts afresh
        startup = max(experiment.load_seconds, request.times.startup_seconds or 0.0)
        request = replace(request, times=replace(request.times, startup_seconds=startup))
        return with_experience(request, ledger)

    return Search(
        study=study, recipe=module, experiment=experiment, base=base, space=space,
        pricer=Pricer(ask, module, fold_options(base).folds), device=device, ledger=ledger, ledger_url=ledger_url(),
        storage=storage, root=Path(RUNS_FOLDER), pruner=plan.pruner, limits=limits, listener=_Screen(),
    )  # fmt: skip


def _limits(
    trials: int, deadline: str | None, budget: float | None, price: float | None, reserved: int
) -> "SearchBudget":
    from forerun.hardware.detect import detect
    from forerun.plan.limits import budget_of, seconds_of
    from forerun.tune.search import SearchBudget

    hourly = price if price is not None or budget is None else detect().device.price_per_hour
    if budget is not None and hourly is None:
        raise InvalidSettings(
            "--budget: dollars need a price, and the device here has none. Add --price with dollars an hour."
        )
    return SearchBudget(
        trials=trials,
        deadline_seconds=None if deadline is None else seconds_of(deadline),
        budget=None if budget is None else budget_of(budget),
        price_per_hour=hourly,
        reserved_trials=reserved,
    )


class _Screen:
    """Prints each trial's price before it runs, and its score and the remaining time after."""

    def priced(self, number: int, point: Mapping[str, Any], price: "Price") -> None:
        """Print the price of a trial before it runs."""
        from forerun.units import format_bytes, format_seconds

        seconds, memory = price.seconds, price.forecast.memory.device_bytes
        settings = ", ".join(f"{n.rpartition('.')[2]}={_short(v)}" for n, v in point.items())
        cache_note = "" if price.is_traced else ", step known"
        self._say(
            f"[bold]Trial {number}[/bold]: {format_seconds(seconds.expected)} ({format_seconds(seconds.optimistic)} to "
            f"{format_seconds(seconds.conservative)}), {format_bytes(memory.expected)}; priced in "
            f"{format_seconds(price.pricing_seconds)}{cache_note}. {settings}"
        )

    def ended(self, trial: "FrozenTrial", search: "Search") -> None:
        """Print the score of a trial after it ran."""
        from forerun.tune.luck import SPREAD_KNOWN_FROM, expected_gain
        from forerun.tune.results import noise_of
        from forerun.tune.study import completed, finished
        from forerun.units import format_seconds

        notes = trial.user_attrs
        scores = [float(t.value or 0.0) for t in completed(search.study)]
        more = max(0, search.limits.trials - len(finished(search.study)))
        gain = expected_gain(scores, more, noise_of(search.study, ())[0])
        gain_text = f"{gain:.4f}" if gain is not None else f"unknown below {SPREAD_KNOWN_FROM} scores"
        result = (
            f"score {trial.value:.4f}" if trial.value is not None else f"{notes['outcome']} {notes.get('reason', '')}"
        )
        took = f" in {format_seconds(notes['wall_seconds'])}" if "wall_seconds" in notes else ""
        best = f"best {max(scores):.4f}, " if scores else ""
        left = search.remaining()
        self._say(
            f"  {result}{took}. {best}{more} to go: {format_seconds(left.expected)} "
            f"({format_seconds(left.optimistic)} to {format_seconds(left.conservative)}), expected gain {gain_text}"
        )

    @staticmethod
    def _say(text: str) -> None:
        from rich.console import Console

        Console(stderr=True).print(text, soft_wrap=True, highlight=False)


def _price_first(search: "Search", as_json: bool) -> None:
    """Print the forecast of one trial of the settings as they are, and of the whole study."""

    from forerun.settings.load import settings_from
    from forerun.units import format_seconds

    settings = settings_from(search.base.model_dump(), search.recipe.TRIAL)
    price = search.pricer.price(settings, search.costs(), limit_bytes=search.memory_limit())
    runs = search.limits.trials + search.limits.reserved_trials
    whole = {name: value * runs for name, value in price.seconds.model_dump().items()}
    if as_json:
        print_json({"schema": "forerun.tune-forecast/1", "trial_seconds": price.seconds.model_dump(), "runs": runs,
                    "seconds": whole, "fits": price.refusal is None})  # fmt: skip
    else:
        typer.echo(
            f"A trial of these settings takes {format_seconds(price.seconds.expected)}; {runs} runs (trials, and "
            f"finalists from each starting point) {format_seconds(whole['expected'])} ("
            f"{format_seconds(whole['optimistic'])} to {format_seconds(whole['conservative'])}) where none is pruned.",
            err=is_bare(),
        )
    if price.refusal is not None:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _show(tables: "list[ResultTable]") -> None:

    from forerun.report.terminal import result_table

    print_view(*(result_table(table) for table in tables))


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
