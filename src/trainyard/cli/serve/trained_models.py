"""Export models that `trainyard train` trained, so that `trainyard serve run` serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trainyard.serve.errors import ServeError

__all__ = ["with_trained_models"]


def with_trained_models(
    models: Mapping[str, str], file: Path | None, folder: Path, say: Callable[[str], None]
) -> dict[str, str]:
    """Export the models of runs and checkpoints, and return all models with the folders of the exports.

    Parameters
    ----------
    models : folders, or names of the zoo, by the name that requests use.
    file : Python file that models were trained from; None if they are of the zoo.
    folder : an empty folder for the exports.
    say : prints of each export the run and step that it comes from.

    Raises
    ------
    ServeError
        If a checkpoint is damaged or has no language model, or the file is of none of the models.
    """
    from trainyard.job.run.checkpoint.saved import read_about
    from trainyard.job.run.errors import CheckpointError
    from trainyard.serve.run.trained.export import checkpoint_in, is_trained_from_file, save_trained_model

    found, needs_file = dict(models), False
    try:
        for name, model in models.items():
            checkpoint = checkpoint_in(Path(model)) if Path(model).is_dir() else None
            if checkpoint is None:
                continue
            of_file = is_trained_from_file(read_about(checkpoint))
            needs_file |= of_file
            trained = save_trained_model(
                checkpoint, folder / str(len(found)) / name, file if of_file else None
            )
            found[name] = str(trained.folder)
            say(f"{name} is {trained.note}")
    except CheckpointError as error:
        raise ServeError(str(error)) from error
    if file is not None and not needs_file:
        raise ServeError(f"--model-file {file}: no model given was trained from a Python file; leave it out")
    return found
