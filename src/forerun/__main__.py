"""`python -m forerun`."""

from forerun.cli.main import main

if __name__ == "__main__":
    main()
