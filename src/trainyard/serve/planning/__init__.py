"""Planning: the fewest devices on which a model meets the objectives of requests."""
