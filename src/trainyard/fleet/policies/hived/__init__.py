"""HiveD: what its policy is made of: cells, virtual clusters, and which cell is bound to which."""
