"""How long steps of a model take on devices: what a step launches, and the seconds of each kernel."""
