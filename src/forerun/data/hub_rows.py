"""Data sets of the Hugging Face hub, through the package datasets."""

from typing import Any

from forerun.errors import BadData, MissingExtra

FIRST_WITHOUT_SCRIPTS = 4
"""Major version of datasets from which on it never runs a script that lies beside a data set (2.x does, unasked)."""


def load_from_hub(name: str, *configuration: str, **options: Any) -> Any:
    """Load a data set, perhaps in one configuration, by `datasets.load_dataset`.

    Raises:
        MissingExtra: the package datasets is not installed, or so old that it runs code of data sets.
        BadData: the hub could not give it.
    """
    try:
        from datasets import __version__, load_dataset  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra(
            f"data.source: {name} is on the Hugging Face hub, which needs the package datasets. "
            f"Install it with pip install 'forerun[hub]', or give a local file."
        ) from error
    if int(__version__.partition(".")[0]) < FIRST_WITHOUT_SCRIPTS:
        raise MissingExtra(
            f"data.source: {name} is on the Hugging Face hub; datasets {__version__} may run code that lies beside "
            f"data, which forerun never does. Install a newer one with pip install 'datasets>={FIRST_WITHOUT_SCRIPTS}'."
        )
    try:
        return load_dataset(name, *configuration, **options)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadData(
            f"data.source: the hub could not give {':'.join((name, *configuration))}: {reason} "
            f"Go online, or give a local file."
        ) from error
