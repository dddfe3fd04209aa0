"""Compare published strategies on the same model and the same cluster."""

import trainyard as ty

model = ty.load_model("gpt2", rows=32)
strategies = ("data_parallel", "zero(stage=3)", "megatron", "auto")

results = ty.compare(model, "1x8xV100-32G@100Gb", strategies, dtype="float16")
for name, found in zip(strategies, results, strict=True):
    if isinstance(found, ty.Infeasible):
        print(f"{name:15} no plan: {found.reason}")
    else:
        print(f"{name:15} {1000 * found.simulation.step_s:7.1f} ms a step")
