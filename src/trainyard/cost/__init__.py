"""How long and how big: seconds of ops and collectives."""
