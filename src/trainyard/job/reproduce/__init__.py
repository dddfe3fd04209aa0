"""The papers' numbers beside ours, for ``trainyard reproduce``.

Every system of the catalog has a module here, named as its entry, that declares ``TABLES``: what the paper prints,
and how ours are computed. A number is here only if it is in the paper; ours are formulas that the claim tests hold
against lowered plans, counts on the models that are planned, dry runs of schedules, or simulated plans.
"""
