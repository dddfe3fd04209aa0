"""Ops at the end of a step: what a rank does with the gradients, the parameters and the losses that it keeps.

They are names, as those of `trainyard.program.spmd`, and take the names of buckets. ``signatures`` says what each means,
and a rank's methods of the same names run them. What is started is waited for by the op of the same subject.
"""

from __future__ import annotations

from trainyard.program.spmd import unbound

wait_sends = unbound("wait_sends")
finish_accumulation = unbound("finish_accumulation")

# Of the losses, by their names, over all ranks.
start_losses = unbound("start_losses")
wait_losses = unbound("wait_losses")

# Of gradients: those of the other buckets of one rank are added to a bucket's, or become the same; a bucket's are summed
# over the stages that share its parameters; the ranks with terms of them sum them, and may keep a part each.
add_grads = unbound("add_grads")
copy_grads = unbound("copy_grads")
sum_over_stages = unbound("sum_over_stages")
start_reduction = unbound("start_reduction")
wait_reduction = unbound("wait_reduction")

# Of all gradients: the square of their norm on this rank, its sum over all ranks, and the update.
squared_norm = unbound("squared_norm")
sum_over_ranks = unbound("sum_over_ranks")
update_parameters = unbound("update_parameters")

# In a step of several updates, of the buckets of one stage: go on with a copy of the weights, since microbatches in
# flight need them as they were; and the update, by the mean loss of some of the microbatches. At the end of such a
# step: the mean of the squares of the norms of all updates, and what the step reports.
keep_weights = unbound("keep_weights")
update_stage = unbound("update_stage")
mean_squared_norm = unbound("mean_squared_norm")
finish_updates = unbound("finish_updates")

# Of parameters, after the update: in the type in which they are computed with, and whole.
convert_weights = unbound("convert_weights")
start_weights = unbound("start_weights")
wait_weights = unbound("wait_weights")
