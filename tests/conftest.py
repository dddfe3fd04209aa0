"""What holds for every test: none depends on how fast the machine is, or on what else runs there."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Whether a line of progress appears depends on how fast a command is.
os.environ["TRAINYARD_PROGRESS"] = "off"
