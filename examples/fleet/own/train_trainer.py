"""The Trainer of Hugging Face in a script that is a job of a fleet: told to end, it saves, and later goes on from there.

jobs.yaml beside this file has it as a job. It needs transformers and accelerate.
"""

import signal
import sys
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from trainyard.fleet import progress

STEPS, ROWS = 60, 4


class Fleet(TrainerCallback):
    """Tells the fleet how far this is, and saves and stops when the fleet says so."""

    told_to_end = False

    def on_step_end(self, args, state, control, **_):
        """After every step."""
        time.sleep(0.1)  # as if the model were larger
        loss = state.log_history[-1].get("loss") if state.log_history else None
        progress.report(state.global_step, loss)
        if self.told_to_end:
            control.should_save = control.should_training_stop = True


def main():
    fleet = Fleet()
    signal.signal(signal.SIGTERM, lambda *_: setattr(fleet, "told_to_end", True))
    folder = progress.job_dir() or Path("trained")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    texts = torch.randint(64, (STEPS * ROWS, 16), generator=torch.Generator().manual_seed(1))
    arguments = TrainingArguments(
        str(folder / "checkpoints"),
        per_device_train_batch_size=ROWS,
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, arguments, train_dataset=[{"input_ids": t, "labels": t} for t in texts], callbacks=[fleet]
    )
    before = Path(arguments.output_dir)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(before)) if before.is_dir() else None)
    if trainer.state.global_step < STEPS:
        sys.exit(143)
    trainer.save_model(str(folder / "model"))


main()
