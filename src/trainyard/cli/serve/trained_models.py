"""Export models that `trainyard train` trained, so that `trainyard serve run` serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trainyard.cli.serve.possible_models import made_for_each
from trainyard.serve.errors import ServeError

__all__ = ["with_trained_models"]


def with_trained_models(
    models: Mapping[str, str],
    file: Path | None,
    folder: Path,
    say: Callable[[str], None],
    failed: dict[str, str],
) -> dict[str, str]:
    """Export the models of runs and checkpoints, and return all models with the folders of the exports.

    Parameters
    ----------
    models : folders, or names of the zoo, by the name that requests use.
    file : Python file that models were trained from; None if they are of the zoo.
    folder : an empty folder for the exports.
    say : prints of each export the run and step that it comes from.
    failed : gets why a model cannot be exported, by name.

    Raises
    ------
    ServeError
        If no model can be exported, as where a checkpoint is damaged or has no language model; or the file is of none of
        the models.
    """
    from trainyard.job.run.checkpoint.saved import read_about
    from trainyard.job.run.errors import CheckpointError
    from trainyard.serve.run.trained.export import checkpoint_in, is_trained_from_file, save_trained_model

    needs_file = False

    def exported(name: str, model: str) -> str:
        nonlocal needs_file
        checkpoint = checkpoint_in(Path(model)) if Path(model).is_dir() else None
        if checkpoint is None:
            return model
        try:
            of_file = is_trained_from_file(read_about(checkpoint))
            needs_file |= of_file
            trained = save_trained_model(
                checkpoint, folder / str(len(models)) / name, file if of_file else None
            )
        except CheckpointError as error:
            raise ServeError(str(error)) from error
        say(f"{name} is {trained.note}")
        return str(trained.folder)

    found = {**models, **made_for_each(models, exported, failed)}
    if file is not None and not needs_file:
        raise ServeError(f"--model-file {file}: no model given was trained from a Python file; leave it out")
    return found
