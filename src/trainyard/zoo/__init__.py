"""Real models, a screen each, by name; their initial weights, and text to train on."""

from trainyard.zoo.initial import initial_value
from trainyard.zoo.registry import build, names
from trainyard.zoo.text import TextBatches, standard_library
from trainyard.zoo.user import load_model_file

__all__ = ["TextBatches", "build", "initial_value", "load_model_file", "names", "standard_library"]
