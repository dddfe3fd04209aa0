"""A load generator: requests of a trace are sent to a server with the API of OpenAI, and its answers are timed."""
