"""A command in this process, as from a shell."""

from forerun.cli.main import main


def run_command(monkeypatch, capfd, *arguments):
    """Exit code, stdout and stderr of `forerun ARGUMENTS`."""
    monkeypatch.setattr("sys.argv", ["forerun", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    out, err = capfd.readouterr()
    return code, out, err
