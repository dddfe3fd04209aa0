"""Many models on one cluster: which are on which devices by a policy of placement, and how well that serves."""
