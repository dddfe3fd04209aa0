"""How a step is traced: the user's code runs on stand-ins, its graph is cleaned, what cannot be trained is refused."""
