"""Plan a training step for a cluster that you do not have.

The model is captured without memory for its weights, so a laptop plans for hundreds of GPUs.
"""

import trainyard as ty

model = ty.load_model("gpt3-1.3b", rows=128)
found = ty.plan(model, "2x8xA100-80G", dtype="bfloat16")

print(found.plan.explain())
print(f"predicted step: {found.simulation.step_s:.2f} s")
for other in found.runners_up[:3]:
    print(f"considered: {other.name}: {other.step_s:.2f} s")
