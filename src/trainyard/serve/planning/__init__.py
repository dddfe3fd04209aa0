"""The fewest devices on which a model serves requests as fast as they are to be served."""
