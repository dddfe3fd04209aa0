"""Level 3: many requests on many models."""
