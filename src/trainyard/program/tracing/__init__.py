"""How a step is traced: the user's code runs on stand-ins, and its graph is cleaned."""
