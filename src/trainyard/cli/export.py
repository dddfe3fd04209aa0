"""`trainyard export`: write the trained weights of a checkpoint for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from trainyard.cli.extras import needing_extra
from trainyard.cli.outputs import writing
from trainyard.cli.quantities import Size
from trainyard.cli.screen import Common, Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Write the trained weights of a checkpoint of any plan and number of processes, for other programs."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A checkpoint, or the folder of a run, of which the newest complete one is taken."""
    to: Annotated[Literal["safetensors", "state-dict", "huggingface"], tyro.conf.arg(metavar="FORM")]
    """safetensors: a folder with model.safetensors. state-dict: a file for torch.load and load_state_dict. huggingface: a
    folder that from_pretrained of transformers loads."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """New folder, or new file of a state dict; by default it is named after the checkpoint, in this folder."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """For huggingface: folder with the model's config.json. By default it is the one that was trained."""
    ema: bool = False
    """Write the moving average of the parameters in their place, of a run with --ema-decay."""
    max_shard_size: Size = 5 * 10**9
    """Most bytes of a file of safetensors; more weights are in several files with an index."""


def act(options: Options, screen: Screen) -> Outcome:
    """Export."""
    from trainyard.job.plan import parse_plan
    from trainyard.job.run.checkpoint.saved import checkpoint_in, read_about

    if options.config is not None and options.to != "huggingface":
        raise ValueError(f"--config {options.config}: of --to huggingface; leave it out")
    checkpoint = checkpoint_in(options.checkpoint)
    if checkpoint is None:
        raise ValueError(
            f"{options.checkpoint} has no checkpoint; give the folder of a run, or a checkpoint in it such as "
            f"{options.checkpoint}/step-00000100"
        )
    about = read_about(checkpoint)
    model = parse_plan(about.plan).model
    suffix = ".pt" if options.to == "state-dict" else ""
    output = options.output or Path(f"{checkpoint.parent.name}-{checkpoint.name}{suffix}")
    with screen.waiting(f"exporting {checkpoint}"), writing("weights", output):
        files = _written(options, checkpoint, model, output)
    num_bytes = sum(file.stat().st_size for file in files)
    document = {
        "checkpoint": str(checkpoint),
        "step": about.step,
        "output": str(output),
        "files": [str(file) for file in files],
        "file_bytes": num_bytes,
    }
    return Outcome(document, (_told(about.step, output, len(files), num_bytes),))


def _told(step: int, output: Path, num_files: int, num_bytes: int) -> str:
    from trainyard.report.units import bytes_text, count_text

    return f"step {step} in {output}: {count_text(num_files, 'file')} of weights, {bytes_text(num_bytes)}"


def _written(options: Options, checkpoint: Path, model: str, output: Path) -> list[Path]:
    """Write the weights; return their files."""
    from trainyard.job.run.export.weight_files import (
        export_safetensors,
        export_state_dict,
        new_path,
        read_state_dict,
    )

    state = read_state_dict(checkpoint, options.ema)
    if options.to == "safetensors":
        return export_safetensors(state, output, options.max_shard_size)
    if options.to == "state-dict":
        return [export_state_dict(state, output)]
    with needing_extra("export --to huggingface", "server"):
        from trainyard.job.run.export.hugging_face import export_hugging_face
        from trainyard.serve.errors import ServeError
        from trainyard.serve.run.trained.export import save_trained_model

        # The name alone does not tell: a user may call a model of transformers gpt2, too.
        if options.config is None and state.transformers_config is None and _is_of_zoo(model):
            try:
                with new_path(output) as place:
                    save_trained_model(checkpoint, place, None, options.max_shard_size, options.ema)
            except ServeError as error:
                raise ValueError(
                    f"{checkpoint} has no form in transformers ({error}); export with --to safetensors"
                ) from error
            return sorted(output.glob("*.safetensors"))
        return export_hugging_face(state, output, options.config, options.max_shard_size)


def _is_of_zoo(model: str) -> bool:
    """Return whether a model is one of Trainyard's own, whose weights have other names in transformers."""
    from trainyard.user_file import is_config
    from trainyard.zoo.registry import names

    return model in names() or is_config(model)
