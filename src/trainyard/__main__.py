"""Run the command line by ``python -m trainyard``, where the command ``trainyard`` is not on the PATH."""

from trainyard.cli.main import run

__all__: list[str] = []

if __name__ == "__main__":
    run()
